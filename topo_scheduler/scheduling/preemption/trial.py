"""A copy of what pods hold, on which the scheduler tries placements without some of them."""

import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topo_scheduler.api.devices import Allocation
from topo_scheduler.scheduling.devices.gpu_sets_on_trial import GpuSetsOnTrial
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.shares import ReservationShares
from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.scheduling.rules.gpu_rules import needs_close_gpus
from topo_scheduler.scheduling.rules.interpod_filters import VolumesInUse
from topo_scheduler.scheduling.rules.numa import is_limited_by_numa
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceChanges
from topo_scheduler.state.devices.trial_use import DevicesOnTrial
from topo_scheduler.state.nodes.change_log import ChangeLog
from topo_scheduler.state.nodes.charges import charges_of
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU, Amounts, amount_in
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.numa_zones_on_trial import NumaZonesOnTrial
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.links import GangKey, Links
from topo_scheduler.state.topology.topology_merge import crossed

PODS_PER_PART: Final = 1024
"""Pods that leave or return in one step."""


@dataclass(slots=True)
class DepartingPods:
    """Pods that leave a trial one after the other. ``left`` is how many have left.

    ``rows``, ``columns`` and ``held`` describe each resource that each pod holds (int64[n] each). ``starts`` is the
    range of each pod in them (int64[pods + 1]).
    """

    pods: Sequence[Candidate]
    rows: Int64
    columns: Int64
    held: Int64
    starts: Int64
    left: int = 0


def leaving_in_order(pods: Sequence[Candidate]) -> Generator[None, None, DepartingPods]:
    """Return pods that are to leave in this order; yields after each part of them."""
    charges = [charges_of(())]
    for at in range(0, len(pods), PODS_PER_PART):
        charges.append(charges_of((pod.row, pod.amounts) for pod in pods[at : at + PODS_PER_PART]))
        yield
    rows, columns, held = (np.concatenate(arrays) for arrays in zip(*charges, strict=True))
    sizes = np.fromiter((len(pod.amounts) for pod in pods), np.int64, len(pods))
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
    return DepartingPods(pods, rows, columns, held, starts)


