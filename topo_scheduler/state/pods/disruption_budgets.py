"""PodDisruptionBudgets: the pods that each selects, and how many of these may be evicted now."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final
from weakref import WeakKeyDictionary

from topo_scheduler.api.objects import DisruptionBudget
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.selectors import (
    EVERYTHING,
    NOTHING,
    Place,
    Selector,
    SelectorError,
    compile_selector,
    places_in,
    places_of,
)
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, TenantMemory


@dataclass(frozen=True, slots=True)
class DisruptionLimit:
    """A PodDisruptionBudget. ``allowed`` is the number of pods that may be evicted now."""

    namespace: str
    name: str
    selector: Selector
    allowed: int

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


MAX_BUDGETS: Final = 64
"""Budgets of a namespace that are compared with one pod."""
MAX_BUDGETS_PER_POD: Final = 2
"""Budgets of one pod that are returned: the Eviction API refuses a pod that has several."""

MAX_SELECTOR_BYTES_OF_NAMESPACE: Final = 8 * 2**20
"""Memory of the selectors of one namespace's budgets in bytes. An ordinary selector takes about 1 KiB."""


@dataclass(slots=True)
class _Namespace:
    """The budgets of one namespace by name, and their names by a label that each selected pod has."""

    guards: dict[str, DisruptionLimit] = field(default_factory=dict)
    by_place: dict[Place, dict[str, None]] = field(default_factory=dict)
    first_names: dict[Place, Sequence[str]] = field(default_factory=dict)
    """The first names of a place."""
    names_of: WeakKeyDictionary[Profile, Sequence[str]] = field(default_factory=WeakKeyDictionary)

    def put(self, guard: DisruptionLimit) -> None:
        """Add a budget; it replaces one of the same name."""
        previous = self.guards.get(guard.name)
        if previous is None or previous.selector != guard.selector:
            self.drop(guard.name)
            for place in places_of(guard.selector):
                self.by_place.setdefault(place, {})[guard.name] = None
        self.guards[guard.name] = guard

    def drop(self, name: str) -> None:
        """Remove a budget."""
        self.names_of.clear()
        self.first_names.clear()
        guard = self.guards.pop(name, None)
        if guard is None:
            return
        for place in places_of(guard.selector):
            del self.by_place[place][name]
            if not self.by_place[place]:
                del self.by_place[place]

    def guarding(self, profile: Profile) -> Sequence[DisruptionLimit]:
        """Return at most `MAX_BUDGETS_PER_POD` budgets of a pod; if too many may select it, the first of these."""
        names = self.names_of.get(profile)
        if names is None:
            names = self.names_of[profile] = self._names(profile)
        return [self.guards[name] for name in names]

    def _names(self, profile: Profile) -> Sequence[str]:
        places = [place for place in places_in(profile.labels) if place in self.by_place]
        if sum(len(self.by_place[place]) for place in places) > MAX_BUDGETS:
            return sorted(name for place in places for name in self._first(place))[:MAX_BUDGETS_PER_POD]
        candidates = sorted(name for place in places for name in self.by_place[place])
        selecting = (name for name in candidates if self.guards[name].selector.matches(profile.labels))
        return list(islice(selecting, MAX_BUDGETS_PER_POD))

    def _first(self, place: Place) -> Sequence[str]:
        if place not in self.first_names:
            self.first_names[place] = nsmallest(MAX_BUDGETS_PER_POD, self.by_place[place])
        return self.first_names[place]


class Budgets:
    """All budgets by namespace."""

    def __init__(self, memory: TenantMemory | None = None) -> None:
        self.known = False
        """Whether the list of budgets is complete; until then no pod counts as evictable."""
        self.changes = 0
        """Counts changes that could allow an eviction that was not allowed before."""
        self._by_namespace: dict[str, _Namespace] = {}
        self._memory = (memory or TenantMemory(MAX_TENANT_BYTES)).kind(MAX_SELECTOR_BYTES_OF_NAMESPACE)

    def listed(self) -> None:
        """Record that the list of budgets is complete."""
        self.changes += not self.known
        self.known = True

    def put(self, budget: DisruptionBudget) -> str:
        """Store a budget; return its problem, or an empty string.

        A budget whose selector has no room protects all pods of its namespace. So the scheduler plans no eviction that
        the API server would refuse.
        """
        meta, status = budget.metadata, budget.status
        problem = ""
        try:
            selector = compile_selector(budget.spec.selector)
        except SelectorError as error:
            selector = NOTHING
            problem = (
                f"PodDisruptionBudget {meta.namespace}/{meta.name}: spec.selector: {error}; the scheduler ignores it,"
                " and the API server decides on evictions. Correct the selector"
            )
        budgets = self._by_namespace.setdefault(meta.namespace, _Namespace())
        previous = budgets.guards.get(meta.name)
        # As in the Eviction API, a budget whose last change the controller has not observed yet allows nothing.
        stale = status.observed_generation < meta.generation
        if previous is not None and previous.selector == selector:
            selector = previous.selector
        elif selector is not EVERYTHING and not self._memory.put(meta.namespace, meta.name, selector.memory_bytes):
            selector, stale = EVERYTHING, True
            problem = self._excess(meta.namespace)
        guard = DisruptionLimit(meta.namespace, meta.name, selector, 0 if stale else max(0, status.disruptions_allowed))
        if previous != guard:
            budgets.put(guard)
            self.changes += previous is not None and (previous.selector != selector or guard.allowed > previous.allowed)
        self.protect_lost()
        return problem

    def protect_lost(self) -> None:
        """Let the budgets that lost their room in memory protect all pods of their namespaces."""
        for namespace, name in self._memory.take_lost():
            budgets = self._by_namespace.get(namespace)
            if budgets is not None and name in budgets.guards:
                budgets.put(DisruptionLimit(namespace, str(name), EVERYTHING, 0))

    def drop(self, namespace: str, name: str) -> None:
        """Remove a budget."""
        budgets = self._by_namespace.get(namespace)
        if budgets is not None and name in budgets.guards:
            self._memory.drop(namespace, name)
            budgets.drop(name)
            self.changes += 1
            if not budgets.guards:
                del self._by_namespace[namespace]

    def _excess(self, namespace: str) -> str:
        """Return the problem of the first budget of a namespace without room; an empty string for the others."""
        if not self._memory.deserves_warning(namespace):
            return ""
        return (
            f"namespace {namespace}: the selectors of its PodDisruptionBudgets take more than"
            f" {MAX_SELECTOR_BYTES_OF_NAMESPACE:,} bytes of memory, or it takes most of the {MAX_TENANT_BYTES:,} bytes"
            " for all namespaces; its newest budgets count as ones that protect all pods of the namespace. Delete"
            " budgets, or select by fewer values; then create the others again"
        )

    def guarding(self, profile: Profile | None) -> Sequence[DisruptionLimit]:
        """Return at most two budgets that select pods of a profile, in order of name; none without a profile.

        If more than `MAX_BUDGETS` budgets may select the pod, return two of these: the scheduler does not evict it.
        """
        if profile is None or (budgets := self._by_namespace.get(profile.namespace)) is None:
            return ()
        return budgets.guarding(profile)
