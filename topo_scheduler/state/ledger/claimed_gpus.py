"""GPUs that nodes offer in slices, and those that namespaces hold by ResourceClaims.

They are in the same accounts as the GPUs that pods request. A claim counts once, for its own namespace, however many
pods share it: from the decision that chose its devices until Kubernetes has deallocated it. A claim that stands for
extended resources of a pod counts with the requests of that pod, as far as they go: see `stand_for_requests`.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Final

from topo_scheduler.api.devices import Allocation, ResourceClaim
from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.state.devices.claim_writes import ClaimChoice
from topo_scheduler.state.devices.extended_resources import extended_claim_owner
from topo_scheduler.state.devices.gpus_of_devices import gpus_of_device
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory
from topo_scheduler.state.devices.pools import DeviceId, DeviceKind, Number, PoolId, PublishedDevice, Slice
from topo_scheduler.state.ledger.namespace_usage import Accounts
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, Amounts

MAX_SHAPES: Final = 4096
"""Shapes of slices, and kinds of devices, of which it is kept how many GPUs they are."""
ANYWHERE: Final = -1
"""The row of devices that are not those of one node."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """The claim that stands for extended resources of a pod."""

    key: ClaimKey
    gpus: int
    """What the pod is charged for its requests, in thousandths of GPUs."""
    decided: bool
    """Whether this process decided so; otherwise only the status of the pod says it."""


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
        self._of_kind: dict[tuple[DeviceKind, tuple[int, ...]], int] = {}
        """Thousandths of GPUs that a device of a kind is, in a pool whose slices have these shapes."""
        self._requested: dict[ClaimKey, str] = {}
        """Claims that stand for requests, with their pods."""
        self._of_pod: dict[str, _Standing] = {}
        inventory.listeners.append(self)

    def stand_for_requests(self, uid: str, key: ClaimKey | None, amounts: Amounts) -> None:
        """Record which claim this process chose for extended resources of a pod, None for no claim.

        The pod is charged for ``amounts``. What the claim has beyond them counts with the claim.
        """
        self.forget_requests(uid)
        if key is not None:
            self._stand(uid, _Standing(key, gpus_in(amounts), decided=True))

    def status_names(self, uid: str, key: ClaimKey, amounts: Amounts, used: Container[ClaimKey]) -> None:
        """Record which claim the status of a bound pod names for its extended resources.

        Tenants may write the status. So it counts only if the claim says that it was made for the pod. A claim that
        the specification of the pod names does not count.

        Args:
            uid: the pod.
            key: the claim.
            amounts: what the pod is charged for its requests.
            used: the claims that the specification of the pod names.
        """
        known = self._of_pod.get(uid)
        if key in used:
            return
        decided = known is not None and known.decided and known.key == key
        self.forget_requests(uid)
        self._stand(uid, _Standing(key, gpus_in(amounts), decided))

    def _stand(self, uid: str, standing: _Standing) -> None:
        self._of_pod[uid] = standing
        self._requested[standing.key] = uid
        self.claim_changed(standing.key)

    def forget_requests(self, uid: str) -> None:
        """Record that a pod is not charged for its requests any more: its claim counts until it is deallocated."""
        standing = self._of_pod.pop(uid, None)
        if standing is not None and self._requested.get(standing.key) == uid:
            del self._requested[standing.key]
            self.claim_changed(standing.key)

    def stands_for_requests(self, uid: str) -> bool:
        """Return whether a claim stands for extended resources of a pod; a claim that is not read yet may do so."""
        standing = self._of_pod.get(uid)
        return standing is not None and self._is_made_for(uid, standing, self._inventory.claims.get(standing.key))

    @staticmethod
    def _is_made_for(uid: str, standing: _Standing, claim: ResourceClaim | None) -> bool:
        return standing.decided or claim is None or extended_claim_owner(claim) == uid

    def gpus_of(self, allocation: Allocation) -> int:
        """Return how many GPUs an allocation has, in thousandths."""
        return sum(starmap(self._gpus_of_device, self._inventory.parts_of_allocation(allocation)))

    def _gpus_of_device(
        self, id_: DeviceId, device: PublishedDevice | None, consumed: Mapping[str, Number] | None
    ) -> int:
        shapes = self._inventory.shapes_of_pool(id_[:2]) if device is not None and consumed is None else ()
        known = self._of_kind.get((device.kind, shapes)) if device is not None and shapes else None
        if known is not None:
            return known
        counters = self._inventory.counters_of(device) if device is not None else {}
        gpus = gpus_of_device(id_[0], device, consumed, counters)
        if device is not None and shapes:
            if len(self._of_kind) >= MAX_SHAPES:
                self._of_kind.clear()
            self._of_kind[device.kind, shapes] = gpus
        return gpus

    def beyond_requests(self, amounts: Amounts, choices: Iterable[ClaimChoice]) -> int:
        """Return how many GPUs new allocations for a pod have beyond its requests, in thousandths.

        Args:
            amounts: what the pod requests.
            choices: what was chosen for its claims.
        """
        new = [(choice.allocation, choice.made is not None) for choice in choices if choice.allocation is not None]
        other = sum(self.gpus_of(allocation) for allocation, is_made in new if not is_made)
        return other + self.beyond(amounts, [allocation for allocation, is_made in new if is_made])

    def beyond(self, amounts: Amounts, allocations: Iterable[Allocation]) -> int:
        """Return how many GPUs allocations have beyond what their pod requests, in thousandths."""
        return max(0, sum(map(self.gpus_of, allocations)) - gpus_in(amounts))

    def of_pod(self, uid: str) -> int:
        """Return how many GPUs the claims of a pod have, in thousandths; its part of those that it shares."""
        consumers, known = self._inventory.consumers, self._counted
        keys = [key for key in consumers.claims_of(uid) if key in known]
        return sum(gpus_in(known[key][2]) // consumers.pods_of(key) for key in keys)

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
        return WHOLE_GPU * len(frozenset().union(*(sets for sets, _ in offers))) + sum(amount for _, amount in offers)

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
        gpus = max(0, self.gpus_of(allocation) - self._requested_of(key)) if allocation is not None else 0
        node = _node_of(allocation) if allocation is not None else ""
        row = self._nodes.row_of.get(node, ANYWHERE)
        both = ((GPU, gpus // WHOLE_GPU), (GPU_SHARE, gpus % WHOLE_GPU))
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

    def _requested_of(self, key: ClaimKey) -> int:
        """Return how many GPUs of a claim count with the requests of a pod that uses it, in thousandths.

        Another claim may have got the name of the one that stands for the requests.
        """
        uid = self._requested.get(self._inventory.deleted_claims.original(key))
        if uid is None or uid not in self._inventory.pods_of(key):
            return 0
        standing = self._of_pod[uid]
        return standing.gpus if self._is_made_for(uid, standing, self._inventory.claims.get(key)) else 0

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


def gpus_in(amounts: Amounts) -> int:
    """Return how many GPUs amounts have, whole ones and shares, in thousandths."""
    held: Mapping[int, int] = dict(amounts)
    return WHOLE_GPU * held.get(GPU, 0) + held.get(GPU_SHARE, 0)
