"""A pod that an earlier process placed can't be read: the Migrations that wait for it report that."""

from dataclasses import replace

import pytest

from tests.recovery.world import World
from topo_scheduler.api.migrations import MigrationPod, MigrationSpec, MigrationWrite, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.kube.writing.migrations import Unreadable
from topo_scheduler.recovery.controller.disabled import malformed
from topo_scheduler.recovery.model.instructions import CreateMigration, RecoveryInstruction
from topo_scheduler.recovery.model.migration_context import LEARNING
from topo_scheduler.recovery.planning.migration_validation import reference_of
from topo_scheduler.scheduling.instructions import PodRef


def _restarted() -> World:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2, "s1/l2": 2})
    world.put("a", "s1-l1-1", 2)
    world.start()
    world.unreadable = {"a"}
    world.request("asked", "a")
    world.run(20)
    return world


def test_a_migration_reports_that_its_pod_can_not_be_read_and_goes_on_once_it_can() -> None:
    world = _restarted()
    assert world.unlearned, "a new process reads the pod"
    (migration,) = world.migrations.values()
    (condition,) = migration.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Reserved", "False", "PodNotRead")
    assert "pod default/a can't be read: 503 Service Unavailable" in condition.message
    assert migration.status.message == condition.message and migration.phase is None
    world.unreadable = set()
    for instruction in world.unlearned:
        world.carry_out(instruction)
    world.run(60)
    assert world.phases() == [Phase.DONE]


def test_a_pod_is_read_by_the_name_that_it_has_and_only_while_something_waits() -> None:
    """The author of a Migration may name another pod, of any size, beside the uid."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2, "s1/l2": 2})
    world.put("a", "s1-l1-1", 2)
    world.start()
    world.unreadable = {"a"}
    spec = MigrationSpec(pods=[MigrationPod("other", "a")])
    created = world._create("default", "asked", spec)
    assert created is not None
    world.recovery.migration_seen(created, world.now)
    world.run(20)
    own = PodRef("default", "a", "a")
    assert [instruction.pods for instruction in world.unlearned] == [(own,)]
    assert world.recovery.awaits(own) and world.recovery.holds_resources("a")
    world.cancel("default/asked")
    assert not world.recovery.awaits(own)
    world.fail("s1-l1-1")
    world.run(30)
    assert world.recovery.awaits(own), "its node has failed"
    world.finish_pod("a")
    assert not world.recovery.holds_resources("a")


def test_a_pod_that_a_status_moves_is_read_by_the_name_that_it_has() -> None:
    """Another client may have written the status."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2, "s1/l2": 2})
    world.put("a", "s1-l1-1", 2)
    assert reference_of(world.view, "default", "other", "a") == PodRef("default", "a", "a")
    assert reference_of(world.view, "default", "other", "unknown") == PodRef("default", "other", "unknown")
    assert reference_of(world.view, "elsewhere", "other", "a") == PodRef("elsewhere", "other", "a")


def test_what_can_not_be_read_as_a_migration_gets_a_status_and_an_event() -> None:
    odd = Unreadable("default", "odd", "u", "7", "", "spec.pods: expected array")
    answer = malformed(odd, "this", 0.0)
    assert answer is not None
    status, event = answer
    assert (status.name, status.version, status.status.phase) == ("odd", "7", "Failed")
    (condition,) = status.status.conditions
    assert (condition.status, condition.reason) == ("False", "Malformed")
    assert "spec.pods: expected array; delete it and create a valid one" in condition.message
    assert event.warning and event.message == condition.message
    assert status.status.scheduler_name == "this"
    assert malformed(replace(odd, scheduler="another"), "this", 0.0) is None, "it is not ours to refuse"
    assert malformed(replace(odd, phase="Failed"), "this", 0.0) is None, "it says so already"


def test_pods_of_a_failed_node_are_moved_although_one_of_another_namespace_can_not_be_read() -> None:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2, "s1/l2": 2})
    world.put("a", "s1-l1-1", 2, namespace="hostile")
    world.put("b", "s1-l1-1", 2)
    world.start()
    world.unreadable = {"a"}
    world.fail("s1-l1-1")
    world.run(30)
    (migration,) = world.migrations.values()
    assert [pod.name for pod in migration.spec.pods] == ["b"]
    world.fail("s1-l1-2")
    world.run(30)
    world.unreadable = set()
    for instruction in world.unlearned:
        world.carry_out(instruction)
    world.run(30)
    moved = {pod.name: migration.key for migration in world.migrations.values() for pod in migration.spec.pods}
    assert moved.keys() == {"a", "b"} and moved["a"].startswith("hostile/")


def test_a_migration_goes_on_without_a_pod_of_another_namespace_that_can_not_be_read() -> None:
    """It might make room, but its owner may never be readable."""
    world = _restarted()
    context = world.recovery.migrations.context
    tracked = context.tracked["default/asked"]
    context.index.reads(tracked, ("a", "other"))
    world.recovery.migrations.unread(PodRef("hostile", "other", "other"), "503", world.now)
    assert tracked.learned == {"other"} and tracked.state == LEARNING, "its own pod is still to be read"
    context.index.reads(tracked, ("other",))
    world.recovery.migrations.unread(PodRef("hostile", "other", "other"), "503", world.now)
    assert [tracked.state, tracked.writing] == [None, False]


def test_a_migration_that_can_not_be_created_is_given_up_once_its_pods_are_gone() -> None:
    """Its namespace may have been deleted, in which nothing can be created any more."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2})
    pod = world.put("a", "s1-l1-1", 2)
    world.controllers_stand = True
    asked: list[CreateMigration] = []

    def refuse(instruction: RecoveryInstruction) -> None:
        if isinstance(instruction, CreateMigration):
            asked.append(instruction)
            world.recovery.wrote(instruction, MigrationWrite.FORBIDDEN, "it is terminating", None, world.now)

    world.carry_out = refuse  # type: ignore[method-assign]
    world.fail("s1-l1-1")
    world.run(60)
    assert len(asked) > 2
    world.finish_pod(pod.metadata.uid)
    seen = len(asked)
    world.run(3600)
    assert len(asked) == seen and not world.recovery.healing._wanted


@pytest.mark.parametrize("policy", ["", "shrink"])
def test_pods_are_evicted_off_dead_nodes_after_a_failover_although_a_sibling_can_not_be_read(policy: str) -> None:
    """One of two pods is gone already, and the sibling might be its replacement."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 8})
    world.gang("g", 4, said={"on-failure": policy} if policy else None)
    world.run(2)
    where = world.nodes_of("g-")
    world.blocked = {"g-1"}
    world.controllers_stand = True
    world.fail(where["g-0"], where["g-1"])
    world.run(15)
    assert world.phases() == [Phase.EVICTING]
    world.finish_pod("g-0")
    world.blocked = set()
    world.unreadable = {"g-3"}
    world.start()
    world.evictions.clear()
    world.run(60)
    assert world.evictions == [("g-1", False)]
    world.finish_pod("g-1")
    world.run(5)
    assert world.phases() == [Phase.DONE if policy else Phase.EVICTING]
