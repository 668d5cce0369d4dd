"""Validates a Migration: finds the pods that it names, or the reason why they can't move."""

from collections.abc import Collection, Mapping, Sequence

from topo_scheduler.api.annotations import OnFailure
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.text import quoted
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pod, find_moving_pods
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.scheduler_view import SchedulerView


class Refused(Exception):
    """A Migration that can't be carried out: the ``phase`` in which it ends, and a ``reason`` for machines."""

    def __init__(self, phase: Phase, reason: MigrationReason, message: str) -> None:
        super().__init__(message)
        self.phase, self.reason = phase, reason


class PodsNotRead(Exception):
    """Pods that an earlier process placed: this process must read them before it can plan."""

    def __init__(self, pods: tuple[PodRef, ...]) -> None:
        super().__init__()
        self.pods = pods


def read_pods(
    view: SchedulerView, migration: Migration, learned: Collection[str], taken: Mapping[str, str]
) -> list[MovingPod]:
    """Return the pods that a Migration names.

    Args:
        view: provides the state.
        migration: the Migration.
        learned: uids of pods that were read before.
        taken: names of other Migrations, by the uids of the pods that they move.

    Raises:
        PodsNotRead: pods must be read first.
        Refused: the Migration can't be carried out.
    """
    namespace = migration.metadata.namespace
    if not migration.spec.pods:
        raise Refused(Phase.FAILED, MigrationReason.NO_PODS, "spec.pods names no pod; name those to move")
    if unknown := next((name for name in migration.spec.avoid if not avoided_nodes(view, [name])), ""):
        raise Refused(
            Phase.FAILED,
            MigrationReason.UNKNOWN_NODE,
            f"spec.avoid names {quoted(unknown)}, which is no node and no domain",
        )
    uids = _uids(view, migration)
    if not uids:
        raise Refused(Phase.CANCELLED, MigrationReason.NOTHING_TO_MOVE, "the pods are gone already")
    pods: list[MovingPod] = []
    unlearned: list[PodRef] = []
    for uid, name in uids.items():
        if uid in taken:
            phase = Phase.CANCELLED if migration.cause.dead else Phase.FAILED
            raise Refused(
                phase, MigrationReason.ALREADY_MOVED, f"pod {name} is moved by Migration {taken[uid]} already"
            )
        pod = find_moving_pod(view, uid)
        if pod is None or not pod.member.cls.amounts:
            if uid not in learned:
                unlearned.append(PodRef(namespace, name, uid))
                continue
            raise Refused(Phase.FAILED, MigrationReason.NOT_OURS, f"pod {name} is not one that this scheduler placed")
        _check(pod, migration)
        pods.append(pod)
    if unlearned:
        raise PodsNotRead(tuple(unlearned))
    pods += _rest_of_gang(view, pods, learned)
    if len({pod.workload.id for pod in pods if pod.workload.gang}) > 1 or (
        any(pod.workload.gang for pod in pods) and not all(pod.workload.gang for pod in pods)
    ):
        raise Refused(
            Phase.FAILED,
            MigrationReason.SEVERAL_GANGS,
            "spec.pods names pods of several gangs; make a Migration for each",
        )
    return pods


def _rest_of_gang(view: SchedulerView, pods: Sequence[MovingPod], learned: Collection[str]) -> list[MovingPod]:
    """Return the other bound members of a gang that can't continue with a replacement member."""
    if not restarts(pods[0]):
        return []
    remaining = rest_of_gang(view, pods)
    unlearned = [pod.member for pod in remaining if not pod.member.cls.amounts and pod.member.uid not in learned]
    if unlearned:
        raise PodsNotRead(tuple(PodRef(member.namespace, member.name, member.uid) for member in unlearned))
    if bare := next((pod for pod in remaining if not pod.member.controlled or not pod.member.cls.amounts), None):
        text = f"the whole gang would restart, but no controller would recreate pod {bare.member.name}: it stays"
        raise Refused(Phase.FAILED, MigrationReason.BARE_POD, text)
    return remaining


def restarts(pod: MovingPod) -> bool:
    """Return whether the whole gang of a pod must restart when the pod goes."""
    return pod.workload.gang and pod.workload.request.on_failure == OnFailure.RESTART_GANG


