"""Who sits where, as neighbours see it: labels, host ports, claims, and whom a pod keeps away.

Pods that look alike share one profile, so a selector is tried once per profile and not once per pod. A tally counts
the pods a selector matches by row and reads the log of arrivals and departures from where it stopped. Profiles that
nobody has any more are forgotten.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from topo_scheduler.state.numbering import Numbering
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.selectors import EVERYTHING, NOTHING, Selector
from topo_scheduler.state.term_index import MOST_ABROAD, TermIndex, means_others

Int64 = npt.NDArray[np.int64]
ANY_ADDRESS: Final = "0.0.0.0"
LARGE_CHARACTERS: Final = 4_096
"""Characters beyond which a profile counts as large."""
MOST_REPELS: Final = 256
"""Different anti-affinity that is kept as one object; beyond it all is forgotten."""
KEEP: Final = 2048
"""Entries of the log kept at least; a tally that is further behind counts anew, which takes little longer.

Each keeps the profile of a pod alive that may be gone: a kilobyte or two.
"""


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the host that a pod takes."""

    address: str
    protocol: str
    number: int

    def conflicts(self, other: "Port") -> bool:
        """Return whether both can't be on one node."""
        same = self.number == other.number and self.protocol == other.protocol
        return same and (self.address == other.address or ANY_ADDRESS in (self.address, other.address))


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume that Kubernetes lets one pod of a node use, or several as long as all only read."""

    kind: str
    names: frozenset[str]
    place: tuple[str, ...] = ()
    shared_read: bool = True
    read_only: bool = False

    def conflicts(self, other: "Disk") -> bool:
        """Return whether both can't be used on one node."""
        same = self.kind == other.kind and self.place == other.place and bool(self.names & other.names)
        return same and not (self.shared_read and self.read_only and other.read_only)


@dataclass(frozen=True, slots=True)
class PodVolumeClaim:
    """A PersistentVolumeClaim a pod uses; ``owner`` the uid it must belong to where it is a generic ephemeral one."""

    name: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class CountedTerm:
    """Pods of some namespaces that a selector matches, counted by the domains of one node label."""

    selector: Selector
    namespaces: frozenset[str]
    topology_key: str
    namespace_selector: Selector = NOTHING
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self._asked()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return CountedTerm, self._asked()

    def _asked(self) -> tuple[Selector, frozenset[str], str, Selector]:
        return self.selector, self.namespaces, self.topology_key, self.namespace_selector

    def matches(self, profile: "Profile", namespace_labels: Mapping[str, str]) -> bool:
        """Return whether a pod is meant, whose namespace has these labels."""
        there = profile.namespace in self.namespaces or self.namespace_selector.matches(namespace_labels)
        return there and self.selector.matches(profile.labels)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Profile:
    """What neighbours see of a pod; equal ones are one object, made by `Residents.profile`.

    ``repels`` is its required anti-affinity, ``attracts`` what draws others to it, or away where the weight is
    negative.
    """

    namespace: str
    labels: Mapping[str, str]
    terminating: bool
    ports: tuple[Port, ...]
    repels: tuple[CountedTerm, ...]
    claims: tuple[PodVolumeClaim, ...]
    disks: tuple[Disk, ...]
    attracts: tuple[tuple[int, CountedTerm], ...] = ()
    matched: dict[int, bool] = field(default_factory=dict)
    """By number of a tally, whether it is counted there."""

    @property
    def special(self) -> bool:
        """Whether it holds something of a node that is counted by no resource."""
        return bool(self.ports or self.disks or self.claims)


Condition = tuple[Selector, frozenset[str] | None]
"""A selector and the namespaces in which it looks, None for all of them."""


_numbers: Final = Numbering()


