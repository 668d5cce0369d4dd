"""From what a Migration names to pods that can be moved, or why not."""

from collections.abc import Collection, Mapping, Sequence

from topo_scheduler.api.annotations import OnFailure
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.words import quoted
from topo_scheduler.recovery.seating import MovingPod, leaver
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef


class Refused(Exception):
    """A Migration that can't be: ``phase`` it ends in, and ``reason`` for machines."""

    def __init__(self, phase: Phase, reason: str, message: str) -> None:
        super().__init__(message)
        self.phase, self.reason = phase, reason


class Unlearned(Exception):
    """Some pods were placed by an earlier process: they must be read before anything can be planned."""

    def __init__(self, pods: tuple[PodRef, ...]) -> None:
        super().__init__()
        self.pods = pods

    @property
    def uids(self) -> list[str]:
        """Uids of these pods."""
        return [pod.uid for pod in self.pods]


def read_pods(
    engine: Engine, migration: Migration, learned: Collection[str], taken: Mapping[str, str]
) -> list[MovingPod]:
    """Return the pods a Migration names.

    Args:
        engine: what there is.
        migration: what names them.
        learned: uids of pods that were read already.
        taken: pods that other Migrations move, by uid, with the names of those.

    Raises:
        Unlearned: pods must be read first.
        Refused: it can't be carried out.
    """
    namespace = migration.metadata.namespace
    if not migration.spec.pods:
        raise Refused(Phase.FAILED, "NoPods", "spec.pods names no pod; name those to move")
    if unknown := next((name for name in migration.spec.avoid if not avoided_nodes(engine, [name])), ""):
        raise Refused(
            Phase.FAILED, "UnknownNode", f"spec.avoid names {quoted(unknown)}, which is no node and no domain"
        )
    uids = _uids(engine, migration)
    if not uids:
        raise Refused(Phase.CANCELLED, "NothingToMove", "the pods are gone already")
    found: list[MovingPod] = []
    unlearned: list[PodRef] = []
    for uid, name in uids.items():
        if uid in taken:
            raise Refused(Phase.FAILED, "AlreadyMoved", f"pod {name} is moved by Migration {taken[uid]} already")
        one = leaver(engine, uid)
        if one is None or not one.member.cls.amounts:
            if uid not in learned:
                unlearned.append(PodRef(namespace, name, uid))
                continue
            raise Refused(Phase.FAILED, "NotOurs", f"pod {name} is not one that this scheduler placed")
        _check(one, migration)
        found.append(one)
    if unlearned:
        raise Unlearned(tuple(unlearned))
    found += _rest_of_gang(engine, found, learned)
    if len({one.workload.id for one in found if one.workload.gang}) > 1 or (
        any(one.workload.gang for one in found) and not all(one.workload.gang for one in found)
    ):
        raise Refused(Phase.FAILED, "SeveralGangs", "spec.pods names pods of several gangs; make a Migration for each")
    return found


def _rest_of_gang(engine: Engine, found: Sequence[MovingPod], learned: Collection[str]) -> list[MovingPod]:
    """Return the other bound members of a gang that can't go on with a new one."""
    if not restarts(found[0]):
        return []
    rest = rest_of_gang(engine, found)
    unlearned = [one.member for one in rest if not one.member.cls.amounts and one.member.uid not in learned]
    if unlearned:
        raise Unlearned(tuple(PodRef(member.namespace, member.name, member.uid) for member in unlearned))
    if bare := next((one for one in rest if not one.member.controlled or not one.member.cls.amounts), None):
        text = f"the gang restarts whole, but nobody would make pod {bare.member.name} again: it stays"
        raise Refused(Phase.FAILED, "BarePod", text)
    return rest


def restarts(one: MovingPod) -> bool:
    """Whether all of a pod's gang must start again when it goes."""
    return one.workload.gang and one.workload.request.on_failure == OnFailure.RESTART_GANG


