"""Nodes that were deleted while recovery did not watch: pods are bound to them, and no list has them."""

import pytest

from tests.recovery.silent_server import FORCED, LEAVES, SilentServer
from tests.recovery.world import RECOVERY_ENABLED, THREE_LEAVES, World, run_gang
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.objects import PodCondition
from topo_scheduler.recovery.detection.absent_nodes import LISTED_SECONDS, MAX_IN_FLIGHT
from topo_scheduler.recovery.detection.failure_detection import DELETED_NODE_SECONDS
from topo_scheduler.recovery.model.instructions import Warn


def _warnings(world: World, part: str) -> list[str]:
    return [out.message for out in world.emitted if isinstance(out, Warn) and part in out.message]


def test_nodes_that_are_deleted_while_no_daemon_runs_fail_once() -> None:
    world = World(FORCED, LEAVES)
    where = run_gang(world, "team", 3)
    lost = where["team-1"]
    world.delete_nodes(lost, watched=False)
    world.start()
    world.run(LISTED_SECONDS + 1.0, step=0.25)
    migration = world.one()
    assert migration.spec.reason == Cause.DELETED.value
    assert migration.spec.cause == f"node {lost} was deleted"
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert lost not in world.nodes_of("team-").values() and len(world.nodes_of("team-")) == 3
    assert len(_warnings(world, f"node {lost} was deleted")) == 1
    world.check()


def test_a_deletion_that_is_seen_is_not_reported_again_while_the_pods_stay() -> None:
    world = World(RECOVERY_ENABLED, LEAVES)
    lost = run_gang(world, "team", 3)["team-1"]
    world.blocked = set(world.pods)
    world.delete_nodes(lost)
    world.run(300)
    assert len(_warnings(world, f"node {lost} was deleted")) == 1
    assert len(world.migrations) == 1


def test_one_that_is_not_seen_is_not_reported_again_while_the_pods_stay() -> None:
    world = World(RECOVERY_ENABLED, LEAVES)
    lost = run_gang(world, "team", 3)["team-1"]
    world.blocked = set(world.pods)
    world.delete_nodes(lost, watched=False)
    world.start()
    world.run(300)
    assert len(_warnings(world, f"node {lost} was deleted")) == 1
    assert len(world.migrations) == 1


def test_the_scheduler_sees_a_deletion_before_recovery_has_seen_the_node() -> None:
    """Within the first seconds of a term the thread of kopf has not listed the nodes yet."""
    world = World(FORCED, LEAVES)
    lost = run_gang(world, "team", 3)["team-1"]
    world.start()
    world.recovery.detection._nodes.clear()
    world.delete_nodes(lost)
    for name in world.node_objects:
        world.tell_node(name)
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert lost not in world.nodes_of("team-").values()


def test_a_node_that_exists_moves_no_pod_although_it_is_not_listed() -> None:
    """It does not decode, or it was created after the list of nodes."""
    world = World(FORCED, LEAVES)
    hidden = run_gang(world, "team", 3)["team-1"]
    world.start()
    world.d.drop_node(hidden, world.node_objects[hidden].metadata.uid)
    world.recovery.detection._nodes.pop(hidden)
    world.run(200)
    assert not world.migrations
    world.delete_nodes(hidden, watched=False)
    world.run(61, step=0.5)
    assert len(world.migrations) == 1, "it was asked for again"


def test_a_node_that_recovery_itself_sees_is_not_absent() -> None:
    world = World(FORCED, LEAVES)
    hidden = run_gang(world, "team", 3)["team-1"]
    world.start()
    node = world.node_objects.pop(hidden)
    world.d.drop_node(hidden, node.metadata.uid)
    world.run(200)
    assert not world.migrations


def test_without_an_answer_of_the_api_server_no_pod_moves() -> None:
    world = SilentServer(FORCED, LEAVES)
    lost = run_gang(world, "team", 3)["team-1"]
    world.delete_nodes(lost, watched=False)
    world.start()
    world.run(10)
    assert world.finds == [lost]
    world.recovery.absent_nodes.answered(lost, None, world.now)
    due = world.recovery.next_due()
    assert due is not None
    assert world.now < due <= world.now + 60
    world.run(5)
    assert world.finds == [lost, lost]
    assert not world.migrations
    world.recovery.absent_nodes.answered(lost, False, world.now)
    world.run(30)
    assert world.phases() == [Phase.DONE]