class Tally:
    """Pods that meet all of some conditions, by row."""

    def __init__(
        self, residents: "Residents", conditions: tuple[Condition, ...], *, living: bool, number: int | None = None
    ) -> None:
        self._residents = residents
        self._conditions = conditions
        self._namespaces = next((named for _, named in conditions if named is not None), None)
        """Where pods are that may be counted; None for anywhere."""
        self._living = living
        self._number = _numbers.take() if number is None else number
        self._counts: Int64 = np.zeros(0, np.int64)
        self._at = -1

    def twin(self, residents: "Residents") -> "Tally":
        """Return a tally of the same conditions over other residents; what is known of profiles is shared."""
        return Tally(residents, self._conditions, living=self._living, number=self._number)

    def counts(self, rows: int) -> Int64:
        """Return int64[rows], up to date; not to be written to."""
        residents = self._residents
        if self._at == residents.position and len(self._counts) >= rows:
            return self._counts[:rows]
        fresh = residents.since(self._at)
        if fresh is None or len(self._counts) < rows:
            self._counts = np.zeros(rows, np.int64)
            fresh = list(residents.all(self._namespaces))
        charge(1 + len(fresh) // 4)
        self._at = -1  # should this raise half way, all is counted anew
        for row, profile, change in fresh:
            if self.matches(profile):
                self._counts[row] += change
        self._at = residents.position
        return self._counts[:rows]

    def matches(self, profile: Profile) -> bool:
        """Return whether pods of a profile are counted."""
        found = profile.matched.get(self._number)
        if found is None:
            found = profile.matched[self._number] = self._tried(profile)
        return found

    def _tried(self, profile: Profile) -> bool:
        charge(2 + 2 * len(self._conditions))
        if self._living and profile.terminating:
            return False
        return all(
            (namespaces is None or profile.namespace in namespaces) and selector.matches(profile.labels)
            for selector, namespaces in self._conditions
        )


Change = tuple[int, Profile, int]
"""Row, profile, and by how many pods more or fewer."""


class Residents:
    """Profiles of the pods on each row of the node table."""

    def __init__(self) -> None:
        self.special: dict[int, dict[Profile, int]] = {}
        """By row, the profiles with ports, disks or claims, and how many pods have them."""
        self.repelling: dict[CountedTerm, dict[int, int]] = {}
        """Required anti-affinity of residents: by term, the rows of who has it, and how many. What stands for several
        terms is there, too."""
        self._own: set[CountedTerm] | None = None
        """In a copy, the terms whose rows are its own: those of others are copied before they change."""
        self.attracting: dict[tuple[int, CountedTerm], dict[int, int]] = {}
        """What draws others to residents, or away: by weight and term, the rows of who has it, and how many."""
        self.repelling_index: TermIndex[CountedTerm] = TermIndex()
        self.attracting_index: TermIndex[tuple[int, CountedTerm]] = TermIndex()
        self._stand_ins: dict[str, dict[str, CountedTerm]] = {}
        """What stands for all anti-affinity of a namespace's pods that may mean other namespaces, by topology key.

        Where more terms may mean a pod than are compared, none of them must be overlooked.
        """
        self.claimed: dict[tuple[str, str], int] = {}
        """How many residents name each claim, by namespace and name."""
        self._profiles: WeakValueDictionary[tuple[object, ...], Profile] = WeakValueDictionary()
        self._repels: dict[tuple[CountedTerm, ...], tuple[CountedTerm, ...]] = {}
        """Equal anti-affinity as one object, so that pods whose labels alone tell them apart are quickly compared."""
        self._here: dict[str, dict[int, dict[Profile, int]]] = {}
        self._log: list[Change] = []
        self._base = 0
        self._tallies: dict[tuple[object, ...], Tally] = {}
        self._origin: Residents | None = None
        self.large_bytes = 0
        """Characters of the large profiles that were made since `drop_caches`."""

    @property
    def terms_changed(self) -> int:
        """How often the terms that may mean a pod became others."""
        return self.repelling_index.changes + self.attracting_index.changes

    def repelling_candidates(self, namespace: str, labels: Mapping[str, str]) -> Iterator[CountedTerm]:
        """Yield the anti-affinity of residents that may mean pods like this. Each is to be compared.

        Of another namespace's residents with very many such terms one term a topology key is yielded, which means all
        pods: those residents keep it off as if each of their terms meant it. No tenant gains a power by that, as one
        term that selects everything does the same.
        """
        return self.repelling_index.candidates(namespace, labels, self._standing_for)

    def _standing_for(self, holder: str) -> Iterable[CountedTerm]:
        return islice(self._stand_ins.get(holder, {}).values(), MOST_ABROAD)

    @property
    def position(self) -> int:
        """Where a reader that is up to date stands."""
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
        """Return the profile of pods like this."""
        key = (namespace, tuple(sorted(labels.items())), terminating, ports, repels, claims, disks, attracts)
        found = self._profiles.get(key)
        if found is None:
            if repels:
                if len(self._repels) > MOST_REPELS:
                    self._repels.clear()
                repels = self._repels.setdefault(repels, repels)
            found = Profile(namespace, labels, terminating, ports, repels, claims, disks, attracts)
            self._profiles[key] = found
            if (size := _characters(found)) > LARGE_CHARACTERS:
                self.large_bytes += size
        return found

    def tally(self, conditions: tuple[Condition, ...], *, living: bool = False) -> Tally:
        """Return the count of pods that meet all conditions; ``living`` leaves out those being deleted."""
        key = (conditions, living)
        found = self._tallies.get(key)
        if found is None:
            if len(self._tallies) > 1024:
                self._forget_tallies()
            if self._origin is not None:
                found = self._origin.tally(conditions, living=living).twin(self)
            else:
                found = Tally(self, conditions, living=living)
            self._tallies[key] = found
        return found

    def copy(self) -> "Residents":
        """Return a copy to try changes on; profiles are shared, and it is thrown away before this changes again."""
        twin = Residents()
        twin._origin = self
        twin._profiles, twin._repels = self._profiles, self._repels
        twin.special = {row: dict(here) for row, here in self.special.items()}
        twin.repelling, twin._own = dict(self.repelling), set()
        twin.repelling_index = self.repelling_index.copy()
        twin._stand_ins = {holder: dict(terms) for holder, terms in self._stand_ins.items()}
        twin.claimed = dict(self.claimed)
        twin._here = {
            namespace: {row: dict(here) for row, here in by_row.items()} for namespace, by_row in self._here.items()
        }
        return twin

    def since(self, position: int) -> Sequence[Change] | None:
        """Return what changed since a position, None when that is forgotten."""
        start = position - self._base
        return None if start < 0 else self._log[start:]

    def all(self, namespaces: Iterable[str] | None = None) -> Iterator[Change]:
        """Return everybody in some namespaces, or in all of them, as if they had just arrived."""
        for namespace in self._here if namespaces is None else namespaces:
            for row, here in self._here.get(namespace, {}).items():
                for profile, count in here.items():
                    yield row, profile, count

    def drop_caches(self) -> None:
        """Drop what is kept to be quick; it may hold on to pods that are gone."""
        self._forget_tallies()
        self._repels.clear()
        self._base += len(self._log)
        self._log.clear()
        self.large_bytes = 0

    def _forget_tallies(self) -> None:
        self._tallies.clear()
        if self._origin is not None:
            return  # what is known of profiles belongs to the origin
        for profile in self._profiles.values():
            profile.matched.clear()

    def change(self, row: int, profile: Profile, change: int) -> None:
        """Note that so many more pods of a profile are on a row, or fewer."""
        here = self._here.setdefault(profile.namespace, {})
        _count(here, row, profile, change)
        if not here:
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
            left = self.claimed[key] = self.claimed.get(key, 0) + change
            if not left:
                del self.claimed[key]
        self._log.append((row, profile, change))
        if len(self._log) > 2 * KEEP:
            del self._log[:KEEP]
            self._base += KEEP

    def _count_repelling(self, term: CountedTerm, row: int, change: int) -> None:
        if self._own is not None and term not in self._own:
            self._own.add(term)
            self.repelling[term] = dict(self.repelling.get(term, ()))
        _count(self.repelling, term, row, change)

    def _count_stand_in(self, holder: str, topology_key: str, row: int, change: int) -> None:
        here = self._stand_ins.setdefault(holder, {})
        term = here.get(topology_key)
        if term is None:
            # No namespace has such a name, so no pod has this term itself.
            term = here[topology_key] = CountedTerm(EVERYTHING, frozenset((f"{holder}/",)), topology_key, EVERYTHING)
        self._count_repelling(term, row, change)
        if term not in self.repelling:
            del here[topology_key]
            if not here:
                del self._stand_ins[holder]


def _characters(profile: Profile) -> int:
    """Return about how many characters a profile consists of."""
    terms = (*profile.repels, *(term for _, term in profile.attracts))
    selectors = (one for term in terms for one in (term.selector, term.namespace_selector))
    return (
        sum(len(key) + len(value) for key, value in profile.labels.items())
        + sum(len(value) for one in selectors for clause in one.clauses for value in (clause.key, *clause.values))
        + sum(len(namespace) for term in terms for namespace in term.namespaces)
        + sum(len(str(disk)) for disk in profile.disks)
    )


Outer = TypeVar("Outer", bound=Hashable)
Inner = TypeVar("Inner", bound=Hashable)


def _count(index: dict[Outer, dict[Inner, int]], outer: Outer, inner: Inner, change: int) -> None:
    counts = index.setdefault(outer, {})
    left = counts[inner] = counts.get(inner, 0) + change
    if not left:
        del counts[inner]
        if not counts:
            del index[outer]


def _index(index: TermIndex[Outer], entry: Outer, term: CountedTerm, profile: Profile, change: int) -> None:
    index.change(entry, profile.namespace, term.namespaces, (term.selector, term.namespace_selector), change)
