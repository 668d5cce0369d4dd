"""Nominated pods: they have no node yet, but a claim to one.

On that node they count for all workloads of equal or lower priority, or for those of their namespace only. The pods
that are evicted for them count as well until they have ended. Yet a pod with a plan gets its place as soon as there is
room. The victims of another pod on the same node may not have ended: each plan left room for the other, and that pod
gets its own when they end.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass

from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.scheduling.preemption.counted_twice import Plans, counted_twice
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import GPU_SHARE, MAX_CHARGE, PODS, Amounts, as_amounts
from topo_scheduler.state.pods.constraints import profile_of
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.requests import pod_amounts


@dataclass(frozen=True, slots=True)
class Nomination:
    """A pod and the node that it is nominated to. ``devices``: what its claims get there.

    ``replaces`` is the uid of a pod that leaves. As long as that pod holds what it has, quotas count it instead.
    ``planned``: this process planned its place, beside all other nominations that count for it.
    ``own_only``: it counts for workloads of its namespace only, and is not written to the pod.
    """

    uid: str
    node: str
    priority: int
    amounts: Amounts
    profile: Profile | None
    namespace: str
    devices: tuple[Allocation, ...] = ()
    replaces: str = ""
    planned: bool = False
    own_only: bool = False

    def counts_for(self, priority: int, namespace: str) -> bool:
        """Return whether it counts for a workload of some priority and namespace."""
        return self.priority >= priority and (not self.own_only or self.namespace == namespace)


class Nominations:
    """All nominations, including those of other schedulers' pods.

    During an attempt, the nominations that count for it are charged to their nodes. Between attempts none is charged.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_uid: dict[str, Nomination] = {}
        self._counted: dict[str, tuple[int, Nomination]] = {}
        self.stamp: Hashable = None
        """Identifies the set of nominations that is charged now; None if none is."""
        self._changes = 0
        self._dropped_from: dict[str, None] = {}
        self._own_only: Counter[str] = Counter()
        """How many nominations count for their namespace only, by namespace."""
        self._relief: list[tuple[int, Amounts]] = []
        """What is not charged to some rows at this moment, so that a workload gets what was planned for it."""

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> Nomination | None:
        """Return the nomination of a pod."""
        return self._by_uid.get(uid)

    def __iter__(self) -> Iterator[Nomination]:
        return iter(self._by_uid.values())

    def put(self, nomination: Nomination) -> None:
        """Record a nomination, and replace any that the pod has."""
        known = self._by_uid.get(nomination.uid)
        if known == nomination:
            return
        if known is not None:
            self.drop(known.uid)
        self._by_uid[nomination.uid] = nomination
        self._changes += 1
        if nomination.own_only:
            self._own_only[nomination.namespace] += 1

    def drop(self, uid: str) -> None:
        """Forget the nomination of a pod: other workloads may use the room."""
        known = self._by_uid.pop(uid, None)
        if known is not None:
            self.remove_charges()
            self._changes += 1
            if known.own_only:
                self._own_only[known.namespace] -= 1
                self._own_only += Counter()  # without those of which there is none left
            self._dropped_from[known.namespace] = None
            self._world.improve(known.node)

    def take_dropped(self) -> Mapping[str, None]:
        """Return the namespaces of nominations that were dropped since the last call."""
        dropped, self._dropped_from = self._dropped_from, {}
        return dropped

    def promised(self, namespace: str) -> Iterator[tuple[int, Amounts]]:
        """Yield row and amounts of the nominations of a namespace that are charged now, for its quotas."""
        world = self._world
        for row, nomination in self._counted.values():
            leaving = world.ledger.get(nomination.replaces)
            if nomination.namespace != namespace or (leaving is not None and leaving.row >= 0):
                continue
            yield row, nomination.amounts
            if gpus := world.claimed_gpus.beyond(nomination.amounts, nomination.devices):
                yield row, ((GPU_SHARE, gpus),)

    def count_for(
        self,
        own: Mapping[str, object],
        priority: int,
        name: str,
        reserved: Hashable = None,
        plans: Plans | None = None,
        *,
        namespace: str = "",
    ) -> Hashable:
        """Charge the nominations that count for a workload, and no others.

        Args:
            own: pods of the workload itself by uid, whose nominations do not block it.
            priority: of the workload.
            namespace: of the workload.
            name: identifies the workload.
            reserved: identifies the reservations that are charged.
            plans: of all workloads. Then this one gets what was planned for it.

        Returns:
            An identifier of this set of nominations; None if no pod is nominated.
        """
        if not self._by_uid:
            return None
        own_pods = not self._by_uid.keys().isdisjoint(own)
        of_namespace = namespace if namespace in self._own_only else ""
        stamp = (self._changes, priority, of_namespace, (name, reserved, plans is not None) if own_pods else "")
        if stamp == self.stamp:
            return stamp
        self._end_relief()
        wanted = {
            uid: nomination
            for uid, nomination in self._by_uid.items()
            if nomination.counts_for(priority, namespace) and uid not in own
        }
        unwanted = [uid for uid, (_, nomination) in self._counted.items() if wanted.get(uid) is not nomination]
        self._charge([self._counted.pop(uid) for uid in unwanted], -1)
        row_of = self._world.nodes.row_of
        fresh = {
            uid: (row, nomination)
            for uid, nomination in wanted.items()
            if uid not in self._counted and (row := row_of.get(nomination.node)) is not None
        }
        self._charge(fresh.values(), 1)
        self._counted |= fresh
        if own_pods and plans is not None:
            self._relieve(own, priority, name, plans)
        self.stamp = stamp
        return stamp

    def is_charged(self, uid: str) -> bool:
        """Return whether a nomination is charged to its node at this moment."""
        return uid in self._counted

    def remove_charges(self) -> None:
        """Remove all charges."""
        self._end_relief()
        counted, self._counted = self._counted, {}
        self._charge(counted.values(), -1)
        self.stamp = None

    def _relieve(self, own: Mapping[str, object], priority: int, workload: str, plans: Plans) -> None:
        """Charge the nominations of other pods of the same priority no further than own pods keep their planned places.

        Those whose victims have not ended would count twice: they are charged, and their victims as well. So the charge
        is reduced by what these still hold, at most.
        """
        nodes = self._world.nodes
        own_amounts: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for uid in own:
            nomination = self._by_uid.get(uid)
            if nomination is not None and nomination.planned and nomination.node in nodes.row_of:
                own_amounts[nodes.row_of[nomination.node]].update(dict(nomination.amounts))
        if not own_amounts:
            return
        charged: defaultdict[int, defaultdict[str, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
        for row, nomination in self._counted.values():
            if row in own_amounts and nomination.planned and nomination.priority == priority:
                charged[row][plans.claimant(nomination.uid)].update(dict(nomination.amounts))
        for row, twice in counted_twice(charged, workload, self._world.ledger, plans).items():
            lacks = Counter(
                {
                    column: amount - int(nodes.allocatable[row, column] - nodes.requested[row, column])
                    for column, amount in own_amounts[row].items()
                }
            )
            if relief := tuple((twice & lacks).items()):  # the lesser of both, where positive
                self._relief.append((row, relief))
                self._world.count(row, relief, None, -1)

    def _end_relief(self) -> None:
        relief, self._relief = self._relief, []
        for row, amounts in relief:
            self._world.count(row, amounts, None, 1)

    def _charge(self, counted: Collection[tuple[int, Nomination]], change: int) -> None:
        """Charge nominations to their rows, or remove their charges (``change`` -1).

        Those without a profile are charged together: thousands of members of one gang may be nominated.
        """
        alike: Counter[tuple[int, Amounts]] = Counter()
        for row, nomination in counted:
            if nomination.devices:
                self._world.count_devices(nomination.uid, nomination.devices, counts=change > 0)
            if nomination.profile is None:
                alike[row, nomination.amounts] += 1
            else:
                self._world.count(row, nomination.amounts, nomination.profile, change)
        for (row, amounts), number in alike.items():
            together = tuple((column, amount * number) for column, amount in amounts)
            self._world.count(row, together, None, change)


def nomination_of(pod: Pod, world: World) -> Nomination:
    """Return the nomination in the status of a pending pod."""
    try:
        amounts = as_amounts(pod_amounts(world.resources, pod))
        amounts = tuple((column, min(amount, MAX_CHARGE)) for column, amount in amounts)
    except QuantityError:
        amounts = ((PODS, 1),)
    return Nomination(
        pod.metadata.uid,
        pod.status.nominated_node_name,
        pod.spec.priority,
        amounts,
        profile_of(world.pod_index, pod),
        pod.metadata.namespace,
    )