@pytest.mark.parametrize("returns", [False, True])
def test_while_most_nodes_are_absent_no_pod_moves_for_a_minute(*, returns: bool) -> None:
    world = World(FORCED, LEAVES)
    for number, name in enumerate(world.node_objects):
        world.put(f"pod-{number}", name, 8)
    kept = dict(world.node_objects)
    lost = list(kept)[:10]
    world.delete_nodes(*lost, watched=False)
    world.start()
    world.run(DELETED_NODE_SECONDS - 2, step=0.5)
    assert not world.migrations
    assert len(_warnings(world, "10 of 16 nodes do not exist any more")) == 1
    due = world.recovery.next_due()
    assert due is not None and due > world.now
    if returns:
        for name in lost:
            world.node_objects[name] = kept[name]
            world._changed(name)
    world.run(10)
    assert bool(world.migrations) != returns


def test_answers_that_come_one_by_one_are_no_way_around_that() -> None:
    world = SilentServer(FORCED, {f"s1/l{number}": 8 for number in range(1, 6)})
    for number, name in enumerate(world.node_objects):
        world.put(f"pod-{number}", name, 8)
    lost = list(world.node_objects)[:30]
    world.delete_nodes(*lost, watched=False)
    world.start()
    world.run(2)
    assert len(world.finds) == MAX_IN_FLIGHT
    due = world.recovery.next_due()
    assert due is None or due > world.now, "it waits for the answers"
    for _ in range(30):
        world.recovery.absent_nodes.answered(world.finds.pop(0), False, world.now)
        world.run(0.1, step=0.1)
    assert not world.finds
    assert not world.migrations


def test_nodes_that_never_existed_hold_no_other_failure_back() -> None:
    """A tenant that may bind pods names any nodes."""
    world = World(FORCED, LEAVES)
    team = run_gang(world, "team", 3)
    for number in range(60):
        world.put(f"made-{number}", f"invented-{number}", 1, namespace="hostile")
    world.put("odd", "Not A Node\n", 1, namespace="hostile")
    world.fail(team["team-1"])
    world.run(40)
    (moved,) = [migration for migration in world.migrations.values() if migration.metadata.namespace == "default"]
    assert moved.phase is Phase.DONE
    assert "Not A Node\n" not in world.recovery.absent_nodes._nodes


def test_pods_that_were_created_with_their_node_say_nothing_of_it() -> None:
    world = SilentServer(FORCED, THREE_LEAVES)
    pod = world.put("made", "invented", 1)
    assert world.view.absent_nodes == {"invented"}
    world.pods.pop("made")
    world.tell_pod("made")
    assert not world.view.absent_nodes
    pod.metadata.uid = "again"
    pod.status.conditions = [PodCondition("PodScheduled", "True")]
    world.add(pod)
    world.run(30)
    assert not world.finds


def test_nodes_that_are_listed_again_or_have_no_pods_are_forgotten() -> None:
    world = World(RECOVERY_ENABLED, LEAVES)
    nodes = dict(world.node_objects)
    where = run_gang(world, "team", 3)
    world.blocked = set(world.pods)
    world.delete_nodes(where["team-0"], where["team-1"], watched=False)
    world.start()
    world.run(5)
    known = world.recovery.absent_nodes._nodes
    assert known.keys() == {where["team-0"], where["team-1"]}
    back = where["team-0"]
    world.node_objects[back] = nodes[back]
    world._changed(back)
    world.run(1)
    assert known.keys() == {where["team-1"]}
    world.blocked = set()
    for uid in list(world.pods):
        world.pods.pop(uid)
        world.tell_pod(uid)
    world.run(1)
    assert not known


def test_nodes_that_were_withheld_are_requested_again() -> None:
    """A minute ago they did not exist, with many others; since then they may have been created again."""
    world = SilentServer(FORCED, LEAVES)
    for name, size in (("team", 3), ("b", 4), ("c", 4)):
        run_gang(world, name, size)
    names = sorted({pod.spec.node_name for pod in world.pods.values()})[:10]
    world.delete_nodes(*names, watched=False)
    world.start()
    world.run(2, step=0.25)
    for name in list(world.finds):
        world.recovery.absent_nodes.answered(name, False, world.now)
    asked = len(world.finds)
    world.run(30)
    assert asked == len(names) and world.recovery.absent_nodes.held
    world.finds.clear()
    world.run(60)
    assert sorted(world.finds) == names and not world.evictions
    for name in names:
        world.recovery.absent_nodes.answered(name, False, world.now)
    world.run(30)
    assert world.evictions
