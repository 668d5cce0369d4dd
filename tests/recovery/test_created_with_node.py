"""Pods that users created with a node, on any node and with any owner: recovery moves neither these nor others.

A tenant that may create pods and Migrations could otherwise say of any node that it is gone: by a pod on a node that
never existed.
"""

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.world import RECOVERY_ENABLED, World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.objects import PodCondition
from topo_scheduler.recovery.model.seating import unread_pod


def _create_there(world: World, node: str, *, reported: bool = False, name: str = "made", gpus: int = 8) -> None:
    """A tenant creates a pod on a node; ``reported`` by a kubelet there."""
    pod = make_pod(name, gpus=gpus, uid=name, namespace="hostile", owner=controlled_by("ReplicaSet", "set"))
    pod.spec.node_name = node
    pod.status.conditions = [PodCondition("PodScheduled", "True")] if reported else []
    world.add(pod)


def _victims() -> World:
    """A pod on each node, so that room for a whole node needs a move."""
    world = World(RECOVERY_ENABLED, {"s1/l1": 2, "s1/l2": 1})
    for number, node in enumerate(world.node_objects):
        world.put(f"victim-{number}", node, 4, namespace="victim")
    return world


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("reason", ["NodeDeleted", "Requested"])
def test_a_pod_on_a_node_that_never_existed_moves_no_pod_of_others(reason: str, *, restarted: bool) -> None:
    world = _victims()
    _create_there(world, "nowhere")
    if restarted:
        world.start()
    world.request("steal", "made", namespace="hostile", reason=reason)
    world.run(30)
    migration = world.one()
    assert migration.phase is Phase.FAILED
    assert migration.status.conditions[0].reason == "NotOurs"
    assert not world.evictions


def test_neither_does_one_on_a_cordoned_node_whose_kubelet_reports_it() -> None:
    world = _victims()
    world.node_objects["s1-l2-1"].spec.unschedulable = True
    world.d.nodes(*world.node_objects.values())
    _create_there(world, "s1-l2-1", reported=True)
    world.run(2)
    world.request("steal", "made", namespace="hostile", reason="NodeMaintenance")
    world.run(30)
    assert world.one().phase is Phase.FAILED
    assert not world.evictions


@pytest.mark.parametrize("restarted", [False, True])
def test_on_a_node_that_fails_it_is_not_moved_and_others_are(*, restarted: bool) -> None:
    world = World(RECOVERY_ENABLED, {"s1/l1": 4})
    world.put("legal", "s1-l1-1", 4, namespace="hostile")
    _create_there(world, "s1-l1-1", gpus=0)
    if restarted:
        world.start()
    world.fail("s1-l1-1")
    world.run(30)
    assert [pod.name for pod in world.one().spec.pods] == ["legal"]
    assert unread_pod(world.view, "made") is None


def test_it_stays_what_it_is_when_it_is_resized() -> None:
    world = World(RECOVERY_ENABLED, {"s1/l1": 2})
    world.run()
    _create_there(world, "s1-l1-1", reported=True, gpus=1)
    pod = world.pods["made"]
    pod.spec.containers[0].resources.requests["cpu"] = "3"
    world.tell_pod("made")
    entry = world.view.entry("made")
    assert entry is not None
    assert entry.created_there
