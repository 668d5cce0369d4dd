"""The search for the moves that make room for a pending pod which asks for MIG slots, on the state of an engine."""

from collections.abc import Generator, Sequence

from topo_scheduler.api.text import few_for, few_of
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.moving.plan import MovePlan
from topo_scheduler.scheduling.moving.replacement_query import GoneError, replacement_query
from topo_scheduler.scheduling.moving.slot_assignment import PodToSeat
from topo_scheduler.scheduling.moving.slot_moves import MAX_MOVED_PODS, SlotTask, plan_slot_moves
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.freed_devices import choose_freed
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.pools import DeviceId
from topo_scheduler.state.pods.workloads import MembersByClass, Stage, Workload, Workloads
from topo_scheduler.state.topology.topology_merge import crossed


def unmoved(world: World, candidates: Candidates) -> bool:
    """Return whether all candidates are still on their nodes."""
    entries = ((world.ledger.get(pod.occupant.uid), pod.row) for pod in candidates.pods)
    return all(entry is not None and entry.row == row for entry, row in entries)


class SlotSearch:
    """One search. ``workload`` is the pending pod, ``candidates`` are the pods that may move."""

    def __init__(
        self,
        world: World,
        workloads: Workloads,
        attempts: Attempts,
        preempting: Preempting,
        workload: Workload,
        candidates: Candidates,
    ) -> None:
        self._world = world
        self._workloads = workloads
        self._attempts = attempts
        self._preempting = preempting
        self._workload = workload
        self._candidates = candidates

    def find(self, now: float, max_moves: int) -> Generator[None, None, MovePlan | None]:
        """Return the plan, or None if the search finds none; yields after each slice of the work.

        Args:
            now: seconds.
            max_moves: pods that may move at most; never more than `MAX_MOVED_PODS`.

        Raises:
            GoneError: a candidate has disappeared.
            PluginError: a plugin failed, so there is no result.
        """
        workload, attempts = self._workload, self._attempts
        groups, _, never = attempts.groups(workload, workload.at(Stage.PENDING))
        if never or len(groups) != 1 or len(groups[0][1]) != 1:
            return None
        ask = attempts.ask_by_now(workload, groups, self._world.layout, now)
        layout = crossed(self._world.layout, ask.woven)
        wanted = pending_request(groups, ask)

        def trial() -> Trial:
            if not unmoved(self._world, self._candidates):
                raise GoneError
            with self._world.nothing_kept():
                self._preempting.count_for(workload)
                return Trial(attempts.planner, layout, now, neighbours=True, devices=True)

        def permits(trial: Trial, placement: Placement) -> bool:
            chosen = choose_freed(trial.planner, groups, placement.rows) if trial.devices is not None else None
            return (
                chosen is not None and attempts.lack_of_devices(workload.namespace, groups, placement, chosen) is None
            )

        def chosen_here(pod: Candidate) -> bool:
            entry = self._world.ledger.get(pod.occupant.uid)
            return entry is not None and not entry.created_there

        max_slot_moves = min(max_moves, MAX_MOVED_PODS)
        task = SlotTask(trial, layout, wanted, self._candidates, chosen_here, self._again, permits, now, max_slot_moves)
        return (yield from plan_slot_moves(task))

    def _again(self, number: int) -> PodToSeat:
        """Return the request of the replacement of a candidate."""
        pod = self._candidates.pods[number]
        known = self._workloads.of_pod(pod.occupant.uid)
        if known is None:
            raise GoneError
        workload, member = known
        reserved = self._preempting.replacements.nodes_for(workload)
        groups, ask = replacement_query(self._attempts, self._world, workload, [member], [pod.row], reserved)
        return PodToSeat(pod.occupant.uid, groups, ask, pod.amounts, pod.profile)


def pending_request(groups: MembersByClass, query: PlacementQuery) -> PodToSeat:
    """Return the request of a pending pod. ``groups`` and ``query`` are of it alone."""
    ((cls, (member,)),) = groups
    return PodToSeat(member.uid, groups, query, cls.amounts, member.profile)


def slots_sentence(plan: MovePlan, names: Sequence[str], reader: str) -> str:
    """Return a plan as text. ``names`` are the names of nodes by row; ``reader`` is as for `few_for`."""
    ((row,),) = plan.placement.rows
    pods = [
        f"{move.pod.occupant.key} from {names[move.pod.row]} to {devices_text(move.devices, names[move.to])}"
        for move in plan.moves
    ]
    count = f"{len(pods)} pod{'s' if len(pods) > 1 else ''}"
    return f"Moving {count} ({few_for(pods, reader, 'pod')}) would free {devices_text(plan.devices, names[row])}."


def devices_text(devices: Sequence[DeviceId], node: str) -> str:
    """Return devices on a node as text."""
    return f"{few_of([name for _, _, name in devices])} on {node}" if devices else node
