"""Disruption budgets: which pods they guard, and how many of those may go now."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final
from weakref import WeakKeyDictionary

from topo_scheduler.api.objects import DisruptionBudget
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.selectors import (
    NOTHING,
    Place,
    Selector,
    SelectorError,
    compile_selector,
    places_in,
    places_of,
)


@dataclass(frozen=True, slots=True)
class DisruptionLimit:
    """A PodDisruptionBudget. ``allowed`` pods it can lose now."""

    namespace: str
    name: str
    selector: Selector
    allowed: int

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


MOST_TRIED: Final = 64
"""Budgets of a namespace that are compared with one pod."""
MOST_GUARDS: Final = 2
"""Budgets of one pod that are told: the Eviction API refuses a pod that has several."""


@dataclass(slots=True)
class _Namespace:
    """The budgets of one namespace by name, and their names by what each pod that they select has."""

    guards: dict[str, DisruptionLimit] = field(default_factory=dict)
    by_place: dict[Place, dict[str, None]] = field(default_factory=dict)
    firsts: dict[Place, Sequence[str]] = field(default_factory=dict)
    """Of a place, the first names."""
    found: WeakKeyDictionary[Profile, Sequence[str]] = field(default_factory=WeakKeyDictionary)

    def put(self, guard: DisruptionLimit) -> None:
        """Add a budget, in place of one of its name."""
        known = self.guards.get(guard.name)
        if known is None or known.selector != guard.selector:
            self.drop(guard.name)
            for place in places_of(guard.selector):
                self.by_place.setdefault(place, {})[guard.name] = None
        self.guards[guard.name] = guard

    def drop(self, name: str) -> None:
        """Remove a budget."""
        self.found.clear()
        self.firsts.clear()
        guard = self.guards.pop(name, None)
        if guard is None:
            return
        for place in places_of(guard.selector):
            del self.by_place[place][name]
            if not self.by_place[place]:
                del self.by_place[place]

    def guarding(self, profile: Profile) -> Sequence[DisruptionLimit]:
        """Return budgets of a pod, `MOST_GUARDS` at most; where too many may be its, the first of these."""
        found = self.found.get(profile)
        if found is None:
            found = self.found[profile] = self._names(profile)
        return [self.guards[name] for name in found]

    def _names(self, profile: Profile) -> Sequence[str]:
        places = [place for place in places_in(profile.labels) if place in self.by_place]
        if sum(len(self.by_place[place]) for place in places) > MOST_TRIED:
            return sorted(name for place in places for name in self._first(place))[:MOST_GUARDS]
        candidates = sorted(name for place in places for name in self.by_place[place])
        return list(islice((name for name in candidates if self._matches(name, profile)), MOST_GUARDS))

    def _first(self, place: Place) -> Sequence[str]:
        if place not in self.firsts:
            self.firsts[place] = nsmallest(MOST_GUARDS, self.by_place[place])
        return self.firsts[place]

    def _matches(self, name: str, profile: Profile) -> bool:
        return self.guards[name].selector.matches(profile.labels)


class Budgets:
    """All budgets by namespace."""

    def __init__(self) -> None:
        self.known = False
        """Whether all budgets there are have been told; until then nothing is known to be free to go."""
        self.changes = 0
        """Counts what could let a pod go that could not go before."""
        self._by_namespace: dict[str, _Namespace] = {}

    def put(self, budget: DisruptionBudget) -> str:
        """Take over a budget; return what is wrong with it, or an empty string."""
        meta, status = budget.metadata, budget.status
        problem = ""
        try:
            selector = compile_selector(budget.spec.selector)
        except SelectorError as error:
            selector = NOTHING
            problem = (
                f"PodDisruptionBudget {meta.namespace}/{meta.name}: spec.selector: {error}; it guards nothing here, and"
                " evictions are left to the API server's judgement. Correct the selector"
            )
        # As in the Eviction API, a budget whose last change was not looked at yet allows nothing.
        stale = status.observed_generation < meta.generation
        guard = DisruptionLimit(meta.namespace, meta.name, selector, 0 if stale else max(0, status.disruptions_allowed))
        here = self._by_namespace.setdefault(meta.namespace, _Namespace())
        known = here.guards.get(meta.name)
        if known != guard:
            here.put(guard)
            self.changes += known is not None and (known.selector != selector or guard.allowed > known.allowed)
        return problem

    def drop(self, namespace: str, name: str) -> None:
        """Forget a budget."""
        here = self._by_namespace.get(namespace)
        if here is not None and name in here.guards:
            here.drop(name)
            self.changes += 1
            if not here.guards:
                del self._by_namespace[namespace]

    def guarding(self, profile: Profile) -> Sequence[DisruptionLimit]:
        """Return the budgets that guard pods of a profile, in order of name, two at most.

        Of pods with more than `MOST_TRIED` budgets that may be theirs, two of these: they are not evicted for others.
        """
        here = self._by_namespace.get(profile.namespace)
        if here is None:
            return ()
        return here.guarding(profile)
