"""Filters that depend on current pods: host ports, disks, affinity, anti-affinity, spread.

Each filter does the same as the plugin of kube-scheduler 1.36 that its docstring names. ``assumed_pods`` count as if
they ran already: pods of equal or higher priority with a nominated node, or pods that a search has seated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.storage import PersistentVolume
from topo_scheduler.scheduling.binding.refusals import Penalties
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.rules.domains import NamedDomains
from topo_scheduler.scheduling.rules.filters import Bool, matches_affinity, tolerates
from topo_scheduler.scheduling.rules.remembered import Remembered
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.operation_budget import ROWS_PER_OPERATION, charge, charge_rows
from topo_scheduler.state.pods.applied_terms import AppliedTerms, TermSets, with_further
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import Constraints, Spread
from topo_scheduler.state.pods.numa_zones import NumaZones
from topo_scheduler.state.pods.pod_index import Condition, PodIndex, Tally
from topo_scheduler.state.pods.profiles import CountedTerm, Disk, Port, Profile
from topo_scheduler.state.statistics.typical_pods import PodKinds
from topo_scheduler.state.storage.storage_objects import Storage
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.links import Links

AssumedPods = Sequence[tuple[int, Profile]]
"""Pods that count as if they ran already: row and profile. A search adds and removes them as on a stack."""
WeightedTerm = tuple[int, CountedTerm]
Applied = tuple[AppliedTerms[CountedTerm] | None, AppliedTerms[WeightedTerm] | None]
"""Terms of running pods that apply to a pod: required anti-affinity, and preferred terms with their weights."""
Position = tuple[int, int, int]
"""Positions in the changes of running pods, of namespaces and of storage."""
Entry = TypeVar("Entry", CountedTerm, WeightedTerm)


MIN_COUNTS: Final = 160
"""Counts by domain that a search keeps whatever their size: those of the terms and spread constraints of one pod."""
COUNTS_BYTES: Final = 64 * 2**20
"""Memory for further counts by domain of one search; beyond it they are dropped, and counted again."""
_BYTES_PER_VALUE: Final = 16
"""Memory of counts for each label value of nodes: two numbers, without and with seated pods."""


@dataclass(slots=True)
class Reach:
    """Cached rows that can use a volume, by name of the volume; None for all rows. A change of nodes clears it."""

    facts_position: int = -1
    rows: dict[str, tuple[PersistentVolume, Int64 | None]] = field(default_factory=dict)


@dataclass(slots=True)
class VolumesInUse:
    """Cached CSI volumes, the driver by ``driver/handle``. A change of pods or storage objects clears it.

    Attributes:
        state: bound pods and positions in the changes of pods and of storage objects for which it holds.
        rows: those that the bound pods of a row use.
        attached: those that are attached to each node, by name; None if they are not read yet.
        entries: volumes in ``rows``.
    """

    state: tuple[object, int, int] = (None, -1, -1)
    rows: dict[int, Mapping[str, str]] = field(default_factory=dict)
    attached: Mapping[str, Mapping[str, str]] | None = None
    entries: int = 0


@dataclass(slots=True)
class FilterContext:
    """The state of the cluster that decides where a pod may go.

    ``namespaces``: labels of namespaces by name, or None if unknown. Then anti-affinity of running pods with a
    namespace selector applies to all namespaces. ``shunned``: nodes that recently refused pods of a class.
    ``domains``: domains that the configuration names, for classes with caps. ``links``: reserved bandwidth, for gangs
    with bandwidth and latency-sensitive workloads. ``devices``: devices of nodes, for pods with claims.
    ``gpu_sets``: free GPUs of nodes by index, for pods that ask how close theirs are. ``numa_zones``: NUMA nodes of
    machines whose kubelet rejects pods. ``kinds``: kinds of running pods, for the measure of fragmentation.
    """

    nodes: NodeTable
    pod_index: PodIndex
    namespaces: dict[str, Mapping[str, str]] | None = None
    storage: Storage = field(default_factory=Storage)
    shunned: Penalties = field(default_factory=Penalties)
    reach: Reach = field(default_factory=Reach)
    volumes_in_use: VolumesInUse = field(default_factory=VolumesInUse)
    domains: NamedDomains | None = None
    extensions: Extensions = field(default_factory=Extensions)
    links: Links | None = None
    devices: NodeDevices | None = None
    gpu_sets: GpuSets | None = None
    numa_zones: NumaZones = field(default_factory=NumaZones)
    kinds: PodKinds = field(default_factory=PodKinds)
    remembered: dict[tuple[object, ...], Remembered] | None = None
    """Counts cached for a whole search, see `remembering`; None outside a search."""
    applicable_beside: dict[tuple[int, int], tuple[frozenset[CountedTerm], tuple[CountedTerm, ...], Profile]] | None = (
        None
    )
    """Cached anti-affinity of seated pods that applies to a pod, by ids of both; the entry keeps both alive."""
    open_beside_running: dict[bytes, Bool] | None = None
    """Cached rows (bool[rows]) that anti-affinity of running pods leaves open, by the digest of its terms."""
    _namespace_changes: int = 0
    _towards: WeakKeyDictionary[Profile, tuple[object, Applied]] = field(default_factory=WeakKeyDictionary)
    _term_sets: TermSets = field(default_factory=TermSets)

    @property
    def position(self) -> tuple[int, int]:
        """Position in the changes of all pods and namespaces."""
        return self.pod_index.position, self._namespace_changes

    def position_for(self, cls: PodClass) -> Position:
        """Position in all changes that matter to a class with constraints on other pods or volumes."""
        constraints = cls.constraints
        stored = constraints is not None and bool(constraints.claims or constraints.disks)
        return self.pod_index.position, self._namespace_changes, self.storage.changes if stored else 0

    def detach(self) -> None:
        """Use separate caches from now on, for a copy with its own nodes or bound pods."""
        self.reach, self.volumes_in_use = Reach(), VolumesInUse()
        self._towards, self._term_sets = WeakKeyDictionary(), TermSets()

    def drop_caches(self) -> None:
        """Drop the cached terms, which may be those of deleted pods."""
        self._term_sets.clear()

    def remembering(self) -> "FilterContext":
        """Return a copy with caches for one search, during which neither nodes nor bound pods change."""
        return replace(self, remembered={}, applicable_beside={}, open_beside_running={})

    def closed_by_caps(self, cls: PodClass, rows: Int64, *, ever: bool = False) -> Bool | None:
        """Return the rows that caps close to a class, None for a class without caps."""
        if not cls.caps or self.domains is None:
            return None
        return self.domains.closed_by_caps(cls, rows, ever=ever)

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Record the labels of a namespace."""
        if self.namespaces is None:
            self.namespaces = {}
        if self.namespaces.get(name) != labels:
            self.namespaces[name] = labels
            self._namespace_changes += 1

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace."""
        if self.namespaces and self.namespaces.pop(name, None) is not None:
            self._namespace_changes += 1

    def seen_by(self, cls: PodClass, profile: Profile | None) -> PodClass:
        """Return the class of a pod with the affinity and anti-affinity of running pods that apply to it.

        Whether its own terms select pods like itself is resolved if the labels of its namespace are known.
        """
        pod_index, constraints = self.pod_index, cls.constraints
        if self.shunned.any_shunned and profile and (nodes := self.shunned.shunned(profile.namespace, cls)):
            cls = replace(cls, shunned=nodes)
        if constraints is not None and constraints.by_namespace:
            cls = self._settled(cls, constraints)
        if profile is None or not (pod_index.repelling or pod_index.attracting):
            return cls
        repelled, attracted = self._applied_to(profile)
        return replace(cls, repelled=repelled, attracted=attracted) if repelled or attracted else cls

    def _settled(self, cls: PodClass, constraints: Constraints) -> PodClass:
        labels = (self.namespaces or {}).get(constraints.namespace)
        if labels is None:
            return cls
        charge(len(constraints.apart_by_namespace) + len(constraints.affine_by_namespace))
        return replace(cls, constraints=constraints.in_namespace(labels))

    @property
    def terms_changed(self) -> tuple[int, int]:
        """Version of the affinity of running pods and of namespaces, for cache keys."""
        return self.pod_index.terms_changed, self._namespace_changes

    def _applied_to(self, profile: Profile) -> Applied:
        version = (self.pod_index.terms_changed, self._namespace_changes)
        cached = self._towards.get(profile)
        if cached is not None and cached[0] == version:
            return cached[1]
        repelled, attracted = self.repelled(profile), self.attracted(profile)
        namespace, labels, put = profile.namespace, profile.labels, self._term_sets.put
        applied: Applied = (
            AppliedTerms(put(repelled), namespace, labels) if repelled else None,
            AppliedTerms(put(attracted), namespace, labels) if attracted else None,
        )
        self._towards[profile] = (version, applied)
        return applied

    def terms_repelling(self, cls: PodClass) -> frozenset[CountedTerm]:
        """Return the anti-affinity terms of other pods that apply to pods of a class."""
        return self._resolved(cls.repelled, self.repelled)

    def further_terms(self, cls: PodClass) -> frozenset[CountedTerm]:
        """Return those of `terms_repelling` that apply because of pods that a search has seated."""
        if cls.repelled is None or not cls.repelled.beside:
            return frozenset()
        return cls.repelled.beside - self._resolved(replace(cls.repelled, beside=frozenset()), self.repelled)

    def terms_attracting(self, cls: PodClass) -> frozenset[WeightedTerm]:
        """Return the preferred terms of running pods that apply to pods of a class, with their weights."""
        return self._resolved(cls.attracted, self.attracted)

    def _resolved(
        self, applied: AppliedTerms[Entry] | None, compute: Callable[[Profile], frozenset[Entry]]
    ) -> frozenset[Entry]:
        if applied is None:
            return frozenset()
        if not applied.digest:
            return applied.beside
        terms: frozenset[Entry] | None = self._term_sets.get(applied.digest)
        if terms is None:  # the same again, or those that apply by now
            charge()
            terms = compute(Profile(applied.namespace, applied.labels, False, (), (), (), ()))
            self._term_sets.put(terms)
        return terms | applied.beside if applied.beside else terms

    def seen_beside(self, cls: PodClass, profile: Profile | None, assumed_pods: AssumedPods) -> PodClass:
        """Return the class with the anti-affinity of assumed pods added."""
        if profile is None or not assumed_pods:
            return cls
        distinct = {id(other.repels): other.repels for _, other in assumed_pods}
        charge(len(assumed_pods) // 8 + len(distinct))
        applicable = frozenset[CountedTerm]().union(*(self._terms_of(repels, profile) for repels in distinct.values()))
        return replace(cls, repelled=with_further(cls.repelled, applicable)) if applicable else cls

    def _terms_of(self, repels: tuple[CountedTerm, ...], profile: Profile) -> frozenset[CountedTerm]:
        """Return the anti-affinity terms of one pod that apply to another."""
        key = id(repels), id(profile)
        cached = self.applicable_beside.get(key) if self.applicable_beside is not None else None
        if cached is not None:
            return cached[0]
        charge(3 * len(repels))
        meant = frozenset(term for term in repels if self.applies(term, profile))
        if self.applicable_beside is not None:
            self.applicable_beside[key] = meant, repels, profile
        return meant

    def repelled(self, profile: Profile) -> frozenset[CountedTerm]:
        """Return the anti-affinity terms of running pods that apply to pods of a profile."""
        candidates = self.pod_index.repelling_candidates(profile.namespace, profile.labels)
        return frozenset(term for term in candidates if self.applies(term, profile))

    def attracted(self, profile: Profile) -> frozenset[WeightedTerm]:
        """Return the preferred terms of running pods that apply to pods of a profile, with their weights."""
        candidates = self.pod_index.attracting_index.candidates(profile.namespace, profile.labels)
        return frozenset(entry for entry in candidates if self.applies(entry[1], profile))

    def applies(self, term: CountedTerm, profile: Profile) -> bool:
        """Return whether an anti-affinity term of a running pod applies to pods of a profile."""
        if self.namespaces is None and not term.namespace_selector.nothing:
            return term.selector.matches(profile.labels)
        return term.matches(profile, (self.namespaces or {}).get(profile.namespace, {}))


def settled_links(context: FilterContext, layout: Layout) -> Links:
    """Return the current links."""
    assert context.links is not None, "bandwidth is asked for in worlds with links"
    context.links.settle(layout.network)
    return context.links


@dataclass(frozen=True, slots=True)
class NeighbourFilter:
    """A filter and its reason against the nodes that it rejects."""

    reason: NodeReason
    accepts: Callable[[FilterContext, PodClass, Int64, AssumedPods], Bool]


# ---------------------------------------------------------------- on the node itself


Held = TypeVar("Held", Port, Disk)


def _ports(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods) -> Bool:
    """NodePorts."""
    wanted = cls.constraints.ports if cls.constraints else ()
    return _without(context, rows, assumed_pods, wanted, lambda profile: profile.ports)


def _disks(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods) -> Bool:
    """VolumeRestrictions, as far as it depends on one node."""
    wanted = cls.constraints.disks if cls.constraints else ()
    return _without(context, rows, assumed_pods, wanted, lambda profile: profile.disks)


def _without(
    context: FilterContext,
    rows: Int64,
    assumed_pods: AssumedPods,
    wanted: tuple[Held, ...],
    items_of: Callable[[Profile], tuple[Held, ...]],
) -> Bool:
    """Return the rows without a pod that holds a port or disk in conflict with the wanted ones."""
    if not wanted:
        return np.ones(len(rows), np.bool_)

    special = context.pod_index.special
    special_rows = special.keys() if len(rows) >= len(special) else [row for row in rows.tolist() if row in special]
    charge(1 + len(assumed_pods) // 4 + sum(len(special[row]) for row in special_rows) * (1 + len(wanted)) // 4)

    def taken(profile: Profile) -> bool:
        return any(held_item.conflicts(wanted_item) for held_item in items_of(profile) for wanted_item in wanted)

    closed = {row for row in special_rows if any(map(taken, special[row]))}
    closed |= {row for row, profile in assumed_pods if taken(profile)}
    accepted: Bool = ~np.isin(rows, np.array(sorted(closed), np.int64))
    return accepted


# ---------------------------------------------------------------- affinity


def _affinity(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods) -> Bool:
    """InterPodAffinity: affinity of the pod itself."""
    constraints = cls.constraints
    if constraints is None or not constraints.affinity:
        return np.ones(len(rows), np.bool_)
    labelled = np.ones(len(rows), np.bool_)
    matched = np.ones(len(rows), np.bool_)
    no_match, own_namespace = True, constraints.namespace
    for term in constraints.affinity:
        key = ("affine", id(term), id(constraints))
        counts = _remembered(context, key, partial(_affine, context, constraints, term))
        labelled &= counts.column[rows] != UNKNOWN
        matched &= counts.beside(rows, assumed_pods) > 0
        no_match &= not counts.with_further(assumed_pods).any()
    # The first pod of a series with affinity to itself may go anywhere.
    first_of_series = (
        no_match
        and constraints.self_affine
        and all(selects_namespace(context, own_term, own_namespace) for own_term in constraints.affinity)
    )
    return labelled if first_of_series else labelled & matched


def _affine(context: FilterContext, constraints: Constraints, term: CountedTerm) -> Remembered:
    conditions = tuple(condition_of(context, own_term) for own_term in constraints.affinity)
    charge(len(conditions))
    tally = context.pod_index.tally(conditions)
    return _summed(context, term, pods_matching(context, conditions), tally, constraints)


def _anti_affinity(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods) -> Bool:
    """InterPodAffinity: anti-affinity of the pod itself."""
    terms = cls.constraints.anti_affinity if cls.constraints else ()
    if context.remembered is None and not assumed_pods:
        counted = ((term, pods_matching(context, (condition_of(context, term),))) for term in terms)
        return _apart_from(context, counted, rows)
    accepted = np.ones(len(rows), np.bool_)
    for term in terms:
        counts = _remembered(context, ("matching", id(term)), partial(_matching, context, term))
        accepted &= counts.beside(rows, assumed_pods) == 0
    return accepted


def _repelled(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods) -> Bool:
    """InterPodAffinity: anti-affinity of running and assumed pods."""
    if cls.repelled is None:
        return np.ones(len(rows), np.bool_)
    repelling = context.terms_repelling(cls)
    if context.open_beside_running is None and not assumed_pods:
        return _apart_from_holders(context, repelling, rows)
    by_running, further = context.open_beside_running, context.further_terms(cls)
    open_rows = by_running.get(cls.repelled.digest) if by_running is not None else None
    if open_rows is None:
        open_rows = _apart_from_holders(context, repelling - further, np.arange(context.nodes.rows, dtype=np.int64))
        if by_running is not None:
            by_running[cls.repelled.digest] = open_rows
    charge_rows(len(rows))
    accepted: Bool = open_rows[rows] & _apart_from_holders(context, further, rows)
    for term, holder_rows in _holders(repelling, assumed_pods).items():
        charge(5 + len(holder_rows) // 16)
        charge_rows(len(rows))
        column = context.nodes.label_column(term.topology_key)
        domains = column[np.asarray(holder_rows, np.int64)]
        accepted &= ~np.isin(column[rows], domains[domains != UNKNOWN])
    return accepted


def _apart_from_holders(context: FilterContext, terms: Iterable[CountedTerm], rows: Int64) -> Bool:
    """Return the rows whose domains have no running pod with one of some anti-affinity terms."""
    repelling = context.pod_index.repelling
    held = ((term, by_row(context.nodes, repelling[term])) for term in terms if term in repelling)
    return _apart_from(context, held, rows)


def _apart_from(context: FilterContext, counted: Iterable[tuple[CountedTerm, Int64]], rows: Int64) -> Bool:
    """Return the rows whose domains have no counted pods; ``counted``: for each term its pods by row."""
    by_key: dict[str, Int64] = {}
    for term, counts in counted:
        add_counts(by_key, term.topology_key, counts)
    accepted = np.ones(len(rows), np.bool_)
    for key, counts in by_key.items():
        accepted &= by_domain(context.nodes, key, counts)[1][rows] == 0
    return accepted


def add_counts(by_key: dict[str, Int64], key: str, counts: Int64) -> None:
    """Add counts by row to those of the same topology key, so that they are summed over its domains only once."""
    charge(1 + len(counts) // ROWS_PER_OPERATION)
    current = by_key.get(key)
    by_key[key] = counts if current is None else current + counts


def _holders(terms: frozenset[CountedTerm], assumed_pods: AssumedPods) -> dict[CountedTerm, list[int]]:
    """Return for each anti-affinity term the rows of assumed pods that have it."""
    rows_of: dict[int, list[int]] = {}
    distinct: dict[int, tuple[CountedTerm, ...]] = {}
    for row, profile in assumed_pods if terms else ():
        if profile.repels:
            distinct[id(profile.repels)] = profile.repels
            rows_of.setdefault(id(profile.repels), []).append(row)
    holders: dict[CountedTerm, list[int]] = {}
    for key, repels in distinct.items():
        charge(1 + len(repels))
        for term in terms.intersection(repels):
            holders[term] = holders.get(term, []) + rows_of[key]
    return holders


def _remembered(context: FilterContext, key: tuple[object, ...], compute: Callable[[], Remembered]) -> Remembered:
    if context.remembered is None:
        return compute()
    remembered = context.remembered.get(key)
    if remembered is None:
        if len(context.remembered) >= max(
            MIN_COUNTS, COUNTS_BYTES // (_BYTES_PER_VALUE * len(context.nodes.values) + 1)
        ):
            context.remembered.clear()
        remembered = context.remembered[key] = compute()
    return remembered


def _matching(context: FilterContext, term: CountedTerm) -> Remembered:
    conditions = (condition_of(context, term),)
    tally = context.pod_index.tally(conditions)
    return _summed(context, term, pods_matching(context, conditions), tally, term)


def _summed(context: FilterContext, term: CountedTerm, counts: Int64, tally: Tally | None, owner: object) -> Remembered:
    charge_rows(context.nodes.rows, 3)
    column = context.nodes.label_column(term.topology_key)
    labelled = column != UNKNOWN
    sums = np.bincount(column[labelled], weights=counts[labelled], minlength=len(context.nodes.values) + 1).astype(
        np.int64
    )
    return Remembered(column, sums, tally, None, sums[:0], (term, owner))


def counts_anywhere(context: FilterContext, term: CountedTerm) -> bool:
    """Return whether a running pod with this anti-affinity term is on a node that has the topology key."""
    column = context.nodes.label_column(term.topology_key)
    return any(column[row] != UNKNOWN for row in context.pod_index.repelling.get(term, ()))


def condition_of(context: FilterContext, term: CountedTerm) -> Condition:
    """Return selector and namespaces of a term of the pod itself."""
    if term.namespace_selector.nothing:
        return term.selector, term.namespaces
    # As in kube-scheduler, a selector that matches an empty set of labels selects every namespace.
    if term.namespace_selector.matches({}):
        return term.selector, None
    selected = {name for name, labels in (context.namespaces or {}).items() if term.namespace_selector.matches(labels)}
    return term.selector, term.namespaces | selected


def selects_namespace(context: FilterContext, term: CountedTerm, namespace: str) -> bool:
    """Return whether a term of the pod itself selects pods of a namespace, as in `condition_of`."""
    if namespace in term.namespaces or term.namespace_selector.matches({}):
        return True
    labels = (context.namespaces or {}).get(namespace)
    return labels is not None and term.namespace_selector.matches(labels)


def pods_matching(context: FilterContext, conditions: tuple[Condition, ...], *, living: bool = False) -> Int64:
    """Return the number of pods by row that meet all conditions (int64[rows], read-only)."""
    charge_rows(context.nodes.rows)
    return context.pod_index.tally(conditions, living=living).counts(context.nodes.rows)


def by_row(nodes: NodeTable, counts: Mapping[int, int]) -> Int64:
    """Return counts by row as int64[rows]."""
    charge(len(counts) // 8)
    result = np.zeros(nodes.rows, np.int64)
    for row, count in counts.items():
        result[row] = count
    return result


def by_domain(nodes: NodeTable, key: str, counts: Int64) -> tuple[Bool, Int64]:
    """Return for each row whether it has the label, and the sum over rows with the same value (0 without the label)."""
    charge_rows(nodes.rows, 3)
    column = nodes.label_column(key)
    labelled: Bool = column != UNKNOWN
    sums = np.bincount(column[labelled], weights=counts[labelled], minlength=1).astype(np.int64)
    return labelled, np.where(labelled, sums[np.where(labelled, column, 0)], 0)


# ---------------------------------------------------------------- spread


def _spread_labels(context: FilterContext, cls: PodClass, rows: Int64, _: AssumedPods) -> Bool:
    """PodTopologySpread: reject nodes without the label of a constraint."""
    accepted = np.ones(len(rows), np.bool_)
    for constraint in cls.constraints.spread if cls.constraints else ():
        accepted &= context.nodes.label_column(constraint.topology_key)[rows] != UNKNOWN
    return accepted


def _spread(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods) -> Bool:
    """PodTopologySpread: reject nodes where the skew would be too large."""
    constraints = cls.constraints.spread if cls.constraints else ()
    accepted = np.ones(len(rows), np.bool_)
    if not constraints:
        return accepted
    for constraint in constraints:
        skew = skew_of(context, cls, constraint, assumed_pods)
        column = context.nodes.label_column(constraint.topology_key)[rows]
        pods_in_domain = np.where(column == UNKNOWN, 0, skew.sums[column])
        accepted &= pods_in_domain + int(constraint.self_match) - skew.least <= constraint.max_skew
    return accepted


@dataclass(frozen=True, slots=True)
class Skew:
    """Counts of a spread constraint. ``sums``: pods by label value. ``domains``: label values that count.

    ``least``: pods in the emptiest domain.
    """

    sums: Int64
    domains: Int64
    least: int


def skew_of(context: FilterContext, cls: PodClass, constraint: Spread, assumed_pods: AssumedPods = ()) -> Skew:
    """Return the counts of a spread constraint of a class."""
    key = ("spread", id(constraint), id(cls.constraints), id(cls.selector), id(cls.affinity), id(cls.tolerations))
    base = _remembered(context, key, partial(_spread_base, context, cls, constraint))
    sums = base.with_further(assumed_pods)
    charge(5 + (len(sums) + len(base.domains)) // ROWS_PER_OPERATION)
    enough = len(base.domains) >= constraint.min_domains and len(base.domains)
    return Skew(sums, base.domains, int(sums[base.domains].min()) if enough else 0)


def _spread_base(context: FilterContext, cls: PodClass, constraint: Spread) -> Remembered:
    # Each constraint requires the labels of all constraints.
    charge_rows(context.nodes.rows, 6 + len(cls.constraints.spread if cls.constraints else ()))
    nodes = context.nodes
    all_rows = np.arange(nodes.rows, dtype=np.int64)
    counted = nodes.exists & _spread_labels(context, cls, all_rows, ())
    if constraint.honor_affinity:
        counted &= matches_affinity(nodes, cls, all_rows)
    if constraint.honor_taints:
        counted &= tolerates(nodes, cls, all_rows)
    column = nodes.label_column(constraint.topology_key)
    own_namespace = frozenset((cls.constraints.namespace,)) if cls.constraints else frozenset()
    conditions = ((constraint.selector, own_namespace),)
    # kube-scheduler ignores bound pods that are being deleted, and all bound pods for an empty selector, but counts
    # nominated pods.
    # The assumed pods of a search are seated members, which would be bound before the next member is evaluated.
    empty_selector = constraint.selector.everything
    bound_tally = context.pod_index.tally(conditions, living=True)
    assumed_tally = None if empty_selector and context.remembered is not None else context.pod_index.tally(conditions)
    counts = np.zeros(nodes.rows, np.int64) if empty_selector else bound_tally.counts(nodes.rows)
    values = len(nodes.values) + 1
    sums = np.bincount(column[counted], weights=counts[counted], minlength=values).astype(np.int64)
    domains = np.flatnonzero(np.bincount(column[counted], minlength=values)).astype(np.int64)
    return Remembered(column, sums, assumed_tally, counted, domains, (constraint, cls))


ON_NODE: Final = frozenset({NodeReason.PORTS, NodeReason.DISK})
"""Reasons that depend only on pods of the node itself."""

NEIGHBOUR_FILTERS: Final[Sequence[NeighbourFilter]] = (
    NeighbourFilter(NodeReason.PORTS, _ports),
    NeighbourFilter(NodeReason.DISK, _disks),
    NeighbourFilter(NodeReason.SPREAD_LABEL, _spread_labels),
    NeighbourFilter(NodeReason.SPREAD, _spread),
    NeighbourFilter(NodeReason.POD_AFFINITY, _affinity),
    NeighbourFilter(NodeReason.POD_ANTI_AFFINITY, _anti_affinity),
    NeighbourFilter(NodeReason.REPELLED, _repelled),
)

MET_LATER: Final = frozenset({NodeReason.SPREAD, NodeReason.POD_AFFINITY})
"""Reasons that may disappear for a member of a gang after other members are seated."""


def looks_around(cls: PodClass) -> bool:
    """Return whether other pods or volumes may decide where a class may go."""
    return cls.constraints is not None or cls.repelled is not None


def open_rows(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods = ()) -> Bool:
    """Return the rows that running and assumed pods leave open to the class."""
    accepted = np.ones(len(rows), np.bool_)
    for rule in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        accepted &= rule.accepts(context, cls, rows, assumed_pods)
    return accepted


def closed_for_good(context: FilterContext, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows that running pods close to the class, whatever members of its gang are seated before."""
    accepted = np.ones(len(rows), np.bool_)
    for rule in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        if rule.reason not in MET_LATER:
            accepted &= rule.accepts(context, cls, rows, ())
    return ~accepted
