"""Nodes that recovery does not know are not gone: a new leader has not listed them yet, or they do not decode."""

import pytest

from tests.recovery.silent_server import FORCED, LEAVES, SilentServer
from tests.recovery.world import World, run_gang
from topo_scheduler.api.migrations import MigrationPod, MigrationSpec, Phase

STRANGER = MigrationPod("stranger")
"""A pod that does not exist: a request that names it fails at once."""


class LateNodes(World):
    """A cluster whose watch of nodes has not told recovery of any node while it is late."""

    late = False

    def tell_node(self, name: str) -> None:
        """Report a node, unless that is late."""
        if not self.late:
            super().tell_node(name)


def _request(world: World, *pods: MigrationPod, namespace: str = "default", avoid: tuple[str, ...] = ()) -> None:
    """Let a user create a Migration."""
    spec = MigrationSpec(pods=list(pods), avoid=list(avoid))
    created = world._create(namespace, "please", spec)
    assert created is not None
    world.recovery.migration_seen(created, world.now)


@pytest.mark.parametrize("delay", [0.0, 0.5, 15.0])
def test_a_request_that_ends_before_the_nodes_are_listed_moves_no_pod_of_others(delay: float) -> None:
    """It exists when the leader changes, or when recovery is turned on."""
    world = LateNodes(FORCED, LEAVES)
    node = run_gang(world, "victim", 2)["victim-0"]
    world.put("bare", node, 0, bare=True, namespace="hostile")
    _request(world, MigrationPod("bare", "bare"), namespace="hostile")
    world.late = True
    world.start()
    world.run(delay, step=0.05)
    world.late = False
    for name in world.node_objects:
        world.tell_node(name)
    world.run(60)
    assert world.phases() == [Phase.FAILED] and not world.evictions


def test_a_request_that_ends_then_leaves_no_pod_on_a_node_that_is_dead() -> None:
    world = LateNodes(FORCED, LEAVES)
    node = run_gang(world, "team", 2)["team-0"]
    _request(world, MigrationPod("team-0", "team-0"), STRANGER)
    world.fail(node)
    world.late = True
    world.start()
    world.run(2)
    assert world.phases() == [Phase.FAILED]
    world.late = False
    for name in world.node_objects:
        world.tell_node(name)
    world.run(60)
    assert node not in world.nodes_of("team-").values()


def _hide(world: SilentServer, size: int = 3) -> str:
    """Run a gang, and let the lists of nodes lack the node of its second member; return that node."""
    hidden = run_gang(world, "team", size)["team-1"]
    world.start()
    world.d.drop_node(hidden, world.node_objects[hidden].metadata.uid)
    world.recovery.detection._nodes.pop(hidden)
    world.run(5)
    return hidden


@pytest.mark.parametrize("answer", [None, True], ids=["not answered", "exists"])
def test_a_request_on_a_node_that_is_not_listed_is_no_failure_of_it(answer: bool | None) -> None:
    world = SilentServer(FORCED, LEAVES)
    hidden = _hide(world)
    world.recovery.absent_nodes.answered(hidden, answer, world.now)
    world.request("please", "team-1", avoid=["s1"])
    world.run(100)
    (please,) = world.migrations.values()
    assert please.phase is Phase.PLANNED and not world.evictions
    assert not world.recovery.migrations.context.warranted(please), "it uses no spare nodes"


@pytest.mark.parametrize("answer", [None, True], ids=["not answered", "exists"])
def test_the_end_of_a_request_there_is_none_either(answer: bool | None) -> None:
    world = SilentServer(FORCED, LEAVES)
    hidden = _hide(world)
    world.recovery.absent_nodes.answered(hidden, answer, world.now)
    _request(world, MigrationPod("team-1", "team-1"), STRANGER)
    world.run(100)
    assert world.phases() == [Phase.FAILED] and not world.evictions


def test_no_pod_is_deleted_by_force_on_a_node_that_is_not_listed() -> None:
    world = SilentServer(FORCED, LEAVES)
    hidden = _hide(world)
    world.blocked.add("team-1")
    world.request("please", "team-1")
    world.run(30)
    assert world.evictions and not any(force for _, force in world.evictions)
    world.recovery.absent_nodes.answered(hidden, False, world.now)
    world.blocked.clear()
    world.run(400, step=5)
    assert hidden not in world.nodes_of("team-").values()


def test_a_request_on_a_node_that_is_known_to_be_gone_leaves_its_pods_to_recovery() -> None:
    world = SilentServer(FORCED, LEAVES)
    hidden = _hide(world)
    world.request("please", "team-1", avoid=["s1"])
    world.run(10)
    assert world.phases() == [Phase.PLANNED]
    world.recovery.absent_nodes.answered(hidden, False, world.now)
    world.run(30)
    assert world.phases() == [Phase.CANCELLED, Phase.DONE]
    assert hidden not in world.nodes_of("team-").values()
