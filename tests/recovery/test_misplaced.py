"""Replacements that were bound while no reservation was in force, on nodes that their Migration leaves or avoids."""

from collections.abc import Callable

import pytest

from tests.helpers import EPOCH
from tests.recovery.world import RECOVERY_ENABLED, THREE_LEAVES, World, copy_of, leaf, run_gang
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.controller.disabled import MESSAGE, without_recovery
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.recovery.model.instructions import EmitMigrationEvent, WriteStatus

Gap = Callable[[World], None]


def fail_over(world: World) -> None:
    """A new leader begins without the Migrations: the API server does not list them in time."""
    world.start()


def turn_off(world: World) -> None:
    """Recovery is turned off: its reservations are gone, and the status says so."""
    world.recovery.release_all()
    world.recovery = Recovery(world.view, world.d.engine, world.spec, EPOCH)


def lose_reservations(world: World, gap: Gap, *, onto: set[str] | None = None) -> None:
    """Pods finish terminating, and their replacements are bound, while nothing reads the Migrations.

    ``onto`` are the nodes that replacements can use; None for all.
    """
    hidden, world.migrations = world.migrations, {}
    gap(world)
    for migration in hidden.values():
        answer = without_recovery(migration, world.scheduler, EPOCH + world.now) if gap is turn_off else None
        if answer is not None:
            assert isinstance(answer[0], WriteStatus)
            migration.status = answer[0].status
    closed = set(world.node_objects) - (set(world.node_objects) if onto is None else onto)
    cordon(world, closed, on=True)
    for pod in [pod for pod in world.pods.values() if pod.metadata.deletion_timestamp]:
        world.finish_pod(pod.metadata.uid)
    world.run(2)
    cordon(world, closed, on=False)
    world.kubelets_dead.clear()
    world.migrations = hidden
    for name in world.node_objects:
        world.tell_node(name)
    for migration in hidden.values():
        world.recovery.migration_seen(copy_of(migration), world.now)


def cordon(world: World, names: set[str], *, on: bool) -> None:
    for name in sorted(names):
        world.node_objects[name].spec.unschedulable = on
        world._changed(name)


def evicting(world: World, before: dict[str, str], avoid: list[str]) -> set[str]:
    """A user has a gang moved; its pods take long to terminate. Return the nodes that it leaves."""
    world.kubelets_dead.update(world.node_objects)
    world.request("away", *before, avoid=avoid)
    world.run(2)
    assert world.phases() == [Phase.EVICTING]
    return set(before.values())


def real_nodes(migration: Migration, world: World) -> bool:
    """Return whether the status has the nodes where the replacements run."""
    by_uid = {uid: pod.spec.node_name for uid, pod in world.pods.items()}
    nodes = [move.to for move in migration.status.moves]
    shown = migration.status.to_nodes == ",".join(dict.fromkeys(nodes))
    return shown and all(by_uid[move.replacement] == move.to for move in migration.status.moves)


@pytest.mark.parametrize("gap", [fail_over, turn_off])
@pytest.mark.parametrize("avoids", [True, False])
def test_misplaced_replacements_are_moved_again_once(gap: Gap, avoids: bool) -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g")
    domain = "/".join(next(iter(before.values())).split("-")[:2])
    left = evicting(world, before, [domain] if avoids else [])
    lose_reservations(world, gap, onto=left)
    assert set(world.nodes_of("g-").values()) == left, "they are back where they were"
    world.run(5)
    migration = world.one()
    assert migration.phase is Phase.DONE and migration.status.message == "2 pods moved"
    after = set(world.nodes_of("g-").values())
    assert not after & left and real_nodes(migration, world)
    assert not avoids or not {leaf(node) for node in after} & {leaf(node) for node in left}
    assert set(migration.status.left_nodes) == left
    assert len(world.evictions) == 2 * len(before), "once more, and no more than that"
    (event,) = [item for item in world.emitted if isinstance(item, EmitMigrationEvent) and item.warning]
    assert event.reason == "Misplaced" and all(node in event.message for node in left)
    world.check()


def test_a_node_that_is_avoided_only_is_no_place_either() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g")
    domain = "/".join(next(iter(before.values())).split("-")[:2])
    left = evicting(world, before, [domain])
    lose_reservations(
        world, fail_over, onto={name for name in world.node_objects if leaf(name) == leaf(min(left))} - left
    )
    assert not set(world.nodes_of("g-").values()) & left
    world.run(5)
    assert world.one().phase is Phase.DONE and real_nodes(world.one(), world)
    assert leaf(min(left)) not in map(leaf, world.nodes_of("g-").values())


def test_a_second_attempt_returns_to_no_node_that_the_first_one_left() -> None:
    """The replacements of the first attempt run on nodes that are avoided, and the nodes that it left are free."""
    world = World(RECOVERY_ENABLED, {"s1/l1": 2, "s1/l2": 2, "s2/l1": 2})
    before = run_gang(world, "g")
    left = set(before.values())
    other = next(name for name in world.node_objects if leaf(name) != leaf(min(left)))
    domain = "/".join(other.split("-")[:2])
    evicting(world, before, [domain])
    lose_reservations(world, turn_off, onto={name for name in world.node_objects if leaf(name) == leaf(other)})
    world.run(5)
    after = set(world.nodes_of("g-").values())
    assert world.one().phase is Phase.DONE and not after & left
    assert {leaf(node) for node in after}.isdisjoint({leaf(other)})


