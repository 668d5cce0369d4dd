"""Whatever happens: pods that don't allow it stay, none goes without a seat or beyond the budget, gangs gain."""

from collections.abc import Iterable

from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from tests.helpers import EPOCH
from tests.recovery.world import World
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.recovery import DefragmentationSpec, RecoveryLimits, RecoverySpec
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.model.seating import seat_of

BUDGET, REST = 3, 900.0
ON = RecoverySpec(
    enabled=True,
    defragmentation=DefragmentationSpec(enabled=True, largest_block=True),
    limits=RecoveryLimits(moves_per_hour=BUDGET, cooldown=REST),
)
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {enabled: true}},"
    " preemption: {enabled: false}, reservation: {enabled: false}}"
)


class Watched(World):
    """Looks at each eviction before it is carried out."""

    def __post_init__(self) -> None:
        self.gone: list[tuple[float, str, Migration]] = []
        self.stay: set[str] = set()
        super().__post_init__()

    def _evict(self, uid: str, *, force: bool) -> str:
        migration = self._evicts(uid)
        if uid in self.pods and migration is not None and migration.cause.by_choice:
            assert self.pods[uid].metadata.name.partition(".")[0] not in self.stay, "it does not allow to be moved"
            for_gang = bool(migration.spec.makes_room_for)
            assert not (for_gang and self.pods[uid].spec.priority), "its priority is above that of the gang"
            seats = [seat_of(migration, move) for move in migration.status.moves if move.uid == uid]
            assert all(self.d.engine.preempting.replacements.holds(seat.id) for seat in seats), "there is no seat"
        base = self.pods[uid].metadata.name.partition(".")[0] if uid in self.pods else ""
        refused = super()._evict(uid, force=force)
        if base and not refused and migration is not None:
            self._goes(base, migration)
        return refused

    def _goes(self, base: str, migration: Migration) -> None:
        if migration.cause.by_choice:
            before = [at for at, name, _ in self.gone if name == base]
            assert all(self.now - at >= REST for at in before), "it was moved a moment ago"
        self.gone.append((self.now, base, migration))
        lately = [at for at, _, earlier in self.gone if earlier.cause.by_choice and self.now - at < 3600]
        assert len(lately) <= BUDGET, "more than the budget"

    def _evicts(self, uid: str) -> Migration | None:
        """Return the Migration that evicts a pod now."""
        for migration in self.migrations.values():
            if migration.phase is Phase.EVICTING and any(move.uid == uid for move in migration.status.moves):
                return migration
        return None


pods = st.lists(
    st.tuples(
        st.integers(0, 8),  # which node
        st.sampled_from([1, 2, 4, 6]),
        st.booleans(),  # whether it may move
        st.sampled_from([0, 0, 0, 5]),  # its priority
    ),
    min_size=2,
    max_size=9,
)


def _fill(world: Watched, wanted: Iterable[tuple[int, int, bool, int]]) -> None:
    nodes = sorted(world.node_objects)
    free = dict.fromkeys(nodes, 8)
    for number, (at, gpus, movable, priority) in enumerate(wanted):
        node, name = nodes[at % len(nodes)], f"p{number}"
        if free[node] < gpus:
            continue
        free[node] -= gpus
        if not movable:
            world.stay.add(name)
        world.put(name, node, gpus, priority=priority, said={"movable": str(movable).lower()})


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(2, 3), min_size=2, max_size=3), residents=pods, size=st.integers(1, 3))
def test_whoever_is_evicted_it_was_for_a_gang_that_has_room_now(
    sizes: list[int], residents: list[tuple[int, int, bool, int]], size: int
) -> None:
    world = Watched(ON, {f"s1/l{n}": count for n, count in enumerate(sizes, 1)}, CONFIG)
    _fill(world, residents)
    world.gang("g", size + 1)
    world.run(200, step=2.0)
    placed = len(world.nodes_of("g")) == size + 1
    if any(migration.spec.makes_room_for for _, _, migration in world.gone):
        event("others left for it")
        assert placed
    assert all(phase is not None and (phase.over or phase is Phase.PLANNED) for phase in world.phases())
    world.check()


