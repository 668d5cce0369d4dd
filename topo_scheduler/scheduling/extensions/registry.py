"""The registry of plugins: the built-in plugin first, then the others, through the same function.

The registry wraps each function of another plugin once. The wrapper calls it through the guard, passes read-only
arrays, skips pods that do not concern the plugin, and checks the answer. The engine calls the built-in plugin directly.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import PlacementStrategy as StrategyName
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.small_pods import OFF
from topo_scheduler.scheduling.extensions.direct import DirectGuard
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
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass

T = TypeVar("T")
A = TypeVar("A", bound=np.generic)

BUILT_IN: Final = Plugin("topo-scheduler", filters=FILTERS, scores=SCORES, alone=ALONE, strategies=STRATEGIES)


class Extensions:
    """All registered plugins and their functions, in order."""

    def __init__(self, guard: PluginGuard | None = None) -> None:
        self.guard: PluginGuard = guard or DirectGuard()
        self.plugins: list[Plugin] = []
        self.filters: list[Filter] = []
        self.scores: list[Score] = []
        self.alone: dict[str, Score] = {}
        """Scores for single pods, by name."""
        self.strategies: dict[str, Strategy] = {}
        self.added_scores: Sequence[Score] = ()
        """The scores of other plugins."""
        self.scores_nodes = False
        """Whether any added score rates nodes."""
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
        """Add a plugin. ``trusted``: without wrappers and checks of answers.

        Raises:
            ValueError: the plugin can't be added. The message has the reason.
        """
        problem = plugin.problem() or self._conflict(plugin)
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
        # Computed once, because every pod and every decision reads these.
        self.added_scores = tuple(self.scores[len(SCORES) :])
        self.scores_nodes = any(score.nodes is not None for score in self.added_scores)
        self.has_size_rules = bool(self._size_rules)
        self.annotations = sorted({name for registered in self.plugins for name in registered.annotations})
        self.labels = sorted({name for registered in self.plugins for name in registered.labels})
        self.node_labels = sorted({name for registered in self.plugins for name in registered.node_labels})

    def strategy(self, name: str) -> Strategy:
        """Return a strategy by name, or the default one for an unknown name.

        Pods that were read before a change of plugins may have an unknown name.
        """
        return self.strategies.get(name) or self.strategies[StrategyName.BALANCED]

    def demands(self, gang: Gang) -> list[Demand]:
        """Return the demands of the size rules of plugins on a gang.

        Raises:
            PluginError: a plugin failed.
        """
        demands = []
        for plugin, rule in self._size_rules:
            if plugin.concerns(gang.cls):
                demand = self.guard.call(plugin.name, "size rule", partial(_checked_demand, plugin, rule, gang))
                if demand is not None:
                    demands.append(replace(demand, name=demand.name or f"plugin {plugin.name}"))
        return demands

    def binding(self, cls: PodClass) -> list[Plugin]:
        """Return the plugins that may change or refuse the Binding of a pod."""
        return [plugin for plugin in self.plugins if plugin.bind is not None and plugin.concerns(cls)]

    def bound(self, cls: PodClass) -> list[Plugin]:
        """Return the plugins to call after a pod is bound."""
        return [plugin for plugin in self.plugins if plugin.post_bind is not None and plugin.concerns(cls)]

    # ------------------------------------------------------------ inside

    def _conflict(self, plugin: Plugin) -> str:
        if plugin.name in {item.name for item in self.plugins}:
            return f"a plugin called {plugin.name} is there already"
        score_names = {score.name for score in self.scores} | {"resourceAvailability", "domainUtilization"}
        if duplicate := next((score.name for score in plugin.scores if score.name in score_names), None):
            return f"a score called {duplicate} is there already"
        if duplicate := next((item.name for item in plugin.alone if item.name in {*self.alone, OFF}), None):
            return f"a score for pods placed alone called {duplicate} is there already"
        if duplicate := next((item.name for item in plugin.strategies if item.name in self.strategies), None):
            return f"a strategy called {duplicate} is there already"
        invalid = next(
            (item.name for item in plugin.strategies if item.name != item.name.strip().lower() or not item.name), None
        )
        return (
            f"the name of strategy {invalid!r} must be in lower case, without spaces around"
            if invalid is not None
            else ""
        )

    def _filter(self, plugin: Plugin, rule: Filter) -> Filter:
        def accepts(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
            if not plugin.concerns(cls):
                return np.ones(len(rows), np.bool_)
            present = nodes.exists[rows]
            accepted, view, present_rows = np.zeros(len(rows), np.bool_), ReadOnlyNodes(nodes, plugin), rows[present]
            if len(present_rows):
                accepted[present] = self.guard.call(
                    plugin.name,
                    "filter",
                    lambda: checked(
                        plugin, "filter", rule.accepts(view, cls, present_rows.copy()), np.bool_, len(present_rows)
                    ),
                )
            return accepted

        return Filter(rule.reason, accepts)

    def _score(self, plugin: Plugin, score: Score) -> Score:
        def nodes(table: Nodes, request: Request, rows: Int64) -> Int64:
            assert score.nodes is not None
            if not plugin.concerns(request.cls):
                return np.zeros(len(rows), np.int64)
            by_node, view, row_copy = score.nodes, ReadOnlyNodes(table, plugin), rows.copy()
            return self.guard.call(
                plugin.name, "score", lambda: _thousandths(plugin, by_node(view, request, row_copy), len(rows))
            )

        def leaves(fabric: Leaves, request: Request) -> Int64:
            assert score.leaves is not None
            if not plugin.concerns(request.cls):
                return np.zeros(len(fabric.paths), np.int64)
            by_leaf, view = score.leaves, read_only(fabric)
            return self.guard.call(
                plugin.name, "score", lambda: _thousandths(plugin, by_leaf(view, request), len(fabric.paths))
            )

        return replace(
            score, nodes=nodes if score.nodes is not None else None, leaves=leaves if score.leaves is not None else None
        )

    def _strategy(self, plugin: Plugin, strategy: Strategy) -> Strategy:
        def leaves(limits: Int64, members: int) -> Int64:
            limits_copy = limits.copy()
            return self.guard.call(
                plugin.name,
                "strategy",
                lambda: _checked_leaves(plugin, strategy.leaves(limits_copy, members), limits, members),
            )

        def nodes(leaf_seats: LeafSeats) -> Int64 | None:
            view = read_only(leaf_seats)
            return self.guard.call(
                plugin.name, "strategy", lambda: _checked_nodes(plugin, strategy.nodes(view), leaf_seats)
            )

        return replace(strategy, leaves=leaves, nodes=nodes)


def checked(plugin: Plugin, point: str, answer: Any, dtype: type[A], length: int) -> npt.NDArray[A]:
    """Return the answer if it is an array of one dimension, of this type and length.

    Raises:
        PluginError: the answer is something else.
    """
    expected = f"{np.dtype(dtype)}[{length}] is expected"
    if not isinstance(answer, np.ndarray):
        raise PluginError(plugin.name, point, "answer", f"it returned {type(answer).__name__}, {expected}")
    if answer.dtype != dtype or answer.shape != (length,):
        shape = ", ".join(map(str, answer.shape))
        raise PluginError(plugin.name, point, "answer", f"it returned {answer.dtype}[{shape}], {expected}")
    return answer


def answer_of(plugin: Plugin, answer: Any) -> Answer:
    """Return the additions of a plugin to a Binding.

    Raises:
        PluginError: the answer is not an Answer, or sets names that are reserved for this scheduler.
    """
    if not isinstance(answer, Answer):
        raise PluginError(plugin.name, "bind", "answer", f"it returned {type(answer).__name__}, an Answer is expected")
    for name, value in (*answer.annotations.items(), *answer.labels.items()):
        if not isinstance(name, str) or not isinstance(value, str):
            raise PluginError(plugin.name, "bind", "answer", f"{name!r}: {value!r} is not text")
        if name.startswith(PREFIX):
            raise PluginError(plugin.name, "bind", "answer", f"it sets {name}, which is this scheduler's own")
    return answer


def _thousandths(plugin: Plugin, answer: Any, length: int) -> Int64:
    scores = checked(plugin, "score", answer, np.int64, length)
    if length and (scores.min() < 0 or scores.max() > WHOLE):
        worst = int(scores.min()) if scores.min() < 0 else int(scores.max())
        raise PluginError(plugin.name, "score", "answer", f"it returned {worst}, scores are from 0 to {WHOLE}")
    return scores


def _checked_leaves(plugin: Plugin, answer: Any, limits: Int64, members: int) -> Int64:
    dealt = checked(plugin, "strategy", answer, np.int64, len(limits))
    invalid = (dealt < 0).any() or (dealt > limits).any() or dealt.sum() != min(members, int(limits.sum()))
    if invalid:
        message = f"it assigned {members} members as {dealt.tolist()[:16]} to leaves that hold {limits.tolist()[:16]}"
        raise PluginError(plugin.name, "strategy", "answer", message)
    return dealt


def _checked_nodes(plugin: Plugin, answer: Any, leaf_seats: LeafSeats) -> Int64 | None:
    if answer is None:
        return None
    counts = checked(plugin, "strategy", answer, np.int64, len(leaf_seats.rows))
    held = leaf_seats.fit[leaf_seats.rows]
    nodes = int((counts > 0).sum())
    invalid = (counts < 0).any() or (counts > held).any() or counts.sum() != leaf_seats.members
    if invalid or 0 < leaf_seats.most_nodes < nodes:
        seated = counts.tolist()[:16]
        message = f"it assigned {leaf_seats.members} members as {seated} on nodes that hold {held.tolist()[:16]}"
        raise PluginError(plugin.name, "strategy", "answer", message)
    return counts


def _checked_demand(plugin: Plugin, rule: Callable[[Gang], Demand | None], gang: Gang) -> Demand | None:
    demand: object = rule(gang)
    if demand is not None and not isinstance(demand, Demand):
        message = f"it returned {type(demand).__name__}, a Demand or None is expected"
        raise PluginError(plugin.name, "size rule", "answer", message)
    if demand is not None and (demand.leaves < 0 or demand.nodes < 1):
        message = f"it demands {demand.leaves} leaves from {demand.nodes} nodes on"
        raise PluginError(plugin.name, "size rule", "answer", message)
    return demand
