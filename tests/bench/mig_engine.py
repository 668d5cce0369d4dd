"""Requests for MIG instances, decided by an engine: the node, the slot, and which pods move for a pod without one.

The nodes publish their GPUs as NVIDIA's driver does for dynamic MIG. The moves are those of the engine's plans, which
Migrations carry out; here they happen at once.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tests.devices.mig_stream import WARM_UP, MigLoad, MigOutcome, StreamRequest, requests_of
from tests.helpers import Owner, controlled_by, make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking
from tests.scheduling.driver import configured
from topo_scheduler.api.devices import ResourceSlice
from topo_scheduler.api.migrations import SeatDevice
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.moving.plan import MovePlan, PlannedMove
from topo_scheduler.scheduling.reserving.replacements import ReservedSeat
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.devices.mig import MigGeometry, MigProfile

from .objects import Json

GPUS_PER_NODE: Final = 8
DURATION_SECONDS: Final = 36_000.0
"""Mean duration of a pod."""
SEARCH_SECONDS: Final = 11.0
"""More than the pause between two searches for moves."""
SEARCHES: Final = 3
DEVICES_PER_SLICE: Final = 64
MIGRATION: Final = "default/moves"


@dataclass(slots=True)
class EngineOutcome(MigOutcome):
    """What became of the counted requests; ``plans``: those that moves made room for, by number of moves."""

    plans: Counter[int] = field(default_factory=Counter)


def slices_of_node(node: str, geometry: MigGeometry, gpus: int) -> list[ResourceSlice]:
    """Return the slices of a node: one device for each place of an instance, and the counters that they share."""
    devices: list[Json] = []
    for gpu in range(gpus):
        for profile in geometry.profiles:
            for start in profile.starts:
                memory = range(start, start + profile.memory_slices)
                counters: Json = {f"memory-slice-{number}": {"value": "1"} for number in memory}
                counters["multiprocessors"] = {"value": str(profile.compute_slices)}
                if profile.max_count < len(profile.starts):
                    counters["media-engines"] = {"value": "1" if "+" in profile.name else "0"}
                name = f"gpu-{gpu}-mig-{profile.name.replace('.', '').replace('+', '-')}-{start}"
                attributes = {"profile": {"string": profile.name}}
                consumes = [{"counterSet": f"gpu-{gpu}", "counters": counters}]
                devices.append({"name": name, "attributes": attributes, "consumesCounters": consumes})
    every: Json = {f"memory-slice-{number}": {"value": "1"} for number in range(geometry.memory_slices)}
    every |= {"multiprocessors": {"value": str(geometry.compute_slices)}, "media-engines": {"value": "1"}}
    parts = [{"sharedCounters": [{"name": f"gpu-{gpu}", "counters": every} for gpu in range(gpus)]}]
    firsts = range(0, len(devices), DEVICES_PER_SLICE)
    parts += [{"devices": devices[first : first + DEVICES_PER_SLICE]} for first in firsts]
    pool = {"name": node, "generation": 1, "resourceSliceCount": len(parts)}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool}
    return [
        msgspec.convert({"metadata": {"name": f"{node}-{number}"}, "spec": {**spec, **part}}, ResourceSlice)
        for number, part in enumerate(parts)
    ]


class MigCluster:
    """An engine, its nodes, and the pods that run."""

    def __init__(self, geometry: MigGeometry, gpus: int, max_moves: int) -> None:
        """``max_moves``: pods that may move for a pod without a slot; 0 for none."""
        moves = f"recovery: {{enabled: true, defragmentation: {{migSlots: {str(max_moves > 0).lower()}}}}}"
        repair = f"repair: {{after: 1s, maxMoves: {max(1, max_moves)}}}"
        config = configured(f"{{{moves}, {repair}, preemption: {{enabled: false}}, reservation: {{enabled: false}}}}")
        nodes = [f"node-{number}" for number in range(gpus // GPUS_PER_NODE)]
        self.driver = DeviceDriver([make_node(node, "s1/l1", gpus=0) for node in nodes], 0, config=config)
        for node in nodes:
            self.driver.drop_slice(f"{node}-gpus")
            self.driver.slices(*slices_of_node(node, geometry, GPUS_PER_NODE))
        self.driver.engine.budgets_known()
        self.view = SchedulerView(self.driver.engine)
        self.running: dict[str, tuple[Pod, MigProfile]] = {}
        """Pods by name of their controller."""
        self._made = 0

    def asks(self, owner: str, profile: MigProfile) -> Pod:
        """A pod appears; return it once the engine has decided."""
        pod = self._pod(owner, profile)
        self.driver.apply(pod)
        self.driver.settle()
        if pod.spec.node_name:
            self.running[owner] = pod, profile
        return pod

    def ends(self, owner: str) -> None:
        """A running pod ends."""
        pod, _ = self.running.pop(owner)
        self.remove(pod)

    def remove(self, pod: Pod) -> None:
        """A pod is deleted, and with it its claim."""
        self.driver.delete(pod)
        self.driver.drop_claim(_claim_of(pod))

    def plan(self) -> MovePlan | None:
        """Return the engine's plan for the pod that is pending."""
        for _ in range(SEARCHES):
            self.driver.settle(SEARCH_SECONDS)
            if plans := self.view.planning.gang_plans():
                return plans[0][1]
        return None

    def moves_for(self, owner: str, pod: Pod, plan: MovePlan, profile: MigProfile) -> bool:
        """Carry out a plan: all pods leave before their replacements come. Return whether the pending pod runs then."""
        engine = self.driver.engine
        seats = [self._seat(move) for move in plan.moves]
        owners = {running.metadata.uid: name for name, (running, _) in self.running.items()}
        moved = [owners[seat.pod] for seat in seats]
        profiles = [self.running[name][1] for name in moved]
        engine.seats_kept(MIGRATION, seats)
        for name in moved:
            self.ends(name)
        for name, of_pod in zip(moved, profiles, strict=True):
            self.running[name] = self._pod(name, of_pod), of_pod
            self.driver.apply(self.running[name][0])
        self.driver.settle(SEARCH_SECONDS)
        nodes = [self.running[name][0].spec.node_name for name in moved]
        assert nodes == [seat.node for seat in seats], "a pod that moved is not where the plan has it"
        engine.seats_kept(MIGRATION, [])
        if pod.spec.node_name:
            self.running[owner] = pod, profile
        return bool(pod.spec.node_name)

    def _seat(self, move: PlannedMove) -> ReservedSeat:
        """Return the place and the devices that are kept for the replacement of a pod."""
        uid, world = move.pod.occupant.uid, self.driver.engine.world
        known = self.driver.engine.workloads.of_pod(uid)
        assert known is not None
        requests = tuple((world.nodes.resources.names[column], amount) for column, amount in move.pod.amounts)
        return ReservedSeat(
            migration=MIGRATION,
            pod=uid,
            node=world.nodes.names[move.to],
            namespace="default",
            workload="",
            controller=known[0].controller,
            gang=False,
            index=None,
            priority=move.pod.occupant.priority,
            requests=requests,
            devices=tuple(SeatDevice(*device) for device in move.devices),
        )

    def profiles(self) -> Counter[str]:
        """Return the running instances by profile."""
        return Counter(profile.name for _, profile in self.running.values())

    def _pod(self, owner: str, profile: MigProfile) -> Pod:
        self._made += 1
        name, driver = f"{owner}-{self._made}", self.driver
        controller = controlled_by("ReplicaSet", owner)
        driver.chains[controller.uid] = [Owner("ReplicaSet", owner, uid=controller.uid)]
        pod = make_pod(name, uid=name, owner=controller, created=driver.now)
        expression = f"device.attributes['{DRIVER}'].profile == '{profile.name}'"
        return driver.with_claim(pod, asking(1, selectors=[{"cel": {"expression": expression}}]))


