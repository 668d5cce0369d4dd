"""Baselines: every pod goes to the node that one score likes best, a gang member by member, all or none.

Where a pod may go, what is free, whose turn it is, and that a gang is placed whole is said by the scheduling core, the
same for all. Topology is not looked at, except by `rack`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from topo_scheduler.kernels.fit import fit_rows
from topo_scheduler.scheduling.extensions.extension import Request, Score
from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.tied import is_tied
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.simulation.policies import scores
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.natural import natural_key
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.typical import Popular, Typical

_NOWHERE: Final = -(1 << 62)


class Ties(StrEnum):
    """Which of several nodes that score alike is taken."""

    SHUFFLED = "shuffled"
    """The first in an order of all nodes that the seed draws once, as the authors of FGD have it."""
    RANDOM = "random"
    """Any, as kube-scheduler has it."""


class GpuSharing(StrEnum):
    """Which GPU of its node a share is given."""

    TIGHTEST = "tightest"
    RANDOM = "random"
    GRADIENT = "gradient"
    """The one by which the node was scored by FGD."""


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """How a baseline places. ``score`` None: any node will do, all as likely. ``rack``: a gang in one leaf, if any."""

    name: str
    score: scores.NodeScore | None
    ties: Ties = Ties.SHUFFLED
    shares: GpuSharing = GpuSharing.TIGHTEST
    rack: bool = False


RULES: Final = (
    BaselineRule("random", None, shares=GpuSharing.RANDOM),
    BaselineRule("best-fit", scores.best_fit),
    BaselineRule("least-allocated", scores.least_allocated, Ties.RANDOM),
    BaselineRule("most-allocated", scores.most_allocated, Ties.RANDOM),
    BaselineRule("dot-product", scores.dot_product),
    BaselineRule("fgd", scores.gradient, shares=GpuSharing.GRADIENT),
    BaselineRule("rack", scores.least_allocated, Ties.RANDOM, rack=True),
)
"""All baselines that place by a score of nodes."""


@dataclass(slots=True)
class ByScore:
    """One baseline at work. ``typical`` pods that its score may measure by; draws depend on the seed alone."""

    rule: BaselineRule
    seed: int
    typical: Popular = ()
    _draw: Random = field(init=False)
    _score: Score = field(init=False)
    _order: Int64 = field(init=False, default_factory=lambda: np.empty(0, np.int64))
    _order_at: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        self._draw = Random(f"{self.rule.name} {self.seed}")
        self._score = Score(self.rule.name, nodes=self.rule.score)

    def plan(self, planner: Planner, ask: PlacementQuery, layout: Layout) -> Placement | PlacementFailure:
        """Return a place for every member, or why there is none."""
        if ask.gang and is_tied(ask.groups):
            return planner.plan_within(ask, layout, 0.0)
        anywhere = SizeRule(1, max(1, len(layout.paths)), 0, "cluster")
        could = False
        for view in planner.views_for(ask):
            could = could or int(view.empty_fit.sum()) >= ask.members
            for rows in self._parts(planner, view, ask, layout):
                placed = self._in_turn(planner, view, ask, rows)
                if placed is not None:
                    leaves = sorted(layout.leaves_of(row for some in placed for row in some))
                    return Placement(placed, leaves, anywhere, ScoreParts(0, 0, 0, 0, 0), int((view.fit > 0).sum()))
        return PlacementFailure("", anywhere if could else None)

    def choose_share(self, site: PlanningContext, cls: PodClass, row: int) -> int:
        """Return which GPU of a row a share gets, -1 for the one with least free."""
        if self.rule.shares is GpuSharing.GRADIENT:
            request = self._request(site, cls, 1, gang=False)
            return int(scores.gradient_and_gpu(site.nodes, request, np.array([row], np.int64))[0, 1])
        if self.rule.shares is GpuSharing.RANDOM:
            room = np.flatnonzero(site.nodes.devices.free[row, : site.nodes.devices.count[row]] >= cls.share)
            return int(room[self._draw.randrange(len(room))]) if len(room) else -1
        return -1

    # ------------------------------------------------------------ inside

    def _parts(self, planner: Planner, view: ClassView, ask: PlacementQuery, layout: Layout) -> Sequence[Int64 | None]:
        """Return the rows to try, one set after the other; None stands for all."""
        if not self.rule.rack or not ask.gang:
            return (None,)
        leaves = zip(layout.offsets[:-1].tolist(), layout.offsets[1:].tolist(), strict=True)
        if len(ask.groups) > 1:  # whether a leaf has room for members that differ is seen when it is tried
            return (*(layout.order[first:last] for first, last in leaves), None)
        # Only the first leaf with room is tried: what has room for each of equal members has it for all.
        held = planner.leaf_fits(view, ask, layout, view.fit)
        open_ = np.flatnonzero(held >= ask.members)
        if not len(open_):
            return (None,)
        leaf = int(open_[0])
        return (layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]],)

    def _in_turn(
        self, planner: Planner, view: ClassView, ask: PlacementQuery, rows: Int64 | None
    ) -> list[list[int]] | None:
        """Place member by member; None as soon as one has no room."""
        if ask.members == 1:
            row = self._alone(planner, view, ask, rows)
            return None if row < 0 else [[row]]
        trial = _Trial(planner, rows)
        placed: list[list[int]] = []
        for number, (cls, count) in enumerate(ask.groups):
            seen = view if number == 0 else planner.views.get(cls)
            request = self._request(planner, cls, count, gang=True)
            found = trial.place(seen, count, self._scorer(request), self._choose(planner))
            if found is None:
                return None
            placed.append(found)
        return placed

    def _alone(self, site: PlanningContext, view: ClassView, ask: PlacementQuery, rows: Int64 | None) -> int:
        fit = view.fit if rows is None else _only(view.fit, rows)
        if self.rule.score is None:
            return self._choose(site)(fit, None)
        kept = site.small_pods.scores.get(self._score, view, site.small_pods.typical.now(self.typical))
        return self._choose(site)(fit, kept.score)

    def _scorer(self, request: Request) -> Callable[[Any, Int64], Int64] | None:
        score = self.rule.score
        return None if score is None else lambda nodes, rows: score(nodes, request, rows)

    def _choose(self, site: PlanningContext) -> Callable[[Int64, Int64 | None], int]:
        """Return what chooses a row: the best with room, -1 where none has any."""
        order = self._shuffled(site)

        def choose(fit: Int64, score: Int64 | None) -> int:
            if score is not None:
                liked = np.where(fit > 0, score, _NOWHERE)
                best = liked.max(initial=_NOWHERE)
                rows = np.flatnonzero(liked == best) if best != _NOWHERE else np.empty(0, np.int64)
            else:
                rows = np.flatnonzero(fit > 0)
            if not len(rows):
                return -1
            if len(rows) == 1:
                return int(rows[0])
            if score is None or self.rule.ties is Ties.RANDOM:
                return int(rows[self._draw.randrange(len(rows))])
            return int(rows[np.argmin(order[rows])])

        return choose

    def _shuffled(self, site: PlanningContext) -> Int64:
        """Return the place of each row in an order that the seed draws (int64[rows])."""
        nodes = site.nodes
        if self._order_at != nodes.facts_changes.position or len(self._order) != nodes.rows:
            self._order_at = nodes.facts_changes.position
            self._order = np.zeros(nodes.rows, np.int64)
            names = sorted(nodes.row_of, key=natural_key)
            # Drawn apart from all else, so that a seed has one order of nodes however often it is asked for.
            Random(f"nodes {self.seed}").shuffle(names)
            for place, name in enumerate(names):
                self._order[nodes.row_of[name]] = place
        return self._order

    def _request(self, site: PlanningContext, cls: PodClass, members: int, *, gang: bool) -> Request:
        typical: Typical = site.small_pods.typical.now(self.typical)
        return Request(cls, members, gang, "", typical=typical)


class _Trial:
    """The accounts of nodes, with the members that were placed so far counted as if they ran."""

    def __init__(self, site: PlanningContext, rows: Int64 | None) -> None:
        nodes = site.nodes
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
        """Return a row for each of so many members of a class, None where there is no room for one."""
        fit = view.fit.copy() if self._rows is None else _only(view.fit, self._rows)
        requested = self._accounts.requested
        if self._touched:
            rows = np.array(sorted(self._touched), np.int64)
            now = np.zeros_like(fit)
            fit_rows(self._nodes.allocatable, requested, view.columns, view.amounts, view.open, rows, now)
            fit[rows] = np.minimum(fit[rows], now[rows])
        score = None
        if scorer is not None:
            score = np.full(len(fit), _NOWHERE, np.int64)
            open_ = np.flatnonzero(fit > 0).astype(np.int64)
            score[open_] = scorer(self._accounts, open_)
        found = []
        for _ in range(count):
            row = choose(fit, score)
            if row < 0:
                return None
            found.append(row)
            self._touched.add(row)
            fit[row] -= 1
            requested[row, view.columns] += view.amounts
            if scorer is not None and score is not None and fit[row] > 0:
                score[row] = scorer(self._accounts, np.array([row], np.int64))[0]
        return sorted(found)


def _only(fit: Int64, rows: Int64) -> Int64:
    found = np.zeros_like(fit)
    found[rows] = fit[rows]
    return found
