"""Per class of pods: on which nodes it may run and how many more fit there, kept up to date row by row.

A view reads the node table's change logs from where it stopped, so a decision pays for the rows that changed since the
last one of its class, not for the cluster.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import numpy as np

from topo_scheduler.kernels.fit import fit_rows
from topo_scheduler.scheduling.placing.ask import SizeRuleLimits
from topo_scheduler.scheduling.placing.leaf_counts import LeafCounts
from topo_scheduler.scheduling.rules.feasible import allowed_and_reachable
from topo_scheduler.scheduling.rules.filters import Bool, eligible
from topo_scheduler.scheduling.rules.neighbours import FilterContext, Position, looks_around
from topo_scheduler.scheduling.rules.volumes import uses_volumes
from topo_scheduler.scheduling.rules.wishes import (
    BEST,
    deterring_taints,
    images_there,
    liking,
    preferred_nodes,
    wishes_around,
)
from topo_scheduler.state.changes import ChangeLog
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.numbering import Numbering
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.resources import GPU

KEEP: Final = 1024
"""Views kept at most; the least recently used goes first."""
KEEP_BYTES: Final = 40 * 2**20
"""Memory of the views kept at most: fewer than `KEEP` where there are more than 640 nodes."""
KEEP_LEAST: Final = 64
"""Views kept whatever their size: the classes of one gang."""
BYTES_PER_ROW: Final = 64
"""Memory of a view for each row of the table of nodes: six numbers and four marks, rounded up."""
KEEP_CHANGES: Final = 512
"""Changed rows that a view remembers for `LeafCounts`, which count all leaves where there are more."""
ANY_MODEL: Final = -2
"""Stands for nodes of any GPU model, those without a model label included."""


_numbers: Final = Numbering()


class ClassView:
    """One class, on nodes of one GPU model or of any."""

    def __init__(self, around: FilterContext, cls: PodClass, model: int) -> None:
        self.number = _numbers.take()
        """Tells this view from any other there ever was, for use in the keys of caches."""
        self.cls = cls
        self.model = model
        self._around = around
        self._nodes = around.nodes
        self.columns: Int64 = np.array([column for column, _ in cls.amounts], np.int64)
        self.amounts: Int64 = np.array([amount for _, amount in cls.amounts], np.int64)
        self.eligible: Bool = np.empty(0, np.bool_)
        self.open: Bool = np.empty(0, np.bool_)
        """Eligible, and not closed by the pods or volumes that are there."""
        self.reach_changes = 0
        """How often it changed which nodes the volumes of the class can ever be used on, for use in keys too."""
        self.fit: Int64 = np.empty(0, np.int64)
        self.empty_fit: Int64 = np.empty(0, np.int64)
        self.liking: Int64 = np.empty(0, np.int64)
        """How much the class likes each row for what it says it would like; higher is better."""
        self.choosy = False
        """Whether it likes some rows more than others."""
        self.preference: Int64 = np.empty(0, np.int64)
        """The same; among equals, pods without GPUs keep off nodes that have some; then where their images are."""
        self.models: list[int] = []
        """GPU models of the eligible nodes in order of name, nodes without one last."""
        self._facts_at = -1
        self._capacity_at = -1
        self._neighbours_at: Position | None = None
        self._liking_at: object = None
        self._affine: Int64 = np.empty(0, np.int64)
        self._taints: Int64 = np.empty(0, np.int64)
        self._looks_around = looks_around(cls)
        self._wishes_around = wishes_around(cls)
        self._uses_volumes = uses_volumes(cls)
        self._unreached: Bool = np.empty(0, np.bool_)
        self._domains_at = -1
        self.changes = ChangeLog(KEEP_CHANGES)
        """Rows of ``fit`` as they change."""
        self.counts: dict[tuple[SizeRuleLimits, tuple[str, ...]], LeafCounts] = {}
        """Members by leaf, for each set of limits per leaf."""
        self._share = cls.share
        self._most = 1 if cls.constraints is not None and cls.constraints.alone else 0

    def refresh(self) -> None:
        """Bring the arrays up to date; each is as long as the node table."""
        charge(2 + len(self.columns))
        nodes = self._nodes
        if self.cls.caps and self._domains_at != (at := self._around.domains.generation if self._around.domains else 0):
            self._facts_at, self._domains_at = -1, at
        if nodes.facts_changes.position != self._facts_at:
            self._refresh_facts()
        if self._looks_around and self._neighbours_at != self._around.position_for(self.cls):
            self._refresh_neighbours()
        if nodes.capacity_changes.position != self._capacity_at:
            rows = nodes.capacity_changes.since(self._capacity_at)
            self._capacity_at = nodes.capacity_changes.position
            if rows is None:
                rows = np.arange(nodes.rows, dtype=np.int64)
            self._fit(nodes.requested, self.open, rows, self.fit)
        liking_at = (self._facts_at, nodes.images.changes, self._around.position if self._wishes_around else None)
        if liking_at != self._liking_at:
            self._liking_at = liking_at
            self._refresh_liking()

    def _refresh_liking(self) -> None:
        nodes, cls = self._nodes, self.cls
        self.liking = liking(self._around, cls, self._affine, self._taints, self.eligible)
        usable = self.liking[self.eligible]
        self.choosy = len(usable) > 0 and bool((usable != usable[0]).any())
        self.preference = self.liking
        if not cls.gpus and not cls.share:
            self.preference = 2 * self.preference + (nodes.allocatable[:, GPU] == 0)
        if (images := images_there(nodes, cls)) is not None:
            self.preference = (BEST + 1) * self.preference + images

    @property
    def reachable(self) -> Bool:
        """Eligible, and where the volumes of the class can be used, whoever comes or goes."""
        return self.eligible & ~self._unreached if self._uses_volumes else self.eligible

    def _refresh_neighbours(self) -> None:
        rows = np.arange(self._nodes.rows, dtype=np.int64)
        now = self.eligible.copy()
        if (shut := self._around.shut(self.cls, rows)) is not None:
            now &= ~shut
        usable = rows[now]
        now[usable], reached = allowed_and_reachable(self._around, self.cls, usable)
        changed = np.flatnonzero(now != self.open).astype(np.int64)
        self.open = now
        self._neighbours_at = self._around.position_for(self.cls)
        if self._uses_volumes:
            self._refresh_reach(usable[~reached])
        self._fit(self._nodes.requested, self.open, changed, self.fit)

    def _refresh_reach(self, unreached: Int64) -> None:
        now = np.zeros(self._nodes.rows, np.bool_)
        now[unreached] = True
        changed = np.flatnonzero(now != self._unreached).astype(np.int64)
        self._unreached = now
        if len(changed):
            self.reach_changes += 1
            self._fit(self._nodes.daemons, self.eligible & ~now, changed, self.empty_fit)

    def _refresh_facts(self) -> None:
        nodes = self._nodes
        charge_rows(nodes.rows, 10 + len(self.columns))
        rows = nodes.facts_changes.since(self._facts_at) if self._facts_at >= 0 else None
        self._facts_at = nodes.facts_changes.position
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
            self._capacity_at = -1
        accepted = eligible(nodes, self.cls, rows, self._around.extensions.filters)
        if self.model != ANY_MODEL:
            accepted &= nodes.model[rows] == self.model
        if (shut := self._around.shut(self.cls, rows, ever=True)) is not None:
            accepted &= ~shut
        self.eligible[rows] = accepted
        self._affine[rows] = preferred_nodes(nodes, self.cls, rows)
        self._taints[rows] = deterring_taints(nodes, self.cls, rows)
        self.models = self._models()
        if (shut := self._around.shut(self.cls, rows)) is not None:
            accepted = accepted & ~shut
        self.open[rows] = accepted
        self._unreached[rows] = False
        self._neighbours_at = None  # domains of neighbours are made of labels
        self._fit(nodes.daemons, self.eligible, rows, self.empty_fit)
        self._fit(nodes.requested, self.open, rows, self.fit)

    def _models(self) -> list[int]:
        names = self._nodes.models
        present: list[int] = np.unique(self._nodes.model[self.eligible]).tolist()
        return sorted(present, key=lambda model: (model == UNKNOWN, "" if model == UNKNOWN else names[model]))

    def _fit(self, used: Int64, usable: Bool, rows: Int64, out: Int64) -> None:
        fit_rows(self._nodes.allocatable, used, self.columns, self.amounts, usable, rows, out)
        if self._share:
            # No pod holds part of two GPUs.
            nodes = self._nodes
            if used is nodes.daemons:
                fit = nodes.devices.fit_empty(rows, self._share)
            else:
                fit = nodes.devices.fit(rows, self._share, nodes.allocatable[rows, GPU] - used[rows, GPU])
            out[rows] = np.minimum(out[rows], fit)
        if self._most:
            out[rows] = np.minimum(out[rows], self._most)
        if out is self.fit:
            self.changes.extend(rows.tolist())


class CappedView(ClassView):
    """A class of a gang of which only some members may go to some domain: rows beyond that are as if full.

    The rows that hold most are kept, those of the leaf that holds most first. Exact where the cap is on a leaf, and
    where the gang's common domain lies in the capped one; a heuristic where a gang could lie half in it.
    """

    def __init__(self, around: FilterContext, cls: PodClass, model: int) -> None:
        super().__init__(around, cls, model)
        self._all = (self.fit, self.empty_fit)

    def refresh(self) -> None:
        """Bring the arrays up to date."""
        self.fit, self.empty_fit = self._all
        super().refresh()
        self._all = (self.fit, self.empty_fit)
        for cap in self.cls.caps:
            assert self._around.domains is not None
            inside = self._around.domains.rows(cap.domain)
            leaf_of_row = self._around.domains.leaf_of_row
            self.fit = capped(self.fit, inside, leaf_of_row, cap.now)
            self.empty_fit = capped(self.empty_fit, inside, leaf_of_row, cap.ever)


def capped(fit: Int64, inside: Bool, leaf_of_row: Int64, most: int) -> Int64:
    """Return how many members each row may take when so many at most may go to the rows inside (int64[rows])."""
    rows = np.flatnonzero(inside & (fit > 0))
    if int(fit[rows].sum()) <= most:
        return fit
    leaves = leaf_of_row[rows]
    held = np.bincount(leaves, weights=fit[rows]).astype(np.int64)[leaves]
    rows = rows[np.lexsort((rows, -fit[rows], leaves, -held))]
    before = np.cumsum(fit[rows]) - fit[rows]
    left = fit.copy()
    left[rows] = np.clip(most - before, 0, fit[rows])
    return left


class Views:
    """All views by class and model."""

    def __init__(self, around: FilterContext) -> None:
        self._around = around
        self._nodes = around.nodes
        self._views: OrderedDict[tuple[PodClass, int], ClassView] = OrderedDict()

    def clear(self) -> None:
        """Drop all views."""
        self._views.clear()

    def __contains__(self, cls: PodClass) -> bool:
        """Return whether there is a view of a class on nodes of any model."""
        return (cls, ANY_MODEL) in self._views

    @property
    def most(self) -> int:
        """How many views are kept, by what a view of these nodes takes."""
        fitting = KEEP_BYTES // (BYTES_PER_ROW * max(1, self._nodes.rows))
        return min(KEEP, max(KEEP_LEAST, fitting))

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
            view = self._views[key] = kind(self._around, cls, model)
            most = self.most
            while len(self._views) > most:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(key)
        try:
            view.refresh()
        except Exception:
            del self._views[key]  # half refreshed
            raise
        return view

    def per_model(self, cls: PodClass) -> Iterator[ClassView]:
        """Yield a view for each GPU model the class may use; a single one when all its nodes are alike."""
        whole = self.get(cls)
        if len(whole.models) <= 1:
            yield whole
            return
        for model in whole.models:
            yield self.get(cls, model)
