"""What a daemon measures agrees with what happens to it, whichever replica leads."""

from operator import sub
from typing import Any

import pytest

from tests.e2e import objects
from tests.observability.samples import Sample, samples
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.simulation.apiserver import Delay, Json, Refuse
from topo_scheduler.simulation.apiserver.pods import bind

from .running import virtually
from .wire import LATENCY
from .world import ELECTED, Process, World, cluster, configured


def metric(process: Process, name: str, **labels: str) -> float:
    """Return what a scrape shows under a name that begins as all do; 0 where it is not counted yet."""
    key: Sample = (f"topology_scheduler_{name}", tuple(sorted(labels.items())))
    return samples(process.daemon.metrics).get(key, 0.0)


def foreign(world: World, name: str, node: str, **requests: str) -> None:
    """Another scheduler binds a pod that requests this and runs on."""
    pod = objects.pod(name, 0, scheduler="other")
    pod["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
    world.store.create("pods", pod, "default")
    bind(world.store, "default", name, {"metadata": {"name": name}, "target": {"name": node}})


def shrink(world: World, node: str, **amounts: str) -> None:
    """A node has less than before."""

    def change(obj: Json) -> Json:
        status = obj["status"]
        return {**obj, "status": {**status, "allocatable": {**status["allocatable"], **amounts}}}

    world.store.modify("nodes", node, "", change, subresource="status")


@virtually
async def test_only_the_replica_that_schedules_shows_that_it_leads() -> None:
    async with cluster() as world:
        world.server.faults.add(Delay(5.0), verb="list", resource="nodes", times=1)
        first = world.start(configured(ELECTED))
        await world.until(lambda: first.daemon.term is not None)
        assert metric(first, "leader") == 0, "it holds the Lease, and does not know the nodes yet"
        await world.leading()
        second = world.start(configured(ELECTED))
        await world.run(5.0)
        assert (metric(first, "leader"), metric(second, "leader")) == (1, 0)
        await first.end()
        await world.until(lambda: second.leads)
        assert (metric(first, "leader"), metric(second, "leader")) == (0, 1)


@virtually
async def test_binds_are_in_flight_until_they_are_answered_and_both_durations_are_theirs() -> None:
    async with cluster() as world:
        daemon = world.start(configured())
        await world.leading()
        world.server.faults.add(Delay(1.5), verb="create", resource="pods/binding")
        world.gang("g", 3)
        await world.until(lambda: metric(daemon, "binds_in_flight"))
        assert metric(daemon, "binds_in_flight") == 3
        await world.until(lambda: world.whole("g"))
        await world.run(1.0)
        assert metric(daemon, "binds_in_flight") == 0
        bound: dict[str, Any] = {"outcome": "bound"}
        assert metric(daemon, "bind_duration_seconds_count", **bound) == 3
        assert 4.5 < metric(daemon, "bind_duration_seconds_sum", **bound) < 4.5 + 20 * LATENCY
        assert metric(daemon, "latency_seconds_count") == 3
        assert 4.5 < metric(daemon, "latency_seconds_sum") < 4.5 + 3 * 1.0


@virtually
async def test_what_is_refused_is_no_latency_and_counts_under_its_outcome() -> None:
    async with cluster() as world:
        daemon = world.start(configured())
        await world.leading()
        world.server.faults.add(Refuse(403, message="a policy"), verb="create", resource="pods/binding", times=1)
        world.replicas("alone", 1)
        await world.until(lambda: world.nodes_of("alone"))
        await world.run(1.0)
        assert metric(daemon, "bind_duration_seconds_count", outcome="rejected") == 1
        assert metric(daemon, "bind_duration_seconds_count", outcome="bound") == 1
        assert metric(daemon, "latency_seconds_count") == 1


@virtually
async def test_migrations_count_while_they_are_under_way() -> None:
    async with cluster({"s1/l1": 3, "s1/l2": 3}) as world:
        daemon = world.start(configured())
        await world.leading()
        for name in ("a", "b"):
            world.replicas(name, 1, gpus=8)
        await world.until(lambda: world.nodes_of("a") and world.nodes_of("b"))
        async with world.controllers_stand():
            for pod in world.pods(bound=True):
                world.request(f"move-{pod['metadata']['name']}", pod["metadata"]["name"])
            await world.until(lambda: world.phases() == ["Placing"] * 2)
            assert metric(daemon, "migrations") == 2
        await world.until(lambda: world.phases() == ["Done"] * 2)
        await world.run(1.0)
        assert metric(daemon, "migrations") == 0


@virtually
async def test_the_durations_of_migrations_and_of_their_phases_are_those_of_their_statuses() -> None:
    async with cluster({"s1/l1": 3, "s1/l2": 3}) as world:
        daemon = world.start(configured())
        await world.leading()
        world.replicas("a", 1, gpus=8)
        await world.until(lambda: world.nodes_of("a"))
        async with world.controllers_stand():
            world.request("move", *(pod["metadata"]["name"] for pod in world.pods(bound=True)))
            await world.until(lambda: world.phases() == ["Placing"])
            await world.run(30.0)
        await world.until(lambda: world.phases() == ["Done"])
        await world.run(1.0)
        moved = world.migrations()["move"]
        began = {phase: seconds_of(time) or 0.0 for phase, time in moved["status"]["times"].items()}
        times = sorted(began.values())
        spent = dict(zip(sorted(began, key=lambda phase: began[phase]), map(sub, times[1:], times), strict=False))
        assert list(spent)[-1] == "Placing" and spent["Placing"] > 30.0
        recovery = "recovery_duration_seconds"
        for phase, seconds in spent.items():
            assert metric(daemon, f"{recovery}_count", phase=phase) == 1
            assert metric(daemon, f"{recovery}_sum", phase=phase) == pytest.approx(seconds, abs=1e-3)
        whole = began["Done"] - (seconds_of(moved["metadata"]["creationTimestamp"]) or 0.0)
        shown = samples(daemon.daemon.metrics)
        labels = (("cause", "Requested"), ("outcome", "Done"))
        assert shown["topology_recovery_duration_seconds_count", labels] == 1
        assert shown["topology_recovery_duration_seconds_sum", labels] == pytest.approx(whole, abs=1e-3)


@virtually
async def test_the_longest_wait_is_that_of_the_oldest_pending_pod() -> None:
    async with cluster({"s1/l1": 1}) as world:
        daemon = world.start(configured())
        await world.leading()
        world.replicas("first", 1, gpus=16)
        await world.run(100.0)
        world.replicas("second", 1, gpus=16)
        await world.run(20.0)
        assert 119.0 <= metric(daemon, "longest_wait_seconds", queue="unschedulable") <= 121.0


@virtually
async def test_the_time_to_compile_kernels_is_shown_as_it_was_measured() -> None:
    async with cluster() as world:
        daemon = world.start(configured())
        await world.leading()
        warmth = daemon.daemon.warmth
        assert warmth is not None and metric(daemon, "kernel_warmup_seconds") == warmth.seconds > 0


@virtually
async def test_nodes_that_hold_more_than_they_have_are_counted_once_each() -> None:
    """One lacks CPU, one CPU and memory; one is just full."""
    async with cluster({"s1/l1": 4}) as world:
        daemon = world.start(configured())
        await world.leading()
        for number in (1, 2, 3):
            foreign(world, f"f-{number}", f"s1-l1-{number}", cpu="4", memory="4Gi")
        await world.run(1.0)
        assert metric(daemon, "oversubscribed_nodes") == 0
        shrink(world, "s1-l1-1", cpu="3")
        shrink(world, "s1-l1-2", cpu="2", memory="2Gi")
        shrink(world, "s1-l1-3", cpu="4", memory="4Gi")
        await world.run(1.0)
        assert metric(daemon, "oversubscribed_nodes") == 2


@virtually
async def test_the_largest_gang_is_shown_for_whole_nodes_and_for_typical_members() -> None:
    """Most GPUs are used by pods of 2: three more fit on each node of theirs, and four on each node that is free."""
    async with cluster({"s1/l1": 4}) as world:
        daemon = world.start(configured())
        await world.leading()
        world.gang("small", 2, gpus=2)
        await world.until(lambda: world.whole("small"))
        used = len(set(world.nodes_of("small")))
        await world.run(1.0)
        shown = {
            member: metric(daemon, "largest_gang_gpus", level="leaf", model="", member=member)
            for member in ("node", "typical")
        }
        assert shown == {"node": 8 * (4 - used), "typical": 8 * 4 - 4}


@virtually
async def test_latency_counts_from_when_a_pod_was_first_seen_not_from_the_decision() -> None:
    async with cluster({"s1/l1": 3}) as world:
        daemon = world.start(configured())
        await world.leading()
        world.gang("g", 4)
        await world.run(20.0)
        world.add_fabric({"s1/l2": 4})
        await world.until(lambda: world.whole("g"))
        await world.run(1.0)
        assert metric(daemon, "latency_seconds_count") == 4
        assert metric(daemon, "latency_seconds_sum") > 4 * 19.0
