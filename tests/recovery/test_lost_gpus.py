"""GPUs that a node counts no more, neither as its own nor as offered, while pods hold them."""

import pytest

from tests.helpers import make_pod
from tests.recovery.world import World, copies_of
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.state.nodes.resources import GPU

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


@pytest.mark.parametrize(("left", "waits"), [(7, 9), (0, 299)])
def test_all_pods_leave_a_node_that_lost_a_gpu_they_hold(left: int, waits: float) -> None:
    world = _two_pods()
    _offer(world, "s1-l1-1", left)
    world.run(waits)
    assert not world.migrations
    world.run(20)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    assert {migration.cause for migration in world.migrations.values()} == {Cause.GPUS}
    assert {migration.spec.cause for migration in world.migrations.values()} == {
        f"node s1-l1-1 offers {left} GPUs, but its pods held 8"
    }
    assert "s1-l1-1" not in {*world.nodes_of("a").values(), *world.nodes_of("b").values()}
    assert world.recovery.detection.is_healthy("s1-l1-1"), "what is left is whole"
    world.check()


@pytest.mark.parametrize("keeps_capacity", [True, False])
def test_no_pod_moves_when_a_device_plugin_restarts(*, keeps_capacity: bool) -> None:
    """Its node offers no GPU meanwhile; after a restart of the kubelet it has none either."""
    world = _two_pods()
    _offer(world, "s1-l1-1", 0)
    if keeps_capacity:
        world.node_objects["s1-l1-1"].status.capacity["nvidia.com/gpu"] = "8"
        world.d.nodes(*copies_of([world.node_objects["s1-l1-1"]]))
    world.run(90)
    _offer(world, "s1-l1-1", 8)
    world.run(400)
    assert not world.migrations and world.recovery.detection.is_healthy("s1-l1-1")


def test_a_pod_without_a_place_yet_moves_too_though_what_is_left_would_do() -> None:
    """No object says whose GPU it was."""
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


def test_no_pod_moves_when_gpus_are_back_in_time() -> None:
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


@pytest.mark.parametrize("refused", [True, False])
def test_no_other_pod_moves_when_a_user_puts_a_pod_on_a_full_node(*, refused: bool) -> None:
    """Its kubelet refuses it, sooner or later."""
    world = _two_pods()
    made = make_pod("made", gpus=8, uid="made", namespace="hostile", node="s1-l1-1")
    world.add(made)
    world.run(3)
    if refused:
        made.status.phase, made.status.reason = "Failed", "UnexpectedAdmissionError"
        world.tell_pod("made")
    world.run(60)
    assert not world.migrations and not world.evictions
    assert world.recovery.detection.is_healthy("s1-l1-1")
    _offer(world, "s1-l1-1", 7)
    world.run(30)
    assert {migration.spec.cause for migration in world.migrations.values()} == {
        "node s1-l1-1 offers 7 GPUs, but its pods held 8"
    }


@pytest.mark.unrecorded
def test_room_that_is_kept_for_other_schedulers_is_no_lost_gpu() -> None:
    world = _two_pods()
    engine_world = world.d.engine.world
    engine_world.keep(engine_world.nodes.row_of["s1-l1-1"], ((GPU, 2),))
    world.run(60)
    assert not world.migrations
