"""Victims by trial, for pods whose place depends on other pods, as in kube-scheduler, or that require close GPUs."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.preemption.clearing import VictimSet
from topo_scheduler.scheduling.preemption.close_victims import holders_of_close_sets
from topo_scheduler.scheduling.preemption.regions import regions_for
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, OPEN, Candidates
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout

MAX_TRIALS: Final = 200
"""Maximum number of calls to the planner for one level of priority."""
MAX_MEMBER_TRIALS: Final = 240
"""The same limit times the number of members, for a gang whose members are placed one by one. Planning it is slow."""
MAX_PLACES: Final = 48
"""Maximum number of nodes or domains that are tried: those whose candidates have the least GPU-time."""
EXHAUSTIVE_CANDIDATES: Final = 5
"""Maximum number of candidates of a node or domain for which every set of them is tried, the cheapest first."""


class TrialsExhausted(Exception):
    """The maximum number of calls to the planner is reached."""


class _CountedTrial:
    """Checks whether the workload has a place without some pods, and counts these checks."""

    def __init__(self, trial: Trial, ask: PlacementQuery, candidates: Candidates) -> None:
        self._trial = trial
        self._ask = ask
        self._candidates = candidates
        constrained = ask.gang and is_constrained(ask.groups)
        self.left = MAX_MEMBER_TRIALS // ask.members if constrained else MAX_TRIALS

    def __call__(self, victims: Sequence[int]) -> bool:
        if not self.left:
            raise TrialsExhausted
        self.left -= 1
        return self._trial.place_without([self._candidates.pods[n] for n in victims], self._ask) is not None


def by_trial(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, level: int
) -> Iterator[VictimSet]:
    """Yield sets of victims with priorities up to a level, cheapest first.

    A single pod may get any one node by victims on that node alone. If only pods elsewhere prevent its placement, this
    search finds no victims.
    """
    counted = _CountedTrial(trial, ask, candidates)
    victim_sets = []
    for place in _places(trial, ask, layout, candidates, level):
        try:
            close_sets = holders_of_close_sets(trial, ask, place, candidates)
            if close := next((victims for victims in close_sets if counted(victims)), None):
                victims = close
            elif len(place) <= EXHAUSTIVE_CANDIDATES:
                victims = _cheapest_set(place, candidates, counted)
            else:
                victims = _all_but_the_spared(place, candidates, counted)
        except TrialsExhausted:
            break  # the scheduler evicts no pod without proof that it must go
        # A gang that is evicted whole may include a higher priority. It is considered when that level is opened.
        if victims and (key := candidates.key(victims))[0] <= level:
            victim_sets.append(VictimSet(key, tuple(victims)))
    return iter(sorted(victim_sets, key=lambda option: option.key))


def _places(trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, level: int) -> list[list[int]]:
    """Return the candidates of each node or domain, those with the least GPU-time first."""
    allowed = np.flatnonzero(candidates.priority <= level)
    eligible = trial.planner.views.get(ask.groups[0][0]).eligible
    by_row: dict[int, list[int]] = {}
    for number in allowed.tolist():
        by_row.setdefault(int(candidates.row[number]), []).append(number)
    if ask.members == 1:
        places = [numbers for row, numbers in by_row.items() if eligible[row]]
    else:
        rule = trial.rule(ask)
        if rule is None:
            return []
        rows: list[Int64] = [region.rows for region in regions_for(ask, layout, rule)]
        places = [[number for row in inside.tolist() for number in by_row.get(row, ())] for inside in rows]
    places = [
        within
        for place in places
        if (within := place if len(place) <= EXHAUSTIVE_CANDIDATES else _within_budgets(place, candidates))
    ]
    held = {number for number in allowed.tolist() if trial.shares.takes_all(candidates.pods[number])}
    # If reservations take all of a resource, the other resources that come free rarely suffice.
    places.sort(key=lambda place: (held.issuperset(place), int(candidates.seconds[place].sum()), len(place), place))
    return places[:MAX_PLACES]


def _within_budgets(place: Sequence[int], candidates: Candidates) -> list[int]:
    """Return the cheapest candidates within the limits of their budgets, and whole gangs where a gang must go whole."""
    spent: dict[int, int] = {}
    kept = []
    for number in sorted(place, key=lambda n: (candidates.seconds[n], -candidates.started[n], n)):
        guard = int(candidates.guard[number])
        spent[guard] = spent.get(guard, 0) + 1
        if guard < 0 or spent[guard] <= candidates.left[guard]:
            kept.append(number)
    closed = candidates.closed(kept)
    if closed is None:
        closed = candidates.closed([n for n in kept if candidates.gang[n] == NO_GANG or _is_open(n, candidates)])
    return closed or []


def _is_open(number: int, candidates: Candidates) -> bool:
    return candidates.gangs[int(candidates.gang[number])].rule == OPEN


def _cheapest_set(
    place: Sequence[int], candidates: Candidates, makes_room: Callable[[Sequence[int]], bool]
) -> list[int]:
    sets = (chosen for size in range(1, len(place) + 1) for chosen in combinations(place, size))
    closed = {tuple(victims) for chosen in sets if (victims := candidates.closed(chosen))}
    return next((list(victims) for victims in sorted(closed, key=candidates.key) if makes_room(victims)), [])


def _all_but_the_spared(
    place: Sequence[int], candidates: Candidates, makes_room: Callable[[Sequence[int]], bool]
) -> list[int]:
    if not makes_room(place):
        return []
    taken = set(place)

    def spare(units: Sequence[Sequence[int]]) -> None:
        """Spare all pods of these units that can stay.

        If not all can stay, the halves are tried in turn, which needs fewer trials than each unit alone.
        """
        wanted = {number for unit in units for number in unit} & taken
        if not wanted:
            return
        remaining = candidates.closed(taken - wanted)
        if remaining is not None and not wanted & set(remaining) and makes_room(remaining):
            taken.intersection_update(remaining)
        elif len(units) > 1:
            spare(units[: len(units) // 2])
            spare(units[len(units) // 2 :])

    order = sorted(place, key=lambda n: int(candidates.worst[n]))
    gangs = dict.fromkeys(int(candidates.gang[n]) for n in order if candidates.gang[n] != NO_GANG)
    spare([[n for n in order if candidates.gang[n] == gang] for gang in gangs])
    spare([[n] for n in order if candidates.gang[n] == NO_GANG or _is_open(n, candidates)])
    return sorted(taken)
