"""Disruption budgets: which pods they guard, and how many of those may go now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from weakref import WeakKeyDictionary

from topo_scheduler.api.objects import Budget
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.selectors import NOTHING, Selector, SelectorError, compile_selector, wanted_labels


@dataclass(frozen=True, slots=True)
class Guard:
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
    """The budgets of one namespace by name; by label, where the selector wants one of few values; and all others."""

    guards: dict[str, Guard] = field(default_factory=dict)
    by_label: dict[tuple[str, str], dict[str, Guard]] = field(default_factory=dict)
    others: dict[str, Guard] = field(default_factory=dict)
    found: WeakKeyDictionary[Profile, Sequence[Guard]] = field(default_factory=WeakKeyDictionary)

    def put(self, guard: Guard) -> None:
        """Add a budget, in place of one of its name."""
        self.drop(guard.name)
        self.guards[guard.name] = guard
        labels = wanted_labels(guard.selector)
        for label in labels:
            self.by_label.setdefault(label, {})[guard.name] = guard
        if not labels and not guard.selector.nothing:
            self.others[guard.name] = guard

    def drop(self, name: str) -> None:
        """Remove a budget."""
        self.found.clear()
        guard = self.guards.pop(name, None)
        if guard is None:
            return
        self.others.pop(name, None)
        for label in wanted_labels(guard.selector):
            del self.by_label[label][name]
            if not self.by_label[label]:
                del self.by_label[label]

    def guarding(self, profile: Profile) -> Sequence[Guard]:
        """Return budgets of a pod, `MOST_GUARDS` at most; where too many may be its, the first of these."""
        candidates = {**self.others}
        for label in profile.labels.items():
            if label in self.by_label:
                candidates |= self.by_label[label]
        if len(candidates) > MOST_TRIED:
            return [candidates[name] for name in sorted(candidates)[:MOST_GUARDS]]
        return list(islice(_matching(candidates, profile), MOST_GUARDS))


def _matching(candidates: dict[str, Guard], profile: Profile) -> Iterator[Guard]:
    return (guard for _, guard in sorted(candidates.items()) if guard.selector.matches(profile.labels))


class Budgets:
    """All budgets by namespace."""

    def __init__(self) -> None:
        self.known = False
        """Whether all budgets there are have been told; until then nothing is known to be free to go."""
        self.changes = 0
        """Counts what could let a pod go that could not go before."""
        self._by_namespace: dict[str, _Namespace] = {}

    def put(self, budget: Budget) -> str:
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
        guard = Guard(meta.namespace, meta.name, selector, 0 if stale else max(0, status.disruptions_allowed))
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

    def guarding(self, profile: Profile) -> Sequence[Guard]:
        """Return the budgets that guard pods of a profile, in order of name, two at most.

        Of pods with more than `MOST_TRIED` budgets that may be theirs, two of these: they are not evicted for others.
        """
        here = self._by_namespace.get(profile.namespace)
        if here is None:
            return ()
        found = here.found.get(profile)
        if found is None:
            found = here.found[profile] = here.guarding(profile)
        return found
