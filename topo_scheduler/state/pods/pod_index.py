"""Pods by node, as inter-pod rules see them: labels, host ports, claims, and affinity.

Equal pods share one profile, so a selector is matched once per profile and not once per pod. A tally counts the pods
that a selector matches by row; it reads the log of arrivals and departures from where it stopped. Profiles without
pods are forgotten. The result of each tally takes two bits of each profile: tenants can make many of both.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.profiles import CountedTerm, Disk, PodVolumeClaim, Port, Profile
from topo_scheduler.state.pods.selectors import EVERYTHING, Selector
from topo_scheduler.state.pods.term_index import MAX_CROSS_NAMESPACE_TERMS, TermIndex, means_others

Int64 = npt.NDArray[np.int64]
MAX_ANTI_AFFINITY_SETS: Final = 256
"""Sets of anti-affinity terms that are shared as one object; beyond this number the table is cleared."""
MAX_TALLIES: Final = 1024
"""Tallies that are kept; the least recently used ones are dropped first."""
KEEP_BYTES: Final = 40 * 2**20
"""Memory for the counts of tallies: it limits them to fewer than `MAX_TALLIES` with more than 5,120 nodes."""
MIN_TALLIES: Final = 256
"""Tallies that are kept whatever their size: the terms of one pod."""
BYTES_PER_ROW: Final = 8
"""Memory of a tally for each row of the node table."""
MAX_LOG_ENTRIES: Final = 4096
"""Entries of the log, beyond which the older half is dropped. A tally further behind counts again: little more work."""
MAX_LOG_BYTES: Final = 16 * 2**20
"""Memory of the profiles in the log, beyond which its older half is dropped too: their pods may be gone."""


Condition = tuple[Selector, frozenset[str] | None]
"""A selector and the namespaces to which it applies, None for all of them."""


@dataclass(eq=False, slots=True)
class _Results:
    """The place of the results of a tally and its twins in profiles."""

    bit: int
    """Its bit in `Profile.compared` and `Profile.counted`; 0 once its results are dropped."""


class Tally:
    """Pods that meet all of some conditions, by row."""

    def __init__(
        self, pod_index: "PodIndex", conditions: tuple[Condition, ...], results: _Results, *, living: bool
    ) -> None:
        self._pod_index = pod_index
        self._conditions = conditions
        self._namespaces = next((namespaces for _, namespaces in conditions if namespaces is not None), None)
        """Namespaces of the pods that may be counted; None for all."""
        self._living = living
        self.results = results
        self.last_use = 0
        self._counts: Int64 = np.zeros(0, np.int64)
        self._position = -1

    def twin(self, pod_index: "PodIndex") -> "Tally":
        """Return a tally of the same conditions over a copy of the bound pods; both share results by profile."""
        return Tally(pod_index, self._conditions, self.results, living=self._living)

    def counts(self, rows: int) -> Int64:
        """Return int64[rows], up to date. The caller must not write to it."""
        pod_index = self._pod_index
        if self._position == pod_index.position and len(self._counts) >= rows:
            return self._counts[:rows]
        changes = pod_index.since(self._position)
        if changes is None or len(self._counts) < rows:
            pod_index.rows = max(pod_index.rows, rows)
            self._counts = np.zeros(rows, np.int64)
            changes = list(pod_index.all(self._namespaces))
        charge(1 + len(changes) // 4)
        self._position = -1  # if an exception stops the loop, the next call counts everything again
        for row, profile, change in changes:
            if self.matches(profile):
                self._counts[row] += change
        self._position = pod_index.position
        return self._counts[:rows]

    def matches(self, profile: Profile) -> bool:
        """Return whether the tally counts pods of a profile."""
        bit = self.results.bit
        if profile.compared & bit:
            return bool(profile.counted & bit)
        counted = self._meets_conditions(profile)
        profile.compared |= bit
        if counted:
            profile.counted |= bit
        return counted

    def _meets_conditions(self, profile: Profile) -> bool:
        charge(2 + 2 * len(self._conditions))
        if self._living and profile.terminating:
            return False
        return all(
            (namespaces is None or profile.namespace in namespaces) and selector.matches(profile.labels)
            for selector, namespaces in self._conditions
        )


Change = tuple[int, Profile, int]
"""Row, profile, and the change in the number of its pods."""


class PodIndex:
    """Profiles of the pods on each row of the node table."""

    def __init__(self) -> None:
        self.special: dict[int, dict[Profile, int]] = {}
        """By row, the profiles with ports, disks or claims, and how many pods have them."""
        self.repelling: dict[CountedTerm, dict[int, int]] = {}
        """Required anti-affinity of bound pods: by term and row, the number of pods that have it. Terms that stand for
        several others are included."""
        self._own: set[CountedTerm] | None = None
        """In a copy, the terms with rows of their own; other rows are shared and copied before they change."""
        self.attracting: dict[tuple[int, CountedTerm], dict[int, int]] = {}
        """Preferred affinity of bound pods: by weight and term, then by row, the number of pods that have it."""
        self.repelling_index: TermIndex[CountedTerm] = TermIndex()
        self.attracting_index: TermIndex[tuple[int, CountedTerm]] = TermIndex()
        self._stand_ins: dict[str, dict[str, CountedTerm]] = {}
        """Terms that replace all anti-affinity of a namespace's pods toward other namespaces, by topology key.

        They are used where more terms may apply to a pod than are compared, so that no term is overlooked.
        """
        self.claimed: dict[tuple[str, str], int] = {}
        """How many bound pods name each claim, by namespace and name."""
        self._profiles: WeakValueDictionary[tuple[object, ...], Profile] = WeakValueDictionary()
        self._repels: dict[tuple[CountedTerm, ...], tuple[CountedTerm, ...]] = {}
        """Equal anti-affinity as one object, so that comparing pods that differ in labels only is fast."""
        self._here: dict[str, dict[int, dict[Profile, int]]] = {}
        self._log: list[Change] = []
        self._base = 0
        self._log_bytes = 0
        self._tallies: dict[tuple[object, ...], Tally] = {}
        self._uses = 0
        """How often a tally was requested."""
        self._free_bits: list[int] = []
        """Bits of dropped tallies, the lowest last."""
        self.rows = 0
        """Maximum rows that a tally counted."""
        self._origin: PodIndex | None = None
        self.large_bytes = 0
        """Total memory of the large profiles made since `drop_caches`."""

    @property
    def terms_changed(self) -> int:
        """How often the set of terms that may apply to a pod changed."""
        return self.repelling_index.changes + self.attracting_index.changes

    def repelling_candidates(self, namespace: str, labels: Mapping[str, str]) -> Iterator[CountedTerm]:
        """Yield the anti-affinity terms of bound pods that may apply to such a pod. The caller must compare each.

        If bound pods of another namespace have too many such terms, one term for each topology key replaces them. It
        selects all pods, so those bound pods repel the pod as if each of their terms applied. No tenant gains power
        from that: one term that selects everything has the same effect.
        """
        return self.repelling_index.candidates(namespace, labels, self._stand_ins_of)

    def _stand_ins_of(self, holder: str) -> Iterable[CountedTerm]:
        return islice(self._stand_ins.get(holder, {}).values(), MAX_CROSS_NAMESPACE_TERMS)

    @property
    def position(self) -> int:
        """Position in the log of a reader that is up to date."""
        return self._base + len(self._log)

    def profile(
        self,
        namespace: str,
        labels: Mapping[str, str],
        *,
        terminating: bool = False,
        ports: tuple[Port, ...] = (),
        repels: tuple[CountedTerm, ...] = (),
        claims: tuple[PodVolumeClaim, ...] = (),
        disks: tuple[Disk, ...] = (),
        attracts: tuple[tuple[int, CountedTerm], ...] = (),
    ) -> Profile:
        """Return the shared profile of such a pod."""
        key = (namespace, tuple(sorted(labels.items())), terminating, ports, repels, claims, disks, attracts)
        profile = self._profiles.get(key)
        if profile is None:
            if repels:
                if len(self._repels) > MAX_ANTI_AFFINITY_SETS:
                    self._repels.clear()
                repels = self._repels.setdefault(repels, repels)
            profile = Profile(namespace, labels, terminating, ports, repels, claims, disks, attracts)
            self._profiles[key] = profile
            if not profile.ordinary:
                self.large_bytes += profile.memory
        return profile

    def forget_terms(self, profile: Profile) -> None:
        """Share the anti-affinity of a profile no more: no bound pod has it."""
        self._repels.pop(profile.repels, None)

    def tally(self, conditions: tuple[Condition, ...], *, living: bool = False) -> Tally:
        """Return the tally of pods that meet all conditions; ``living`` excludes pods being deleted."""
        key = (conditions, living)
        tally = self._tallies.get(key)
        self._uses += 1
        if tally is not None and tally.results.bit:
            tally.last_use = self._uses
            return tally
        if tally is None and len(self._tallies) >= self._max_tallies:
            # An eighth of them at once: this clears bits of all profiles.
            self._drop_tallies(len(self._tallies) - self._max_tallies * 7 // 8)
        if self._origin is not None:
            tally = self._origin.tally(conditions, living=living).twin(self)
        else:
            bit = self._free_bits.pop() if self._free_bits else 1 << len(self._tallies)
            tally = Tally(self, conditions, _Results(bit), living=living)
        tally.last_use = self._uses
        self._tallies[key] = tally
        return tally

    @property
    def _max_tallies(self) -> int:
        """The number of tallies to keep, given the size of their counts."""
        return min(MAX_TALLIES, max(MIN_TALLIES, KEEP_BYTES // (BYTES_PER_ROW * max(1, self.rows))))

    def copy(self) -> "PodIndex":
        """Return a copy for trial changes. It shares profiles and must not be used after the original changes."""
        twin = PodIndex()
        twin._origin = self
        twin._profiles, twin._repels = self._profiles, self._repels
        twin.special = {row: dict(counts) for row, counts in self.special.items()}
        twin.repelling, twin._own = dict(self.repelling), set()
        twin.repelling_index = self.repelling_index.copy()
        twin._stand_ins = {holder: dict(terms) for holder, terms in self._stand_ins.items()}
        twin.claimed = dict(self.claimed)
        twin._here = {
            namespace: {row: dict(counts) for row, counts in by_row.items()} for namespace, by_row in self._here.items()
        }
        return twin

    def without_pods(self) -> "PodIndex":
        """Return an index without pods. Its tallies may compare profiles of this one."""
        twin = PodIndex()
        twin._origin = self._origin or self
        return twin

    def since(self, position: int) -> Sequence[Change] | None:
        """Return the changes since a position, None when the log no longer reaches back to it."""
        start = position - self._base
        return None if start < 0 else self._log[start:]

    def all(self, namespaces: Iterable[str] | None = None) -> Iterator[Change]:
        """Yield all pods of the given namespaces, or of all namespaces, as changes from zero."""
        for namespace in self._here if namespaces is None else namespaces:
            for row, counts in self._here.get(namespace, {}).items():
                for profile, count in counts.items():
                    yield row, profile, count

    def drop_caches(self) -> None:
        """Drop all caches, which may keep profiles of deleted pods alive."""
        self._drop_tallies(len(self._tallies))
        self._repels.clear()
        self._base += len(self._log)
        self._log.clear()
        self._log_bytes = 0
        self.large_bytes = 0

    def _drop_tallies(self, number: int) -> None:
        """Drop the least recently used tallies, and their results in profiles."""
        oldest = nsmallest(number, self._tallies, key=lambda key: self._tallies[key].last_use)
        dropped = [self._tallies.pop(key).results for key in oldest]
        if self._origin is not None:
            return  # the results in profiles belong to the origin
        bits = 0
        for results in dropped:
            bits |= results.bit
            self._free_bits.append(results.bit)
            results.bit = 0
        self._free_bits.sort(reverse=True)
        for profile in self._profiles.values():
            profile.compared &= ~bits
            profile.counted &= ~bits

    def change(self, row: int, profile: Profile, change: int) -> None:
        """Change the number of pods of a profile on a row."""
        by_row = self._here.setdefault(profile.namespace, {})
        _count(by_row, row, profile, change)
        if not by_row:
            del self._here[profile.namespace]
        if profile.ports or profile.disks or profile.claims:
            _count(self.special, row, profile, change)
        for term in profile.repels:
            self._count_repelling(term, row, change)
            _index(self.repelling_index, term, term, profile, change)
            if means_others(profile.namespace, term.namespaces, term.namespace_selector):
                self._count_stand_in(profile.namespace, term.topology_key, row, change)
        for attraction in profile.attracts:
            _count(self.attracting, attraction, row, change)
            _index(self.attracting_index, attraction, attraction[1], profile, change)
        for claim in profile.claims:
            if claim.owner:
                continue
            key = (profile.namespace, claim.name)
            count = self.claimed[key] = self.claimed.get(key, 0) + change
            if not count:
                del self.claimed[key]
        self._log.append((row, profile, change))
        self._log_bytes += profile.memory
        if len(self._log) > MAX_LOG_ENTRIES or self._log_bytes > MAX_LOG_BYTES:
            self._shorten_log()

    def _shorten_log(self) -> None:
        """Drop the older half of the log."""
        dropped = (len(self._log) + 1) // 2
        del self._log[:dropped]
        self._base += dropped
        self._log_bytes = sum(profile.memory for _, profile, _ in self._log)

    def _count_repelling(self, term: CountedTerm, row: int, change: int) -> None:
        if self._own is not None and term not in self._own:
            self._own.add(term)
            self.repelling[term] = dict(self.repelling.get(term, ()))
        _count(self.repelling, term, row, change)

    def _count_stand_in(self, holder: str, topology_key: str, row: int, change: int) -> None:
        stand_ins = self._stand_ins.setdefault(holder, {})
        term = stand_ins.get(topology_key)
        if term is None:
            # No namespace has such a name, so no pod has an equal term.
            term = stand_ins[topology_key] = CountedTerm(
                EVERYTHING, frozenset((f"{holder}/",)), topology_key, EVERYTHING
            )
        self._count_repelling(term, row, change)
        if term not in self.repelling:
            del stand_ins[topology_key]
            if not stand_ins:
                del self._stand_ins[holder]


Outer = TypeVar("Outer", bound=Hashable)
Inner = TypeVar("Inner", bound=Hashable)


def _count(index: dict[Outer, dict[Inner, int]], outer: Outer, inner: Inner, change: int) -> None:
    counts = index.setdefault(outer, {})
    count = counts[inner] = counts.get(inner, 0) + change
    if not count:
        del counts[inner]
        if not counts:
            del index[outer]


def _index(index: TermIndex[Outer], entry: Outer, term: CountedTerm, profile: Profile, change: int) -> None:
    index.change(entry, profile.namespace, term.namespaces, (term.selector, term.namespace_selector), change)
