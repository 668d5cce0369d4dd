"""Two replicas: one falls, or falls asleep, in mid-gang or mid-migration, and their clocks do not agree."""

import pytest

from tests.e2e import objects
from topo_scheduler.simulation.apiserver import BreakWatch, Delay

from .invariants import no_gpu_twice, no_partially_bound_gang, settled
from .running import virtually
from .world import ELECTED, LEAVES, Process, World, cluster, configured

SKEWS = (-7200.0, -300.0, 300.0, 7200.0)
"""Seconds by which the second replica's clock is ahead."""


async def _pair(world: World, skew: float = 0.0, **recovery: object) -> tuple[Process, Process]:
    """A leader and a standby."""
    first = world.start(configured(ELECTED, **recovery))
    await world.leading()
    second = world.start(configured(ELECTED, **recovery), skew=skew)
    await world.run(5.0)
    assert first.leads and not second.leads
    return first, second


async def _one_gang(world: World) -> str:
    """Have a gang run; return the node of its second member."""
    world.gang("g", 3)
    await world.until(lambda: world.whole("g"))
    return world.nodes_of("g")[1]


def _cut_at(process: Process, write: int, *, asleep: bool = False) -> None:
    """Have a process fall, or fall asleep, at its write of this number from now."""
    knife = process.wire.knife
    knife.count, knife.write = 0, write
    if asleep:
        knife.kill = process.sleep


def _one_leaf(world: World, name: str) -> bool:
    return len({node.rpartition("-")[0] for node in world.nodes_of(name)}) == 1


@pytest.mark.parametrize("bound", range(4))
@virtually
async def test_a_leader_falls_while_a_gang_is_partially_bound(bound: int) -> None:
    async with cluster() as world:
        first, second = await _pair(world)
        _cut_at(first, bound)
        first.wire.knife.after = True
        world.gang("g", 4)
        await world.until(lambda: first.killed)
        await first.bury()
        await world.until(lambda: second.leads and world.whole("g"), 120.0)
        assert _one_leaf(world, "g")
        await settled(world)


@pytest.mark.parametrize("write", range(8))
@pytest.mark.parametrize("skew", SKEWS)
@virtually
async def test_a_leader_falls_in_mid_migration_and_the_next_has_another_clock(skew: float, write: int) -> None:
    """Neither are seats given back at once, nor is anything held for ever."""
    async with cluster({"s1/l1": 4, "s1/l2": 4}) as world:
        first, second = await _pair(world, skew)
        lost = await _one_gang(world)
        await world.run(3.0)
        _cut_at(first, write)
        world.fail(lost)
        await world.until(lambda: first.killed)
        await first.bury()
        planned = [
            migration["status"]["toNodes"]
            for migration in world.migrations().values()
            if "Reserving" in _times(migration)
        ]
        await world.until(lambda: second.leads and world.whole("g") and set(world.phases()) == {"Done"}, 150.0)
        if planned:
            assert planned[0] in world.nodes_of("g"), "the next leader keeps the seat that was held"
        assert _one_leaf(world, "g")
        await settled(world)