def _claim_of(pod: Pod) -> str:
    name = pod.status.resource_claim_statuses[0].resource_claim_name
    assert name is not None
    return name


def run_engine(
    geometry: MigGeometry, asked: MigLoad, seed: int, fits_anew: Callable[[Counter[str]], bool], max_moves: int
) -> EngineOutcome:
    """Run a stream of `requests_of` by an engine; the arguments are those of `run_stream`."""
    cluster, outcome = MigCluster(geometry, asked.gpus, max_moves), EngineOutcome()
    ends: list[tuple[float, str]] = []
    for request in requests_of(geometry, asked, seed):
        while ends and ends[0][0] <= request.at:
            cluster.ends(heapq.heappop(ends)[1])
        driver = cluster.driver
        driver.now = max(driver.now, request.at * DURATION_SECONDS)
        owner, counts = f"p{request.number}", request.number >= WARM_UP
        outcome.counted += counts
        if _is_placed(cluster, owner, request, outcome, counts=counts, moves=max_moves > 0):
            heapq.heappush(ends, (request.at + request.duration, owner))
        elif counts:
            fragmented = fits_anew(cluster.profiles() + Counter([request.profile.name]))
            outcome.fragmented += fragmented
            outcome.full += not fragmented
        driver.forget()
        driver.writes.clear()
    return outcome


def _is_placed(
    cluster: MigCluster, owner: str, request: StreamRequest, outcome: EngineOutcome, *, counts: bool, moves: bool
) -> bool:
    """Return whether a pod runs, if need be after moves; otherwise it is gone."""
    pod = cluster.asks(owner, request.profile)
    if pod.spec.node_name:
        return True
    plan = cluster.plan() if moves else None
    if plan is not None:
        placed = cluster.moves_for(owner, pod, plan, request.profile)
        assert placed, "the pod has no slot although the plan was carried out"
        outcome.plans[len(plan.moves)] += counts
        return True
    cluster.remove(pod)
    cluster.driver.settle()
    return False