def test_replacements_misplaced_twice_end_the_migration_with_their_real_nodes() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g")
    left = evicting(world, before, [])
    lose_reservations(world, fail_over, onto=left)
    world.kubelets_dead.update(world.node_objects)
    world.run(5)
    assert world.phases() == [Phase.EVICTING], "the second attempt"
    lose_reservations(world, fail_over, onto=left)
    world.run(60)
    migration = world.one()
    assert migration.phase is Phase.FAILED and real_nodes(migration, world)
    assert {move.to for move in migration.status.moves} == left
    assert all(node in migration.status.message for node in left)
    assert "create another Migration" in migration.status.message
    assert world.condition("Placed")[:2] == ("False", "Misplaced")
    assert len(world.evictions) == 2 * len(before)
    world.check()


def test_a_voluntary_move_is_not_repeated() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g")
    left = evicting(world, before, [])
    world.one().spec.reason = "Improvement"
    lose_reservations(world, fail_over, onto=left)
    world.run(30)
    assert world.phases() == [Phase.FAILED] and real_nodes(world.one(), world)
    assert len(world.evictions) == len(before)


def failed_node(world: World, before: dict[str, str]) -> str:
    """A node falls silent until its pod is being evicted."""
    failed = before["g-0"]
    world.fail(failed)
    world.run(12)
    assert world.phases() == [Phase.EVICTING]
    return failed


@pytest.mark.parametrize("gap", [fail_over, turn_off])
def test_any_healthy_node_is_a_place_for_a_pod_of_a_failed_one(gap: Gap) -> None:
    world = World(RECOVERY_ENABLED, {"s1/l1": 4})
    before = run_gang(world, "g")
    failed = failed_node(world, before)
    planned = world.one().status.moves[0].to
    (other,) = set(world.node_objects) - set(before.values()) - {planned}
    lose_reservations(world, gap, onto={other})
    world.run(60)
    assert world.phases() == [Phase.DONE] and real_nodes(world.one(), world)
    assert world.nodes_of("g-")["g-0"] == other and other not in (failed, planned)
    assert len(world.evictions) == 1


def test_a_failed_node_that_is_healthy_again_is_a_place() -> None:
    world = World(RECOVERY_ENABLED, {"s1/l1": 4})
    before = run_gang(world, "g")
    failed = failed_node(world, before)
    world.heal(failed)
    world.kubelets_dead.add(failed)
    lose_reservations(world, fail_over, onto={failed})
    world.run(60)
    assert world.phases() == [Phase.DONE] and real_nodes(world.one(), world)
    assert len(world.evictions) == 1


def test_a_node_that_is_still_failed_is_left_again_at_most_once() -> None:
    world = World(RecoverySpec(enabled=True, conditions=("Broken",)), {"s1/l1": 4})
    before = run_gang(world, "g")
    broken = before["g-0"]
    world.kubelets_dead.add(broken)
    world.extra[broken] = {"conditions": ("Broken",)}
    world.tell_node(broken)
    world.run(12)
    for attempt in range(2):
        assert world.phases() == [Phase.EVICTING], attempt
        lose_reservations(world, turn_off, onto={broken})
        if not attempt:
            world.kubelets_dead.add(broken)
            world.run(5)
    world.run(5)
    assert world.phases() == [Phase.FAILED] and real_nodes(world.one(), world)
    assert world.nodes_of("g-")["g-0"] == broken
    world.run(300, 10)
    assert world.phases() == [Phase.FAILED, Phase.DONE], "the new process has found the failed node itself, once"
    assert world.nodes_of("g-")["g-0"] != broken and len(world.evictions) == 3


@pytest.mark.parametrize("cause", ["new switch on Friday", MESSAGE])
def test_the_message_is_the_cause_again_once_recovery_is_on(cause: str) -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g")
    world.kubelets_dead.update(world.node_objects)
    world.request("away", *before, cause=cause)
    world.run(2)
    answer = without_recovery(world.one(), world.scheduler, EPOCH + world.now)
    assert answer is not None and answer[0].status.message == MESSAGE, "the column shows why nothing moves"
    world.edit("default/away", lambda migration: setattr(migration, "status", answer[0].status))
    world.run(1)
    assert world.one().status.message == cause
    assert world.phases() == [Phase.EVICTING]
    for pod in [pod for pod in world.pods.values() if pod.metadata.deletion_timestamp]:
        world.finish_pod(pod.metadata.uid)
    world.run(3)
    assert world.phases() == [Phase.DONE]


def test_a_migration_without_replacements_shows_no_nodes_for_them() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES, controllers_stand=True)
    before = run_gang(world, "g", 1)
    world.request("away", *before)
    world.run(RECOVERY_ENABLED.reservation_timeout + 60, 20)
    assert world.phases() == [Phase.FAILED]
    assert world.one().status.to_nodes == "" and world.one().status.moves[0].to == ""
