"""Filters that look at the pods which are there: host ports, disks, affinity, anti-affinity, spread.

Each does what the plugin of kube-scheduler 1.36 does that is named beside it. ``extra`` are pods counted as if they
ran already: those nominated to a row of equal or higher priority.
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
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.rules.domains import NamedDomains
from topo_scheduler.scheduling.rules.filters import Bool, matches_affinity, tolerates
from topo_scheduler.scheduling.rules.remembered import Remembered
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.constraints import Constraints, Spread
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.links import Links
from topo_scheduler.state.nodes import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.operation_budget import ROWS_PER_OPERATION, charge, charge_rows
from topo_scheduler.state.residents import Condition, CountedTerm, Disk, Port, Profile, Residents, Tally
from topo_scheduler.state.storage import Storage
from topo_scheduler.state.typical import PodKinds

Extra = Sequence[tuple[int, Profile]]
"""Pods counted as if they ran already. A search that remembers neighbours adds and removes them as on a stack."""
Towards = tuple[frozenset[CountedTerm], frozenset[tuple[int, CountedTerm]]]
"""Anti-affinity of residents that is meant for a pod, and what draws it to them or away, with weights."""
Position = tuple[int, int, int]
"""How far changes of residents, of namespaces and of storage are known."""


@dataclass(slots=True)
class Reach:
    """Which rows volumes can be used on, by name, as long as no node changes; None for all."""

    at: int = -1
    rows: dict[str, tuple[PersistentVolume, Int64 | None]] = field(default_factory=dict)


@dataclass(slots=True)
class FilterContext:
    """Everything around a pod that decides where it may go.

    ``namespaces`` their labels by name; None when they are not known, and then anti-affinity of residents that asks
    for labels of namespaces is taken to be meant for all. ``shunned`` the nodes that refused pods of
    a class a moment ago. ``domains`` what the configuration calls so, which only classes with caps ask for. ``links``
    what is reserved of them, which only gangs with bandwidth and latency-sensitive workloads ask for. ``kinds`` of pods
    there are, by which fragmentation is measured.
    """

    nodes: NodeTable
    residents: Residents
    namespaces: dict[str, Mapping[str, str]] | None = None
    storage: Storage = field(default_factory=Storage)
    shunned: Penalties = field(default_factory=Penalties)
    reach: Reach = field(default_factory=Reach)
    domains: NamedDomains | None = None
    extensions: Extensions = field(default_factory=Extensions)
    links: Links | None = None
    kinds: PodKinds = field(default_factory=PodKinds)
    remembered: dict[tuple[object, ...], Remembered] | None = None
    """What is counted once for a whole search, see `remembering`; None where each look counts anew."""
    meant_beside: dict[tuple[int, int], tuple[frozenset[CountedTerm], tuple[CountedTerm, ...], Profile]] | None = None
    """The same for anti-affinity of the pods seated in that search: what of it is meant, by identity; both are kept."""
    _namespace_changes: int = 0
    _towards: WeakKeyDictionary[Profile, tuple[object, Towards]] = field(default_factory=WeakKeyDictionary)

    @property
    def position(self) -> tuple[int, int]:
        """Where a reader that knows all neighbours stands."""
        return self.residents.position, self._namespace_changes

    def position_for(self, cls: PodClass) -> Position:
        """Where a reader stands that knows all that matters to a class that looks around."""
        constraints = cls.constraints
        stored = constraints is not None and bool(constraints.claims or constraints.disks)
        return self.residents.position, self._namespace_changes, self.storage.changes if stored else 0

    def detach(self) -> None:
        """Keep what is remembered apart from here on. For a copy with nodes or residents of its own."""
        self.reach, self._towards = Reach(), WeakKeyDictionary()

    def remembering(self) -> "FilterContext":
        """Return the same for one search, during which neither nodes nor residents change."""
        return replace(self, remembered={}, meant_beside={})

    def shut(self, cls: PodClass, rows: Int64, *, ever: bool = False) -> Bool | None:
        """Return which rows are shut to a class by its caps, None where it has none."""
        if not cls.caps or self.domains is None:
            return None
        return self.domains.shut(cls, rows, ever=ever)

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Take over the labels of a namespace."""
        if self.namespaces is None:
            self.namespaces = {}
        if self.namespaces.get(name) != labels:
            self.namespaces[name] = labels
            self._namespace_changes += 1

    def drop_namespace(self, name: str) -> None:
        """Forget a namespace."""
        if self.namespaces and self.namespaces.pop(name, None) is not None:
            self._namespace_changes += 1

    def seen_by(self, cls: PodClass, profile: Profile | None) -> PodClass:
        """Return a pod's class with the affinity and anti-affinity of residents that are meant for it.

        What its own says of pods like itself is settled as far as the labels of its namespace are known.
        """
        residents, constraints = self.residents, cls.constraints
        if self.shunned.any_shunned and profile and (nodes := self.shunned.shunned(profile.namespace, cls)):
            cls = replace(cls, shunned=nodes)
        if constraints is not None and constraints.by_namespace:
            cls = self._settled(cls, constraints)
        if profile is None or not (residents.repelling or residents.attracting):
            return cls
        repelled, attracted = self._meant_for(profile)
        return replace(cls, repelled=repelled, attracted=attracted) if repelled or attracted else cls

    def _settled(self, cls: PodClass, constraints: Constraints) -> PodClass:
        labels = (self.namespaces or {}).get(constraints.namespace)
        if labels is None:
            return cls
        charge(len(constraints.apart_by_namespace) + len(constraints.affine_by_namespace))
        return replace(cls, constraints=constraints.in_namespace(labels))

    @property
    def terms_changed(self) -> tuple[int, int]:
        """Tells what affinity of residents is meant for whom from what it was before."""
        return self.residents.terms_changed, self._namespace_changes

    def _meant_for(self, profile: Profile) -> Towards:
        at = (self.residents.terms_changed, self._namespace_changes)
        known = self._towards.get(profile)
        if known is not None and known[0] == at:
            return known[1]
        candidates = self.residents.attracting_index.candidates(profile.namespace, profile.labels)
        attracted = frozenset(one for one in candidates if self.meant(one[1], profile))
        found = (self.repelled(profile), attracted)
        self._towards[profile] = (at, found)
        return found

    def seen_beside(self, cls: PodClass, profile: Profile | None, extra: Extra) -> PodClass:
        """Return the same with the anti-affinity of further pods that are counted as if they ran."""
        if profile is None or not extra:
            return cls
        distinct = {id(other.repels): other.repels for _, other in extra}
        charge(len(extra) // 8 + len(distinct))
        meant = frozenset[CountedTerm]().union(*(self._meant_of(repels, profile) for repels in distinct.values()))
        return replace(cls, repelled=cls.repelled | meant) if meant else cls

    def _meant_of(self, repels: tuple[CountedTerm, ...], profile: Profile) -> frozenset[CountedTerm]:
        """Return which anti-affinity of one pod is meant for another."""
        key = id(repels), id(profile)
        known = self.meant_beside.get(key) if self.meant_beside is not None else None
        if known is not None:
            return known[0]
        charge(3 * len(repels))
        meant = frozenset(term for term in repels if self.meant(term, profile))
        if self.meant_beside is not None:
            self.meant_beside[key] = meant, repels, profile
        return meant

    def repelled(self, profile: Profile) -> frozenset[CountedTerm]:
        """Return the anti-affinity of residents that is meant for pods of a profile."""
        candidates = self.residents.repelling_candidates(profile.namespace, profile.labels)
        return frozenset(term for term in candidates if self.meant(term, profile))

    def meant(self, term: CountedTerm, profile: Profile) -> bool:
        """Return whether anti-affinity of a resident is meant for pods of a profile."""
        if self.namespaces is None and not term.namespace_selector.nothing:
            return term.selector.matches(profile.labels)
        return term.matches(profile, (self.namespaces or {}).get(profile.namespace, {}))


def settled_links(around: FilterContext, layout: Layout) -> Links:
    """Return the links as they are now."""
    assert around.links is not None, "bandwidth is asked for in worlds with links"
    around.links.settle(layout.network)
    return around.links


@dataclass(frozen=True, slots=True)
class NeighbourFilter:
    """A rule and the reason it gives for the nodes it rejects."""

    reason: NodeReason
    accepts: Callable[[FilterContext, PodClass, Int64, Extra], Bool]


# ---------------------------------------------------------------- on the node itself


Held = TypeVar("Held", Port, Disk)


def _ports(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra) -> Bool:
    """NodePorts."""
    wanted = cls.constraints.ports if cls.constraints else ()
    return _without(around, rows, extra, wanted, lambda profile: profile.ports)


def _disks(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra) -> Bool:
    """VolumeRestrictions, as far as it looks at one node."""
    wanted = cls.constraints.disks if cls.constraints else ()
    return _without(around, rows, extra, wanted, lambda profile: profile.disks)


def _without(
    around: FilterContext,
    rows: Int64,
    extra: Extra,
    wanted: tuple[Held, ...],
    held: Callable[[Profile], tuple[Held, ...]],
) -> Bool:
    """Return the rows where nobody holds what conflicts with what is wanted."""
    if not wanted:
        return np.ones(len(rows), np.bool_)

    charge(len(around.residents.special) * len(wanted))

    def taken(profile: Profile) -> bool:
        return any(have.conflicts(want) for have in held(profile) for want in wanted)

    closed = {row for row, here in around.residents.special.items() if any(taken(profile) for profile in here)}
    closed |= {row for row, profile in extra if taken(profile)}
    accepted: Bool = ~np.isin(rows, np.array(sorted(closed), np.int64))
    return accepted


# ---------------------------------------------------------------- affinity


def _affinity(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra) -> Bool:
    """InterPodAffinity: the pod's own affinity."""
    constraints = cls.constraints
    if constraints is None or not constraints.affinity:
        return np.ones(len(rows), np.bool_)
    labelled = np.ones(len(rows), np.bool_)
    found = np.ones(len(rows), np.bool_)
    nobody, own = True, constraints.namespace
    for term in constraints.affinity:
        key = ("affine", id(term), id(constraints))
        known = _remembered(around, key, partial(_affine, around, constraints, term))
        labelled &= known.column[rows] != UNKNOWN
        found &= known.beside(rows, extra) > 0
        nobody &= not known.with_further(extra).any()
    # The first of a series with affinity to itself may go anywhere.
    first = nobody and constraints.self_affine and all(means(around, one, own) for one in constraints.affinity)
    return labelled if first else labelled & found


def _conditions(around: FilterContext, constraints: Constraints) -> tuple[Condition, ...]:
    return tuple(condition_of(around, term) for term in constraints.affinity)


def _affine(around: FilterContext, constraints: Constraints, term: CountedTerm) -> Remembered:
    conditions = _conditions(around, constraints)
    charge(len(conditions))
    tally = around.residents.tally(conditions)
    return _summed(around, term, pods_matching(around, conditions), tally, constraints)


def _anti_affinity(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra) -> Bool:
    """InterPodAffinity: the pod's own anti-affinity."""
    terms = cls.constraints.anti_affinity if cls.constraints else ()
    if around.remembered is None and not extra:
        counted = ((term, pods_matching(around, (condition_of(around, term),))) for term in terms)
        return _apart_from(around, counted, rows)
    accepted = np.ones(len(rows), np.bool_)
    for term in terms:
        known = _remembered(around, ("matching", id(term)), partial(_matching, around, term))
        accepted &= known.beside(rows, extra) == 0
    return accepted


def _repelled(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra) -> Bool:
    """InterPodAffinity: the anti-affinity of pods that are there."""
    if around.remembered is None and not extra:
        residents, nodes = around.residents, around.nodes
        return _apart_from(
            around, ((term, by_row(nodes, residents.repelling.get(term, {}))) for term in cls.repelled), rows
        )
    accepted = np.ones(len(rows), np.bool_)
    holders = _holders(cls.repelled, extra)
    for term in cls.repelled:
        known = _remembered(around, ("repelling", id(term)), partial(_repelling, around, term))
        accepted &= known.beside_rows(rows, holders.get(term, ())) == 0
    return accepted


def _apart_from(around: FilterContext, counted: Iterable[tuple[CountedTerm, Int64]], rows: Int64) -> Bool:
    """Return the rows in whose domains no pods are: by term, those that there are on each row."""
    by_key: dict[str, Int64] = {}
    for term, counts in counted:
        add_counts(by_key, term.topology_key, counts)
    accepted = np.ones(len(rows), np.bool_)
    for key, counts in by_key.items():
        accepted &= by_domain(around.nodes, key, counts)[1][rows] == 0
    return accepted


def add_counts(by_key: dict[str, Int64], key: str, counts: Int64) -> None:
    """Add counts by row to those of the same topology key: they are summed over its domains once."""
    charge(1 + len(counts) // ROWS_PER_OPERATION)
    known = by_key.get(key)
    by_key[key] = counts if known is None else known + counts


def _holders(terms: frozenset[CountedTerm], extra: Extra) -> dict[CountedTerm, list[int]]:
    """Rows of the further pods that have each of these terms of anti-affinity."""
    rows_of: dict[int, list[int]] = {}
    distinct: dict[int, tuple[CountedTerm, ...]] = {}
    for row, profile in extra if terms else ():
        if profile.repels:
            distinct[id(profile.repels)] = profile.repels
            rows_of.setdefault(id(profile.repels), []).append(row)
    holders: dict[CountedTerm, list[int]] = {}
    for key, repels in distinct.items():
        charge(1 + len(repels))
        for term in terms.intersection(repels):
            holders[term] = holders.get(term, []) + rows_of[key]
    return holders


def _remembered(around: FilterContext, key: tuple[object, ...], make: Callable[[], Remembered]) -> Remembered:
    if around.remembered is None:
        return make()
    found = around.remembered.get(key)
    if found is None:
        found = around.remembered[key] = make()
    return found


def _matching(around: FilterContext, term: CountedTerm) -> Remembered:
    conditions = (condition_of(around, term),)
    tally = around.residents.tally(conditions)
    return _summed(around, term, pods_matching(around, conditions), tally, term)


def _repelling(around: FilterContext, term: CountedTerm) -> Remembered:
    return _summed(around, term, by_row(around.nodes, around.residents.repelling.get(term, {})), None, term)


def _summed(around: FilterContext, term: CountedTerm, counts: Int64, tally: Tally | None, owner: object) -> Remembered:
    charge_rows(around.nodes.rows, 3)
    column = around.nodes.label_column(term.topology_key)
    here = column != UNKNOWN
    sums = np.bincount(column[here], weights=counts[here], minlength=len(around.nodes.values) + 1).astype(np.int64)
    return Remembered(column, sums, tally, None, sums[:0], (term, owner))


def counts_anywhere(around: FilterContext, term: CountedTerm) -> bool:
    """Return whether a resident with this anti-affinity sits on a node that has its label."""
    column = around.nodes.label_column(term.topology_key)
    return any(column[row] != UNKNOWN for row in around.residents.repelling.get(term, ()))


def condition_of(around: FilterContext, term: CountedTerm) -> Condition:
    """Return selector and namespaces of a pod's own term."""
    if term.namespace_selector.nothing:
        return term.selector, term.namespaces
    # As in kube-scheduler, a selector that is content with no labels at all means every namespace.
    if term.namespace_selector.matches({}):
        return term.selector, None
    named = {name for name, labels in (around.namespaces or {}).items() if term.namespace_selector.matches(labels)}
    return term.selector, term.namespaces | named


def means(around: FilterContext, term: CountedTerm, namespace: str) -> bool:
    """Return whether a pod's own term means pods of a namespace, as `condition_of` has it."""
    if namespace in term.namespaces or term.namespace_selector.matches({}):
        return True
    labels = (around.namespaces or {}).get(namespace)
    return labels is not None and term.namespace_selector.matches(labels)


def pods_matching(around: FilterContext, conditions: tuple[Condition, ...], *, living: bool = False) -> Int64:
    """Return the pods that meet all conditions by row (int64[rows], not to be written to)."""
    charge_rows(around.nodes.rows)
    return around.residents.tally(conditions, living=living).counts(around.nodes.rows)


def by_row(nodes: NodeTable, counts: Mapping[int, int]) -> Int64:
    """Return counts of some rows as int64[rows]."""
    charge(len(counts) // 8)
    found = np.zeros(nodes.rows, np.int64)
    for row, count in counts.items():
        found[row] = count
    return found


def by_domain(nodes: NodeTable, key: str, counts: Int64) -> tuple[Bool, Int64]:
    """Return for each row whether it has the label, and the sum over the rows with the same value (0 without one)."""
    charge_rows(nodes.rows, 3)
    column = nodes.label_column(key)
    here: Bool = column != UNKNOWN
    sums = np.bincount(column[here], weights=counts[here], minlength=1).astype(np.int64)
    return here, np.where(here, sums[np.where(here, column, 0)], 0)


# ---------------------------------------------------------------- spread


def _spread_labels(around: FilterContext, cls: PodClass, rows: Int64, _: Extra) -> Bool:
    """PodTopologySpread: nodes that lack a label of a constraint."""
    accepted = np.ones(len(rows), np.bool_)
    for constraint in cls.constraints.spread if cls.constraints else ():
        accepted &= around.nodes.label_column(constraint.topology_key)[rows] != UNKNOWN
    return accepted


def _spread(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra) -> Bool:
    """PodTopologySpread: nodes where the skew would be too large."""
    constraints = cls.constraints.spread if cls.constraints else ()
    accepted = np.ones(len(rows), np.bool_)
    if not constraints:
        return accepted
    for constraint in constraints:
        skew = skew_of(around, cls, constraint, extra)
        column = around.nodes.label_column(constraint.topology_key)[rows]
        here = np.where(column == UNKNOWN, 0, skew.sums[column])
        accepted &= here + int(constraint.self_match) - skew.least <= constraint.max_skew
    return accepted


@dataclass(frozen=True, slots=True)
class Skew:
    """How a spread constraint stands. ``sums`` pods by value of its label, ``domains`` the values that count."""

    sums: Int64
    domains: Int64
    least: int


def skew_of(around: FilterContext, cls: PodClass, constraint: Spread, extra: Extra = ()) -> Skew:
    """Return how one of a class's spread constraints stands."""
    key = ("spread", id(constraint), id(cls.constraints), id(cls.selector), id(cls.affinity), id(cls.tolerations))
    known = _remembered(around, key, partial(_spread_base, around, cls, constraint))
    sums = known.with_further(extra)
    charge(5 + (len(sums) + len(known.domains)) // ROWS_PER_OPERATION)
    enough = len(known.domains) >= constraint.min_domains and len(known.domains)
    return Skew(sums, known.domains, int(sums[known.domains].min()) if enough else 0)


def _spread_base(around: FilterContext, cls: PodClass, constraint: Spread) -> Remembered:
    # Each looks at the labels of all of them.
    charge_rows(around.nodes.rows, 6 + len(cls.constraints.spread if cls.constraints else ()))
    nodes = around.nodes
    everything = np.arange(nodes.rows, dtype=np.int64)
    counted = nodes.exists & _spread_labels(around, cls, everything, ())
    if constraint.honor_affinity:
        counted &= matches_affinity(nodes, cls, everything)
    if constraint.honor_taints:
        counted &= tolerates(nodes, cls, everything)
    column = nodes.label_column(constraint.topology_key)
    own = frozenset((cls.constraints.namespace,)) if cls.constraints else frozenset()
    conditions = ((constraint.selector, own),)
    # kube-scheduler leaves out bound pods that are being deleted, and all for an empty selector, but no nominated pod.
    # The further pods of a search are members that it has seated: these are bound before the next one is looked at.
    none = constraint.selector.everything
    bound = around.residents.tally(conditions, living=True)
    further = None if none and around.remembered is not None else around.residents.tally(conditions)
    counts = np.zeros(nodes.rows, np.int64) if none else bound.counts(nodes.rows)
    values = len(nodes.values) + 1
    sums = np.bincount(column[counted], weights=counts[counted], minlength=values).astype(np.int64)
    domains = np.flatnonzero(np.bincount(column[counted], minlength=values)).astype(np.int64)
    return Remembered(column, sums, further, counted, domains, (constraint, cls))


ON_NODE: Final = frozenset({NodeReason.PORTS, NodeReason.DISK})
"""Reasons that depend on nobody but the pods of the node itself."""

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
"""What a member of a gang that can't meet it yet may meet when others are seated."""


def looks_around(cls: PodClass) -> bool:
    """Return whether it depends on other pods where a class may go."""
    return cls.constraints is not None or bool(cls.repelled)


def open_rows(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra = ()) -> Bool:
    """Return which rows the pods that are there leave open to the class."""
    accepted = np.ones(len(rows), np.bool_)
    for rule in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        accepted &= rule.accepts(around, cls, rows, extra)
    return accepted


def closed_for_good(around: FilterContext, cls: PodClass, rows: Int64) -> Bool:
    """Return which rows the pods that are there close to the class, whoever of a gang is seated before."""
    accepted = np.ones(len(rows), np.bool_)
    for rule in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        if rule.reason not in MET_LATER:
            accepted &= rule.accepts(around, cls, rows, ())
    return ~accepted
