"""Nodes that other schedulers are filling right now.

The API server checks no capacity when it accepts a Binding, and another scheduler does not see what this one assumed.
Both may take the last room of a node at the same moment, and the kubelet then rejects one of the two pods.

So this scheduler reserves room while pods of other schedulers are pending, or just after one of them was bound. It
reserves room for additional pods of that size on every node that runs pods of other schedulers. The node is charged as
if those pods ran there. A workload that fits only without this reservation stays pending until the others are done, up
to a limit. The scheduler decides nothing while the watch is late, because it does not know then what others did. It
also decides nothing for namespaces that have their share of the binds in flight, while these are many.

A tenant can create pods for a scheduler that does not exist, and can set the node of pods itself. So after a workload
has waited in vain, the scheduler stops reserving room for the larger pods of a namespace. These are pods that request
more than any pod of that namespace that was seen pending and then bound during the wait. Once a pod with such a request
becomes bound, the scheduler reserves room again. A small pod that becomes bound proves nothing about a large pending
one. Once that has happened to several namespaces, others count only after a bind of such a pod of theirs was seen.

A pod that comes and goes must not keep room on all nodes either. So `MIN_KEPT_NODES` keep room for pods like those of
one namespace, the ones with the latest news. More do so only if the namespace itself holds room for such pods.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from topo_scheduler.api.contention import Contention
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import PODS, Amounts, as_amounts
from topo_scheduler.state.pods.node_pods import belongs_to_node
from topo_scheduler.state.pods.requests import pod_amounts

RECENT_SECONDS: Final = 30.0
"""Seconds for which the largest recent pod of other schedulers on a node sets the room reserved there.

For the same time after others were active, few binds may be in flight at once: others may become active again at any
moment.
"""
USED_SECONDS: Final = 600.0
"""Seconds for which a node counts as used by other schedulers, after the last news of one of their pods there."""
SETTLED_SECONDS: Final = 2.0
"""Seconds after other schedulers bound their last pod in which they may bind more."""
PENDING_SECONDS: Final = 10.0
"""Seconds after its last change for which a pending pod of another scheduler is expected to be bound at any moment."""
STALE_SECONDS: Final = 0.25
"""Seconds by which the watch may be late before the scheduler stops deciding."""
MAX_BINDS_IN_FLIGHT: Final = 8
"""Binds in flight at which the scheduler decides no more for namespaces that have their share of them, or more.

The sooner each is written, the less can happen before. A namespace whose webhooks answer slowly must not block others.
"""
IN_FLIGHT_SECONDS: Final = 1.0
"""Seconds after which a bind no longer counts as in flight here: it may be retried for long."""
LOST_SECONDS: Final = 5.0
"""Seconds after which the watch is no longer expected to report a bind."""
MIN_KEPT_NODES: Final = 8
"""Nodes on which room may be reserved for pods like those of a namespace, however little it holds."""
KEPT_NODES_PER_POD: Final = 2
"""Nodes on which room may be reserved for each such pod for which the namespace holds room."""
MAX_UNPROVEN_NAMESPACES: Final = 1024
"""Maximum namespaces whose pods no bind has confirmed yet; beyond it further ones get no reserved room."""
MAX_TRIALS: Final = 4
"""Namespaces without reserved room, beyond which only namespaces count where a bind has confirmed such pods before."""
MAX_PROVEN_NAMESPACES: Final = 1024
"""Maximum such namespaces; beyond it the set is cleared."""
MAX_DOUBTED_NAMESPACES: Final = 1024
"""Maximum namespaces without reserved room, because no scheduler seems to bind their pods.

