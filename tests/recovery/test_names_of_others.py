"""Migrations name no pods and no Migrations of other namespaces in what their users read."""

import msgspec

from tests.recovery.world import RECOVERY_ENABLED, World
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.recovery.detection.failure_detection import DomainFailure


def test_pods_of_others_that_make_room_are_only_counted() -> None:
    world = World(RECOVERY_ENABLED, {"s1/l1": 3, "s1/l2": 1})
    world.put("mine", "s1-l1-1", 8, namespace="a")
    for node in ("s1-l1-2", "s1-l1-3", "s1-l2-1"):
        world.put(f"secret-{node}", node, 4, namespace="b")
    world.fail("s1-l1-1")
    world.kubelets_dead.clear()
    world.run(30)
    assert set(world.phases()) == {Phase.DONE}
    (mine,) = (migration for migration in world.migrations.values() if migration.metadata.namespace == "a")
    assert "secret" not in msgspec.json.encode(mine).decode()
    assert mine.status.conditions[0].message.endswith("which a pod of another namespace leave first")
    (helper,) = (migration for migration in world.migrations.values() if migration.metadata.namespace == "b")
    assert helper.spec.cause == "makes room for a Migration of another namespace"


def test_pods_of_others_that_a_node_refused_are_only_counted() -> None:
    world = World(RECOVERY_ENABLED, {"s1/l1": 3})
    world.put("mine", "s1-l1-1", 1, namespace="a")
    pods = ("a/one (OutOfcpu)", "b/secret (OutOfcpu)")
    failure = DomainFailure(Cause.REFUSED, "node s1-l1-1 refused 2 pods within 10m", ("s1-l1-1",), 0.0, pods)
    world.recovery.healing.failed([failure])
    world.run(1)
    text = "node s1-l1-1 refused 2 pods within 10m: a/one (OutOfcpu) and a pod of another namespace"
    assert world.one().spec.cause == text


def test_the_log_names_them() -> None:
    failure = DomainFailure(Cause.REFUSED, "node x refused 1 pod", ("x",), 0.0, ("b/secret (OutOfcpu)",))
    assert failure.described() == "node x refused 1 pod: b/secret (OutOfcpu)"