class Trial:
    """A separate planner. It shares the facts about nodes with the original, but not the requested amounts.

    A trial is only valid until the original changes.
    """

    def __init__(
        self,
        planner: Planner,
        layout: Layout,
        now: float,
        *,
        neighbours: bool,
        links: bool = True,
        shares: ReservationShares | None = None,
        devices: bool = False,
        stuck: Iterable[ClaimKey] = (),
    ) -> None:
        """Copy what pods hold.

        Args:
            planner: on the current state.
            layout: the fabric.
            now: seconds.
            neighbours: whether the pods on a node matter beyond the resources that they hold.
            links: whether the traffic of pods matters.
            shares: what reservations take of the room of pods that leave, for this trial alone.
            devices: whether the devices of pods that leave matter, as pods to be placed have claims.
            stuck: claims that Kubernetes has not deallocated in time.
        """
        nodes = copy.copy(planner.nodes)
        # What claims hold comes free with the pods that leave: of that, the devices of the trial decide.
        nodes.requested = nodes.without_claimed(nodes.requested) if devices else nodes.requested.copy()
        nodes.capacity_changes = ChangeLog()
        around = planner.around
        pod_index = around.pod_index.copy() if neighbours else around.pod_index
        self._links = around.links if links else None
        self._links_copied = False
        self._sent: dict[str, tuple[GangKey, str, int]] = {}
        """The traffic of pods that have left."""
        policy = replace(planner.policy, alone="")  # its cache by class would be rebuilt for one query
        self.inventory: DevicesOnTrial | None = None
        """Which devices are in use on this trial; None if that does not matter."""
        of_nodes = around.devices
        if devices and of_nodes is not None:
            self.inventory = DevicesOnTrial(of_nodes.inventory)
            of_nodes = of_nodes.on_trial(self.inventory)
        sets = around.gpu_sets
        self.gpu_sets = GpuSetsOnTrial(sets, nodes, of_nodes) if sets is not None else None
        self._numa_zones = NumaZonesOnTrial(around.numa_zones)
        self.planner = Planner(
            replace(
                around,
                nodes=nodes,
                pod_index=pod_index,
                devices=of_nodes,
                gpu_sets=self.gpu_sets,
                numa_zones=self._numa_zones,
                volumes_in_use=VolumesInUse(),
            ),
            planner.history,
            policy,
        )
        self._layout = layout
        self._now = now
        self._neighbours = neighbours
        self.shares = shares or ReservationShares(())
        if self.inventory is not None:
            self.inventory.leave_departed(stuck)
            self._note_devices(self.inventory)

    @property
    def devices(self) -> NodeDevices | None:
        """Devices of nodes on this trial."""
        return self.planner.around.devices

    @property
    def frees_claims(self) -> bool:
        """Return whether claims are allocated that will soon be free, whatever pods leave."""
        return self.inventory is not None and any(True for _ in self.inventory.freed)

    def depends_on_sets(self, cls: PodClass) -> bool:
        """Return whether it matters to a class which GPUs or NUMA nodes come free, and not only how much."""
        around = self.planner.around
        return needs_close_gpus(cls) or is_limited_by_numa(around, cls, self.planner.views.get(cls).eligible)

    def remove(self, pods: Iterable[Candidate]) -> None:
        """Remove pods."""
        self._change(pods, -1)

    def restore(self, pods: Iterable[Candidate]) -> None:
        """Return pods that were removed."""
        self._change(pods, 1)

    def fill(self, nodes: Iterable[str]) -> None:
        """Make nodes full; unknown names do not matter."""
        table, row_of = self.planner.nodes, self.planner.nodes.row_of
        rows = np.array(sorted(row_of[name] for name in set(nodes) if name in row_of), np.int64)
        table.charge_all(rows, np.maximum(table.allocatable[rows] - table.requested[rows], 0))

    def charge(self, row: int, amounts: Amounts) -> None:
        """Count what a nominated pod will hold on a row."""
        self.planner.nodes.charge(row, amounts)
        if self.gpu_sets is not None:
            self.gpu_sets.come([(row, "", amount_in(amounts, GPU))])

    def place(self, ask: PlacementQuery) -> Placement | None:
        """Return where a workload would go; None if it has no place."""
        placement = self.planner.plan(ask, crossed(self._layout, ask.woven), self._now)
        return None if isinstance(placement, PlacementFailure) else placement

    def rule(self, ask: PlacementQuery) -> SizeRule | None:
        """Return the size rule of a workload that cannot be placed."""
        return self.planner.plan(ask, crossed(self._layout, ask.woven), self._now).rule

    def place_without(self, pods: Iterable[Candidate], ask: PlacementQuery) -> Placement | None:
        """Return where a workload would go without these pods. Afterwards the pods are restored."""
        departed = list(pods)
        self.remove(departed)
        try:
            return self.place(ask)
        finally:
            self.restore(departed)

    def let_go(self, leaving: DepartingPods, count: int) -> Iterator[None]:
        """Remove the first ``count`` of some pods and restore the others; yields after each part of them."""
        while (departed := leaving.left) != count:
            low, high = (
                (departed, min(count, departed + PODS_PER_PART))
                if count > departed
                else (max(count, departed - PODS_PER_PART), departed)
            )
            change, inside = -1 if count > departed else 1, slice(leaving.starts[low], leaving.starts[high])
            self.planner.nodes.charge_each(leaving.rows[inside], leaving.columns[inside], change * leaving.held[inside])
            self._tell(leaving.pods[low:high], change)
            leaving.left = high if change < 0 else low
            yield

    def _change(self, pods: Iterable[Candidate], change: int) -> None:
        changed = list(pods)
        self.planner.nodes.charge_pods([(pod.row, pod.amounts) for pod in changed], sign=change)
        self._tell(changed, change)

    def _tell(self, changed: Sequence[Candidate], change: int) -> None:
        """Apply pods that leave or return to the reservation shares, the index of pods, and the links."""
        if self.gpu_sets is not None:
            (self.gpu_sets.leave if change < 0 else self.gpu_sets.come)(
                (pod.row, pod.occupant.uid, amount_in(pod.amounts, GPU)) for pod in changed
            )
        if self._numa_zones.machines:
            names = self.planner.nodes.names
            (self._numa_zones.leave if change < 0 else self._numa_zones.come)(
                (names[pod.row], pod.occupant.uid, pod.numa) for pod in changed
            )
        if self.inventory is not None:
            move = self.inventory.leave if change < 0 else self.inventory.come_back
            move(pod.occupant.uid for pod in changed)
            self._note_devices(self.inventory)
        if self.shares:
            self.planner.nodes.charge_pods(list(self.shares.change(changed, change)), sign=1)
        if self._neighbours:
            for pod in changed:
                if pod.profile is not None:
                    self.planner.around.pod_index.change(pod.row, pod.profile, change)
        if self._links is not None:
            for pod in changed:
                self._send(self._links, pod.occupant.uid, change)

    def count_devices(self, uid: str, allocations: Iterable[Allocation], *, counts: bool) -> None:
        """Count devices as used for a pod that gets them on this trial, or no longer."""
        if self.inventory is not None:
            self._count_again(self.inventory.nominate(uid, allocations, counts=counts))

    def _note_devices(self, inventory: DevicesOnTrial) -> None:
        """Let views count again what fits on nodes whose devices changed in use."""
        self._count_again(inventory.take_changes())

    def _count_again(self, changes: DeviceChanges) -> None:
        nodes = self.planner.nodes
        for name in nodes.row_of if changes.all_use else changes.use:
            if (row := nodes.row_of.get(name)) is not None:
                nodes.capacity_changes.append(row)

    def _send(self, links: Links, uid: str, change: int) -> None:
        if change < 0 and (held := links.held(uid)) is not None:
            if not self._links_copied:
                self._links_copied = True
                links = self._links = self.planner.around.links = links.copy(self.planner.nodes)
            self._sent[uid] = held
            links.drop(uid)
        elif change > 0 and uid in self._sent:
            links.put(uid, *self._sent.pop(uid))