happenings = st.lists(
    st.tuples(
        st.sampled_from(["unblock", "finish", "another gang", "drop the gang", "restart", "cancel", "fail", "heal"]),
        st.integers(0, 8),
        st.sampled_from([1.0, 7.0, 30.0, 90.0, 1000.0]),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(2, 3), min_size=2, max_size=3),
    residents=pods,
    blocked=st.sets(st.integers(0, 8)),
    happens=happenings,
)
@example(  # the gang would have gone onto the node that the other one leaves
    sizes=[3, 3],
    residents=[(0, 1, True, 0), (1, 1, False, 0)],
    blocked={0, 1},
    happens=[("another gang", 2, 1.0), ("restart", 2, 91.0), ("cancel", 0, 30.0)],
)
@example(  # of what was moved by those that were deleted the next process knows nothing
    sizes=[3, 2, 3],
    residents=[(0, 1, False, 0), (1, 1, True, 0), (3, 1, False, 0), (3, 2, False, 0), (6, 1, True, 0), (5, 1, True, 0)],
    blocked=set(),
    happens=[("cancel", 0, 1.0), ("restart", 0, 1000.0), ("another gang", 2, 1.0)],
)
@example(  # its node failed, and then its seat expired
    sizes=[3, 3], residents=[(8, 1, True, 5), (0, 1, True, 0)], blocked={0, 1}, happens=[("fail", 0, 1000.0)]
)
@example(  # its eviction was refused for half an hour: the time of the move is not that of the first attempt
    sizes=[3, 2, 2],
    residents=[(0, 6, True, 0), (3, 1, False, 0), (8, 2, True, 0), (1, 2, True, 5), (5, 4, False, 0)],
    blocked=set(range(9)),
    happens=[
        *[("heal", 8, 30.0), ("drop the gang", 1, 7.0), ("cancel", 1, 1.0), ("cancel", 2, 90.0)],
        *[("drop the gang", 0, 7.0), ("cancel", 0, 7.0), ("fail", 1, 1.0), ("finish", 4, 1000.0)],
        ("cancel", 4, 1000.0),
    ],
)
def test_whatever_happens_meanwhile(
    sizes: list[int],
    residents: list[tuple[int, int, bool, int]],
    blocked: set[int],
    happens: list[tuple[str, int, float]],
) -> None:
    world = Watched(ON, {f"s1/l{n}": count for n, count in enumerate(sizes, 1)}, CONFIG)
    _fill(world, residents)
    world.blocked = {f"p{number}" for number in blocked}
    world.gang("g", 2)
    world.run(62, step=2.0)
    for number, (what, which, seconds) in enumerate(happens):
        _happens(world, what, which, f"g{number}")
        world.run(seconds, step=max(1.0, seconds / 40))
        if not world.kubelets_dead:
            world.check()
    world.blocked = set()
    _heal(world)
    world.run(2400, step=30.0)
    assert not any(phase is not None and phase.running for phase in world.phases())
    assert not world.d.engine.preempting.replacements
    for migration in world.migrations.values():
        assert _is_told(migration)


def _happens(world: Watched, what: str, which: int, fresh: str) -> None:
    match what:
        case "unblock":
            world.blocked = set()
        case "finish" if world.pods:
            uid = sorted(world.pods)[which % len(world.pods)]
            del world.pods[uid]
            world.tell_pod(uid)
        case "another gang":
            world.gang(fresh, 1 + which % 3)
        case "drop the gang":
            for uid in [uid for uid in world.pods if uid.startswith("g-")]:
                del world.pods[uid]
                world.tell_pod(uid)
        case "restart":
            world.start()
            # What was moved is known from the Migrations: those that were deleted do not count any more.
            world.gone = [departure for departure in world.gone if departure[2].key in world.migrations]
        case "cancel" if world.migrations:
            world.cancel(sorted(world.migrations)[which % len(world.migrations)])
        case "fail":
            world.fail(sorted(world.node_objects)[which % len(world.node_objects)], ready="Unknown")
        case "heal":
            _heal(world)


def _heal(world: Watched) -> None:
    """Kubelets come back, and confirm the end of pods that were evicted meanwhile."""
    world.heal(*list(world.kubelets_dead))
    for uid in [uid for uid, pod in world.pods.items() if pod.metadata.deletion_timestamp]:
        world.finish_pod(uid)


def _is_told(migration: Migration) -> bool:
    """Whether it says why it is over, or what it waits for, and when it began."""
    began = seconds_of(migration.status.times.get("Planned", ""))
    return bool(migration.status.message or migration.status.conditions) and (began is None or began >= EPOCH)
