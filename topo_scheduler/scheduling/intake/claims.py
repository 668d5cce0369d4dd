"""How far the scheduler trusts annotations on bound pods: it writes them, and tenants can edit or forge them.

What this process decided itself is known and stays, whatever the annotations become. What it finds on a pod that it did
not place, for example after a restart, is a claim. A claim counts only on a pod of this scheduler. It counts only where
the namespace could have got the same by requesting it, and never for more than the node has.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from topo_scheduler.api.annotations import (
    CHARGED_FRACTION,
    CHARGED_GPUS,
    GPU_INDEX,
    MAX_GPUS,
    PREDICTED_GPUS,
    RESERVED_BANDWIDTH,
    written_number,
)
from topo_scheduler.api.fractions import written_indexes, written_share
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.sharing import matches
from topo_scheduler.scheduling.intake.device_claims import named_claims
from topo_scheduler.scheduling.intake.gpu_annotations import holds_devices
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.pod_claims import devices_of
from topo_scheduler.state.ledger.ledger import LedgerEntry
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import (
    GPU,
    GPU_SHARE,
    MAX_CHARGE,
    Amounts,
    KnownResources,
    NoColumnError,
    ReadableResources,
    ResourceTable,
)
from topo_scheduler.state.pods.requests import pod_amounts

_BY_ANNOTATION = (GPU, GPU_SHARE)


MAX_UNCOUNTED_NAMES: Final = 8
"""Resource names of one bound pod, offered by no node and without a column, whose amounts are kept."""


class UncountedUse(NamedTuple):
    """What a bound pod requests of resources without a column, by name. Its use of these is not counted."""

    node: str
    amounts: Mapping[str, int]


class GpuClaims:
    """Resources of bound pods."""

    def __init__(
        self, scheduler_name: str, nodes: NodeTable, resources: ResourceTable, inventory: DeviceInventory
    ) -> None:
        self.permitted: Sequence[str] = ()
        """Names or patterns of namespaces that may have GPUs by annotation only, and bandwidth without GPUs."""
        self._scheduler_name = scheduler_name
        self._nodes = nodes
        self._resources = resources
        self._inventory = inventory
        self._uncounted: dict[str, UncountedUse] = {}
        """Use by uid of bound pods that request resources which no node offers."""

    def permit(self, namespaces: Sequence[str]) -> bool:
        """Permit GPUs by annotation only to these namespaces; return whether others were permitted before."""
        before, self.permitted = self.permitted, namespaces
        return before != namespaces

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._uncounted.pop(uid, None)

    def take_offered(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Yield uid, node and amounts by column of bound pods whose uncounted resources nodes offer now."""
        for uid, use in list(self._uncounted.items()):
            columns = {name: self._resources.find(name) for name in use.amounts}
            if offered := {column: use.amounts[name] for name, column in columns.items() if column >= 0}:
                left = {name: amount for name, amount in use.amounts.items() if columns[name] < 0}
                self._keep_uncounted(uid, UncountedUse(use.node, left))
                yield uid, use.node, offered

    def _keep_uncounted(self, uid: str, use: UncountedUse) -> None:
        if use.amounts:
            self._uncounted[uid] = use
        else:
            self._uncounted.pop(uid, None)

    def _uncounted_of(self, pod: Pod) -> UncountedUse:
        """Return what a bound pod requests of the first resources that have no column."""
        spec = pod.spec
        containers = (*spec.containers, *spec.init_containers)
        requested = (name for container in containers for name in container.resources.requests)
        unknown = (name for name in chain(requested, spec.overhead) if not self._resources.knows(name))
        table = ResourceTable(())
        names = {table.column(name): name for name in islice(dict.fromkeys(unknown), MAX_UNCOUNTED_NAMES)}
        amounts = pod_amounts(ReadableResources(table), pod)
        kept = {name: min(amounts[column], MAX_CHARGE) for column, name in names.items() if amounts.get(column)}
        return UncountedUse(spec.node_name, kept)

    def may_be_ours(self, pod: Pod) -> bool:
        """Return whether this scheduler may have placed a bound pod: the pod names it as its scheduler."""
        return pod.spec.scheduler_name == self._scheduler_name

    def may_reserve_bandwidth(self, pod: Pod, amounts: Amounts, *, believed: bool = True) -> bool:
        """Return whether this scheduler may have reserved bandwidth for a bound pod.

        Args:
            pod: the pod.
            amounts: what it holds.
            believed: whether its claims count. They do not for pods that users created with their node.
        """
        if RESERVED_BANDWIDTH not in pod.metadata.annotations or not self.may_be_ours(pod):
            return False
        devices = holds_devices(amounts, self._resources) or (believed and self._may_have_claimed(pod))
        return devices or matches(pod.metadata.namespace, self.permitted)

    def _may_have_claimed(self, pod: Pod) -> bool:
        """Return whether a bound pod may have devices by claims: not if all of them are known to ask for none."""
        if pod.status.extended_resource_claim_status is not None:
            return True
        claims = [self._inventory.claims.get(key) for key in named_claims(pod)]
        return any(claim is None or devices_of(claim.spec) for claim in claims)

    def amounts(self, pod: Pod, known: LedgerEntry | None = None) -> dict[int, int]:
        """Return what a bound pod holds by resource column, including GPUs that none of its limits names.

        Args:
            pod: the pod.
            known: what the ledger holds for it.

        Raises:
            QuantityError: a request that can't be read.
        """
        if self._uncounted:
            self._uncounted.pop(pod.metadata.uid, None)
        try:
            amounts = pod_amounts(self._resources, pod)
        except NoColumnError:
            self._keep_uncounted(pod.metadata.uid, self._uncounted_of(pod))
            amounts = pod_amounts(KnownResources(self._resources), pod)
        return self._with_annotated(pod, amounts, known)

    def readable_amounts(self, pod: Pod, known: LedgerEntry | None = None) -> dict[int, int]:
        """Return the same of the requests that can be read, for a pod of which others can't.

        Users can put pods on nodes themselves. A kubelet leaves out extended resources that its node does not have,
        whatever their amount, and the pod runs with its GPUs.
        """
        return self._with_annotated(pod, pod_amounts(ReadableResources(self._resources), pod), known)

    def _with_annotated(self, pod: Pod, amounts: dict[int, int], known: LedgerEntry | None) -> dict[int, int]:
        """Return what a pod is charged: its amounts, and the GPUs that it has by its annotations."""
        amounts = {column: min(amount, MAX_CHARGE) for column, amount in amounts.items()}
        if amounts.get(GPU) or not self.may_be_ours(pod):
            return amounts
        if known is not None and known.node == pod.spec.node_name:
            claimed = _claimed(pod) if known.assumed else None
            for column in _BY_ANNOTATION:
                held = known.amount(column)
                # Before the watch reported this bind, another scheduler may have bound the pod, for less.
                held = held if claimed is None else min(held, claimed.get(column, 0))
                if held:
                    amounts[column] = held
        elif (claimed := _claimed(pod)) and matches(pod.metadata.namespace, self.permitted):
            for column, amount in claimed.items():
                amounts[column] = self._at_most(pod.spec.node_name, column, amount)
        return amounts

    def devices(self, pod: Pod, amounts: dict[int, int], known: LedgerEntry | None = None) -> tuple[int, ...]:
        """Return the indexes of the GPUs that a bound pod holds, given its amounts.

        If its annotation lists more GPUs than it holds, the result is empty.
        """
        if not self.may_be_ours(pod):
            return ()
        same_node = known is not None and known.node == pod.spec.node_name
        if same_node and known is not None and not known.assumed:
            return known.devices
        annotations = pod.metadata.annotations
        indexes = written_indexes(annotations, GPU_INDEX) or written_indexes(annotations, PREDICTED_GPUS)
        if same_node and known is not None and indexes:
            return known.devices
        holds = amounts.get(GPU, 0) or (1 if amounts.get(GPU_SHARE) else 0)
        return indexes if len(indexes) <= holds else ()

    def _at_most(self, node: str, column: int, amount: int) -> int:
        row = self._nodes.row_of.get(node)
        if column != GPU or row is None:
            return amount
        return min(amount, int(self._nodes.allocatable[row, column]))


def _claimed(pod: Pod) -> dict[int, int]:
    """Return what is charged to a pod beyond its requests by its annotations, by resource column."""
    annotations = pod.metadata.annotations
    claimed: dict[int, int] = {}
    if (gpus := written_number(annotations, CHARGED_GPUS)) and gpus <= MAX_GPUS:
        claimed[GPU] = gpus
    if share := written_share(annotations, CHARGED_FRACTION):
        claimed[GPU_SHARE] = share
    return claimed