def _times(migration: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    return (migration.get("status") or {}).get("times") or {}


@pytest.mark.parametrize("skew", SKEWS)
@virtually
async def test_reserved_nodes_that_no_pod_takes_are_kept_for_a_while_and_given_back_whatever_the_clock_says(
    skew: float,
) -> None:
    async with cluster({"s1/l1": 2}) as world:
        first, second = await _pair(world, skew, reservation_timeout=300.0)
        world.replicas("alone", 1, gpus=8)
        await world.until(lambda: world.nodes_of("alone"))
        (pod,) = world.pods(bound=True)
        async with world.controllers_stand():
            world.request("move", pod["metadata"]["name"])
            await world.until(lambda: world.phases() == ["Placing"])
            await first.kill()
            await world.until(lambda: second.leads)
            began = world.loop.time()
            await world.run(50.0)
            assert len(second.engine.preempting.replacements) == 1, "not given back at once"
            await world.until(lambda: world.phases() == ["Failed"], 900.0, step=1.0)
            assert world.loop.time() - began < 310.0, "no longer than nodes are reserved"
            assert not second.engine.preempting.replacements


@pytest.mark.parametrize("write", range(10))
@virtually
async def test_a_leader_that_sleeps_in_mid_migration_wakes_up_late_and_does_no_harm(write: int) -> None:
    """It goes on where it was: what it was about to send it sends, a minute after the other has taken over."""
    async with cluster() as world:
        first, second = await _pair(world)
        lost = await _one_gang(world)
        await world.run(3.0)
        _cut_at(first, write, asleep=True)
        world.fail(lost)
        await world.until(lambda: first.stopped)
        await world.until(lambda: second.leads and world.whole("g") and set(world.phases()) == {"Done"}, 150.0)
        after = world.nodes_of("g")
        first.wake()
        for _ in range(60):
            await world.run(1.0)
            no_gpu_twice(world)
            no_partially_bound_gang(world)
        assert world.nodes_of("g") == after, "no pod is moved again"
        assert second.leads and not first.leads
        await settled(world)


@pytest.mark.parametrize("write", range(6))
@virtually
async def test_a_leader_that_sleeps_while_it_binds_a_gang_wakes_up_late_and_binds_no_pod(write: int) -> None:
    async with cluster() as world:
        first, second = await _pair(world)
        _cut_at(first, write, asleep=True)
        world.gang("g", 4)
        world.gang("h", 2)
        await world.until(lambda: first.stopped)
        await world.until(lambda: second.leads and world.whole(), 150.0)
        after = world.nodes_of("g"), world.nodes_of("h")
        first.wake()
        for _ in range(40):
            await world.run(0.5)
            no_gpu_twice(world)
        assert (world.nodes_of("g"), world.nodes_of("h")) == after
        await settled(world)


@pytest.mark.parametrize("write", range(8))
@virtually
async def test_an_api_server_that_is_away_for_a_minute_in_mid_migration(write: int) -> None:
    async with cluster() as world:
        first = world.start(configured())
        await world.leading()
        lost = await _one_gang(world)
        await world.run(3.0)
        knife = first.wire.knife
        knife.count, knife.write, knife.kill = 0, write, world.server.go_dark
        world.fail(lost)
        await world.until(lambda: world.server.down)
        await world.run(60.0)
        world.server.down = False
        await world.until(lambda: world.whole("g") and set(world.phases()) == {"Done"}, 150.0)
        assert first.leads
        assert _one_leaf(world, "g")
        await settled(world)


@virtually
async def test_a_minute_without_a_server_while_gangs_are_bound_and_nodes_fail() -> None:
    """With a Lease: it is lost meanwhile, and won again."""
    async with cluster(LEAVES) as world:
        first, second = await _pair(world)
        await _one_gang(world)
        world.gang("h", 4)
        await world.run(0.01)
        world.server.go_dark()
        await world.run(30.0)
        assert not first.daemon.leading.is_set() and not second.daemon.leading.is_set()
        world.fail(world.nodes_of("g")[0])
        await world.run(30.0)
        world.server.down = False
        await world.until(lambda: world.leader is not None and world.whole(), 200.0)
        await settled(world)


async def _binding_under_way(world: World, first: Process) -> str:
    """Have a leader fall asleep with a Binding in the API server's hands, and its Lease be deleted; return the pod.

    Its node has room for one such pod, and another pod waits that comes first for a leader that decides again.
    """
    world.gang("touched", 1)
    await world.until(lambda: world.whole("touched"))
    slow = world.server.faults.add(Delay(1.5), verb="create", resource="pods/binding", times=1)
    world.store.create("pods", objects.pod("late", 8), "default")
    await world.until(lambda: slow.struck, step=0.01)
    first.sleep()
    urgent = {"metadata": {"name": "urgent"}, "value": 1_000, "preemptionPolicy": "Never"}
    world.store.create("priorityclasses.scheduling.k8s.io", urgent)
    world.store.create("pods", objects.pod("urgent", 8, priorityClassName="urgent"), "default")
    world.store.delete("leases.coordination.k8s.io", "topology-scheduler", "kube-system")
    return "late"


def _node(world: World, pod: str) -> str:
    return str(world.store.get("pods", pod, "default").obj["spec"].get("nodeName", ""))


@pytest.mark.parametrize("silent", [False, True], ids=["watch", "silent watch"])
@virtually
async def test_a_replica_that_finds_no_lease_but_bound_pods_decides_when_a_binding_under_way_has_landed(
    silent: bool,
) -> None:
    """Also where its watch of pods says nothing of it: it lists them again."""
    async with cluster({"s1/l1": 2}) as world:
        first = world.start(configured(ELECTED))
        await world.leading()
        late = await _binding_under_way(world, first)
        second = world.start(configured(ELECTED))
        await world.run(0.5)
        assert not second.leads and not _node(world, late)
        if silent:
            assert world.server.break_watches(BreakWatch("silence"), "pods")
        await world.until(lambda: second.leads, 30.0)
        await world.run(5.0)
        assert _node(world, late)
        no_gpu_twice(world)
        assert not _node(world, "urgent")


@virtually
async def test_a_replica_that_finds_neither_a_lease_nor_traces_of_a_leader_decides_at_once() -> None:
    async with cluster({"s1/l1": 2}) as world:
        world.gang("g", 2)
        world.start(configured(ELECTED))
        await world.until(lambda: world.whole("g"), 3.0)


@virtually
async def test_a_lease_that_ran_out_is_followed_without_a_further_wait() -> None:
    async with cluster() as world:
        first, second = await _pair(world)
        await _one_gang(world)
        await first.kill()
        killed = world.loop.time()
        world.gang("h", 3)
        await world.until(lambda: world.whole("h"), 40.0)
        assert second.leads
        assert 13.0 < world.loop.time() - killed < ELECTED.lease_duration + 2.0


@virtually
async def test_a_lease_that_was_lost_for_a_minute_is_followed_at_once_when_the_server_is_back() -> None:
    async with cluster() as world:
        world.start(configured(ELECTED))
        await world.leading()
        await _one_gang(world)
        world.server.go_dark()
        await world.run(60.0)
        world.gang("h", 3)
        world.server.down = False
        await world.until(lambda: world.whole("h"), 6.0)


@virtually
async def test_the_first_leader_binds_at_once() -> None:
    """No sleep stands between a start and the first bind, where pods show no trace of an earlier leader."""
    async with cluster() as world:
        world.gang("g", 3)
        await world.run(1.0)  # the Job controller creates the pods
        began = world.loop.time()
        world.start(configured(ELECTED))
        await world.until(lambda: world.whole("g"), step=0.01)
        assert world.loop.time() - began < 0.5
