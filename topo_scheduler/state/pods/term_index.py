"""Affinity and anti-affinity terms of placed pods, indexed by the pods to which they may apply.

A pending pod is compared with few of these terms, however many exist: terms that may apply to its namespace and whose
selector may match its labels. For each other namespace at most `MAX_CROSS_NAMESPACE_TERMS` terms are compared, so that
no namespace slows decisions about the pods of other namespaces. If more may apply, the caller can replace all terms of
that namespace.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, Generic, TypeVar

from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.selectors import Place, Selector, places_in, places_of

MAX_CROSS_NAMESPACE_TERMS: Final = 256
"""Terms of pods of one namespace that are compared with a pod of another."""

Entry = TypeVar("Entry", bound=Hashable)


@dataclass(slots=True)
class _Places(Generic[Entry]):
    """Terms by a label that each selected pod has, with the number of pods that have the term, in order of arrival."""

    entries: dict[Place, dict[Entry, int]] = field(default_factory=dict)
    own: set[Place] | None = None
    """In a copy, the places with a dictionary of their own; other places are shared and copied before they change."""

    def change(self, entry: Entry, selector: Selector, change: int) -> bool:
        """Count a term; return whether it was added or removed."""
        toggled = False
        for place in places_of(selector):
            entries = self.entries.setdefault(place, {})
            if self.own is not None and place not in self.own:
                self.own.add(place)
                entries = self.entries[place] = dict(entries)
            count = entries.get(entry, 0)
            new_count = entries[entry] = count + change
            toggled |= not count or not new_count
            if not new_count:
                del entries[entry]
                if not entries:
                    del self.entries[place]
        return toggled

    def wanting(self, labels: Mapping[str, str]) -> Iterator[Entry]:
        """Yield the terms that may select these labels."""
        return chain.from_iterable(self.entries[place] for place in places_in(labels) if place in self.entries)


class TermIndex(Generic[Entry]):
    """Terms of placed pods. An entry is a term, or a term with its weight."""

    def __init__(self) -> None:
        self._at_home: dict[str, _Places[Entry]] = {}
        """Terms that name the namespace of their own pod, by namespace."""
        self._abroad: dict[str, _Places[Entry]] = {}
        """Terms that may apply to other namespaces, by the namespace of the pods that have them."""
        self.changes = 0
        """Counts changes that may affect which terms apply to a pod."""

    def change(
        self, entry: Entry, holder: str, namespaces: frozenset[str], selectors: tuple[Selector, Selector], change: int
    ) -> None:
        """Change the number of pods that have a term.

        Args:
            entry: the term.
            holder: namespace of these pods.
            namespaces: namespaces that the term names.
            selectors: selector of pods, and selector of further namespaces.
            change: change in the number of pods.
        """
        of_pods, of_namespaces = selectors
        if holder in namespaces:
            self.changes += _change(self._at_home, holder, entry, of_pods, change)
        if means_others(holder, namespaces, of_namespaces):
            self.changes += _change(self._abroad, holder, entry, of_pods, change)

    def candidates(
        self, namespace: str, labels: Mapping[str, str], replacement: Callable[[str], Iterable[Entry]] | None = None
    ) -> Iterator[Entry]:
        """Yield the terms that may apply to pods of a namespace with these labels; the caller must compare each.

        Args:
            namespace: namespace of the pods.
            labels: labels of the pods.
            replacement: returns the terms that replace those of another namespace if more than
                `MAX_CROSS_NAMESPACE_TERMS` of its terms may apply; without it, that many are yielded.
        """
        for index in (self._at_home, self._abroad):
            if (own := index.get(namespace)) is not None:
                for entry in own.wanting(labels):
                    charge()
                    yield entry
        for holder, places in self._abroad.items():
            if holder != namespace:
                terms = list(islice(places.wanting(labels), MAX_CROSS_NAMESPACE_TERMS + 1))
                too_many = len(terms) > MAX_CROSS_NAMESPACE_TERMS
                yield from (
                    replacement(holder) if too_many and replacement is not None else terms[:MAX_CROSS_NAMESPACE_TERMS]
                )

    def copy(self) -> "TermIndex[Entry]":
        """Return a copy for trial changes, which must not be used after the original changes."""
        twin: TermIndex[Entry] = TermIndex()
        twin._at_home, twin._abroad, twin.changes = _copied(self._at_home), _copied(self._abroad), self.changes
        return twin


def means_others(holder: str, namespaces: frozenset[str], of_namespaces: Selector) -> bool:
    """Return whether a term of a namespace's pods may apply to pods of other namespaces."""
    return not of_namespaces.nothing or len(namespaces) > (holder in namespaces)


def _change(index: dict[str, _Places[Entry]], namespace: str, entry: Entry, selector: Selector, change: int) -> bool:
    """Count a term; return whether it was added or removed."""
    places = index.setdefault(namespace, _Places())
    toggled = places.change(entry, selector, change)
    if not places.entries:
        del index[namespace]
    return toggled


def _copied(index: dict[str, _Places[Entry]]) -> dict[str, _Places[Entry]]:
    return {namespace: _Places(dict(places.entries), set()) for namespace, places in index.items()}
