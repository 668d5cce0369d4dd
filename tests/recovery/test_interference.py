"""Someone deletes, edits or ends a Migration in the middle: pods on failed nodes are moved all the same."""

from collections.abc import Callable
from itertools import pairwise
from math import inf

import pytest

from tests.recovery.world import World, copy_of
from topo_scheduler.api.migrations import Migration, MigrationPod, MigrationSpec, MigrationWrite, Move, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.core.migrations import MAX_REPLACED_EDITS
from topo_scheduler.recovery.model.instructions import CreateMigration, RecoveryInstruction

FORCED = RecoverySpec(enabled=True, force_delete=True)
WIDE = {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4}
AGAIN_SECONDS = 15
"""Longer than the first pause before recovery makes a Migration again."""


def failing(world: World, size: int = 2) -> str:
    """Place a gang, let the node of its first member die, and return the node."""
    world.gang("g", size)
    world.run()
    node = world.nodes_of("g-")["g-0"]
    world.kubelets_dead.add(node)
    world.fail(node)
    return node


def until(world: World, phase: Phase) -> str:
    """Let time pass until the only Migration is in a phase; return its key."""
    for _ in range(60):
        world.run(0.5, 0.5)
        for key, migration in world.migrations.items():
            if migration.phase is phase:
                return key
    raise AssertionError(f"never in {phase}: {world.phases()}")


def end(world: World, key: str) -> None:
    """Write the status as one that is done, as any client can that may write it."""
    world.edit(key, lambda migration: setattr(migration.status, "phase", Phase.DONE))


def take_pods_away(world: World, key: str) -> None:
    """Let the Migration name another pod than the lost one."""
    world.edit(key, lambda migration: setattr(migration.spec, "pods", [MigrationPod("g-1", "g-1")]))


def take_moves_away(world: World, key: str) -> None:
    """Let the status move nothing."""
    world.edit(key, lambda migration: setattr(migration.status, "moves", []))


def rename_reason(world: World, key: str) -> None:
    """Let it look as if a user had asked for it, to a place that is not there."""

    def change(migration: Migration) -> None:
        migration.spec.reason, migration.spec.avoid = "Requested", ["nowhere"]

    world.edit(key, change)


@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.EVICTING])
@pytest.mark.parametrize("interfere", [World.cancel, end, take_pods_away, take_moves_away, rename_reason])
def test_no_gang_stays_on_a_dead_node(phase: Phase, interfere: Callable[[World, str], None]) -> None:
    spec = FORCED if phase is not Phase.PLANNED else FORCED.model_copy(update={"dry_run": True})
    world = World(spec, WIDE)
    node = failing(world)
    world.blocked.add("g-0")  # so that it stays in each phase
    key = until(world, phase)
    interfere(world, key)
    world.blocked.clear()
    world.spec = FORCED
    world.recovery.configure(FORCED, world.now)
    world.run(10 * AGAIN_SECONDS)
    where = world.nodes_of("g")
    assert len(where) == 2 and node not in where.values(), f"{where}, {world.phases()}"
    world.check()


