"""Baselines: each pod goes to the node with the best score; a gang is placed member by member, all or none.

Filters, free resources, queue order and gang semantics come from the scheduling core, the same for all policies. Only
`rack` considers topology.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from topo_scheduler.kernels.fit import fit_rows
from topo_scheduler.scheduling.extensions.extension import Request, Score
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.model.policy import Policy
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.simulation.policies import scores
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.statistics.placement_outcomes import History
from topo_scheduler.state.statistics.typical_pods import Popular, Typical
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.natural_sort import natural_key

_NO_SCORE: Final = -(1 << 62)


class TieBreaking(StrEnum):
    """Tie-breaking between nodes of equal score."""

    SHUFFLED = "shuffled"
    """The first node in an order that is shuffled once per seed, as the authors of FGD do."""
    RANDOM = "random"
    """A random node, as kube-scheduler does."""


class GpuSharing(StrEnum):
    """Selection of the GPU of a node for a pod that requests a share."""

    TIGHTEST = "tightest"
    RANDOM = "random"
    GRADIENT = "gradient"
    """The GPU that gave the node its FGD score."""


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """How a baseline places. ``score`` None means a random node. ``rack``: prefer one leaf for the whole gang."""

    name: str
    score: scores.NodeScore | None
    ties: TieBreaking = TieBreaking.SHUFFLED
    shares: GpuSharing = GpuSharing.TIGHTEST
    rack: bool = False


RULES: Final = (
    BaselineRule("random", None, shares=GpuSharing.RANDOM),
    BaselineRule("best-fit", scores.best_fit),
    BaselineRule("least-allocated", scores.least_allocated, TieBreaking.RANDOM),
    BaselineRule("most-allocated", scores.most_allocated, TieBreaking.RANDOM),
    BaselineRule("dot-product", scores.dot_product),
    BaselineRule("fgd", scores.gradient, shares=GpuSharing.GRADIENT),
    BaselineRule("rack", scores.least_allocated, TieBreaking.RANDOM, rack=True),
)
"""All baselines that place by a score of nodes."""


class BaselinePlanner(Planner):
    """The planner of one baseline; demands on topology are ignored. Random choices depend on the seed only."""

    def __init__(
        self, around: FilterContext, history: History, policy: Policy, baseline: BaselineRule, seed: int
    ) -> None:
        super().__init__(around, history, policy)
        self.baseline = baseline
        self.seed = seed
        self.typical: Popular = ()
        """Typical pods for the score, if it uses them."""
        self._draw = Random(f"{baseline.name} {seed}")
        self._score = Score(baseline.name, nodes=baseline.score)
        self._order: Int64 = np.empty(0, np.int64)
        self._order_at = -1

    def set_typical(self, typical: Popular) -> None:
        """Set the typical pods for the score."""
        self.typical = typical

    def plan(self, query: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Return a placement of all members, or a failure."""
        if query.gang and is_constrained(query.groups):
            return self.plan_within(query, layout, 0.0)
        anywhere = SizeRule(1, max(1, len(layout.paths)), 0, "cluster")
        fits_empty = False
        for view in self.views_for(query):
            fits_empty = fits_empty or int(view.empty_fit.sum()) >= query.members
            for rows in self._parts(view, query, layout):
                placed = self._in_turn(view, query, rows)
                if placed is not None:
                    leaves = sorted(layout.leaves_of(row for group_rows in placed for row in group_rows))
                    return Placement(placed, leaves, anywhere, ScoreParts(0, 0, 0, 0, 0), int((view.fit > 0).sum()))
        return PlacementFailure("", anywhere if fits_empty else None)

    def gpu_of_share(self, cls: PodClass, row: int) -> int:
        """Return the GPU index for a share on a row; -1 means the GPU with the least free share that fits."""
        if self.baseline.shares is GpuSharing.GRADIENT:
            request = self._request(cls, 1, gang=False)
            return int(scores.gradient_and_gpu(self.nodes, request, np.array([row], np.int64))[0, 1])
        if self.baseline.shares is GpuSharing.RANDOM:
            gpus_with_room = np.flatnonzero(self.nodes.devices.free[row, : self.nodes.devices.count[row]] >= cls.share)
            return int(gpus_with_room[self._draw.randrange(len(gpus_with_room))]) if len(gpus_with_room) else -1
        return -1

    # ------------------------------------------------------------ inside

    def _parts(self, view: ClassView, query: PlacementQuery, layout: Layout) -> Sequence[Int64 | None]:
        """Return the sets of rows to try, in order; None stands for all rows."""
        if not self.baseline.rack or not query.gang:
            return (None,)
        leaves = zip(layout.offsets[:-1].tolist(), layout.offsets[1:].tolist(), strict=True)
        if len(query.groups) > 1:  # members differ, so only an attempt shows whether they fit into a leaf
            return (*(layout.order[first:last] for first, last in leaves), None)
        # Members are equal, so the capacity check is exact: the first leaf with room is enough.
        members_per_leaf = self.leaf_fits(view, query, layout, view.fit)
        leaves_with_room = np.flatnonzero(members_per_leaf >= query.members)
        if not len(leaves_with_room):
            return (None,)
        leaf = int(leaves_with_room[0])
        return (layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]],)

    def _in_turn(self, view: ClassView, query: PlacementQuery, rows: Int64 | None) -> list[list[int]] | None:
        """Place member by member; return None as soon as a member does not fit."""
        if query.members == 1:
            row = self._alone(view, query, rows)
            return None if row < 0 else [[row]]
        trial = _TrialAccounts(self, rows)
        placed: list[list[int]] = []
        for number, (cls, count) in enumerate(query.groups):
            class_view = view if number == 0 else self.views.get(cls)
            request = self._request(cls, count, gang=True)
            group_rows = trial.place(class_view, count, self._scorer(request), self._chooser())
            if group_rows is None:
                return None
            placed.append(group_rows)
        return placed

    def _alone(self, view: ClassView, query: PlacementQuery, rows: Int64 | None) -> int:
        fit = view.fit if rows is None else _only(view.fit, rows)
        if self.baseline.score is None:
            return self._chooser()(fit, None)
        cached = self.node_scores.get(self._score, view, self.typical_pods.now(self.typical))
        return self._chooser()(fit, cached.score)

    def _scorer(self, request: Request) -> Callable[[Any, Int64], Int64] | None:
        score = self.baseline.score
        return None if score is None else lambda nodes, rows: score(nodes, request, rows)

    def _chooser(self) -> Callable[[Int64, Int64 | None], int]:
        """Return a function that chooses the best row with room, or -1 if there is none."""
        order = self._shuffled()

        def best_row(fit: Int64, score: Int64 | None) -> int:
            if score is not None:
                eligible_scores = np.where(fit > 0, score, _NO_SCORE)
                best = eligible_scores.max(initial=_NO_SCORE)
                rows = np.flatnonzero(eligible_scores == best) if best != _NO_SCORE else np.empty(0, np.int64)
            else:
                rows = np.flatnonzero(fit > 0)
            if not len(rows):
                return -1
            if len(rows) == 1:
                return int(rows[0])
            if score is None or self.baseline.ties is TieBreaking.RANDOM:
                return int(rows[self._draw.randrange(len(rows))])
            return int(rows[np.argmin(order[rows])])

        return best_row

    def _shuffled(self) -> Int64:
        """Return the position of each row in an order shuffled by the seed (int64[rows])."""
        nodes = self.nodes
        if self._order_at != nodes.facts_changes.position or len(self._order) != nodes.rows:
            self._order_at = nodes.facts_changes.position
            self._order = np.zeros(nodes.rows, np.int64)
            names = sorted(nodes.row_of, key=natural_key)
            # A generator of its own, so that a seed gives the same order of nodes each time.
            Random(f"nodes {self.seed}").shuffle(names)
            for position, name in enumerate(names):
                self._order[nodes.row_of[name]] = position
        return self._order

    def _request(self, cls: PodClass, members: int, *, gang: bool) -> Request:
        typical: Typical = self.typical_pods.now(self.typical)
        return Request(cls, members, gang, "", typical=typical)


