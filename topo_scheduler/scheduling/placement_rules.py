"""Rules on how far a gang may spread, beside the size rule: of the configuration, and of plugins.

A rule narrows what the size rule allows. The size rule is then the fewest leaves of the deepest level *within* the rule
that could hold the gang; a gang that takes the next best spread (``enforcement: preferred``) stays within it as well.
Whether a gang needs as many nodes as a rule is for is told by the size rule without any.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.config import PlacementRule
from topo_scheduler.scheduling import mixed, tied
from topo_scheduler.scheduling.ask import ANYWHERE, Ask, Bounds, Failure, Placement
from topo_scheduler.scheduling.extension import Demand, Gang
from topo_scheduler.state.fabric import Layout

if TYPE_CHECKING:
    from topo_scheduler.scheduling.planner import Planner


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


def plan_with_rules(planner: "Planner", ask: Ask, layout: Layout, now: float) -> Placement | Failure:
    """Find the best place within the rules; preferred ones are tried first, then done without.

    Raises:
        PluginError: the size rule of a plugin failed.
    """
    demands = _demands(planner, ask, layout)
    required = [demand for demand in demands if demand.required]
    for demand in required:
        if demand.level and demand.level not in layout.levels:
            return Failure(
                f"{demand.name} asks for {asked(demand)}, and no node has a label for a level called {demand.level};"
                f" there are {', '.join(layout.levels)}"
            )
    known = [demand for demand in demands if not demand.level or demand.level in layout.levels]
    must = bounds_of(required, layout)
    outcome: Placement | Failure = Failure("")
    for bounds in dict.fromkeys((bounds_of(known, layout), must)):
        outcome = planner.plan_within(replace(ask, bounds=bounds), layout, now)
        if isinstance(outcome, Placement):
            return replace(outcome, bounds=must if not ask.running else ANYWHERE)
    if must != ANYWHERE and isinstance(planner.plan_within(ask, layout, now), Placement):
        names = " and ".join(f"{demand.name} asks for {asked(demand)}" for demand in required)
        if outcome.rule is None:
            return Failure(f"{names}, and not even the empty cluster holds the gang so; without that there is room")
        return Failure(f"{names}, and no such place is free; without that there is room", outcome.rule)
    return outcome


def bounds_of(demands: Iterable[Demand], layout: Layout) -> Bounds:
    """Return what several demands leave; their levels must exist."""
    leaves, depth = 0, 0
    for demand in demands:
        fewest = demand.leaves
        if demand.level:
            level = layout.levels.index(demand.level) + 1
            if level == layout.depth:
                # One domain of the innermost level is one leaf.
                level, fewest = layout.depth - 1, 1
            depth = max(depth, level)
        if fewest:
            leaves = min(leaves or fewest, fewest)
    return Bounds(leaves, depth)


def asked(demand: Demand) -> str:
    """Return what a demand asks for, in words."""
    leaves = f"at most {demand.leaves} {'leaf' if demand.leaves == 1 else 'leaves'}" if demand.leaves else "all leaves"
    return f"{leaves} in 1 {demand.level}" if demand.level else leaves


def _demands(planner: "Planner", ask: Ask, layout: Layout) -> list[Demand]:
    """Return the demands on this gang: the first of the configuration of each kind, and all of plugins."""
    nodes, leaves = _needed(planner, ask, layout)
    fitting = [demand for demand in ask.demands if demand.nodes <= nodes]
    found = [demand for kind in (True, False) for demand in [one for one in fitting if one.required is kind][:1]]
    gang = Gang(ask.groups[0][0], ask.total, nodes, leaves, layout.levels)
    return found + [one for one in planner.around.extensions.demands(gang) if one.nodes <= nodes]


def _needed(planner: "Planner", ask: Ask, layout: Layout) -> tuple[int, int]:
    """Return how many nodes and leaves a gang needs by the size rule alone; a node a pod where there is none."""
    if tied.is_tied(ask.groups):
        rule = planner.rule_of_tied(ask, layout)
    else:
        rule, _ = planner.rule(planner.views_for(ask), ask, layout)
    nodes, leaves = (rule.nodes, rule.leaves) if rule is not None else (ask.total, len(layout.paths))
    if len(ask.groups) > 1 and not tied.is_tied(ask.groups):
        nodes = mixed.fewest_nodes(planner, ask, layout)
    return nodes, leaves