def rest_of_gang(view: SchedulerView, pods: Sequence[MovingPod]) -> list[MovingPod]:
    """Return the bound members of a gang beside these; empty if they are no gang."""
    gang, named = pods[0].workload, {pod.member.uid for pod in pods}
    return find_moving_pods(view, (uid for uid in gang.members if gang.gang and uid not in named))


def may_move(pod: MovingPod) -> bool:
    """Return whether a pod can move without need: this process knows enough about it, and has read its controller."""
    occupant = pod.entry.occupant
    fixed = occupant is None or occupant.fixed or occupant.terminating
    return pod.member.recreated and bool(pod.member.cls.amounts) and not fixed and pod.workload.request.movable


def policy_of(moving_pods: Sequence[MovingPod], migration: Migration) -> str:
    """Return the `OnFailure` policy for pods. Only a failed node shrinks a gang; a requested move does not."""
    gang = moving_pods[0].workload
    policy = gang.request.on_failure if gang.gang else OnFailure.REPLACE
    node_failed = migration.cause.of_node
    return OnFailure.REPLACE if policy == OnFailure.SHRINK and not node_failed else policy


def check_comes_back(pod: MovingPod) -> None:
    """Check that a controller would recreate a pod on another node.

    Raises:
        Refused: no controller would.
    """
    name, occupant = pod.member.name, pod.entry.occupant
    if not pod.member.controlled:
        raise Refused(
            Phase.FAILED, MigrationReason.BARE_POD, f"pod {name} has no controller to recreate it, so it is not moved"
        )
    if occupant is not None and occupant.fixed:
        raise Refused(Phase.FAILED, MigrationReason.FIXED, f"pod {name} belongs to its node: it stays")


def _check(pod: MovingPod, migration: Migration) -> None:
    name = pod.member.name
    check_comes_back(pod)
    if pod.member.withdrawn:
        raise Refused(
            Phase.CANCELLED, MigrationReason.OWNER_DELETED, f"{pod.member.withdrawn}: pod {name} is about to be deleted"
        )
    if not pod.workload.request.movable and not migration.cause.dead:
        text = f'pod {name} says topology.scheduler/movable: "false"; only a dead node is a reason to move it'
        raise Refused(Phase.FAILED, MigrationReason.NOT_MOVABLE, text)


def _uids(view: SchedulerView, migration: Migration) -> dict[str, str]:
    """Return uid and name of the named pods that still exist."""
    namespace = migration.metadata.namespace
    names = {pod.name for pod in migration.spec.pods if not pod.uid}
    by_name: dict[str, str] = {}
    for uid, bound in view.entries() if names else ():
        occupant = bound.occupant
        if occupant is not None and occupant.namespace == namespace and occupant.name in names:
            by_name[occupant.name] = uid
    uids: dict[str, str] = {}
    for pod in migration.spec.pods:
        if pod.uid:
            entry = view.entry(pod.uid)
            occupant = entry.occupant if entry is not None else None
            if occupant is not None and occupant.namespace != namespace:
                text = f"pod {pod.name} with uid {pod.uid} is in another namespace than the Migration"
                raise Refused(Phase.FAILED, MigrationReason.UNKNOWN_POD, text)
            if occupant is not None:
                uids[pod.uid] = occupant.name  # the spec may name another pod, of any size
        elif pod.name in by_name:
            uids[by_name[pod.name]] = pod.name
        else:
            text = f"no bound pod of namespace {namespace} is called {quoted(pod.name)}"
            raise Refused(Phase.FAILED, MigrationReason.UNKNOWN_POD, text)
    return uids


def reference_of(view: SchedulerView, namespace: str, name: str, uid: str) -> PodRef:
    """Return the pod of a Migration by the name that it has: users may have written the name of another one."""
    entry = view.entry(uid)
    occupant = entry.occupant if entry is not None else None
    if occupant is None or occupant.namespace != namespace:
        return PodRef(namespace, name, uid)
    return PodRef(namespace, occupant.name, uid)


def avoided_nodes(view: SchedulerView, names: Collection[str]) -> set[str]:
    """Return the nodes with these names, and the nodes of the domains with these names."""
    layout, table = view.layout, view.nodes
    nodes = {name for name in names if name in table.row_of}
    for name in names:
        for depth, index in layout.find(name):
            first, last = layout.domains[depth][index : index + 2].tolist()
            rows = layout.order[layout.offsets[first] : layout.offsets[last]]
            nodes.update(table.names[row] for row in rows.tolist())
    return nodes
