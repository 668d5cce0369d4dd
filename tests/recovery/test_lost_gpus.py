"""GPUs that a node counts no more, neither as its own nor as offered, while pods hold them."""

import pytest

from tests.recovery.world import World, copies_of
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.recovery import RecoverySpec

SPEC = RecoverySpec(enabled=True, unhealthyGPUs=True, quarantine=100)
LEAVES = {"s1/l1": 3}


def _offer(world: World, node: str, gpus: int) -> None:
    status = world.node_objects[node].status
    status.allocatable = {**status.allocatable, "nvidia.com/gpu": str(gpus)}
    status.capacity = {**status.capacity, "nvidia.com/gpu": str(gpus)}
    world.d.nodes(*copies_of([world.node_objects[node]]))


def _two_pods(spec: RecoverySpec = SPEC) -> World:
    world = World(spec, LEAVES)
    world.put("a", "s1-l1-1", 4)
    world.put("b", "s1-l1-1", 4)
    return world


@pytest.mark.parametrize("left", [7, 0])
def test_all_pods_leave_a_node_that_lost_a_gpu_they_hold(left: int) -> None:
    world = _two_pods()
    _offer(world, "s1-l1-1", left)
    world.run(9)
    assert not world.migrations
    world.run(20)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    assert {one.cause for one in world.migrations.values()} == {Cause.GPUS}
    assert {one.spec.cause for one in world.migrations.values()} == {
        f"node s1-l1-1 offers {left} GPUs, but its pods held 8"
    }
    assert "s1-l1-1" not in {*world.nodes_of("a").values(), *world.nodes_of("b").values()}
    assert world.recovery.detection.is_healthy("s1-l1-1"), "what is left is whole"
    world.check()


def test_who_has_no_place_yet_goes_too_though_what_is_left_would_do() -> None:
    """Nobody tells whose GPU it was."""
    world = _two_pods()
    world.put("c", "s1-l1-2", 4)
    world.put("d", "s1-l1-3", 8)
    _offer(world, "s1-l1-1", 7)
    world.run(30)
    assert sorted(str(phase) for phase in world.phases()) == ["Done", "Planned"]
    del world.pods["d"]
    world.tell_pod("d")
    world.run(30)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    world.check()


def test_gpus_that_are_back_in_time_cost_nobody_a_pod() -> None:
    world = _two_pods()
    _offer(world, "s1-l1-1", 0)
    world.run(5)
    _offer(world, "s1-l1-1", 8)
    world.run(60)
    assert not world.migrations and world.recovery.detection.is_healthy("s1-l1-1")


def test_a_new_process_notices_it_as_well_and_only_where_it_is_asked_for() -> None:
    world = _two_pods(RecoverySpec(enabled=True))
    _offer(world, "s1-l1-1", 6)
    world.run(60)
    assert not world.migrations
    world.spec = SPEC
    world.start()
    world.run(30)
    assert world.phases() == [Phase.DONE, Phase.DONE]