Beyond it the set is cleared.
"""


@dataclass(slots=True)
class _Unproven:
    """Requests of pods of other schedulers in one namespace that no bind has confirmed yet.

    ``ask`` is the request of the pods that were pending or newly bound after ``since`` (seconds). ``placed`` is the
    request of the pods that were seen to become bound in that time. Both hold the largest amount of each resource. Time
    in which no other scheduler is active does not count: it is added to ``since``.
    """

    since: float
    ask: Amounts = ()
    placed: Amounts = ()


@dataclass(slots=True)
class _SharedNode:
    """A node that other schedulers use, ``until`` a time in seconds.

    ``asked`` is the request of the largest pod that came lately, of ``namespace``; it counts until ``recent``, in
    seconds. ``kept`` is the room charged to the node with this ``uid``, because of pods of the namespace ``kept_for``.
    """

    until: float
    asked: Amounts = ()
    namespace: str = ""
    recent: float = 0.0
    uid: str = ""
    kept: Amounts = ()
    kept_for: str = ""


class SchedulerContention:
    """Follows the pods of other schedulers, and reserves room for them."""

    def __init__(self, scheduler_name: str, world: World, config: Contention) -> None:
        self._config = config
        self.paused = False
        """Result of the last call of `pauses`."""
        self.held: frozenset[str] = frozenset()
        """Namespaces for which nothing is decided now, as of the last call of `pauses`."""
        self._looked = 0.0
        self._scheduler_name = scheduler_name
        self._world = world
        self._nodes: dict[str, _SharedNode] = {}
        """Nodes that other schedulers use, by name, in the order of their last news."""
        self._kept_for: dict[str, dict[str, None]] = {}
        """Nodes that are charged because of pods of each namespace, the oldest news first."""
        self._waiting: dict[str, float] = {}
        """Pending pods of other schedulers by uid, and until when they are expected to be bound; in order of time."""
        self._last_bound = -SETTLED_SECONDS
        self._last_amounts: Amounts = ((PODS, 1),)
        """Request of the pod of other schedulers that was last seen pending or newly bound."""
        self._last_namespace = ""
        self._active = False
        self._idle_since = 0.0
        """When others were last active, in seconds, if they are not."""
        self._answered: dict[str, float] = {}
        self._stalled = False
        self._careful = False
        self._last_active = -RECENT_SECONDS
        self._patience: dict[str, float] = {}
        self._impatient: set[str] = set()
        self._unbound: dict[str, str] = {}
        """Uids of pods of other schedulers that were seen without a node, with the namespace of each."""
        self._unproven: dict[str, _Unproven] = {}
        """Namespaces with pending or newly bound pods of others, of which none with as large a request became bound."""
        self._proven_namespaces: set[str] = set()
        """Namespaces in which a pending pod of another scheduler was seen to become bound."""
        self._doubted: dict[str, Amounts] = {}
        """Namespaces without reserved room, except for pods that request no more than these amounts."""

    # ------------------------------------------------------------ facts in

    def applied(self, pods: Iterable[Pod], now: float) -> None:
        """Record the pending, running and newly bound pods of other schedulers. Call it before updating the ledger."""
        for pod in pods:
            uid, node = pod.metadata.uid, pod.spec.node_name
            self._waiting.pop(uid, None)
            if node:
                self._answered.pop(uid, None)
            if pod.finished:
                self._unbound.pop(uid, None)
            if (
                pod.spec.scheduler_name == self._scheduler_name
                or pod.finished
                or not self._config.reserved_pods_per_node
            ):
                continue
            if belongs_to_node(pod.metadata):
                continue
            namespace = pod.metadata.namespace
            if node:
                proven = self._unbound.pop(uid, None) is not None
                if proven:
                    self._proven(pod)
                self._heard_of(pod, now, proven=proven)
            elif not pod.metadata.deletion_timestamp and not pod.spec.scheduling_gates:
                self._unbound[uid] = namespace
                if self._believed(namespace, asked := self._asked(pod), now):
                    self._waiting[uid] = now + PENDING_SECONDS
                    self._last_amounts, self._last_namespace = asked, namespace

    def deleted(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._waiting.pop(uid, None)
        self._unbound.pop(uid, None)
        self._answered.pop(uid, None)

    def answered(self, uid: str, now: float) -> None:
        """Record that the API server wrote a Binding. Until the watch reports it, it reports nothing newer."""
        known = self._world.ledger.get(uid)
        if known is not None and known.assumed:
            self._answered[uid] = now

    def _proven(self, pod: Pod) -> None:
        """Record that a pending pod of another scheduler became bound."""
        namespace, requested = pod.metadata.namespace, self._asked(pod)
        if len(self._proven_namespaces) > MAX_PROVEN_NAMESPACES:
            self._proven_namespaces.clear()
        self._proven_namespaces.add(namespace)
        if (believed := self._doubted.get(namespace)) is not None:
            self._doubted[namespace] = largest(requested, believed)
        if (unproven := self._unproven.get(namespace)) is not None:
            unproven.placed = largest(requested, unproven.placed)
            if covers(unproven.placed, unproven.ask):
                del self._unproven[namespace]

    def _believed(self, namespace: str, requested: Amounts, now: float) -> bool:
        """Return whether a pod with this request counts. If it does, record that no such pod became bound yet."""
        believed = self._doubted.get(namespace)
        if believed is not None and not covers(believed, requested):
            return False
        if namespace not in self._unproven:
            is_new = namespace not in self._proven_namespaces and believed is None
            if len(self._unproven) >= MAX_UNPROVEN_NAMESPACES or (is_new and len(self._doubted) >= MAX_TRIALS):
                return False
        unproven = self._unproven.setdefault(namespace, _Unproven(now))
        unproven.ask = largest(requested, unproven.ask)
        return True

    def _heard_of(self, pod: Pod, now: float, *, proven: bool) -> None:
        name = pod.spec.node_name
        node = self._nodes.pop(name, None) or _SharedNode(now)
        self._nodes[name] = node
        node.until = now + USED_SECONDS
        newly_bound = pod.status.phase == "Pending" and self._world.ledger.get(pod.metadata.uid) is None
        asked = self._asked(pod) if newly_bound else ()
        if newly_bound and (proven or self._believed(pod.metadata.namespace, asked, now)):
            self._last_bound = now
            self._last_amounts, self._last_namespace = asked, pod.metadata.namespace
            node.asked = largest(asked, node.asked) if node.recent > now else asked
            node.recent, node.namespace = now + RECENT_SECONDS, pod.metadata.namespace
            if self._active and (node.kept_for, node.kept) != self._wanted(node, now):
                self._give_back(name, node)
        if self._active:
            self._keep(name, node, now, in_place_of_the_oldest=True)

    def _asked(self, pod: Pod) -> Amounts:
        try:
            return as_amounts(pod_amounts(self._world.resources, pod))
        except QuantityError:
            return ((PODS, 1),)

    # ------------------------------------------------------------ room that is left

    def settle(self, now: float) -> None:
        """Update the reservations to the present: reserve room for other schedulers, or release it."""
        for uid in list(_over(self._waiting, now)):
            del self._waiting[uid]
        for uid in list(_over(self._answered, now - LOST_SECONDS)):
            del self._answered[uid]
        late = next(iter(self._answered.values()), now) < now - STALE_SECONDS
        # While the watch is late, the scheduler does not know whether the others are done.
        active = bool(self._waiting) or now < self._last_bound + SETTLED_SECONDS or (self._active and late)
        if active:
            self._last_active = now
        self._stalled = late and now < self._last_active + RECENT_SECONDS
        self._careful = now < self._last_active + RECENT_SECONDS
        self._looked = now
        for name, node in list(takewhile(lambda item: item[1].until <= now, self._nodes.items())):
            del self._nodes[name]
            self._give_back(name, node, improve=True)
        if active == self._active:
            return
        self._active = active
        if active:
            for unproven in self._unproven.values():
                unproven.since += now - max(self._idle_since, unproven.since)  # idle time is no waiting
        else:
            self._idle_since = now
        for name, node in reversed(list(self._nodes.items())):
            if active:
                self._keep(name, node, now)
            else:
                self._give_back(name, node, improve=True)
        self._kept_for = {name: dict(reversed(kept.items())) for name, kept in self._kept_for.items()}
        if not active:
            if self._patience or self._impatient:
                self._doubt(now)
            self._patience.clear()
            self._impatient.clear()
            for namespace in [name for name, pods in self._unproven.items() if pods.since + USED_SECONDS <= now]:
                del self._unproven[namespace]

    def pauses(self, now: float, in_flight: Callable[[float], Counter[str]]) -> bool:
        """Return whether to decide nothing for now, because other schedulers were active lately.

        That is so while the watch is late. While enough binds are in flight, namespaces with their share of them are
        ``held``: nothing is decided for these.

        ``in_flight`` returns how many binds of this scheduler were decided since a moment and are not answered, by
        namespace.
        """
        self.paused, self.held = self._careful and self._stalled, frozenset()
        if self._careful and not self.paused:
            counts = in_flight(now - IN_FLIGHT_SECONDS)
            if counts.total() >= MAX_BINDS_IN_FLIGHT:
                share = max(1, MAX_BINDS_IN_FLIGHT // len(counts))
                self.held = frozenset(namespace for namespace, count in counts.items() if count >= share)
        return self.paused

    def next_due(self) -> float | None:
        """Return when `settle` or `take_impatient` has something to do, if nothing happens before."""
        due = list(self._patience.values())[:1]
        if self.paused:
            due.append(self._looked + IN_FLIGHT_SECONDS)
        if self._active:
            until = next(iter(self._waiting.values()), self._last_bound + SETTLED_SECONDS)
            # If only the late watch keeps the room reserved, this moment is over, and the next one is below.
            due += [until] if until > self._looked else []
        if self._careful:
            due += [at + (LOST_SECONDS if self._stalled else STALE_SECONDS) for at in list(self._answered.values())[:1]]
        return min(due, default=None)

    def why(self) -> str:
        """Return the message for a workload that would find room without the room reserved for other schedulers."""
        return (
            f"{len(self._world.kept)} node(s) keep room for pods of other schedulers that are being placed, for"
            f" {self._config.max_wait:g} s at most."
        )

    def configure(self, config: Contention) -> None:
        """Apply a configuration."""
        self._config = config

    # ------------------------------------------------------------ patience

    def failed(self, id_: str, now: float) -> None:
        """Record that a workload found no room outside the reservations.

        A workload that waited before starts to wait again.
        """
        self._impatient.discard(id_)
        if self._world.kept:
            self._patience.setdefault(id_, now + self._config.max_wait)

    def take_impatient(self, now: float) -> list[str]:
        """Return the workloads to retry because they waited long enough."""
        due = list(_over(self._patience, now))
        for id_ in due:
            del self._patience[id_]
        self._impatient.update(due)
        if due:
            self._doubt(now)
        return due

    def _doubt(self, now: float) -> None:
        """Stop reserving room for pods if none with such a request became bound while a workload waited for them."""
        expired = {
            namespace: None
            for namespace, unproven in self._unproven.items()
            if unproven.since + self._config.max_wait <= now
        }
        for namespace in expired:
            if len(self._doubted) > MAX_DOUBTED_NAMESPACES:
                self._doubted.clear()
            self._doubted[namespace] = self._unproven.pop(namespace).placed
        for uid in [uid for uid in self._waiting if self._unbound.get(uid) in expired]:
            del self._waiting[uid]

    def impatient(self, id_: str) -> bool:
        """Return whether a workload waited long enough for other schedulers."""
        return id_ in self._impatient

    def took(self, nodes: Iterable[str]) -> None:
        """Reserve no more room on nodes that a workload took, until a pod of another scheduler comes there."""
        for name in nodes:
            if (node := self._nodes.pop(name, None)) is not None:
                self._give_back(name, node)

    def forget(self, id_: str) -> None:
        """Forget a workload that was placed or deleted."""
        self._patience.pop(id_, None)
        self._impatient.discard(id_)

    # ------------------------------------------------------------ inside

    def _wanted(self, node: _SharedNode, now: float) -> tuple[str, Amounts]:
        """Return for pods of which namespace a node is charged, and with what."""
        is_recent = node.recent > now
        asked = node.asked if is_recent else self._last_amounts
        charged = tuple((column, self._config.reserved_pods_per_node * amount) for column, amount in asked)
        return node.namespace if is_recent else self._last_namespace, charged

    def _keep(self, name: str, node: _SharedNode, now: float, *, in_place_of_the_oldest: bool = False) -> None:
        """Charge a node, unless as many are charged as may be: then none, or this one in place of another."""
        row = self._world.nodes.row_of.get(name)
        uid = self._world.nodes.uids[row] if row is not None else ""
        if row is None or node.uid == uid:
            return
        self._forget_kept(name, node)
        namespace, charged = self._wanted(node, now)
        kept = self._kept_for.get(namespace, {})
        if len(kept) >= self._most_nodes(namespace, charged):
            if not in_place_of_the_oldest:
                return
            oldest = next(iter(kept))
            self._give_back(oldest, self._nodes[oldest], improve=True)
        self._kept_for.setdefault(namespace, {})[name] = None
        node.uid, node.kept, node.kept_for = uid, charged, namespace
        self._world.keep(row, node.kept)

    def _most_nodes(self, namespace: str, charged: Amounts) -> int:
        """Return how many nodes may be charged because of such pods of a namespace."""
        held, pods_per_node = self._world.accounts.held(namespace), self._config.reserved_pods_per_node
        scarce = ((column, amount) for column, amount in charged if amount and column != PODS)
        pods = min((pods_per_node * held.get(column, 0) // amount for column, amount in scarce), default=0)
        return max(MIN_KEPT_NODES, KEPT_NODES_PER_POD * pods)

    def _give_back(self, name: str, node: _SharedNode, *, improve: bool = False) -> None:
        row = self._world.nodes.row_of.get(name)
        # A node that was deleted meanwhile has nothing to release.
        if row is not None and node.uid == self._world.nodes.uids[row]:
            self._world.keep(row, ())
            if improve:
                self._world.improve(name)
        self._forget_kept(name, node)

    def _forget_kept(self, name: str, node: _SharedNode) -> None:
        kept = self._kept_for.get(node.kept_for, {})
        kept.pop(name, None)
        if not kept:
            self._kept_for.pop(node.kept_for, None)
        node.uid, node.kept, node.kept_for = "", (), ""


def largest(amounts: Amounts, other: Amounts) -> Amounts:
    """Return the larger amount of each resource."""
    a, b = dict(amounts), dict(other)
    return tuple(sorted((column, max(a.get(column, 0), b.get(column, 0))) for column in a.keys() | b.keys()))


def covers(amounts: Amounts, other: Amounts) -> bool:
    """Return whether the first amounts are at least the other ones, for each resource."""
    by_column = dict(amounts)
    return all(by_column.get(column, 0) >= amount for column, amount in other)


def _over(times: dict[str, float], now: float) -> Iterator[str]:
    """Yield the names whose time has passed, from a mapping in order of time."""
    for name, at in times.items():
        if at > now:
            return
        yield name
