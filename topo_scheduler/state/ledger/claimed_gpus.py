"""GPUs that nodes offer in slices, and those that namespaces hold by ResourceClaims.

They are in the same accounts as the GPUs that pods request. A claim counts once, for its own namespace, however many
pods share it: from the decision that chose its devices until Kubernetes has deallocated it. A claim that stands for
extended resources of a pod counts with the requests of that pod, not here: see `stand_for_requests`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from topo_scheduler.api.devices import Allocation
from topo_scheduler.state.devices.gpus_of_devices import WHOLE, gpus_of_device
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory
from topo_scheduler.state.devices.pools import PoolId, Slice
from topo_scheduler.state.ledger.namespace_usage import Accounts
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, Amounts

MAX_SHAPES: Final = 4096
"""Shapes of slices of which it is kept what they offer."""
ANYWHERE: Final = -1
"""The row of devices that are not those of one node."""


class ClaimedGpus:
    """The GPUs of allocated claims."""

    def __init__(self, inventory: DeviceInventory, accounts: Accounts, nodes: NodeTable) -> None:
        self._inventory = inventory
        self._accounts = accounts
        self._nodes = nodes
        self._counted: dict[ClaimKey, tuple[int, str, Amounts]] = {}
        """Row, node and amounts of each claim."""
        self._of_node: dict[str, dict[ClaimKey, None]] = {}
        self._offered: dict[PoolId, int] = {}
        self._of_shape: dict[int, tuple[frozenset[str], int]] = {}
        """What slices offer, by their shape."""
        self._requested: dict[ClaimKey, str] = {}
        """Claims that stand for requests, with their pods."""
        self._of_pod: dict[str, tuple[ClaimKey, ...]] = {}
        inventory.listeners.append(self)

    def stand_for_requests(self, uid: str, keys: Iterable[ClaimKey]) -> None:
        """Record which claims stand for extended resources of a pod that is charged for its requests.

        The decision says so, and then the status of the pod. What the claim itself says does not count: tenants write
        it.
        """
        self.forget_requests(uid)
        if known := tuple(keys):
            self._of_pod[uid] = known
            for key in known:
                self._requested[key] = uid
                self.claim_changed(key)

    def forget_requests(self, uid: str) -> None:
        """Record that a pod is not charged for its requests any more: its claims count until they are deallocated."""
        for key in self._of_pod.pop(uid, ()):
            if self._requested.get(key) == uid:
                del self._requested[key]
                self.claim_changed(key)

    def stands_for_requests(self, uid: str) -> bool:
        """Return whether a claim stands for extended resources of a pod, as the decision or the pod's status says."""
        return uid in self._of_pod

    def gpus_of(self, allocation: Allocation) -> int:
        """Return how many GPUs an allocation has, in thousandths."""
        return sum(
            gpus_of_device(id_[0], self._inventory.device(id_), part, self._inventory.counters_of(id_[:2]))
            for id_, part in self._inventory.devices_of_allocation(allocation).items()
        )

    def of_pod(self, uid: str) -> int:
        """Return how many GPUs the claims of a pod have, in thousandths; its part of those that it shares."""
        consumers, known = self._inventory.consumers, self._counted
        keys = [key for key in consumers.claims_of(uid) if key in known]
        return sum(_total(known[key][2]) // consumers.pods_of(key) for key in keys)

    def on_node(self, name: str) -> Iterable[tuple[str, Amounts]]:
        """Yield namespace and amounts of each claim with devices of a node."""
        for key in self._of_node.get(name, ()):
            yield key[0], self._counted[key][2]

    def node_changed(self, name: str) -> None:
        """Count the claims of a node that appeared, or that is gone."""
        for key in list(self._of_node.get(name, ())):
            self.claim_changed(key)

    def pool_changed(self, pool: PoolId) -> None:
        """Count again what a pool offers, and the claims with its devices."""
        offered = self._offered_by(pool)
        if offered != self._offered.get(pool, 0):
            self._accounts.offer(offered - self._offered.pop(pool, 0))
            if offered:
                self._offered[pool] = offered
        for key in self._inventory.claims_of_pool(pool):
            self.claim_changed(key)

    def _offered_by(self, pool: PoolId) -> int:
        """Return how many GPUs a pool has, in thousandths: each set of counters that GPUs consume is one GPU."""
        slices = self._inventory.slices_of_pool(pool)
        newest = max((item.generation for item in slices), default=0)
        offers = [self._offer_of(item) for item in slices if item.generation == newest]
        return WHOLE * len(frozenset().union(*(sets for sets, _ in offers))) + sum(amount for _, amount in offers)

    def _offer_of(self, item: Slice) -> tuple[frozenset[str], int]:
        """Return the sets of counters that GPUs of a slice consume, and what its other GPUs are in thousandths."""
        known = self._of_shape.get(item.shape)
        if known is not None:
            return known
        gpus = [(device, gpus_of_device(item.pool[0], device, None, {})) for device in item.devices]
        sets = frozenset(set_ for device, amount in gpus if amount for set_ in device.counter_sets)
        offer = sets, sum(amount for device, amount in gpus if not device.counter_sets)
        if item.shape:
            if len(self._of_shape) >= MAX_SHAPES:
                self._of_shape.clear()
            self._of_shape[item.shape] = offer
        return offer

    def claim_changed(self, key: ClaimKey) -> None:
        """Bring the accounts in line with a claim."""
        allocation = self._inventory.allocation_of(key)
        gpus = self.gpus_of(allocation) if allocation is not None and not self._is_requested(key) else 0
        node = _node_of(allocation) if allocation is not None else ""
        row = self._nodes.row_of.get(node, ANYWHERE)
        both = ((GPU, gpus // WHOLE), (GPU_SHARE, gpus % WHOLE))
        amounts = tuple((column, amount) for column, amount in both if amount)
        known = self._counted.get(key)
        if known == (row, node, amounts):
            return
        if known is not None:
            del self._counted[key]
            self._of_node[known[1]].pop(key)
            if not self._of_node[known[1]]:
                del self._of_node[known[1]]
            self._charge(key, known, -1)
        if gpus:
            self._counted[key] = row, node, amounts
            self._of_node.setdefault(node, {})[key] = None
            self._charge(key, self._counted[key], 1)

    def _is_requested(self, key: ClaimKey) -> bool:
        """Return whether a claim stands for requests of a pod that uses it; another claim may have got its name."""
        uid = self._requested.get(self._inventory.deleted_claims.original(key))
        return uid is not None and uid in self._inventory.pods_of(key)

    def _charge(self, key: ClaimKey, counted: tuple[int, str, Amounts], sign: int) -> None:
        row, node, amounts = counted
        if row >= 0 or not node:  # as with pods: nothing counts while its node is not there
            self._accounts.change(row, key[0], amounts, sign)


def _node_of(allocation: Allocation) -> str:
    """Return the node of devices; empty if more nodes can use them."""
    terms = allocation.node_selector.node_selector_terms if allocation.node_selector is not None else ()
    if len(terms) != 1 or len(terms[0].match_fields) != 1:
        return ""
    field = terms[0].match_fields[0]
    named = field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1
    return field.values[0] if named else ""


def _total(amounts: Amounts) -> int:
    held: Mapping[int, int] = dict(amounts)
    return WHOLE * held.get(GPU, 0) + held.get(GPU_SHARE, 0)
