"""Affinity and anti-affinity of pods that are there, found by the pods that it may mean.

A pending pod is compared with few of these terms however many there are: with those that may mean its namespace and
whose selector may want its labels. Of the terms of another namespace's pods `MOST_ABROAD` are compared with it, so that
no namespace makes decisions about the pods of others slow. Where more may mean it, something else can stand for all
terms of that namespace.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, Generic, TypeVar

from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.selectors import Place, Selector, places_in, places_of

MOST_ABROAD: Final = 256
"""Terms of pods of one namespace that are compared with a pod of another."""

Entry = TypeVar("Entry", bound=Hashable)


@dataclass(slots=True)
class _Places(Generic[Entry]):
    """Terms by what each selected pod has, with how many pods have them, in order of arrival."""

    entries: dict[Place, dict[Entry, int]] = field(default_factory=dict)
    own: set[Place] | None = None
    """In a copy, the places whose terms are its own: those of others are copied before they change."""

    def change(self, entry: Entry, selector: Selector, change: int) -> bool:
        """Count a term; return whether it is there now and was not before, or the other way round."""
        turned = False
        for place in places_of(selector):
            here = self.entries.setdefault(place, {})
            if self.own is not None and place not in self.own:
                self.own.add(place)
                here = self.entries[place] = dict(here)
            before = here.get(entry, 0)
            left = here[entry] = before + change
            turned |= not before or not left
            if not left:
                del here[entry]
                if not here:
                    del self.entries[place]
        return turned

    def wanting(self, labels: Mapping[str, str]) -> Iterator[Entry]:
        """Yield those that may select labels."""
        return chain.from_iterable(self.entries[place] for place in places_in(labels) if place in self.entries)


class TermIndex(Generic[Entry]):
    """Terms of pods that are there. An entry is a term, or a term with its weight."""

    def __init__(self) -> None:
        self._at_home: dict[str, _Places[Entry]] = {}
        """Those that mean a namespace by its name, of pods of that namespace."""
        self._abroad: dict[str, _Places[Entry]] = {}
        """Those that mean other namespaces, by the namespace of the pods that have them."""
        self.changes = 0
        """Counts what may change which terms mean a pod."""

    def change(
        self, entry: Entry, holder: str, namespaces: frozenset[str], selectors: tuple[Selector, Selector], by: int
    ) -> None:
        """Note that so many more pods have a term, or fewer.

        Args:
            entry: the term.
            holder: namespace of these pods.
            namespaces: that the term names.
            selectors: of pods, and of further namespaces.
            by: how many.
        """
        of_pods, of_namespaces = selectors
        if holder in namespaces:
            self.changes += _change(self._at_home, holder, entry, of_pods, by)
        if means_others(holder, namespaces, of_namespaces):
            self.changes += _change(self._abroad, holder, entry, of_pods, by)

    def candidates(
        self, namespace: str, labels: Mapping[str, str], instead: Callable[[str], Iterable[Entry]] | None = None
    ) -> Iterator[Entry]:
        """Yield the terms that may mean pods of a namespace with these labels; what is left is to be compared.

        Args:
            namespace: of the pods.
            labels: of the pods.
            instead: what stands for the terms of another namespace's pods where more than `MOST_ABROAD` may mean these,
                by that namespace; without it the first of them are yielded.
        """
        for index in (self._at_home, self._abroad):
            if (own := index.get(namespace)) is not None:
                for entry in own.wanting(labels):
                    charge()
                    yield entry
        for holder, places in self._abroad.items():
            if holder != namespace:
                first = list(islice(places.wanting(labels), MOST_ABROAD + 1))
                many = len(first) > MOST_ABROAD
                yield from instead(holder) if many and instead is not None else first[:MOST_ABROAD]

    def copy(self) -> "TermIndex[Entry]":
        """Return a copy to try changes on, which is thrown away before this changes again."""
        twin: TermIndex[Entry] = TermIndex()
        twin._at_home, twin._abroad, twin.changes = _copied(self._at_home), _copied(self._abroad), self.changes
        return twin


def means_others(holder: str, namespaces: frozenset[str], of_namespaces: Selector) -> bool:
    """Return whether a term of a namespace's pods may mean pods of other namespaces."""
    return not of_namespaces.nothing or len(namespaces) > (holder in namespaces)


def _change(index: dict[str, _Places[Entry]], namespace: str, entry: Entry, selector: Selector, by: int) -> bool:
    """Count a term; return whether it is there now and was not before, or the other way round."""
    places = index.setdefault(namespace, _Places())
    turned = places.change(entry, selector, by)
    if not places.entries:
        del index[namespace]
    return turned


def _copied(index: dict[str, _Places[Entry]]) -> dict[str, _Places[Entry]]:
    return {namespace: _Places(dict(places.entries), set()) for namespace, places in index.items()}
