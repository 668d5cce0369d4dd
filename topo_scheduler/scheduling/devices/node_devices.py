"""How many pods of a class each node has devices for.

Nothing of a node is computed again until its slices, the use of its devices, or a DeviceClass changes.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.api.selectors import NodeSelectorTerm
from topo_scheduler.scheduling.devices.allocator import DeviceCandidates
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, ClaimQueryError, claim_query
from topo_scheduler.scheduling.devices.device_order import NO_LOSS, CapacityLoss, least_lost
from topo_scheduler.scheduling.devices.fit_signature import hardware_signature, use_signature
from topo_scheduler.scheduling.devices.known_choices import Granted, KnownChoices
from topo_scheduler.scheduling.devices.pod_count import count_pods, used_of
from topo_scheduler.scheduling.devices.selectors import Selectors
from topo_scheduler.scheduling.devices.shortage import shortage
from topo_scheduler.state.devices.inventory import DeviceInventory, DevicesInUse
from topo_scheduler.state.devices.overdrawn import is_overdrawn
from topo_scheduler.state.devices.pod_claims import PodClaim, without
from topo_scheduler.state.devices.pool_layout import layout_of
from topo_scheduler.state.devices.pools import NodeScope, Pool, PoolLayout, gather_pools, layout_key
from topo_scheduler.state.devices.slice_shape import is_identity
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.classes import NO_LIMIT

if TYPE_CHECKING:
    from topo_scheduler.scheduling.devices.close_gpus import CloseGpus

MIN_CLAIM_SETS: Final = 8
MAX_CLAIM_SETS: Final = 256
"""Sets of claims for which the fits on nodes are kept; those used longest ago are dropped first."""
MAX_NODE_FITS: Final = 200_000
"""Fits on nodes that are kept for all sets of claims together: there are fewer sets in large clusters."""
MAX_KNOWN_FITS: Final = 4096
"""Fits of one set of claims that are kept for nodes that are alike, and as many choices of devices."""
MAX_KNOWN_FITS_IN_ALL: Final = 32_768
"""The same of all sets of claims together, of which each has an equal share: tenants can bring about many uses."""
MAX_NODE_CANDIDATES: Final = 256
"""Sets of claims and nodes for which the matching devices are kept: pods are mostly placed on the same few nodes."""
MAX_VARIANTS: Final = 1024
"""Sets of claims that are kept as they apply to nodes which offer some of the extended resources themselves."""
MAX_LAYOUTS: Final = 256
"""Layouts of pools that are kept to be shared; those that pools have stay if the table is cleared."""

PodClaims = tuple[PodClaim, ...]


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Pods that a node has devices for: now, and if all its devices were free.

    ``elsewhere``: an allocated claim has its devices on other nodes. ``reason``: why the search was given up.
    ``shortage``: why no device can serve a request, where that is known. ``closeness``: why no devices are as close as
    the pod requires, although enough are free; ``most_close``: how many of the free ones are, at most. ``lost``: the
    capacity that a GPU of the node loses with one pod, if the pod asks for one partition.
    """

    now: int
    empty: int
    elsewhere: bool = False
    reason: str = ""
    shortage: str = ""
    closeness: str = ""
    most_close: int = 0
    lost: CapacityLoss = NO_LOSS


PROMISED: Final = "the devices of a ResourceClaim that it shares are for a pod that has waited for them"
_UNLIMITED: Final = NodeFit(NO_LIMIT, NO_LIMIT)


@dataclass(slots=True)
class _NodeState:
    """What was computed for a node: of which slices and which use of devices, and the number of its hardware."""

    slices: object
    use: object
    hardware: int
    fit: NodeFit


