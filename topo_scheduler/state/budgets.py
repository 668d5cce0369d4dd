"""Disruption budgets: which pods they guard, and how many of those may go now."""

from collections.abc import Sequence
from dataclasses import dataclass

from topo_scheduler.api.objects import Budget
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.selectors import NOTHING, Selector, SelectorError, compile_selector


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


class Budgets:
    """All budgets by namespace."""

    def __init__(self) -> None:
        self.known = False
        """Whether all budgets there are have been told; until then nothing is known to be free to go."""
        self.changes = 0
        """Counts what could let a pod go that could not go before."""
        self._by_namespace: dict[str, dict[str, Guard]] = {}
        self._found: dict[Profile, Sequence[Guard]] = {}

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
        guards = self._by_namespace.setdefault(meta.namespace, {})
        known = guards.get(meta.name)
        if known != guard:
            guards[meta.name] = guard
            self._changed(known is not None and (known.selector != selector or guard.allowed > known.allowed))
        return problem

    def drop(self, namespace: str, name: str) -> None:
        """Forget a budget."""
        guards = self._by_namespace.get(namespace, {})
        if guards.pop(name, None) is not None:
            self._changed(True)
            if not guards:
                del self._by_namespace[namespace]

    def guarding(self, profile: Profile) -> Sequence[Guard]:
        """Return the budgets that guard pods of a profile, in order of name."""
        guards = self._by_namespace.get(profile.namespace)
        if not guards:
            return ()
        found = self._found.get(profile)
        if found is None:
            if len(self._found) > 16384:
                self._found.clear()
            matching = [guard for _, guard in sorted(guards.items()) if guard.selector.matches(profile.labels)]
            found = self._found[profile] = matching
        return found

    def _changed(self, looser: bool) -> None:
        self._found.clear()
        self.changes += looser
