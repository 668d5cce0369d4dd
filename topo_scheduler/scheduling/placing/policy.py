"""What is configured of placements: weights, the size rule's limits, and rules beside it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.config import PlacementRule
from topo_scheduler.scheduling.extensions.extension import Demand
from topo_scheduler.scheduling.placing.ask import SizeRuleLimits
from topo_scheduler.scheduling.placing.baseline import Baseline
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.typical import Popular

_NO_WEIGHTS: Final[Int64] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ConfiguredRule:
    """A rule of the configuration: which gangs it is for, and what it asks of them."""

    namespaces: frozenset[str]
    labels: Mapping[str, str]
    members: int
    demand: Demand

    def matches(self, namespace: str, labels: Sequence[Mapping[str, str]], members: int) -> bool:
        """Return whether the rule is for a gang, however many nodes it needs; ``labels`` of each of its pods."""
        return (
            (not self.namespaces or namespace in self.namespaces)
            and members >= self.members
            and all(self.labels.items() <= one.items() for one in labels)
        )


def configured_rules(rules: Iterable[PlacementRule]) -> tuple[ConfiguredRule, ...]:
    """Return the rules of the configuration as the planner has them."""
    return tuple(
        ConfiguredRule(
            frozenset(rule.match.namespaces),
            rule.match.labels,
            rule.match.min_members,
            Demand(
                f"placement rule {rule.name}",
                rule.nodes,
                rule.max_leaves or 0,
                rule.level or "",
                rule.enforcement is Enforcement.REQUIRED,
            ),
        )
        for rule in rules
    )


@dataclass(slots=True)
class Policy:
    """What is configured: weights in thousandths, the size rule's limits, and rules beside it.

    ``added`` weights of the scores of plugins, in their order; ``rules`` for gangs; ``most_scored`` nodes whose places
    are scored, 0 for all. ``alone`` the score that decides for pods placed alone, empty for none of them; ``typical``
    pods that are configured for it. ``baseline`` places instead of the planner, in simulations only.
    """

    weights: Int64
    limits: SizeRuleLimits
    added: Int64 = field(default_factory=lambda: _NO_WEIGHTS)
    rules: tuple[ConfiguredRule, ...] = ()
    most_scored: int = 0
    alone: str = ""
    typical: Popular = ()
    baseline: Baseline | None = None
