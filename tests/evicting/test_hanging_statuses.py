"""Webhooks on the statuses of pods that do not answer hold up no eviction."""

import asyncio

from tests.evicting.eviction_scenes import eviction_scene
from tests.evicting.moving_pods import eviction, moving
from tests.kube.owner_objects import create_ray_cluster
from tests.kube.virtual import now, virtual_time
from tests.kube.world import world
from topo_scheduler.kube.writing.pod_status import RETRY_SECONDS
from topo_scheduler.recovery.controller.runner import EVICTIONS_IN_FLIGHT_OF_NAMESPACE
from topo_scheduler.runtime.evicting import EVICTIONS_OF_NAMESPACE
from topo_scheduler.simulation.apiserver import Delay


@virtual_time
async def test_all_victims_are_evicted_at_once_though_no_status_can_be_written() -> None:
    size = 4 * EVICTIONS_OF_NAMESPACE
    async with world() as w, eviction_scene(w, create_ray_cluster(w), size) as e:
        w.server.faults.add(Delay(60.0), resource="pods/status")
        assert e.decide() == size
        await asyncio.sleep(1)
        assert (e.evictions, e.running) == (size, 0)


@virtual_time
async def test_a_migration_goes_on_though_it_can_not_be_written_that_its_pods_have_failed() -> None:
    async with world() as w:
        runner, machine = moving(w)
        rule = w.server.faults.add(Delay(60.0), resource="pods/status")
        forced = [eviction(w, f"p{number}", force=True) for number in range(8)]
        tasks = [asyncio.create_task(runner._executor.evict(instruction)) for instruction in forced]
        await asyncio.sleep(1)
        assert {uid for _, uid in machine.ended} == {instruction.pod.uid for instruction in forced}
        # They are there because of their finalizers, and evicted again while that is still being written.
        asked = w.asked("patch", "pods/status")
        await asyncio.gather(*(runner._executor.evict(instruction) for instruction in forced))
        assert w.asked("patch", "pods/status") == asked
        w.server.faults.remove(rule)
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert all(task.done() for task in tasks)
        assert {w.pod(instruction.pod.name).status.phase for instruction in forced} == {"Failed"}


@virtual_time
async def test_evictions_that_a_namespace_does_not_let_through_do_not_hold_up_migrations_of_others() -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}}, "")
        runner, machine = moving(w)
        w.server.faults.add(
            Delay(60.0), resource="pods/eviction", where=lambda info: "/namespaces/hostile/" in info.path
        )
        hostile = [eviction(w, f"h{number}", "hostile") for number in range(40)]
        tasks = [asyncio.create_task(runner._executor.evict(instruction)) for instruction in hostile]
        await asyncio.sleep(1)
        assert w.asked("create", "pods/eviction") == EVICTIONS_IN_FLIGHT_OF_NAMESPACE
        began = now()
        await runner._executor.evict(eviction(w, "mine"))
        assert now() - began < 1 and len(machine.ended) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
