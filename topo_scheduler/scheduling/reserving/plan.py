"""Where a workload that has no room would go first, if pods ended when they are expected to, and nobody else came.

The pods that are expected to end are taken away from a copy of the state, in order of their ends, and the ordinary
planner is asked: the earliest moment at which it finds a place is found by bisection. That is exact as far as the ends
are, for members that don't look at other pods; where they do, a place may exist a little earlier.

Where no such moment exists, pods that run to an end nobody knows are taken away as well, domain by domain: the domains
in which fewest members lack room first, in each the nodes first on which such pods hold fewest GPUs.

Source of the idea: Lifka, The ANL/IBM SP scheduling system, JSSPP 1995 (EASY backfilling), with domains of a fabric in
place of a number of processors.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.ask import Ask, Placement
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.tied import is_tied
from topo_scheduler.scheduling.preemption.regions import regions_for
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.resources import GPU

MOST_TRIALS: Final = 64
"""How often the planner is asked for one plan; a gang that is seated member by member fewer times."""
MOST_DOMAINS: Final = 16
"""Domains that are looked at where ends are not known."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A bound pod and when it is expected to end, in seconds; infinite where that is not known."""

    pod: Candidate
    end: float


@dataclass(frozen=True, slots=True)
class Prospect:
    """A place that comes free. ``start`` when all pods in ``waits`` have ended, infinite where that is not known."""

    start: float
    placement: Placement
    waits: tuple[Ending, ...]


class _Asked:
    """The planner on the copy; counts how often it is asked."""

    def __init__(self, planner: Planner, ask: Ask, layout: Layout, now: float) -> None:
        neighbours = any(looks_around(cls) for cls, _ in ask.groups)
        self.trial = Trial(planner, layout, now, neighbours=neighbours)
        self._ask = ask
        tied = ask.gang and is_tied(ask.groups)
        self.left = max(8, 240 // max(1, ask.members)) if tied else MOST_TRIALS

    def place(self) -> Placement | None:
        """Return where the workload would go."""
        self.left -= 1
        return self.trial.place(self._ask)

    def first(self, pods: Sequence[Ending], cuts: Sequence[int], placement: Placement) -> tuple[int, Placement]:
        """Return the least number of cuts after which there is a place, and that place.

        Args:
            pods: all of them taken away already, which makes room as ``placement`` shows.
            cuts: how many of the pods are gone after each cut, ascending.
            placement: the place when all are gone.
        """
        low, high, gone = 0, len(cuts), len(pods)
        while low < high and self.left > 0:
            middle = (low + high) // 2
            wanted = cuts[middle - 1] if middle else 0
            if wanted < gone:
                self.trial.restore(one.pod for one in pods[wanted:gone])
            else:
                self.trial.remove(one.pod for one in pods[gone:wanted])
            gone = wanted
            found = self.place()
            if found is None:
                low = middle + 1
            else:
                high, placement = middle, found
        self.trial.remove(one.pod for one in pods[gone:])
        return high, placement


def plan_reservation(
    planner: Planner, ask: Ask, layout: Layout, dated: Sequence[Ending], undated: Sequence[Ending], now: float
) -> Prospect | None:
    """Choose the place that comes free first.

    Args:
        planner: on the state as it is. Nothing of it is changed.
        ask: what has no room.
        layout: the fabric.
        dated: pods of which it is known when they end.
        undated: pods that end some time; used where the others don't suffice.
        now: seconds.

    Returns:
        None when there is no such place, or the workload has room already.

    Raises:
        PluginError: a plugin failed, so that nothing can be said.
    """
    asked = _Asked(planner, ask, layout, now)
    dated = sorted(dated, key=lambda one: (one.end, one.pod.row, one.pod.occupant.key))
    asked.trial.remove(one.pod for one in dated)
    placement = asked.place()
    if placement is None:
        return _without_dates(asked, ask, layout, dated, undated) if undated else None
    ends = sorted({one.end for one in dated})
    all_ends = [one.end for one in dated]
    cuts = [bisect_right(all_ends, end) for end in ends]
    number, placement = asked.first(dated, cuts, placement)
    if not number:
        return None
    return Prospect(ends[number - 1], placement, _on(placement, dated[: cuts[number - 1]]))


def _without_dates(
    asked: _Asked, ask: Ask, layout: Layout, dated: Sequence[Ending], undated: Sequence[Ending]
) -> Prospect | None:
    rule = asked.trial.rule(ask)
    if rule is None:
        return None
    planner = asked.trial.planner
    regions = regions_for(ask, layout, rule)
    free = np.max([view.fit for view in planner.views_for(ask)], axis=0)
    lack = [max(0, ask.members - int(free[region.rows].sum())) for region in regions]
    by_row: dict[int, list[Ending]] = {}
    for one in undated:
        by_row.setdefault(one.pod.row, []).append(one)
    gpus = {row: sum(_gpus(one) for one in pods) for row, pods in by_row.items()}
    for at in sorted(range(len(regions)), key=lambda at: (lack[at], at))[:MOST_DOMAINS]:
        rows = [row for row in regions[at].rows.tolist() if row in by_row]
        rows.sort(key=lambda row: gpus[row])
        pods = [one for row in rows for one in by_row[row]]
        if not pods or asked.left <= 0:
            continue
        asked.trial.remove(one.pod for one in pods)
        placement = asked.place()
        if placement is not None:
            cuts = np.cumsum([len(by_row[row]) for row in rows]).tolist()
            number, placement = asked.first(pods, cuts, placement)
            return Prospect(inf, placement, _on(placement, [*dated, *pods[: cuts[number - 1] if number else 0]]))
        asked.trial.restore(one.pod for one in pods)
    return None


def _on(placement: Placement, pods: Sequence[Ending]) -> tuple[Ending, ...]:
    rows = {row for group in placement.rows for row in group}
    return tuple(one for one in pods if one.pod.row in rows)


def _gpus(one: Ending) -> int:
    return next((amount for column, amount in one.pod.amounts if column == GPU), 0)
