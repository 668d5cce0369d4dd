"""Replacements of one controller that an earlier leader placed, or that belong to several Migrations."""

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.world import RECOVERY_ENABLED, World
from topo_scheduler.api.migrations import Phase

OWNER = controlled_by("ReplicaSet", "web")


def deployment(world: World, *nodes: str, gpus: int = 4) -> list[str]:
    """Add bound pods of one ReplicaSet: ``web-0`` and so on, on these nodes; return their names."""
    names = [f"web-{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        world.add(make_pod(name, gpus=gpus, uid=name, owner=OWNER, node=node, created=world.now))
    world.run(1)
    return names


@pytest.mark.parametrize("room", [False, True])
def test_a_leader_that_takes_over_among_evictions_counts_what_was_replaced_before(room: bool) -> None:
    """A disruption budget lets one pod after the other go. The first replacement has left room on its node."""
    world = World(RECOVERY_ENABLED, {"s1/l1": 2, "s2/l1": 6})
    names = deployment(world, "s1-l1-1", "s1-l1-1", "s1-l1-2", "s1-l1-2")
    if not room:
        for number in range(1, 7):
            world.put(f"half{number}", f"s2-l1-{number}", 4, bare=True)
    for node in ("s1-l1-1", "s1-l1-2"):
        world.cordon(node)
    world.blocked = set(names[1:])
    world.request("drain", *names)
    world.run(30)
    assert world.phases() == [Phase.EVICTING] and world.evictions[0] == ("web-0", False), world.one().status.message
    assert "web-0" in world.nodes_of("web-")
    for name in names[1:]:
        world.start()
        world.run(20)
        seats = len(world.d.engine.preempting.replacements)
        missing = [pod for pod in names if pod in world.pods]
        assert seats == len(missing), "replacements of before need no seats"
        world.blocked.discard(name)
        world.run(400, step=5.0)
    assert world.phases() == [Phase.DONE], world.one().status.message
    moves = world.one().status.moves
    assert len({move.replacement for move in moves}) == len(names)
    assert {move.replacement: move.to for move in moves} == {
        pod.metadata.uid: pod.spec.node_name for pod in world.pods.values() if pod.metadata.name.startswith("web-")
    }
    world.check()


@pytest.mark.parametrize("fails_over", [False, True])
def test_one_replacement_counts_for_one_migration(fails_over: bool) -> None:
    """Two nodes are drained one after the other; the places of both pods are on one node."""
    world = World(RECOVERY_ENABLED, {"s1/l1": 3})
    names = deployment(world, "s1-l1-1", "s1-l1-2")
    world.controllers_stand = True
    for node in ("s1-l1-1", "s1-l1-2"):
        world.cordon(node)
    for number, name in enumerate(names, 1):
        before = world.pods[name]
        world.request(f"drain-{number}", name)
        world.run(20)
    assert world.phases() == [Phase.PLACING] * 2
    world.replace(before)
    world.tell_pod(before.metadata.uid)
    world.run(20)
    assert sorted(map(str, world.phases())) == ["Done", "Placing"]
    if fails_over:
        world.start()
        world.run(20)
    assert sorted(map(str, world.phases())) == ["Done", "Placing"]
    assert len(world.d.engine.preempting.replacements) == 1
    world.replace(before)
    world.tell_pod(before.metadata.uid)
    world.run(20)
    assert world.phases() == [Phase.DONE] * 2
    replaced = [move.replacement for migration in world.migrations.values() for move in migration.status.moves]
    assert len(set(replaced)) == 2
    world.check()


def test_a_pod_that_ran_there_before_is_no_replacement() -> None:
    """The place is on a node where another pod of the same controller runs."""
    world = World(RECOVERY_ENABLED, {"s1/l1": 2})
    deployment(world, "s1-l1-1", "s1-l1-2")
    before = world.pods["web-0"]
    world.controllers_stand = True
    world.cordon("s1-l1-1")
    world.request("drain", "web-0")
    world.run(30)
    assert world.one().status.moves[0].to == "s1-l1-2"
    assert world.phases() == [Phase.PLACING]
    world.replace(before)
    world.tell_pod("web-0")
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.moves[0].replacement == "web-0-again-1"


def test_pods_of_higher_priority_that_take_reserved_room_are_named() -> None:
    """They may take it. The condition said for minutes that the room is reserved."""
    world = World(RECOVERY_ENABLED, {"s1/l1": 2})
    deployment(world, "s1-l1-1", gpus=8)
    before = world.pods["web-0"]
    world.controllers_stand = True
    world.cordon("s1-l1-1")
    world.request("drain", "web-0")
    world.run(10)
    assert world.phases() == [Phase.PLACING] and world.condition("Reserved")[:2] == ("True", "NodesReserved")
    world.add(make_pod("urgent", gpus=8, uid="urgent", priority=100, created=world.now))
    world.run(10)
    status, reason, message = world.condition("Reserved")
    assert (status, reason) == ("False", "SeatLost")
    assert "pods of higher priority have the room on s1-l1-2: default/urgent" in message
    written = world.revision
    world.run(60)
    assert world.revision == written, "it is written once"
    del world.pods["urgent"]
    world.tell_pod("urgent")
    world.run(10)
    assert world.condition("Reserved")[:2] == ("True", "NodesReserved")
    world.add(make_pod("urgent2", gpus=8, uid="urgent2", priority=100, created=world.now))
    world.run(10)
    world.replace(before)
    world.tell_pod("web-0")
    world.run(900, step=30.0)
    assert world.phases() == [Phase.FAILED]
    assert world.one().status.message.endswith(
        "in time: pods of higher priority have the room on s1-l1-2: default/urgent2"
    )
