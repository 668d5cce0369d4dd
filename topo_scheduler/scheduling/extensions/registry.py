"""All that is registered: the built-in plugin first, others after it, by the same function.

What comes from another plugin is wrapped once, here: it is called through the guard, with arrays it can't write to,
only for pods it concerns, and its answer is checked. The built-in plugin is called as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import PlacementStrategy as StrategyName
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.small_pods import OFF
from topo_scheduler.scheduling.extensions.direct import Direct
from topo_scheduler.scheduling.extensions.extension import (
    WHOLE,
    Answer,
    Bool,
    Demand,
    Filter,
    Gang,
    LeafSeats,
    Leaves,
    Nodes,
    Plugin,
    PluginError,
    PluginGuard,
    Request,
    Score,
    Strategy,
)
from topo_scheduler.scheduling.extensions.gradient import ALONE
from topo_scheduler.scheduling.extensions.readonly import ReadOnlyNodes, read_only
from topo_scheduler.scheduling.extensions.scores import SCORES
from topo_scheduler.scheduling.extensions.strategies import STRATEGIES
from topo_scheduler.scheduling.rules.filters import FILTERS
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import Int64

T = TypeVar("T")
A = TypeVar("A", bound=np.generic)

BUILT_IN: Final = Plugin("topo-scheduler", filters=FILTERS, scores=SCORES, alone=ALONE, strategies=STRATEGIES)


class Extensions:
    """Everything registered, in order."""

    def __init__(self, guard: PluginGuard | None = None) -> None:
        self.guard: PluginGuard = guard or Direct()
        self.plugins: list[Plugin] = []
        self.filters: list[Filter] = []
        self.scores: list[Score] = []
        self.alone: dict[str, Score] = {}
        """Scores for pods placed alone, by name."""
        self.strategies: dict[str, Strategy] = {}
        self.added_scores: Sequence[Score] = ()
        """The scores of other plugins."""
        self.scores_nodes = False
        """Whether any score is of single nodes."""
        self.has_size_rules = False
        """Whether any plugin has a size rule."""
        self.annotations: Sequence[str] = ()
        """Annotations of pods that plugins read."""
        self.labels: Sequence[str] = ()
        """Labels of pods that plugins read."""
        self.node_labels: Sequence[str] = ()
        """Labels of nodes that plugins read as columns."""
        self._size_rules: list[tuple[Plugin, Callable[[Gang], Demand | None]]] = []
        self.register(BUILT_IN, trusted=True)

    def register(self, plugin: Plugin, *, trusted: bool = False) -> None:
        """Add a plugin; ``trusted``: its functions are called directly and their answers taken as they are.

        Raises:
            ValueError: it can't be added; the message says why.
        """
        problem = plugin.problem() or self._taken(plugin)
        if problem:
            raise ValueError(problem)
        self.plugins.append(plugin)
        self.filters += plugin.filters if trusted else [self._filter(plugin, rule) for rule in plugin.filters]
        self.scores += plugin.scores if trusted else [self._score(plugin, score) for score in plugin.scores]
        for score in plugin.alone:
            self.alone[score.name] = score if trusted else self._score(plugin, score)
        for strategy in plugin.strategies:
            self.strategies[strategy.name] = strategy if trusted else self._strategy(plugin, strategy)
        if plugin.size_rule is not None:
            self._size_rules.append((plugin, plugin.size_rule))
        # What is asked for with every pod and every decision.
        self.added_scores = tuple(self.scores[len(SCORES) :])
        self.scores_nodes = any(score.nodes is not None for score in self.added_scores)
        self.has_size_rules = bool(self._size_rules)
        self.annotations = sorted({name for one in self.plugins for name in one.annotations})
        self.labels = sorted({name for one in self.plugins for name in one.labels})
        self.node_labels = sorted({name for one in self.plugins for name in one.node_labels})

    def strategy(self, name: str) -> Strategy:
        """Return a strategy; the default one for a name that none has, as of pods that were understood before."""
        return self.strategies.get(name) or self.strategies[StrategyName.BALANCED]

    def demands(self, gang: Gang) -> list[Demand]:
        """Return what the size rules of plugins ask of a gang.

        Raises:
            PluginError: one of them failed.
        """
        found = []
        for plugin, rule in self._size_rules:
            if plugin.concerns(gang.cls):
                demand = self.guard.call(plugin.name, "size rule", _asked(plugin, rule, gang))
                if demand is not None:
                    found.append(replace(demand, name=demand.name or f"plugin {plugin.name}"))
        return found

    def binding(self, cls: PodClass) -> list[Plugin]:
        """Return the plugins with a say in the Binding of a pod."""
        return [plugin for plugin in self.plugins if plugin.bind is not None and plugin.concerns(cls)]

    def bound(self, cls: PodClass) -> list[Plugin]:
        """Return the plugins to be told when a pod is bound."""
        return [plugin for plugin in self.plugins if plugin.post_bind is not None and plugin.concerns(cls)]

    # ------------------------------------------------------------ inside

    def _taken(self, plugin: Plugin) -> str:
        if plugin.name in {one.name for one in self.plugins}:
            return f"a plugin called {plugin.name} is there already"
        known = {score.name for score in self.scores} | {"resourceAvailability", "domainUtilization"}
        if twice := next((score.name for score in plugin.scores if score.name in known), None):
            return f"a score called {twice} is there already"
        if twice := next((one.name for one in plugin.alone if one.name in {*self.alone, OFF}), None):
            return f"a score for pods placed alone called {twice} is there already"
        if twice := next((one.name for one in plugin.strategies if one.name in self.strategies), None):
            return f"a strategy called {twice} is there already"
        bad = next(
            (one.name for one in plugin.strategies if one.name != one.name.strip().lower() or not one.name), None
        )
        return f"the name of strategy {bad!r} must be in lower case, without spaces around" if bad is not None else ""

    def _filter(self, plugin: Plugin, rule: Filter) -> Filter:
        def accepts(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
            if not plugin.concerns(cls):
                return np.ones(len(rows), np.bool_)
            there = nodes.exists[rows]
            accepted, given, asked = np.zeros(len(rows), np.bool_), ReadOnlyNodes(nodes, plugin), rows[there]
            if len(asked):
                accepted[there] = self.guard.call(
                    plugin.name,
                    "filter",
                    lambda: checked(plugin, "filter", rule.accepts(given, cls, asked.copy()), np.bool_, len(asked)),
                )
            return accepted

        return Filter(rule.reason, accepts)

    def _score(self, plugin: Plugin, score: Score) -> Score:
        def nodes(table: Nodes, request: Request, rows: Int64) -> Int64:
            assert score.nodes is not None
            if not plugin.concerns(request.cls):
                return np.zeros(len(rows), np.int64)
            by_node, given, asked = score.nodes, ReadOnlyNodes(table, plugin), rows.copy()
            return self.guard.call(
                plugin.name, "score", lambda: _thousandths(plugin, by_node(given, request, asked), len(rows))
            )

        def leaves(fabric: Leaves, request: Request) -> Int64:
            assert score.leaves is not None
            if not plugin.concerns(request.cls):
                return np.zeros(len(fabric.paths), np.int64)
            by_leaf, given = score.leaves, read_only(fabric)
            return self.guard.call(
                plugin.name, "score", lambda: _thousandths(plugin, by_leaf(given, request), len(fabric.paths))
            )

        return replace(
            score, nodes=nodes if score.nodes is not None else None, leaves=leaves if score.leaves is not None else None
        )

    def _strategy(self, plugin: Plugin, strategy: Strategy) -> Strategy:
        def leaves(limits: Int64, members: int) -> Int64:
            given = limits.copy()
            return self.guard.call(
                plugin.name, "strategy", lambda: _dealt(plugin, strategy.leaves(given, members), limits, members)
            )

        def nodes(here: LeafSeats) -> Int64 | None:
            given = read_only(here)
            return self.guard.call(plugin.name, "strategy", lambda: _seated(plugin, strategy.nodes(given), here))

        return replace(strategy, leaves=leaves, nodes=nodes)


def checked(plugin: Plugin, point: str, found: Any, dtype: type[A], length: int) -> npt.NDArray[A]:
    """Return an answer that is an array of one dimension, of this type and length.

    Raises:
        PluginError: it is something else.
    """
    wanted = f"{np.dtype(dtype)}[{length}] is expected"
    if not isinstance(found, np.ndarray):
        raise PluginError(plugin.name, point, "answer", f"it returned {type(found).__name__}, {wanted}")
    if found.dtype != dtype or found.shape != (length,):
        shape = ", ".join(map(str, found.shape))
        raise PluginError(plugin.name, point, "answer", f"it returned {found.dtype}[{shape}], {wanted}")
    return found


def answer_of(plugin: Plugin, found: Any) -> Answer:
    """Return what a plugin adds to a Binding.

    Raises:
        PluginError: it is not an Answer, or sets what is this scheduler's own.
    """
    if not isinstance(found, Answer):
        raise PluginError(plugin.name, "bind", "answer", f"it returned {type(found).__name__}, an Answer is expected")
    for name, value in (*found.annotations.items(), *found.labels.items()):
        if not isinstance(name, str) or not isinstance(value, str):
            raise PluginError(plugin.name, "bind", "answer", f"{name!r}: {value!r} is not text")
        if name.startswith(PREFIX):
            raise PluginError(plugin.name, "bind", "answer", f"it sets {name}, which is this scheduler's own")
    return found


def _thousandths(plugin: Plugin, found: Any, length: int) -> Int64:
    scores = checked(plugin, "score", found, np.int64, length)
    if length and (scores.min() < 0 or scores.max() > WHOLE):
        worst = int(scores.min()) if scores.min() < 0 else int(scores.max())
        raise PluginError(plugin.name, "score", "answer", f"it returned {worst}, scores are from 0 to {WHOLE}")
    return scores


def _dealt(plugin: Plugin, found: Any, limits: Int64, members: int) -> Int64:
    dealt = checked(plugin, "strategy", found, np.int64, len(limits))
    wrong = (dealt < 0).any() or (dealt > limits).any() or dealt.sum() != min(members, int(limits.sum()))
    if wrong:
        told = f"it dealt {members} members as {dealt.tolist()[:16]} to leaves that hold {limits.tolist()[:16]}"
        raise PluginError(plugin.name, "strategy", "answer", told)
    return dealt


def _seated(plugin: Plugin, found: Any, here: LeafSeats) -> Int64 | None:
    if found is None:
        return None
    counts = checked(plugin, "strategy", found, np.int64, len(here.rows))
    held = here.fit[here.rows]
    nodes = int((counts > 0).sum())
    wrong = (counts < 0).any() or (counts > held).any() or counts.sum() != here.members
    if wrong or 0 < here.most_nodes < nodes:
        told = f"it seated {here.members} members as {counts.tolist()[:16]} on nodes that hold {held.tolist()[:16]}"
        raise PluginError(plugin.name, "strategy", "answer", told)
    return counts


def _asked(plugin: Plugin, rule: Callable[[Gang], Demand | None], gang: Gang) -> Callable[[], Demand | None]:
    def work() -> Demand | None:
        demand: object = rule(gang)
        if demand is not None and not isinstance(demand, Demand):
            told = f"it returned {type(demand).__name__}, a Demand or None is expected"
            raise PluginError(plugin.name, "size rule", "answer", told)
        if demand is not None and (demand.leaves < 0 or demand.nodes < 1):
            told = f"it demands {demand.leaves} leaves from {demand.nodes} nodes on"
            raise PluginError(plugin.name, "size rule", "answer", told)
        return demand

    return work