def edit_new_ones(world: World, change: Callable[[Migration], None], times: float = inf) -> list[str]:
    """Have a client edit new Migrations as soon as they are seen; return the keys of those that were edited."""
    edited: list[str] = []
    create = world._create

    def create_and_edit(namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        created = create(namespace, name, spec)
        if created is not None and len(edited) < times:
            edited.append(created.key)
            world.recovery.migration_seen(copy_of(created), world.now)
            world.edit(created.key, change)
        return created

    world._create = create_and_edit  # type: ignore[method-assign]
    return edited


def forge(phase: Phase, *moves: Move) -> Callable[[Migration], None]:
    """Return what writes a status before the scheduler has written one."""

    def change(migration: Migration) -> None:
        migration.status.phase, migration.status.moves = phase, list(moves)
        migration.status.times = {phase.value: "2030-01-01T00:00:00.000000Z"}

    return change


OTHER_MOVE = Move(pod="g-1", uid="no-such-pod", from_="s1-l1-2", to="s2-l1-1", workload="g", gang=True)


@pytest.mark.parametrize("moves", [(), (OTHER_MOVE,)], ids=["moves nothing", "moves another pod"])
@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.RESERVING, Phase.EVICTING, Phase.PLACING])
def test_a_status_that_was_forged_before_the_first_leaves_no_gang_on_a_dead_node(
    phase: Phase, moves: tuple[Move, ...]
) -> None:
    world = World(FORCED, WIDE)
    forged: list[str] = []
    create = world._create

    def create_and_forge(namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        created = create(namespace, name, spec)
        if created is not None and not forged:
            forged.append(created.key)
            world.recovery.migration_seen(copy_of(created), world.now)
            world.edit(created.key, forge(phase, *moves))
        return created

    world._create = create_and_forge  # type: ignore[method-assign]
    node = failing(world)
    world.run(FORCED.reservation_timeout + 10 * AGAIN_SECONDS)
    where = world.nodes_of("g")
    assert forged and len(where) == 2 and node not in where.values(), f"{where}, {world.phases()}"
    world.check()


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and created again"])
def test_one_that_is_deleted_before_its_creator_knows_it_leaves_no_gang_on_a_dead_node(again: bool) -> None:
    """The watch reports creation and deletion before the answer to the creation is read."""
    world = World(FORCED, WIDE)
    missed: list[str] = []
    create = world._create

    def create_and_delete(namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        created = create(namespace, name, spec)
        if created is not None and not missed:
            missed.append(created.key)
            world.recovery.migrations.gone(created.key, created.metadata.uid)
            del world.migrations[created.key]
            if again:
                other = create(namespace, name, MigrationSpec(pods=[MigrationPod("nobody", "nobody")]))
                assert other is not None
                world.recovery.migration_seen(other, world.now)
        return created

    world._create = create_and_delete  # type: ignore[method-assign]
    node = failing(world)
    world.run(10 * AGAIN_SECONDS)
    where = world.nodes_of("g")
    assert missed and len(where) == 2 and node not in where.values(), f"{where}, {world.phases()}"
    world.check()


def test_one_whose_name_another_takes_at_that_moment_gets_another_name() -> None:
    world = World(FORCED, WIDE)
    taken: list[str] = []
    create = world._create

    def taken_before(namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        if not taken:
            taken.append(name)
            create(namespace, name, MigrationSpec(pods=[MigrationPod("nobody", "nobody")]))
        return create(namespace, name, spec)

    world._create = taken_before  # type: ignore[method-assign]
    node = failing(world)
    world.run(10 * AGAIN_SECONDS)
    where = world.nodes_of("g")
    assert taken and len(where) == 2 and node not in where.values(), f"{where}, {world.phases()}"


def test_a_deleted_migration_of_a_user_stays_deleted() -> None:
    world = World(FORCED, WIDE)
    world.gang("g", 2)
    world.run()
    before = world.nodes_of("g-")
    world.blocked.add("g-0")
    world.request("please", "g-0")
    world.run(1)
    world.cancel("default/please")
    world.blocked.clear()
    world.run(10 * AGAIN_SECONDS)
    assert world.nodes_of("g-") == before and not world.migrations


def delete_pods_of(world: World, node: str) -> None:
    """Delete a node, and then its pods, as the garbage collector of pods does."""
    uids = [pod.metadata.uid for pod in world.pods.values() if pod.spec.node_name == node]
    world.delete_nodes(node)
    world.run(5)
    for uid in uids:
        if uid in world.pods:
            world.finish_pod(uid)


@pytest.mark.parametrize("requests", [0, 1, 10])
@pytest.mark.parametrize("lose", [World.fail, delete_pods_of], ids=["silent", "deleted"])
def test_requests_that_find_no_room_keep_no_gang_on_a_dead_node(
    lose: Callable[[World, str], None], requests: int
) -> None:
    """They may move only the pod that they name, to the same leaf; recovery may restart the whole gang elsewhere."""
    world = World(FORCED, {"s1/l1": 3, "s2/l1": 4})
    fillers = [world.put(f"other-{node}", node, 8, bare=True) for node in world.node_objects if node.startswith("s2")]
    world.gang("g", 3)
    world.run()
    for filler in fillers:
        world.finish_pod(filler.metadata.uid)
    if requests:
        world.request("please", "g-0")
        world.run(5)
        assert world.phases() == [Phase.PLANNED], "its leaf is full"
    dead = world.nodes_of("g-")["g-0"]
    lose(world, dead)
    for number in range(1, requests):
        world.request(f"please-{number}", "g-1")
        world.run(1)
    world.run(world.spec.debounce + 5 - max(0, requests - 1))
    where = world.nodes_of("g-")
    assert len(where) == 3 and dead not in where.values(), f"{where}, {world.phases()}"
    world.check()


def test_a_request_that_finds_room_while_recovery_waits_for_most_nodes_goes_on() -> None:
    """Most nodes look dead, so recovery moves nothing."""
    world = World(FORCED, {"s1/l1": 3, "s1/l2": 3})
    world.gang("g", 1)
    world.run()
    (node,) = world.nodes_of("g-").values()
    rest = [name for name in world.node_objects if name != node]
    fillers = [world.put(f"other-{name}", name, 8, bare=True) for name in rest]
    world.request("please", "g-0")
    world.run(2)
    world.fail(node, *rest[:3])
    world.run(60)
    assert world.recovery.detection.held and world.phases() == [Phase.PLANNED]
    world.finish_pod(fillers[-1].metadata.uid)
    world.run(30)
    assert world.phases() == [Phase.DONE] and world.nodes_of("g-")["g-0"] == rest[-1]


def test_deleting_it_again_and_again_makes_it_come_less_often() -> None:
    world = World(FORCED, WIDE)
    failing(world)
    world.blocked.add("g-0")
    times: list[float] = []
    for _ in range(5):
        key = until(world, Phase.EVICTING) if not times else _until_any(world)
        times.append(world.now)
        world.cancel(key)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == sorted(pauses) and pauses[-1] > 4 * pauses[0]


def _until_any(world: World) -> str:
    for _ in range(600):
        world.run(1)
        if world.migrations:
            return next(iter(world.migrations))
    raise AssertionError("no Migration came again")


def test_nodes_that_are_well_again_need_none() -> None:
    world = World(FORCED, WIDE)
    node = failing(world)
    world.blocked.add("g-0")
    world.cancel(until(world, Phase.EVICTING))
    world.heal(node)
    world.run(10 * AGAIN_SECONDS)
    assert not world.migrations and node in world.nodes_of("g-").values()


def name_no_pod(migration: Migration) -> None:
    migration.spec.pods = [MigrationPod("nobody")]


def avoid_all(migration: Migration) -> None:
    migration.spec.avoid = ["s1", "s2"]


@pytest.mark.parametrize("change", [name_no_pod, avoid_all])
@pytest.mark.parametrize("when", ["before the answer to its creation", "before its first status", "when planned"])
def test_one_that_is_edited_early_is_cancelled_and_another_heals(
    change: Callable[[Migration], None], when: str
) -> None:
    spec = FORCED if when != "when planned" else FORCED.model_copy(update={"dry_run": True})
    world = World(spec, WIDE)
    edited: list[str] = []
    create = world._create

    def create_and_edit(namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        created = create(namespace, name, spec)
        if created is not None and not edited and when != "when planned":
            edited.append(created.key)
            if when == "before its first status":
                world.recovery.migration_seen(copy_of(created), world.now)
            world.edit(created.key, change)
        return created

    world._create = create_and_edit  # type: ignore[method-assign]
    node = failing(world)
    if when == "when planned":
        edited.append(until(world, Phase.PLANNED))
        world.edit(edited[0], change)
        world.spec = FORCED
        world.recovery.configure(FORCED, world.now)
    world.run(10 * AGAIN_SECONDS)
    where = world.nodes_of("g")
    assert edited and len(where) == 2 and node not in where.values(), f"{where}, {world.phases()}"
    assert world.migrations[edited[0]].phase is Phase.CANCELLED
    world.check()


def test_one_that_is_deleted_but_kept_by_a_finalizer_evicts_no_more() -> None:
    world = World(FORCED, WIDE)
    world.gang("g", 2)
    world.run()
    world.blocked.add("g-0")
    world.request("move", "g-0")
    world.run(1)
    world.edit(
        "default/move", lambda migration: setattr(migration.metadata, "deletion_timestamp", "2030-01-01T00:00:00Z")
    )
    world.evictions.clear()
    world.blocked.clear()
    world.run(60)
    assert not world.evictions and not world.d.engine.preempting.replacements


@pytest.mark.parametrize(
    ("change", "ended"),
    [
        (lambda migration: setattr(migration.spec, "cause", f"{migration.spec.cause}, seen"), ["Done"]),
        (lambda migration: migration.spec.avoid.append("s1-l1-4"), [*["Cancelled"] * MAX_REPLACED_EDITS, "Done"]),
    ],
    ids=["a text", "nodes to avoid"],
)
def test_a_controller_that_edits_each_new_one_keeps_no_gang_on_a_dead_node(
    change: Callable[[Migration], None], ended: list[str]
) -> None:
    world = World(FORCED, WIDE)
    edit_new_ones(world, change)
    node = failing(world)
    world.run(20 * AGAIN_SECONDS)
    assert node not in world.nodes_of("g").values()
    assert [str(phase and phase.value) for phase in world.phases()] == ended


def test_a_migration_of_a_user_stays_when_that_user_edits_it() -> None:
    world = World(FORCED, {"s1/l1": 3, "s2/l1": 4})
    world.gang("g", 2)
    world.run()
    node = world.nodes_of("g-")["g-0"]
    world.request("mine", "g-0", avoid=["s1", "s2"])
    world.run(1)
    world.fail(node)
    world.run(1)
    world.edit("default/mine", lambda migration: setattr(migration.spec, "avoid", [node]))
    world.run(1)
    world.heal(node)
    world.run(60)
    assert world.migrations["default/mine"].phase is Phase.DONE
    assert node not in world.nodes_of("g-").values()


def avoid_everything(migration: Migration) -> None:
    """Leave no node where the pods may go."""
    migration.spec.avoid = ["s1", "s2"]


@pytest.mark.parametrize("gap", [0, 12], ids=["at once", "after the first edit was handled"])
def test_an_edit_counts_although_a_text_was_edited_before(gap: float) -> None:
    world = World(FORCED, WIDE)
    world.gang("g", 2)
    world.run()
    used = world.nodes_of("g-")
    fillers = [world.put(f"f-{name}", name, 8, bare=True) for name in world.node_objects if name not in used.values()]
    world.fail(used["g-0"])
    world.run(80)
    ((key, migration),) = world.migrations.items()
    assert migration.phase is Phase.PLANNED, "there is no room"
    world.edit(key, lambda migration: setattr(migration.spec, "cause", "seen"))
    world.run(gap)
    world.edit(key, avoid_everything)
    world.run(20)
    for filler in fillers:
        world.finish_pod(filler.metadata.uid)
    world.run(10 * AGAIN_SECONDS)
    assert used["g-0"] not in world.nodes_of("g-").values(), world.phases()


def test_deletions_do_not_count_as_edits() -> None:
    world = World(FORCED, WIDE)
    node = failing(world)
    world.blocked.add("g-0")
    for _ in range(MAX_REPLACED_EDITS):
        world.cancel(_until_any(world))
    edited = edit_new_ones(world, avoid_everything, times=1)
    world.blocked.clear()
    world.run(600, step=5)
    assert edited and node not in world.nodes_of("g").values(), world.phases()


def test_an_edit_that_ends_one_before_its_creation_is_answered_is_noticed() -> None:
    world = World(FORCED, WIDE)
    created: list[tuple[CreateMigration, Migration]] = []
    carry_out = world.carry_out

    def answer_later(instruction: RecoveryInstruction) -> None:
        if not isinstance(instruction, CreateMigration) or created:
            carry_out(instruction)
            return
        migration = world._create(instruction.namespace, instruction.name, instruction.spec)
        assert migration is not None
        created.append((instruction, copy_of(migration)))
        world.edit(migration.key, lambda migration: setattr(migration.spec, "pods", [MigrationPod("nobody", "nobody")]))

    world.carry_out = answer_later  # type: ignore[method-assign]
    node = failing(world)
    while not created:
        world.run(0.1, 0.1)
    world.run(0.2, 0.05)
    assert world.phases() == [Phase.CANCELLED], "the pods that it names do not exist"
    ((instruction, migration),) = created
    world.recovery.wrote(instruction, MigrationWrite.WRITTEN, "", migration, world.now)
    world.run(10 * AGAIN_SECONDS)
    assert node not in world.nodes_of("g").values(), world.phases()


@pytest.mark.parametrize("first", ["recovery", "engine"])
def test_a_failed_node_that_is_deleted_within_the_pause_is_not_forgotten(first: str) -> None:
    """The watches of recovery and of the engine report the deletion in either order."""
    world = World(RecoverySpec(enabled=True), WIDE)
    dead = failing(world)
    cancelled = until(world, Phase.EVICTING)
    world.blocked.add("g-0")
    world.cancel(cancelled)
    world.run(3)
    uid = world.node_objects.pop(dead).metadata.uid
    reports: list[Callable[[], object]] = [
        lambda: world.recovery.detection.gone(dead, uid, world.now),
        lambda: world.d.drop_node(dead, uid),
    ]
    for report in reports if first == "recovery" else reversed(reports):
        report()
        world.run(0.2, step=0.1)
    world.run(AGAIN_SECONDS)
    assert world.phases() == [Phase.EVICTING]
    assert world.one().spec.cause == f"node {dead} was deleted"
