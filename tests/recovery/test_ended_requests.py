"""Users create Migrations that end, or edit them, while a node is failed: that moves no pods of others."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.recovery.world import World
from topo_scheduler.api.migrations import Migration, MigrationPod, MigrationSpec, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.instructions import EmitMigrationEvent, Warn

FORCED = RecoverySpec(enabled=True, force_delete=True)


def _gang_that_stays(world: World) -> str:
    """Let the node of a gang die that can't restart, as no controller would recreate one member; return the node."""
    pods = world.gang("g", 2, gpus=6, said={"on-failure": "restart-gang"})
    pods[1].metadata.owner_references = []
    world.tell_pod("g-1")
    world.run(1)
    node = world.nodes_of("g-")["g-0"]
    world.put("bare", node, 1, namespace="hostile", bare=True)
    world.put("bare-too", node, 1, bare=True)
    world.run(1)
    world.fail(node)
    world.run(15)
    return node


def _refused(world: World, namespace: str, *pods: MigrationPod) -> None:
    """Let a user create a Migration that fails."""
    world.made += 1
    created = world._create(namespace, f"please-{world.made}", MigrationSpec(pods=list(pods)))
    assert created is not None
    world.recovery.migration_seen(created, world.now)


def test_requests_of_one_tenant_make_no_migration_for_another() -> None:
    world = World(FORCED, {"s1/l1": 6})
    _gang_that_stays(world)
    before, said = [key for key in world.migrations if key.startswith("default/")], len(world.emitted)
    for _ in range(20):
        _refused(world, "hostile", MigrationPod("bare", "bare"))
        _refused(world, "hostile", MigrationPod("g-0", "g-0"))
        world.run(5)
    assert [key for key in world.migrations if key.startswith("default/")] == before
    events = [out for out in world.emitted[said:] if isinstance(out, EmitMigrationEvent)]
    assert {event.namespace for event in events} == {"hostile"}


def test_requests_that_end_have_the_node_handled_less_and_less_often() -> None:
    world = World(FORCED, {"s1/l1": 6})
    _gang_that_stays(world)
    times: list[float] = []
    create = world._create

    def note(namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        if not name.startswith("please"):
            times.append(world.now)
        return create(namespace, name, spec)

    world._create = note  # type: ignore[method-assign]
    began = world.now
    for _ in range(100):
        _refused(world, "default", MigrationPod("bare-too", "bare-too"))
        world.run(1)
    assert times[0] == began, "the first time at once"
    assert 2 <= len(times) <= 4
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == sorted(pauses) and pauses[0] >= 10


def test_requests_of_one_tenant_shorten_no_pause_of_another() -> None:
    world = World(FORCED, {"s1/l1": 3})
    world.put("victim", "s1-l1-1", 4, namespace="victim")
    world.put("bare", "s1-l1-1", 0, namespace="hostile", bare=True)
    for node in ("s1-l1-2", "s1-l1-3"):
        world.put(f"other-{node}", node, 8, bare=True)
    world.run(1)
    world.fail("s1-l1-1")
    world.run(15)
    cancelled = 0
    for _ in range(60):
        for key in [key for key in world.migrations if key.startswith("victim/")]:
            world.cancel(key)
            cancelled += 1
        _refused(world, "hostile", MigrationPod("bare", "bare"))
        world.run(1)
    assert 2 <= cancelled <= 4


def _name_a_cause(migration: Migration) -> None:
    migration.spec.cause = f"{migration.spec.cause}, seen"


def _avoid_more(migration: Migration) -> None:
    migration.spec.avoid = ["s1-l1-2"] if not migration.spec.avoid else []


@pytest.mark.parametrize(
    ("change", "at_least", "at_most"), [(_name_a_cause, 0, 0), (_avoid_more, 1, 8)], ids=["a text", "nodes to avoid"]
)
def test_edits_fill_no_log(change: Callable[[Migration], None], at_least: int, at_most: int) -> None:
    world = World(FORCED, {"s1/l1": 3})
    world.put("mine", "s1-l1-1", 8, namespace="hostile")
    for node in ("s1-l1-2", "s1-l1-3"):
        world.put(f"other-{node}", node, 8, bare=True)
    world.fail("s1-l1-1")
    world.run(30)
    before = len(world.emitted)
    for _ in range(600):
        for key in [key for key, migration in world.migrations.items() if migration.phase is Phase.PLANNED]:
            world.edit(key, change)
        world.run(0.2, step=0.2)
    warnings = [out for out in world.emitted[before:] if isinstance(out, Warn)]
    assert at_least <= len(warnings) <= at_most, warnings[-1:]