@dataclass(slots=True)
class _Fits:
    """Fits of one set of claims: by node, and by hardware and use for all nodes that are alike.

    ``empty``: how many pods fit if all devices are free, by hardware. ``choices``: devices that were chosen, by
    hardware and use.
    ``queries``: what the claims ask for; nothing for a claim that can't be allocated, as ``wrong`` says by number.
    ``of_shape``: the number of the hardware by shape, unless the claims read what ``identifies`` devices.
    ``close_by_node``, ``close_known`` and ``close_empty``: the same for pods that require close GPUs.
    """

    queries: list[ClaimQuery]
    wrong: dict[int, ClaimQueryError]
    classes_version: int
    by_node: dict[str, _NodeState] = field(default_factory=dict)
    hardware: dict[object, int] = field(default_factory=dict)
    of_shape: dict[object, int] = field(default_factory=dict)
    identifies: bool = False
    known: dict[object, NodeFit] = field(default_factory=dict)
    empty: dict[object, int] = field(default_factory=dict)
    choices: KnownChoices = field(default_factory=KnownChoices)
    close_by_node: dict[str, tuple[object, NodeFit]] = field(default_factory=dict)
    close_known: dict[object, NodeFit] = field(default_factory=dict)
    close_empty: dict[object, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What claims ask for on a node, apart from those that are allocated.

    ``once``: claims that pods share. ``each``: claims that each pod has. ``missing``: the numbers of all these.
    ``allocations``: those of the others.
    """

    once: list[ClaimQuery]
    each: list[ClaimQuery]
    missing: tuple[int, ...]
    allocations: list[Allocation]


class _KnownCandidates:
    """The devices of some nodes that match some claims."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[PodClaims, str], tuple[object, object, DeviceCandidates]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: they evaluate expressions, which can't be written to a checkpoint."""
        return {"_known": OrderedDict()}

    def get(self, key: tuple[PodClaims, str], version: object, fits: _Fits) -> DeviceCandidates | None:
        """Return what is known for a set of claims on a node, if neither has changed."""
        known = self._known.get(key)
        if known is None or known[0] != version or known[1] is not fits.queries:
            return None
        self._known.move_to_end(key)
        return known[2]

    def put(self, key: tuple[PodClaims, str], version: object, fits: _Fits, candidates: DeviceCandidates) -> None:
        """Keep the matching devices of a node; those used longest ago are dropped."""
        self._known[key] = version, fits.queries, candidates
        self._known.move_to_end(key)
        if len(self._known) > MAX_NODE_CANDIDATES:
            self._known.popitem(last=False)


class NodeDevices:
    """Devices of nodes, for the claims of pods."""

    def __init__(
        self, nodes: NodeTable, inventory: DeviceInventory, selects: Callable[[NodeSelectorTerm, int], bool]
    ) -> None:
        """``selects`` returns whether a node selector term matches a row."""
        self.inventory = inventory
        self._selects = selects
        self.selectors = Selectors()
        self._nodes = nodes
        self._fits: OrderedDict[PodClaims, _Fits] = OrderedDict()
        self._original_fits: Mapping[PodClaims, _Fits] = {}
        """On a trial: the fits without it. What they have found for nodes that are alike still holds."""
        self._pools: dict[str, tuple[object, list[Pool]]] = {}
        self._layouts: dict[object, PoolLayout] = {}
        self._known_candidates = _KnownCandidates()
        self._variants: dict[tuple[PodClaims, frozenset[str]], PodClaims] = {}

    def on_trial(self, inventory: DeviceInventory) -> "NodeDevices":
        """Return the same for a copy of the inventory on which other claims are allocated."""
        other = copy(self)
        other.inventory = inventory
        other._fits, other._original_fits = OrderedDict(), self._fits
        return other

    # ------------------------------------------------------------ facts

    @property
    def node_names(self) -> Sequence[str]:
        """Names of nodes by row."""
        return self._nodes.names

    def pools_of(self, row: int) -> list[Pool]:
        """Return the pools that a node can use."""
        node, version = self._nodes.names[row], self._slices_version(row)
        known = self._pools.get(node)
        if known is None or known[0] != version:
            if len(self._pools) > 2 * len(self._nodes) + 64:
                self._pools.clear()
            slices, of_pool = self.inventory.slices_of(node), self.inventory.slices_of_pool
            pools = gather_pools(slices, of_pool, lambda scope: self._is_in(scope, row), self._layouts)
            known = self._pools[node] = version, list(map(self._laid_out, pools))
        return known[1]

    def _laid_out(self, pool: Pool) -> Pool:
        """Return a pool with what it shares with pools of identical hardware."""
        if pool.layout is not None or not pool.shapes:
            return pool
        key = layout_key(pool.shapes, pool.devices)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = layout_of(pool)
        return replace(pool, counters=layout.counters, layout=layout)

    def _slices_version(self, row: int) -> object:
        nodes = self._nodes
        return self.inventory.slices_version(nodes.names[row]), nodes.uids[row], nodes.labels[row]

    def _is_in(self, scope: NodeScope, row: int) -> bool:
        if scope.node:
            return scope.node == self._nodes.names[row]
        if scope.all_nodes:
            return True
        terms = scope.selector.node_selector_terms if scope.selector is not None else ()
        return any(self._selects(term, row) for term in terms)

    def is_allowed(self, allocation: Allocation, row: int) -> bool:
        """Return whether pods on a node can use the devices of an allocation."""
        selector = allocation.node_selector
        return selector is None or self._is_in(NodeScope(selector=selector), row)

    def _is_promised(self, allocation: Allocation) -> bool:
        """Return whether pods that are nominated, or whose nodes are reserved, wait for devices of an allocation.

        Kubernetes deallocates a claim only once no pod uses it: another pod that shares it would hold that up.
        """
        inventory = self.inventory
        if not inventory.nominated:
            return False
        devices = inventory.devices_of_allocation(allocation)
        slices = (item for pool in {device[:2] for device in devices} for item in inventory.slices_of_pool(pool))
        charge(1 + len(devices) * sum(len(item.devices) for item in slices))
        return any(
            (part is None and device in inventory.nominated) or is_overdrawn(inventory, device)
            for device, part in devices.items()
        )

    def allocations_of(self, claims: PodClaims) -> tuple[Allocation | None, ...]:
        """Return the allocations of claims that other pods may use too."""
        return tuple(self.inventory.allocation_of(claim.key) for claim in claims if claim.key is not None)

    def query(self, claim: PodClaim) -> ClaimQuery:
        """Return what a claim asks for.

        Raises:
            ClaimQueryError: it can't be allocated as it is.
        """
        try:
            return claim_query(claim.specification, self.inventory.classes)
        except QuantityError as error:
            raise ClaimQueryError(str(error)) from error

    def claims_at(self, claims: PodClaims, row: int) -> PodClaims:
        """Return the claims that apply to a node: none for extended resources that it offers itself."""
        if not any(claim.resources for claim in claims):
            return claims
        resources = {resource for claim in claims for resource in claim.resources}
        offered = frozenset(resource for resource in resources if self._nodes.offers(row, resource))
        if not offered:
            return claims
        variant = self._variants.get((claims, offered))
        if variant is None:
            if len(self._variants) >= MAX_VARIANTS:
                self._variants.clear()
            kept = (without(claim, offered) if claim.resources else claim for claim in claims)
            variant = self._variants[claims, offered] = tuple(claim for claim in kept if claim is not None)
        return variant

    # ------------------------------------------------------------ fits

    def fit(self, claims: PodClaims, row: int, close: "CloseGpus | None" = None) -> NodeFit:
        """Return how many pods with these claims fit on a node.

        Args:
            claims: the claims of each pod.
            row: the node.
            close: how close the GPUs of each pod must be there; None if that does not matter.

        Raises:
            ClaimQueryError: a claim can't be allocated on any node.
            OverBudgetError: the search takes too long.
        """
        claims = self.claims_at(claims, row)
        if not claims:
            return _UNLIMITED
        fits = self._fits_of(claims)
        if fits.wrong:
            self._check(claims, fits)
            if refused := [fits.wrong[number] for number, _ in _extended(claims) if number in fits.wrong]:
                return NodeFit(0, 0, reason=str(refused[0]))
        node, slices = self._nodes.names[row], self._slices_version(row)
        use_version = (self.inventory.use_version(node), self.allocations_of(claims))
        known = fits.by_node.get(node)
        if known is None or known.slices != slices or known.use != use_version:
            is_current = known is not None and known.slices == slices
            hardware = known.hardware if known is not None and is_current else self._hardware(claims, fits, row)
            charge(8)
            fit = self._fit(claims, fits, row, hardware)
            known = fits.by_node[node] = _NodeState(slices, use_version, hardware, fit)
        if close is None or not known.fit.empty:
            return known.fit
        version = known.slices, known.use, close.version
        known_close = fits.close_by_node.get(node)
        if known_close is None or known_close[0] != version:
            charge(8)
            known_close = fits.close_by_node[node] = version, self._close_fit(claims, fits, row, known, close)
        return known_close[1]

    def _fits_of(self, claims: PodClaims) -> _Fits:
        fits = self._fits.get(claims)
        if fits is None and (original := self._original_fits.get(claims)) is not None:
            fits = self._fits[claims] = replace(
                original, by_node=dict(original.by_node), close_by_node=dict(original.close_by_node)
            )
        if fits is None or fits.classes_version != self.inventory.classes_version:
            fits = self._fits[claims] = self._new_fits(claims)
            max_kept = max(MIN_CLAIM_SETS, min(MAX_CLAIM_SETS, MAX_NODE_FITS // max(1, len(self._nodes))))
            while len(self._fits) > max_kept:
                self._fits.popitem(last=False)
        self._fits.move_to_end(claims)
        return fits

    def _new_fits(self, claims: PodClaims) -> _Fits:
        queries: list[ClaimQuery] = []
        wrong: dict[int, ClaimQueryError] = {}
        for number, claim in enumerate(claims):
            try:
                queries.append(self.query(claim))
            except ClaimQueryError as error:  # it does not matter if the claim is allocated already
                queries.append(ClaimQuery((), (), ()))
                wrong[number] = error
        return _Fits(queries, wrong, self.inventory.classes_version, identifies=self._identifies(queries))

    def _identifies(self, queries: Sequence[ClaimQuery]) -> bool:
        """Return whether claims may read what identifies devices that are alike."""
        requests = [query for claim in queries for request in claim.requests for query in request]
        return any(is_identity(constraint.attribute) for claim in queries for constraint in claim.constraints) or any(
            self.selectors.reads_identity(expression) for query in requests for expression in query.expressions
        )

    def queries(self, claims: PodClaims) -> Sequence[ClaimQuery]:
        """Return what claims ask for; nothing for a claim that can't be allocated on any node."""
        return self._fits_of(claims).queries

    def candidates(self, claims: PodClaims, row: int) -> tuple[list[ClaimQuery], DeviceCandidates]:
        """Return what claims ask for, and the devices of a node that match.

        Raises:
            ClaimQueryError: an unallocated claim can't be allocated on any node.
        """
        fits = self._fits_of(claims)
        self._check(claims, fits)
        for number, _ in _extended(claims):
            if number in fits.wrong:
                raise fits.wrong[number]
        return fits.queries, self._candidates(claims, row, fits)

    def grants(
        self,
        claims: PodClaims,
        row: int,
        wanted: tuple[int, ...],
        used: DevicesInUse,
        search: Callable[[], Granted | None],
    ) -> Granted | None:
        """Return devices for some of a pod's claims: as on an identical node in the same use, else what a search finds.

        Args:
            claims: the claims of the pod.
            row: the node.
            wanted: the numbers of the claims.
            used: devices of the node that are in use.
            search: returns the devices, None if there are too few.
        """
        fits, pools = self._fits_of(claims), self.pools_of(row)
        shape = self._shape(fits, pools)
        if shape is None:
            return search()
        charge(8)
        key = shape, wanted, use_signature(pools, used)
        return fits.choices.choose(key, pools, search, self._most_known())

    def _most_known(self) -> int:
        """Return how many fits one set of claims may keep for nodes that are alike, and how many choices."""
        return min(MAX_KNOWN_FITS, MAX_KNOWN_FITS_IN_ALL // max(1, len(self._fits)))

    def _shape(self, fits: _Fits, pools: Sequence[Pool]) -> object:
        """Return a value that is equal for nodes on which the claims find the same devices; None if there is none."""
        if fits.identifies or not pools or any(pool.layout is None for pool in pools):
            return None
        return tuple([(pool.id[0], pool.shapes) for pool in pools])

    def _check(self, claims: PodClaims, fits: _Fits) -> None:
        for number, error in fits.wrong.items():
            key = claims[number].key
            if claims[number].resources:
                continue  # of no matter to nodes that offer the resources themselves
            if key is None or self.inventory.allocation_of(key) is None:
                raise error

    def _hardware(self, claims: PodClaims, fits: _Fits, row: int) -> int:
        shape = self._shape(fits, self.pools_of(row))
        if shape is not None and (known := fits.of_shape.get(shape)) is not None:
            return known
        candidates = self._candidates(claims, row, fits)
        number = fits.hardware.setdefault(hardware_signature(candidates, fits.queries), len(fits.hardware))
        if shape is not None:
            if len(fits.of_shape) >= MAX_KNOWN_FITS:
                fits.of_shape.clear()
            fits.of_shape[shape] = number
        return number

    def _candidates(self, claims: PodClaims, row: int, fits: _Fits) -> DeviceCandidates:
        key, version = (claims, self._nodes.names[row]), self._slices_version(row)
        known = self._known_candidates.get(key, version, fits)
        if known is None:
            known = DeviceCandidates(self.pools_of(row), fits.queries, self.selectors.matches)
            self._known_candidates.put(key, version, fits, known)
        return known

    def _wanted(self, claims: PodClaims, queries: Sequence[ClaimQuery]) -> _Wanted:
        once: list[ClaimQuery] = []
        each: list[ClaimQuery] = []
        missing: list[int] = []
        allocations: list[Allocation] = []
        for number, (claim, query) in enumerate(zip(claims, queries, strict=True)):
            allocation = self.inventory.allocation_of(claim.key) if claim.key is not None else None
            if allocation is None:
                (each if claim.key is None else once).append(query)
                missing.append(number)
            else:
                allocations.append(allocation)
        return _Wanted(once, each, tuple(missing), allocations)

    def _fit(self, claims: PodClaims, fits: _Fits, row: int, hardware: int) -> NodeFit:
        wanted = self._wanted(claims, fits.queries)
        if not all(self.is_allowed(allocation, row) for allocation in wanted.allocations):
            return NodeFit(0, 0, elsewhere=True)
        pools = self.pools_of(row)
        used = used_of(self.inventory, pools)
        asked = hardware, wanted.missing
        key = asked, use_signature(pools, used)
        fit = fits.known.get(key)
        if fit is None:
            candidates = self._candidates(claims, row, fits)
            if len(fits.known) >= self._most_known():
                fits.known.clear()
            lost = least_lost(candidates, [*wanted.once, *wanted.each], used)
            now, reason = count_pods(candidates, wanted.once, wanted.each, used)
            empty = self._fit_empty(fits, asked, candidates, wanted) if now < NO_LIMIT else now
            lack = "" if now or reason else shortage(candidates, [*wanted.once, *wanted.each])
            fit = fits.known[key] = NodeFit(
                now, max(now, empty), reason="" if now else reason, shortage=lack, lost=lost
            )
        if any(map(self._is_promised, wanted.allocations)):
            return replace(fit, now=0, reason=PROMISED)
        return fit

    def _fit_empty(self, fits: _Fits, key: object, candidates: DeviceCandidates, wanted: _Wanted) -> int:
        """Return how many pods fit if all devices are free: equal for one hardware, whatever is in use."""
        empty = fits.empty.get(key)
        if empty is None:
            if len(fits.empty) >= self._most_known():
                fits.empty.clear()
            empty, _ = count_pods(candidates, wanted.once, wanted.each, DevicesInUse())
            fits.empty[key] = empty
        return empty

    def _close_fit(self, claims: PodClaims, fits: _Fits, row: int, state: _NodeState, close: "CloseGpus") -> NodeFit:
        """Return a fit with pods whose GPUs are as required; ``state`` is that of the node without requirements."""
        wanted, pools = self._wanted(claims, fits.queries), self.pools_of(row)
        used, places = used_of(self.inventory, pools), close.places(pools)
        held = close.held(places, wanted.allocations)
        asked = state.hardware, wanted.missing, close.version, tuple(places.values()), held
        key = asked, use_signature(pools, used)
        fit = fits.close_known.get(key)
        if fit is None:
            if len(fits.close_known) >= self._most_known():
                fits.close_known.clear()
                fits.close_empty.clear()
            candidates, queries = self._candidates(claims, row, fits), [*wanted.once, *wanted.each]
            rule = close.rule(places, held, candidates, queries, used)
            now, reason = count_pods(candidates, wanted.once, wanted.each, used, rule)
            if asked not in fits.close_empty:
                all_free = DevicesInUse()
                rule_of_empty = close.rule(places, held, candidates, queries, all_free)
                fits.close_empty[asked] = count_pods(candidates, wanted.once, wanted.each, all_free, rule_of_empty)[0]
            fit = replace(state.fit, now=now, empty=max(now, fits.close_empty[asked]))
            if state.fit.now and not now:
                anywhere, in_use = rule.without_closeness(), used_of(self.inventory, pools)
                if reason or not count_pods(candidates, wanted.once, wanted.each, in_use, anywhere)[0]:
                    fit = replace(fit, reason=reason or close.unfit_text())
                else:
                    fit = replace(fit, closeness=close.shortage(rule), most_close=rule.most)
            fits.close_known[key] = fit
        return fit


def _extended(claims: PodClaims) -> Iterable[tuple[int, PodClaim]]:
    """Return the claim for extended resources with its number, if there is one."""
    return ((number, claim) for number, claim in enumerate(claims) if claim.resources)
