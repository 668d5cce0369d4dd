"""Victims for a pod that requires close GPUs: the holders of each set of GPUs that would do."""

from collections.abc import Sequence
from typing import Final

from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidates
from topo_scheduler.scheduling.rules.gpu_rules import needs_close_gpus
from topo_scheduler.state.operation_budget import charge

MAX_TRIALS_OF_NODE: Final = 16
"""Sets of victims of one node that are tried, the cheapest first."""


def holders_of_close_sets(
    trial: Trial, ask: PlacementQuery, place: Sequence[int], candidates: Candidates
) -> list[list[int]]:
    """Return sets of victims on one node that leave close GPUs free, the cheapest first.

    Empty for pods that do not require close GPUs, for gangs, and where it is not known which GPUs candidates hold. The
    caller checks that the pod then has a place.
    """
    cls, sets = ask.groups[0][0], trial.gpu_sets
    if sets is None or ask.members != 1 or not place or not needs_close_gpus(cls) or cls.gpu_needs is None:
        return []
    row = int(candidates.row[place[0]])
    held = {number: sets.held_by(candidates.pods[number].occupant.uid) for number in place}
    victim_sets: set[tuple[int, ...]] = set()
    for chosen in sets.close_sets(cls.gpu_needs.closeness(), cls.gpus, row):
        charge(1)
        holders = [number for number, gpus in held.items() if gpus & chosen]
        missing = chosen & ~sets.free_on(row)
        for number in holders:
            missing &= ~held[number]
        closed = candidates.closed(holders) if holders and not missing else None
        if closed:
            victim_sets.add(tuple(closed))
    return [list(victims) for victims in sorted(victim_sets, key=candidates.key)[:MAX_TRIALS_OF_NODE]]
