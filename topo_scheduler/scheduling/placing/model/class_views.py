"""Views of pod classes: nodes on which a class may run and how many more of its pods fit there, updated row by row.

A view reads the change logs of the node table from its last position on. So a decision costs time for the rows that
changed since the last decision for the class, not for the whole cluster.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import numpy as np

from topo_scheduler.kernels.fit import fit_rows
from topo_scheduler.scheduling.placing.model.leaf_counts import LeafCounts
from topo_scheduler.scheduling.placing.model.placement_query import SizeRuleLimits
from topo_scheduler.scheduling.rules.device_claims import device_limits, lacks_claims, least_capacity_lost
from topo_scheduler.scheduling.rules.feasible import allowed_and_reachable
from topo_scheduler.scheduling.rules.filters import Bool, eligible
from topo_scheduler.scheduling.rules.gpu_rules import (
    asks_close_gpus,
    close_gpu_limits,
    device_scores,
    met_wishes,
    needs_close_gpus,
    prefers_gpus,
)
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext, Position, looks_around
from topo_scheduler.scheduling.rules.node_preferences import (
    BEST_SCORE,
    deterring_taints,
    images_there,
    liking,
    pods_affect_preferences,
    preferred_nodes,
)
from topo_scheduler.scheduling.rules.numa import numa_limits
from topo_scheduler.scheduling.rules.volumes import uses_volumes
from topo_scheduler.state.nodes.change_log import ChangeLog
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.numbering import Numbering
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.pods.classes import PodClass

MAX_VIEWS: Final = 1024
"""The most views to keep; the least recently used one is dropped first."""
KEEP_BYTES: Final = 40 * 2**20
"""The most memory for views: it limits them to fewer than `MAX_VIEWS` with more than 640 nodes."""
MIN_VIEWS: Final = 64
"""Number of views to keep whatever their size: the classes of one gang."""
BYTES_PER_ROW: Final = 80
"""Memory of a view for each row of the node table: eight numbers and four flags, rounded up."""
MAX_CHANGED_ROWS: Final = 512
"""Changed rows that a view records for `LeafCounts`; with more, they recount all leaves."""
ANY_MODEL: Final = -2
"""The value for nodes of any GPU model, including nodes without a model label."""


_numbers: Final = Numbering()


class ClassView:
    """One class, on nodes of one GPU model or of any."""

    def __init__(self, filter_context: FilterContext, cls: PodClass, model: int) -> None:
        self.number = _numbers.take()
        """A unique number of this view among all views ever created, for cache keys."""
        self.cls = cls
        self.model = model
        self._filter_context = filter_context
        self._nodes = filter_context.nodes
        self.columns: Int64 = np.array([column for column, _ in cls.amounts], np.int64)
        self.amounts: Int64 = np.array([amount for _, amount in cls.amounts], np.int64)
        self.eligible: Bool = np.empty(0, np.bool_)
        self.open: Bool = np.empty(0, np.bool_)
        """bool[rows], eligible and not closed by current pods or volumes."""
        self.reach_changes = 0
        """Number of changes to the nodes that volumes and shared claims of the class can ever reach, for cache keys."""
        self.fit: Int64 = np.empty(0, np.int64)
        self.empty_fit: Int64 = np.empty(0, np.int64)
        self.liking: Int64 = np.empty(0, np.int64)
        """int64[rows], score of each row by the preferences of the class; higher is better."""
        self.choosy = False
        """Whether the class prefers some rows to others."""
        self.preference: Int64 = np.empty(0, np.int64)
        """int64[rows], ``liking``, then nodes without GPUs for pods without GPUs, then nodes that have the images."""
        self.models: list[int] = []
        """GPU models of the eligible nodes in order of name; `UNKNOWN` comes last."""
        self._facts_position = -1
        self._capacity_position = -1
        self._neighbours_position: Position | None = None
        self._liking_version: object = None
        self._affine: Int64 = np.empty(0, np.int64)
        self._taints: Int64 = np.empty(0, np.int64)
        self._looks_around = looks_around(cls)
        self._wishes_around = pods_affect_preferences(cls)
        self._uses_volumes = uses_volumes(cls)
        self._shared_claims = any(claim.key is not None for claim in cls.claims)
        self._allocations: object = None
        self._unreached: Bool = np.empty(0, np.bool_)
        self._domains_generation = -1
        self.changes = ChangeLog(MAX_CHANGED_ROWS)
        """Log of changed rows of ``fit``."""
        self.counts: dict[tuple[SizeRuleLimits, tuple[str, ...]], LeafCounts] = {}
        """Members by leaf, for each combination of limits per leaf and woven levels."""
        self._share = cls.share
        self._close_gpus = needs_close_gpus(cls)
        self._asks_close_gpus = asks_close_gpus(cls)
        self._gpu_wishes: Int64 | None = None
        """int64[rows], if the class prefers some GPUs: share of what it asks that each row meets."""
        self.device_score: Int64 = np.empty(0, np.int64)
        """int64[rows], if the class asks how close its GPUs are: score of each row by them, 0 to 100."""
        self.capacity_lost: Int64 = np.empty((2, 0), np.int64)
        """int64[2, rows], if the class has claims: see `least_capacity_lost`."""
        self._max_per_row = 1 if cls.constraints is not None and cls.constraints.alone else 0

    def refresh(self) -> None:
        """Update the arrays; each is as long as the node table."""
        charge(2 + len(self.columns))
        nodes = self._nodes
        if self.cls.caps and self._domains_generation != (
            generation := self._filter_context.domains.generation if self._filter_context.domains else 0
        ):
            self._facts_position, self._domains_generation = -1, generation
        if self._shared_claims and self._filter_context.devices is not None:
            allocations = self._filter_context.devices.allocations_of(self.cls.claims)
            if allocations != self._allocations:
                self._facts_position, self._allocations = -1, allocations
                self.reach_changes += 1
        if nodes.facts_changes.position != self._facts_position:
            self._refresh_facts()
        if self._looks_around and self._neighbours_position != self._filter_context.position_for(self.cls):
            self._refresh_neighbours()
        if nodes.capacity_changes.position != self._capacity_position:
            rows = nodes.capacity_changes.since(self._capacity_position)
            self._capacity_position = nodes.capacity_changes.position
            if rows is None:
                rows = np.arange(nodes.rows, dtype=np.int64)
            self._fit(nodes.requested, self.open, rows, self.fit)
        liking_version = (
            self._facts_position,
            nodes.images.changes,
            self._filter_context.position if self._wishes_around else None,
            nodes.capacity_changes.position if self._asks_close_gpus else None,
        )
        if liking_version != self._liking_version:
            self._liking_version = liking_version
            self._refresh_liking()

    def _refresh_liking(self) -> None:
        nodes, cls = self._nodes, self.cls
        self.liking = liking(self._filter_context, cls, self._affine, self._taints, self.eligible, self._gpu_wishes)
        usable = self.liking[self.eligible]
        self.choosy = len(usable) > 0 and bool((usable != usable[0]).any())
        self.preference = self.liking
        if not cls.gpus and not cls.share:
            self.preference = 2 * self.preference + (nodes.allocatable[:, GPU] == 0)
        if self._asks_close_gpus:
            self.preference = (BEST_SCORE + 1) * self.preference + self.device_score
        if (images := images_there(nodes, cls)) is not None:
            self.preference = (BEST_SCORE + 1) * self.preference + images

    @property
    def reachable(self) -> Bool:
        """bool[rows], eligible rows that the volumes of the class can ever reach."""
        return self.eligible & ~self._unreached if self._uses_volumes else self.eligible

    def _refresh_neighbours(self) -> None:
        rows = np.arange(self._nodes.rows, dtype=np.int64)
        open_rows = self.eligible.copy()
        if (capped_rows := self._filter_context.closed_by_caps(self.cls, rows)) is not None:
            open_rows &= ~capped_rows
        usable = rows[open_rows]
        open_rows[usable], reached = allowed_and_reachable(self._filter_context, self.cls, usable)
        changed = np.flatnonzero(open_rows != self.open).astype(np.int64)
        self.open = open_rows
        self._neighbours_position = self._filter_context.position_for(self.cls)
        if self._uses_volumes:
            self._refresh_reach(usable[~reached])
        self._fit(self._nodes.requested, self.open, changed, self.fit)

    def _refresh_reach(self, unreached: Int64) -> None:
        unreached_rows = np.zeros(self._nodes.rows, np.bool_)
        unreached_rows[unreached] = True
        changed = np.flatnonzero(unreached_rows != self._unreached).astype(np.int64)
        self._unreached = unreached_rows
        if len(changed):
            self.reach_changes += 1
            self._fit(self._nodes.daemons, self.eligible & ~unreached_rows, changed, self.empty_fit)

    def _refresh_facts(self) -> None:
        nodes = self._nodes
        charge_rows(nodes.rows, 10 + len(self.columns))
        rows = nodes.facts_changes.since(self._facts_position) if self._facts_position >= 0 else None
        self._facts_position = nodes.facts_changes.position
        if rows is None:
            rows = np.arange(nodes.rows, dtype=np.int64)
            self.eligible = np.zeros(nodes.rows, np.bool_)
            self.fit = np.zeros(nodes.rows, np.int64)
            self.changes.restart()
            self.empty_fit = np.zeros(nodes.rows, np.int64)
            self._affine = np.zeros(nodes.rows, np.int64)
            self._taints = np.zeros(nodes.rows, np.int64)
            self.open = np.zeros(nodes.rows, np.bool_)
            self._unreached = np.zeros(nodes.rows, np.bool_)
            self._gpu_wishes = np.zeros(nodes.rows, np.int64) if prefers_gpus(self.cls) else None
            self.device_score = np.zeros(nodes.rows if self._asks_close_gpus else 0, np.int64)
            self.capacity_lost = np.zeros((2, nodes.rows if self.cls.claims else 0), np.int64)
            self._capacity_position = -1
        accepted = eligible(nodes, self.cls, rows, self._filter_context.extensions.filters)
        if self.model != ANY_MODEL:
            accepted &= nodes.model[rows] == self.model
        if (capped_rows := self._filter_context.closed_by_caps(self.cls, rows, ever=True)) is not None:
            accepted &= ~capped_rows
        self.eligible[rows] = accepted
        self._affine[rows] = preferred_nodes(nodes, self.cls, rows)
        self._taints[rows] = deterring_taints(nodes, self.cls, rows)
        self.models = self._models()
        if (capped_rows := self._filter_context.closed_by_caps(self.cls, rows)) is not None:
            accepted = accepted & ~capped_rows
        self.open[rows] = accepted
        self._unreached[rows] = False
        self._neighbours_position = None  # topology domains depend on labels
        self._fit(nodes.daemons, self.eligible, rows, self.empty_fit)
        self._fit(nodes.requested, self.open, rows, self.fit)

    def _models(self) -> list[int]:
        names = self._nodes.models
        present: list[int] = np.unique(self._nodes.model[self.eligible]).tolist()
        return sorted(present, key=lambda model: (model == UNKNOWN, "" if model == UNKNOWN else names[model]))

    def _fit(self, used: Int64, usable: Bool, rows: Int64, counts: Int64) -> None:
        fit_rows(self._nodes.allocatable, used, self.columns, self.amounts, usable, rows, counts)
        if self._share:
            # A share has to fit on one GPU.
            nodes = self._nodes
            if used is nodes.daemons:
                fit = nodes.devices.fit_empty(rows, self._share)
            else:
                fit = nodes.devices.fit(rows, self._share, nodes.allocatable[rows, GPU] - used[rows, GPU])
            counts[rows] = np.minimum(counts[rows], fit)
        self.limit_by_devices(counts, rows, empty=used is self._nodes.daemons)
        if self._max_per_row:
            counts[rows] = np.minimum(counts[rows], self._max_per_row)
        if counts is self.fit:
            if self.cls.gpu_needs is not None:
                self._rate_gpus(rows[counts[rows] > 0])
            if self.cls.claims and len(open_rows := rows[counts[rows] > 0]):
                self.capacity_lost[:, open_rows] = least_capacity_lost(self._filter_context, self.cls, open_rows)
            self.changes.extend(rows.tolist())

    def limit_by_devices(self, counts: Int64, rows: Int64, *, empty: bool) -> None:
        """Limit how many pods some rows take (``counts``, int64[all rows]) by their devices and NUMA nodes.

        ``empty``: as if no other pods were there.
        """
        if self.cls.claims or (self._nodes.backed_columns and lacks_claims(self._nodes, self.cls)):
            open_rows = rows[counts[rows] > 0]
            limits = device_limits(self._filter_context, self.cls, open_rows, empty=empty)
            counts[open_rows] = np.minimum(counts[open_rows], limits)
        if self.cls.numa is not None and self._filter_context.numa_zones.machines:
            open_rows = rows[counts[rows] > 0]
            limits = numa_limits(self._filter_context, self.cls, open_rows, empty=empty)
            counts[open_rows] = np.minimum(counts[open_rows], limits)
        if self._close_gpus:
            open_rows = rows[counts[rows] > 0]
            limits = close_gpu_limits(self._filter_context, self.cls, open_rows, empty=empty)
            counts[open_rows] = np.minimum(counts[open_rows], limits)

    def _rate_gpus(self, rows: Int64) -> None:
        """Update how much the class prefers the GPUs of rows where it fits."""
        if not len(rows):
            return
        if self._gpu_wishes is not None:
            self._gpu_wishes[rows] = met_wishes(self._filter_context, self.cls, rows)
        if self._asks_close_gpus:
            self.device_score[rows] = device_scores(self._filter_context, self.cls, rows).total


class CappedView(ClassView):
    """A view of a class of a gang with a cap on its members in a domain: rows beyond the cap count as full.

    The view keeps the rows that hold most, first those of the leaf that holds most. That is exact for a cap on a leaf,
    and if the common domain of the gang lies in the capped domain. It is a heuristic if a gang can be partly inside.
    """

    def __init__(self, filter_context: FilterContext, cls: PodClass, model: int) -> None:
        super().__init__(filter_context, cls, model)
        self._uncapped = (self.fit, self.empty_fit)

    def refresh(self) -> None:
        """Update the arrays."""
        self.fit, self.empty_fit = self._uncapped
        super().refresh()
        self._uncapped = (self.fit, self.empty_fit)
        for cap in self.cls.caps:
            assert self._filter_context.domains is not None
            inside = self._filter_context.domains.rows(cap.domain)
            leaf_of_row = self._filter_context.domains.leaf_of_row
            self.fit = capped(self.fit, inside, leaf_of_row, cap.now)
            self.empty_fit = capped(self.empty_fit, inside, leaf_of_row, cap.ever)


def capped(fit: Int64, inside: Bool, leaf_of_row: Int64, cap: int) -> Int64:
    """Return the members that each row may take if at most ``cap`` may go to the rows inside (int64[rows])."""
    rows = np.flatnonzero(inside & (fit > 0))
    if int(fit[rows].sum()) <= cap:
        return fit
    leaves = leaf_of_row[rows]
    held = np.bincount(leaves, weights=fit[rows]).astype(np.int64)[leaves]
    rows = rows[np.lexsort((rows, -fit[rows], leaves, -held))]
    before = np.cumsum(fit[rows]) - fit[rows]
    limited = fit.copy()
    limited[rows] = np.clip(cap - before, 0, fit[rows])
    return limited


class Views:
    """All views by class and model."""

    def __init__(self, filter_context: FilterContext) -> None:
        self._filter_context = filter_context
        self._nodes = filter_context.nodes
        self._views: OrderedDict[tuple[PodClass, int], ClassView] = OrderedDict()

    def clear(self) -> None:
        """Drop all views."""
        self._views.clear()

    def __contains__(self, cls: PodClass) -> bool:
        """Return whether there is a view of a class on nodes of any model."""
        return (cls, ANY_MODEL) in self._views

    @property
    def max_views(self) -> int:
        """The number of views to keep, given the size of a view for these nodes."""
        in_memory_limit = KEEP_BYTES // (BYTES_PER_ROW * max(1, self._nodes.rows))
        return min(MAX_VIEWS, max(MIN_VIEWS, in_memory_limit))

    def get(self, cls: PodClass, model: int = ANY_MODEL) -> ClassView:
        """Return an up-to-date view.

        Raises:
            PluginError: a filter of a plugin failed.
        """
        key = (cls, model)
        view = self._views.get(key)
        if view is None:
            self._nodes.widen()
            kind = CappedView if any(cap.partial for cap in cls.caps) else ClassView
            view = self._views[key] = kind(self._filter_context, cls, model)
            max_views = self.max_views
            while len(self._views) > max_views:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(key)
        try:
            view.refresh()
        except Exception:
            del self._views[key]  # partly refreshed
            raise
        return view

    def per_model(self, cls: PodClass) -> Iterator[ClassView]:
        """Yield a view for each GPU model that the class may use; a single view if its nodes have one model."""
        any_model = self.get(cls)
        if len(any_model.models) <= 1:
            yield any_model
            return
        for model in any_model.models:
            yield self.get(cls, model)