class _TrialAccounts:
    """The resource accounts of nodes, including members placed so far in this attempt."""

    def __init__(self, context: PlanningContext, rows: Int64 | None) -> None:
        nodes = context.nodes
        nodes.widen()
        self._nodes = nodes
        self._rows = rows
        self._accounts = SimpleNamespace(
            allocatable=nodes.allocatable,
            requested=nodes.requested.copy(),
            gpu_free=nodes.gpu_free,
            gpu_sharing=nodes.gpu_sharing,
            model=nodes.model,
        )
        self._touched: set[int] = set()

    def place(
        self,
        view: ClassView,
        count: int,
        scorer: Callable[[Any, Int64], Int64] | None,
        choose: Callable[[Int64, Int64 | None], int],
    ) -> list[int] | None:
        """Return rows for ``count`` members of a class, sorted; None if a member does not fit."""
        fit = view.fit.copy() if self._rows is None else _only(view.fit, self._rows)
        requested = self._accounts.requested
        if self._touched:
            rows = np.array(sorted(self._touched), np.int64)
            fit_now = np.zeros_like(fit)
            fit_rows(self._nodes.allocatable, requested, view.columns, view.amounts, view.open, rows, fit_now)
            fit[rows] = np.minimum(fit[rows], fit_now[rows])
        score = None
        if scorer is not None:
            score = np.full(len(fit), _NO_SCORE, np.int64)
            open_rows = np.flatnonzero(fit > 0).astype(np.int64)
            score[open_rows] = scorer(self._accounts, open_rows)
        chosen = []
        for _ in range(count):
            row = choose(fit, score)
            if row < 0:
                return None
            chosen.append(row)
            self._touched.add(row)
            fit[row] -= 1
            requested[row, view.columns] += view.amounts
            if scorer is not None and score is not None and fit[row] > 0:
                score[row] = scorer(self._accounts, np.array([row], np.int64))[0]
        return sorted(chosen)


def _only(fit: Int64, rows: Int64) -> Int64:
    restricted = np.zeros_like(fit)
    restricted[rows] = fit[rows]
    return restricted