def rest_of_gang(engine: Engine, found: Sequence[MovingPod]) -> list[MovingPod]:
    """Return the bound members of a gang beside these; none where they are no gang."""
    gang, named = found[0].workload, {one.member.uid for one in found}
    members = (member for member in gang.members.values() if gang.gang and member.uid not in named)
    return [one for member in members if (one := leaver(engine, member.uid)) is not None]


def may_move(one: MovingPod) -> bool:
    """Whether enough is known of a pod to move it, and it comes back."""
    occupant = one.entry.occupant
    fixed = occupant is None or occupant.fixed or occupant.terminating
    return one.member.controlled and bool(one.member.cls.amounts) and not fixed and one.workload.request.movable


def policy_of(leavers: Sequence[MovingPod], migration: Migration) -> str:
    """Return what becomes of the places of pods: `OnFailure`. Who asks for a move does not ask to shrink."""
    gang = leavers[0].workload
    wanted = gang.request.on_failure if gang.gang else OnFailure.REPLACE
    lost = migration.cause.of_node
    return OnFailure.REPLACE if wanted == OnFailure.SHRINK and not lost else wanted


def check_comes_back(one: MovingPod) -> None:
    """See that somebody would make a pod again, elsewhere.

    Raises:
        Refused: nobody would.
    """
    name, occupant = one.member.name, one.entry.occupant
    if not one.member.controlled:
        raise Refused(Phase.FAILED, "BarePod", f"pod {name} has no controller that would make it again: it stays")
    if occupant is not None and occupant.fixed:
        raise Refused(Phase.FAILED, "Fixed", f"pod {name} belongs to its node: it stays")


def _check(one: MovingPod, migration: Migration) -> None:
    name = one.member.name
    check_comes_back(one)
    if one.member.withdrawn:
        raise Refused(Phase.CANCELLED, "OwnerDeleted", f"{one.member.withdrawn}: pod {name} is about to be deleted")
    if not one.workload.request.movable and not migration.cause.dead:
        text = f'pod {name} says topology.scheduler/movable: "false"; only a dead node is a reason to move it'
        raise Refused(Phase.FAILED, "NotMovable", text)


def _uids(engine: Engine, migration: Migration) -> dict[str, str]:
    """Return uid and name of the pods that are still there."""
    ledger, namespace = engine.world.ledger, migration.metadata.namespace
    wanted = {pod.name for pod in migration.spec.pods if not pod.uid}
    by_name: dict[str, str] = {}
    for uid, held in ledger.items() if wanted else ():
        occupant = held.occupant
        if occupant is not None and occupant.namespace == namespace and occupant.name in wanted:
            by_name[occupant.name] = uid
    found: dict[str, str] = {}
    for pod in migration.spec.pods:
        if pod.uid:
            entry = ledger.get(pod.uid)
            there = entry is not None and entry.occupant is not None
            if entry is not None and entry.occupant is not None and entry.occupant.namespace != namespace:
                text = f"pod {pod.name} with uid {pod.uid} is in another namespace than the Migration"
                raise Refused(Phase.FAILED, "UnknownPod", text)
            if there:
                found[pod.uid] = pod.name
        elif pod.name in by_name:
            found[by_name[pod.name]] = pod.name
        else:
            text = f"no bound pod of namespace {namespace} is called {quoted(pod.name)}"
            raise Refused(Phase.FAILED, "UnknownPod", text)
    return found


def avoided_nodes(engine: Engine, names: Collection[str]) -> set[str]:
    """Return the nodes that are named, or lie in domains that are."""
    layout, nodes = engine.world.layout, engine.world.nodes
    found = {name for name in names if name in nodes.row_of}
    for name in names:
        for depth, index in layout.find(name):
            first, last = layout.domains[depth][index : index + 2].tolist()
            rows = layout.order[layout.offsets[first] : layout.offsets[last]]
            found.update(nodes.names[row] for row in rows.tolist())
    return found
