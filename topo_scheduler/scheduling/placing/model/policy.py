"""The configuration of placements: weights, limits of the size rule, and placement rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.config import PlacementRule
from topo_scheduler.scheduling.extensions.extension import Demand
from topo_scheduler.scheduling.placing.model.placement_query import SizeRuleLimits
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.statistics.typical_pods import Popular

_NO_WEIGHTS: Final[Int64] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ConfiguredRule:
    """A placement rule of the configuration: the gangs to which it applies, and what it asks of them."""

    namespaces: frozenset[str]
    labels: Mapping[str, str]
    members: int
    demand: Demand

    def matches(self, namespace: str, labels: Sequence[Mapping[str, str]], members: int) -> bool:
        """Return whether the rule matches a gang, whatever its number of nodes; ``labels`` of each of its pods."""
        return (
            (not self.namespaces or namespace in self.namespaces)
            and members >= self.members
            and all(self.labels.items() <= pod_labels.items() for pod_labels in labels)
        )


def configured_rules(rules: Iterable[PlacementRule]) -> tuple[ConfiguredRule, ...]:
    """Convert the placement rules of the configuration for the planner."""
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
    """The configuration: weights in thousandths, limits of the size rule, and placement rules for gangs.

    ``added``: weights of the scores of plugins, in their order. ``most_scored``: the most nodes whose placements get a
    score, 0 for all. ``alone``: name of the score that places single pods, empty for none. ``typical``: typical pods
    configured for that score.
    """

    weights: Int64
    limits: SizeRuleLimits
    added: Int64 = field(default_factory=lambda: _NO_WEIGHTS)
    rules: tuple[ConfiguredRule, ...] = ()
    most_scored: int = 0
    alone: str = ""
    typical: Popular = ()
