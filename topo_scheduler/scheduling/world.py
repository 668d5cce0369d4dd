"""The state of the cluster: nodes, the fabric, and the resources that every bound or assumed pod holds.

The world also records changes that could help a pending workload: the rows that gained room or changed otherwise since
the last call.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress

import numpy as np

from topo_scheduler.api.annotations import written_models
from topo_scheduler.api.config import TopologySpec
from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.links import uplink_label
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.scheduling.binding.refusals import KUBELET_REFUSALS, Penalties
from topo_scheduler.scheduling.devices.backed_resources import BackedResources
from topo_scheduler.scheduling.devices.claimed_sets import ClaimedSets
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.scheduling.devices.hardware_table import HardwareTable
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.scheduling.devices.shape_tables import TableRequest
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.intake.claims import GpuClaims
from topo_scheduler.scheduling.intake.device_claims import named_claims
from topo_scheduler.scheduling.rules.domains import NamedDomains
from topo_scheduler.scheduling.rules.filters import TermSelector
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.neighbour_changes import NeighbourChanges
from topo_scheduler.state.devices.claim_consumers import PodsWithoutNode
from topo_scheduler.state.devices.inventory import DeviceChanges, DeviceInventory
from topo_scheduler.state.ledger.claimed_gpus import ClaimedGpus
from topo_scheduler.state.ledger.ledger import Ledger, LedgerEntry
from topo_scheduler.state.ledger.namespace_usage import Accounts
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64, NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import GPU, PODS, Amounts, ResourceTable, as_amounts
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import changed_profile, profile_of
from topo_scheduler.state.pods.kept_classes import KeptClasses
from topo_scheduler.state.pods.node_pods import is_daemon_pod
from topo_scheduler.state.pods.numa_request import kept_request, numa_request
from topo_scheduler.state.pods.numa_zones import NumaZones
from topo_scheduler.state.pods.pod_groups import Groups
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.victim_info import VictimInfo, occupant_of
from topo_scheduler.state.statistics.duration_claims import TOLERATED_RATIO_OF_ESTIMATES, Promises, weight_of
from topo_scheduler.state.statistics.placement_outcomes import History
from topo_scheduler.state.statistics.run_times import Runs, ended_of, likeness_of, recorded_size, run_of
from topo_scheduler.state.statistics.typical_pods import kind_of
from topo_scheduler.state.storage.kept_volume_claims import KeptVolumeClaims
from topo_scheduler.state.storage.storage_objects import Storage
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, TenantMemory
from topo_scheduler.state.topology.fabric import Fabric, Layout, Path
from topo_scheduler.state.topology.links import Links
from topo_scheduler.state.topology.unread_labels import UnreadLabels


class World:
    """Nodes, fabric, ledger and history of outcomes. Only this class writes them."""

    def __init__(
        self,
        config: SchedulerConfig,
        extensions: Extensions | None = None,
        epoch: float = 0.0,
        pending_pods: PodsWithoutNode | None = None,
    ) -> None:
        """``epoch``: seconds to add to a time of the engine to get seconds since the epoch."""
        self.resources = ResourceTable(config.gpu_resources)
        self.nodes = NodeTable(self.resources, NodeLabels(config.gpu_model_labels, config.bandwidth_labels))
        self.fabric = Fabric(config.topology)
        self.pod_index = PodIndex()
        self.domains = NamedDomains(self.nodes, self.fabric)
        self.links = Links(self.nodes)
        extensions = extensions if extensions is not None else Extensions()
        self.unread_labels = UnreadLabels(self.nodes, [*self._keys_read(config), *extensions.node_labels])
        self.penalties = Penalties()
        self.numa_zones = NumaZones()
        self.hardware = HardwareTable(self.nodes)
        self._shared_slices_read = 0
        self.accounts = Accounts(self.nodes)
        self.tenant_memory = TenantMemory(MAX_TENANT_BYTES)
        self.ledger = Ledger(self.nodes, self.pod_index, self.accounts, self.numa_zones, self.tenant_memory)
        self.inventory = DeviceInventory(self.ledger, pending_pods)
        devices = NodeDevices(self.nodes, self.inventory, TermSelector(self.nodes))
        self.claimed_gpus = ClaimedGpus(self.inventory, self.accounts, self.nodes)
        self.around = FilterContext(
            self.nodes,
            self.pod_index,
            storage=Storage(kept_claims=KeptVolumeClaims(self.tenant_memory)),
            shunned=self.penalties,
            domains=self.domains,
            extensions=extensions,
            links=self.links,
            devices=devices,
            gpu_sets=GpuSets(self.nodes, self.ledger, self.hardware, ClaimedSets(devices, self.claimed_gpus)),
            numa_zones=self.numa_zones,
        )
        self.backed = BackedResources(self.nodes, devices)
        for key in extensions.node_labels:
            self.nodes.label_column(key)  # updated with each node from here on
        self.claims = GpuClaims(config.scheduler_name, self.nodes, self.resources, self.inventory)
        self._offers = 0
        self.history = History()
        self.kept_classes = KeptClasses(self.tenant_memory)
        self.runs = Runs()
        self.promises = Promises()
        self.estimates = Promises(TOLERATED_RATIO_OF_ESTIMATES)
        """How long pods that backfill are to run by earlier runs."""
        self.epoch = epoch
        self.names_others = False
        """Whether events name objects of other namespaces."""
        self._penalised: set[str] = set()
        self.groups = Groups(self.fabric.levels_by_key(), memory=self.tenant_memory)
        self.improvements = 0
        """Number of events so far that could have made a placement possible."""
        self.kept: dict[int, Amounts] = {}
        """Room that is reserved for pods of other schedulers, by row. It is charged to the row as if they ran there."""
        self._kept_arrays: tuple[Int64, Int64] | None = None
        self._improved: set[int] = set()
        self._changed_empty: set[int] = set()
        """Those of them that may hold a pod now which they could not hold even if empty, DaemonSet pods aside."""
        self._rules_changed = False
        self._neighbours_at = self.around.position
        self._repelling_moved = False
        """Whether a node with pods that have required anti-affinity came into other domains since the last call."""

    def configure(self, spec: TopologySpec) -> bool:
        """Apply a configuration; return whether other namespaces than before may request GPUs by annotation."""
        self.links.configure(spec.links)
        self.unread_labels.configure(spec.recovery.link_label_keys)
        self.names_others = spec.events.name_other_namespaces
        return self.claims.permit(spec.gpus_by_annotation.namespaces)

    @property
    def layout(self) -> Layout:
        """The fabric as arrays."""
        return self.fabric.layout(self.nodes.rows)

    def leaf_of(self, node: str) -> Path | None:
        """Return the path of the leaf of a node; None for an unknown node."""
        row = self.nodes.row_of.get(node)
        if row is None:
            return None
        layout = self.layout
        return layout.paths[int(layout.leaf_of_row[row])]

    def reader(self, namespace: str) -> str:
        """Return the argument ``reader`` of `few_for` for a message to the users of a namespace.

        It is empty if messages may name objects of all namespaces.
        """
        return "" if self.names_others else namespace

    # ------------------------------------------------------------ nodes

    def put_node(self, node: Node, now: float) -> list[str]:
        """Record a node as the API server reports it; return messages about fields that could not be read."""
        name = node.metadata.name
        known = self.nodes.row_of.get(name)
        over = self.oversubscribed(name)
        if known is not None and self.nodes.uids[known] != node.metadata.uid:
            # The node was recreated under the same name: treat it as a new node.
            self.remove_node(name)
            known = None
        was_ready = known is not None and bool(self.nodes.ready[known])
        labels = self.nodes.labels[known] if known is not None else node.metadata.labels
        row, changed, problems = self.nodes.put(node)
        if not changed:
            return problems
        if labels != node.metadata.labels:
            self._repelling_moved |= self._repels(name)
        self._read_hardware(row)
        self._count_offered()
        self.backed.note([name])
        if self.nodes.devices.concerns(row):
            self.ledger.count_devices(row)
        if known is None or self.fabric.tells_apart(labels, node.metadata.labels):
            self.fabric.put(row, name, node.metadata.labels)
        self.links.nodes_changed()
        if known is None:
            self.ledger.node_added(name, row)
            self.claimed_gpus.node_changed(name)
        elif was_ready and not self.nodes.ready[row] and (leaf := self.leaf_of(name)):
            self.history.note(leaf, now, good=False)
        self._improve(row, even_empty=True)
        self._rules_changed = True
        if short := [resource for resource in self.oversubscribed(name) if resource not in over]:
            remedy = "end some of them, or check why the node offers so little"
            problems = [*problems, f"node {name} has less {', '.join(short)} than its pods ask for; {remedy}"]
        return problems

    def _repels(self, node: str) -> bool:
        """Return whether a pod of a node has required anti-affinity."""
        entries = map(self.ledger.get, self.ledger.on_node(node))
        return any(entry is not None and entry.profile is not None and entry.profile.repels for entry in entries)

    def _count_offered(self) -> None:
        """Charge the bound pods that request a resource which is offered since the last call."""
        if self._offers != self.resources.offers:
            self._offers = self.resources.offers
            for uid, node, offered in self.claims.take_offered():
                self._charge_offered(uid, node, offered)

    def _charge_offered(self, uid: str, node: str, offered: Mapping[int, int]) -> None:
        """Charge a bound pod with more than it is charged already."""
        entry = self.ledger.get(uid)
        if entry is None or entry.node != node or entry.assumed:
            return
        occupant, row = entry.occupant, entry.row
        amounts = as_amounts({**dict(entry.amounts), **offered})
        self.ledger.confirm(
            uid, node, amounts, daemon=entry.daemon, profile=entry.profile, devices=entry.devices, numa=entry.numa
        )
        if occupant is not None:
            self.ledger.occupy(occupant)
            self._follow_duration(occupant, node, amounts)
        if row >= 0:
            self._improve(row)

    def remove_node(self, name: str, uid: str = "") -> None:
        """Forget a node. If ``uid`` is given, only a node with this uid."""
        row = self.nodes.row_of.get(name)
        if row is None or (uid and self.nodes.uids[row] != uid):
            return
        self.ledger.node_removed(name)
        self.kept.pop(row, None)
        self._kept_arrays = None
        self.penalties.forget(name)
        self.hardware.forget(name)
        self.fabric.remove(row)
        self.nodes.remove(name)
        self.claimed_gpus.node_changed(name)
        self.links.nodes_changed()
        self._change_rules()
        self._improved.discard(row)
        self._changed_empty.discard(row)

    # ------------------------------------------------------------ pods

    def bound(self, pod: Pod, *, created_there: bool = False, believed: bool = True) -> tuple[bool, list[str]]:
        """Charge a pod that is bound.

        Args:
            pod: the pod.
            created_there: it was created with its node.
            believed: this process, or one before it, may have placed the pod. Claims of other pods reserve no
                bandwidth: users may name claims that do not exist, and no quota counts these.

        Returns:
            Whether this differs from the previous state, and messages about fields that could not be read.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        known = self.ledger.get(uid)
        same_node = known is not None and known.node == node
        if same_node and known is not None and known.profile is not None and not known.assumed:
            profile = changed_profile(self.pod_index, known.profile, pod)
        else:
            profile = profile_of(self.pod_index, pod)
        problems = []
        try:
            charged = self.claims.amounts(pod, known)
        except QuantityError as error:
            if same_node:
                occupant = occupant_of(pod)
                self.ledger.occupy(occupant)
                self._follow_duration(occupant, node, known.amounts if known else ())
                self._follow_extended_claim(pod, known.amounts if known else ())
                return self.ledger.confirm(uid, node, known.amounts if known else (), profile=profile), []
            problems.append(f"pod {pod.key}: {error}; on node {node} it counts without the requests that can't be read")
            charged = self.claims.readable_amounts(pod, known)
        amounts = as_amounts(charged)
        self._follow_extended_claim(pod, amounts)
        devices = self.claims.devices(pod, charged, known)
        before = known.row if known is not None else -1
        assumed_here = same_node and known is not None and known.assumed
        if assumed_here and known is not None and (known.amounts, known.devices) != (amounts, devices):
            self.ledger.release(uid)  # another client bound it to the same node, without our annotations
        daemon = is_daemon_pod(pod.metadata)
        numa = kept_request(numa_request(pod))
        changed = self.ledger.confirm(
            uid, node, amounts, daemon=daemon, profile=profile, devices=devices, created_there=created_there, numa=numa
        )
        occupant = occupant_of(pod)
        self.ledger.occupy(occupant)
        self._follow_duration(occupant, node, amounts)
        if not daemon:
            self.wanted(pod, charged)
        decided = assumed_here and self.claims.may_be_ours(pod) and self.links.held(uid) is not None
        believed |= self.links.held(uid) is not None
        trusted = decided or self.claims.may_reserve_bandwidth(pod, amounts, believed=believed)
        if self.links.pod_bound(pod, trusted=trusted, assumed=assumed_here):
            self.improvements += 1
        self.improvements += changed and daemon  # less room may help, too, as in `_change_rules`
        if changed and before >= 0:
            self._improve(before)  # it runs on another node than assumed, or was resized
        if (profiles := self.ledger.profiles).warnings:
            problems += profiles.take_warnings()
        return changed, problems

    def _follow_extended_claim(self, pod: Pod, amounts: Amounts) -> None:
        """Record which claim the status of a bound pod names for its extended resources, given what it is charged."""
        if (made := pod.status.extended_resource_claim_status) is not None:
            key = pod.metadata.namespace, made.resource_claim_name
            self.claimed_gpus.status_names(pod.metadata.uid, key, amounts, named_claims(pod))

    def _follow_duration(self, occupant: VictimInfo, node: str, amounts: Amounts) -> None:
        """Record how long a bound pod claims to run, and since when it runs."""
        if occupant.expected_seconds < occupant.deadline and not occupant.fixed:
            self.promises.claimed(occupant.uid, occupant.namespace, occupant.expected_seconds)
        # Whatever it claims by now, it was bound with what it claimed then.
        if occupant.start_reported and (occupant.uid in self.promises or occupant.uid in self.estimates):
            gpus = next((amount for column, amount in amounts if column == GPU), 0)
            weight = weight_of(gpus, self._share_of_node(node, amounts))
            self.promises.began(occupant.uid, occupant.started - self.epoch, weight)
            self.estimates.began(occupant.uid, occupant.started - self.epoch, weight)

    def _share_of_node(self, node: str, amounts: Amounts) -> float:
        """Return the largest share of an allocatable resource of a node in the amounts; 0 for an unknown node."""
        row = self.nodes.row_of.get(node)
        if row is None:
            return 0.0
        offered = self.nodes.allocatable[row]
        return max((wanted / max(1, int(offered[column])) for column, wanted in amounts if column != PODS), default=0.0)

    def hold_place(self, pod: Pod) -> None:
        """Charge a bound pod that could not be read with its requests, or with one pod slot if none can be read."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        known = self.ledger.get(uid)
        if known is not None and known.node == node:
            self.ledger.confirm(uid, node, known.amounts, profile=known.profile, devices=known.devices)
            return
        charged: Mapping[int, int] = {PODS: 1}
        devices: tuple[int, ...] = ()
        with suppress(Exception):
            charged = self.claims.readable_amounts(pod)
            devices = self.claims.devices(pod, charged)
        self.ledger.confirm(uid, node, as_amounts(charged), daemon=is_daemon_pod(pod.metadata), devices=devices)

    def wanted(self, pod: Pod, amounts: Mapping[int, int]) -> None:
        """Count a pending or running pod in the statistics of pods that are typical of this cluster."""
        kind = kind_of(amounts, written_models(pod.metadata.annotations))
        self.around.kinds.put(pod.metadata.uid, kind)

    def release(self, uid: str) -> LedgerEntry | None:
        """Forget a pod that is gone or that this scheduler no longer places, and release its resources."""
        self.around.kinds.drop(uid)
        self.claims.forget(uid)
        self.promises.ended(uid)
        self.estimates.ended(uid)
        self.kept_classes.gone(uid)
        entry = self.take_back(uid)
        if entry is not None:
            self.inventory.consumers.depart(uid)
        return entry

    def take_back(self, uid: str) -> LedgerEntry | None:
        """Release the resources of a pod. The pod may be pending again."""
        if self.links.drop(uid):
            self.improvements += 1
        self.promises.withdrawn(uid)
        self.estimates.withdrawn(uid)
        entry = self.ledger.release(uid)
        self.claimed_gpus.forget_requests(uid)
        self.inventory.pod_gone(uid)
        if entry is not None and entry.row >= 0:
            self._improve(entry.row)
        return entry

    def ended(self, pod: Pod, entry: LedgerEntry | None, cls: PodClass | None, now: float, members: int = 0) -> None:
        """Record how a pod of this scheduler ended, and how long it ran.

        Args:
            pod: the pod.
            entry: its entry of the ledger; None if there was none.
            cls: its class if this process decided on it; otherwise None.
            now: time in seconds.
            members: size of its gang; 0 if unknown.
        """
        ended = ended_of(pod, now + self.epoch if entry is not None else None)
        if ended is not None:
            run = run_of(pod)
            amounts = dict(entry.amounts) if entry is not None else self.claims.readable_amounts(pod)
            self.runs.note(run, ended, likeness_of(run, members or recorded_size(pod), amounts.get(GPU, 0)))
        leaf = self.leaf_of(pod.spec.node_name) if entry is not None else None
        if leaf is None:
            return
        if pod.status.phase == "Succeeded":
            self.history.note(leaf, now, good=True)
        elif cls is not None and pod.status.reason.startswith(KUBELET_REFUSALS):
            if self.penalties.refused(pod.spec.node_name, pod.metadata.namespace, cls, now):
                self.history.note(leaf, now, good=False)
            self.fade(now)

    def settle_durations(self, now: float) -> None:
        """Record the pods that run longer than expected by now."""
        self.promises.settle(now)
        self.estimates.settle(now)

    def fade(self, now: float) -> None:
        """Update the state that depends on time alone: overruns of expected durations, and penalties for refusals."""
        self.promises.settle(now)
        self.estimates.settle(now)
        if not self.penalties and not self._penalised:
            return
        levels = dict(self.penalties.levels(now))
        for node in sorted(self._penalised | levels.keys()):
            if (row := self.nodes.row_of.get(node)) is not None:
                self.nodes.penalise(row, levels.get(node, 0))
        self._penalised = set(levels)
        for node in self.penalties.reopened(now):
            if (row := self.nodes.row_of.get(node)) is not None:
                self._improve(row, even_empty=True)

    def look_at_fabric(self) -> list[str]:
        """Update links; return problems of the labels and links that describe the fabric, each problem once."""
        return [
            *self.fabric.complaints(),
            *self.unread_labels.complaints(),
            *self.look_at_links(),
            *self.hardware.complaints(),
        ]

    def look_at_links(self) -> list[str]:
        """Update links if they are in use or node labels declare uplinks; return their problems, each problem once."""
        links = self.links
        changed = links.take_changed()
        if links.in_use or (changed and any(self._tells_uplinks(level) for level in self.fabric.reader.names)):
            links.settle(self.layout)
        return links.complaints()

    def _keys_read(self, config: SchedulerConfig) -> list[str]:
        """Return the keys of all node labels that the scheduler reads under this configuration."""
        return [GPU_SHARING, *config.gpu_model_labels, *config.bandwidth_labels, *self.fabric.label_keys()]

    def _tells_uplinks(self, level: str) -> bool:
        return bool((self.nodes.label_column(uplink_label(level)) != UNKNOWN).any())

    # ------------------------------------------------------------ nominated pods

    def count(self, row: int, amounts: Amounts, profile: Profile | None, change: int) -> None:
        """Count a nominated pod on a row as if it ran there, or remove it again (``change`` -1).

        This wakes no workload, because it holds only during an attempt and is undone after it.
        """
        seen = self._neighbours_at == self.around.position
        self.nodes.widen()
        self.nodes.charge(row, amounts, sign=change)
        if profile is not None:
            self.pod_index.change(row, profile, change)
        if seen:
            self._neighbours_at = self.around.position

    def count_devices(self, uid: str, allocations: Iterable[Allocation], *, counts: bool) -> None:
        """Count devices of a nominated pod as used, or no longer. This wakes no workload either."""
        changes, row_of = self.inventory.nominate(uid, allocations, counts=counts), self.nodes.row_of
        for name in row_of if changes.all_use else changes.use:
            if (row := row_of.get(name)) is not None:
                self.nodes.capacity_changes.append(row)

    # ------------------------------------------------------------ room reserved for other schedulers

    def keep(self, row: int, amounts: Amounts) -> None:
        """Reserve room on a row for other schedulers, in place of the previous reservation. This wakes no workload."""
        self.nodes.widen()
        self.nodes.charge(row, self.kept.pop(row, ()), sign=-1)
        if amounts:
            self.nodes.charge(row, amounts)
            self.kept[row] = amounts
        self._kept_arrays = None

    @contextmanager
    def nothing_kept(self) -> Iterator[None]:
        """Release all room reserved for other schedulers within the context, for the time of an attempt."""
        if not self.kept:
            yield
            return
        rows, amounts = self._kept()
        self.nodes.charge_all(rows, -amounts)
        try:
            yield
        finally:
            self.nodes.charge_all(rows, amounts)

    def held(self) -> Int64:
        """Return what pods hold of each node (int64[rows, resources]), without room reserved for other schedulers."""
        if not self.kept:
            return self.nodes.requested
        rows, amounts = self._kept()
        held = self.nodes.requested.copy()
        held[rows] -= amounts
        return held

    def overdrawn(self, row: int, amounts: Amounts | None = None) -> list[str]:
        """Return the resources of which pods request more than the node has.

        If ``amounts`` is given, check only its resources. Room reserved for other schedulers does not count.
        """
        return self.nodes.overdrawn(row, amounts, excluded=self.kept.get(row, ()))

    def oversubscribed(self, node: str) -> list[str]:
        """Return the resources of which the pods of a node request more than it has, as far as that can be judged.

        Pods may have a resource by devices that are not listed yet, or that their driver withdrew. So a resource of
        which the node has none does not count while such pods are there.
        """
        row = self.nodes.row_of.get(node)
        over = self.overdrawn(row) if row is not None else []
        if over and any(self.claimed_gpus.stands_for_requests(uid) for uid in self.ledger.on_node(node)):
            find, allocatable = self.nodes.resources.find, self.nodes.allocatable[row]
            return [name for name in over if allocatable[find(name)]]
        return over

    def _kept(self) -> tuple[Int64, Int64]:
        width = self.nodes.requested.shape[1]
        if self._kept_arrays is None or self._kept_arrays[1].shape[1] != width:
            rows = np.fromiter(self.kept, np.int64, len(self.kept))
            amounts = np.zeros((len(rows), width), np.int64)
            for at, kept in enumerate(self.kept.values()):
                for column, amount in kept:
                    amounts[at, column] = amount
            self._kept_arrays = (rows, amounts)
        return self._kept_arrays

    def improve(self, node: str) -> None:
        """Record that a node may now help other workloads."""
        row = self.nodes.row_of.get(node)
        if row is not None:
            self._improve(row)

    # ------------------------------------------------------------ spares

    def keep_spares(self, kept: Iterable[int], given_back: Iterable[int], *, rules: bool) -> None:
        """Keep rows free for recovery, and release others.

        Args:
            kept: rows to keep free.
            given_back: rows to release.
            rules: whether size rules may differ now.
        """
        for row in sorted(kept):
            self.nodes.keep_spare(row, True)
        for row in sorted(given_back):
            self.nodes.keep_spare(row, False)
            self._improve(row, even_empty=True)
        if rules:
            self._change_rules()

    # ------------------------------------------------------------ devices

    def settle_devices(self) -> DeviceChanges:
        """Apply changes of devices to the nodes that they concern; return the changes."""
        changes, row_of = self.inventory.take_changes(), self.nodes.row_of
        self.backed.note(row_of if changes.all_devices or changes.all_use else (*changes.devices, *changes.use))
        for recounted in self.backed.settle():
            self._improve(recounted, even_empty=True)
            self._rules_changed = True
        self._count_offered()
        shared = self.inventory.shared_slices_version
        reads_all, self._shared_slices_read = shared != self._shared_slices_read, shared  # classes are no hardware
        for name in row_of if changes.all_devices else changes.devices:
            if (row := row_of.get(name)) is not None:
                if reads_all or name in changes.devices:
                    self._read_hardware(row)
                self.nodes.facts_changes.append(row)
                self._improve(row, even_empty=True)
                self._rules_changed = True
        for name in row_of if changes.all_use else changes.use:
            if (row := row_of.get(name)) is not None:
                self.nodes.capacity_changes.append(row)
                self._improve(row)
        self.improvements += bool(changes.allocations)
        return changes

    def settle_gpu_tables(self) -> None:
        """Let the choice of GPUs follow what pods usually ask for in this cluster."""
        sets = self.around.gpu_sets
        if sets is not None and sets.tables.settle():
            for row in sets.rows_by_index().tolist():
                self.nodes.facts_changes.append(row)
                self.nodes.capacity_changes.append(row)

    def put_gpu_tables(self, request: TableRequest) -> None:
        """Let tables of GPUs decide that were computed elsewhere."""
        sets = self.around.gpu_sets
        if sets is None or (hardware := sets.tables.hardware_of(request)) is None or not sets.tables.put(request):
            return
        for row in sets.rows_with(hardware).tolist():
            self.nodes.facts_changes.append(row)
            self.nodes.capacity_changes.append(row)
            self._improve(row, even_empty=True)

    def settle_numa_zones(self, now: float) -> list[str]:
        """Apply changes of NUMA nodes to the nodes that they concern; return problems of their reports, each once."""
        zones = self.numa_zones
        zones.settle(now)
        for name, machine_changed in zones.take_changes().items():
            if (row := self.nodes.row_of.get(name)) is not None:
                (self.nodes.facts_changes if machine_changed else self.nodes.capacity_changes).append(row)
                self._rules_changed |= machine_changed
                self._improve(row, even_empty=machine_changed)
        return zones.take_problems()

    # ------------------------------------------------------------ improvements

    def take_neighbours(self) -> NeighbourChanges:
        """Return the pods that came or went since the last call.

        Anything may have changed if a pod with anti-affinity is in other domains now, as its node's labels changed.
        """
        before, self._neighbours_at = self._neighbours_at, self.around.position
        moved, self._repelling_moved = self._repelling_moved, False
        fresh = self.pod_index.since(before[0])
        if fresh is None or moved or before[1] != self._neighbours_at[1]:
            return NeighbourChanges(self.around, (), anything=True)
        return NeighbourChanges(self.around, fresh)

    def improve_all(self) -> None:
        """Record that any placement may have become possible, because the configuration changed."""
        self._rules_changed = True
        for row in self.nodes.row_of.values():
            self._improve(row, even_empty=True)

    @property
    def improved(self) -> bool:
        """Whether `take_improved` has something to return."""
        return bool(self._improved) or self._rules_changed or self.nodes.daemon_changes.is_new

    def take_improved(self) -> tuple[Sequence[int], Set[int], bool]:
        """Return what changed since the last call.

        Returns:
            The rows that gained room or changed, and whether size rules may differ now. Between them those of the
            rows that may hold pods now which they could not hold even if empty. DaemonSet pods that go have a list of
            their own: `DaemonChanges`.
        """
        rows, even_empty, changed = sorted(self._improved), self._changed_empty, self._rules_changed
        self._improved.clear()
        self._changed_empty = set()
        self._rules_changed = False
        return rows, even_empty, changed

    def _change_rules(self) -> None:
        # Less room may help, too: a size rule that required too few leaves may now allow more.
        self.improvements += 1
        self._rules_changed = True

    def _read_hardware(self, row: int) -> None:
        if self.around.devices is not None:
            self.hardware.put(row, self.around.devices)

    def _improve(self, row: int, *, even_empty: bool = False) -> None:
        self.improvements += 1
        self._improved.add(row)
        if even_empty:
            self._changed_empty.add(row)
