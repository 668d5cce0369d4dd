"""Devices of one node for the claims of one pod: an exhaustive search that takes the first solution.

What is feasible is what Kubernetes 1.36 finds feasible (``structured/internal/incubating``). The order of candidates is
the caller's. Of devices that are alike, only one is tried at each position. Every candidate is charged to the operation
budget, so that no claim can hold up the scheduler.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.devices import MAX_RESULTS
from topo_scheduler.scheduling.devices.capacity_share import consumed, fits
from topo_scheduler.scheduling.devices.claim_query import AttributeConstraint, ClaimQuery, DeviceQuery
from topo_scheduler.scheduling.devices.close_rule import CloseRule
from topo_scheduler.state.devices.inventory import DevicesInUse
from topo_scheduler.state.devices.pools import Amount, AttributeValue, DeviceId, Number, Pool, PoolId, PublishedDevice
from topo_scheduler.state.operation_budget import OverBudgetError, active_budget, charge

MAX_DEVICES_OF_POD: Final = 256
"""Devices of one pod in all its claims."""
REQUESTS_WITHOUT_MEMORY: Final = 64
"""Requests that a search begins before it remembers where it failed."""
MAX_DEAD_ENDS: Final = 4096
MAX_NAMED_CONSTRAINTS: Final = 3
Matches = Callable[[str, PublishedDevice], bool]
"""Returns whether a device matches a CEL expression; raises `SelectorFailure` if it is unknown."""


class DeviceAllocationError(Exception):
    """The claims can't be allocated on this node, for a reason other than devices that are in use."""


class SelectorFailure(Exception):
    """An expression fails on a device, or is not understood. Such a device is not allocated."""


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """A device for a request; ``part``: what it consumes of the capacity of a shared device."""

    query: DeviceQuery
    device: PublishedDevice
    part: Mapping[str, Amount] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCandidate:
    """A device that may be allocated, and its pool."""

    device: PublishedDevice
    pool: Pool


class DeviceCandidates:
    """Devices of a node that match each request of some claims, whether or not they are free."""

    def __init__(self, pools: Sequence[Pool], claims: Sequence[ClaimQuery], matches: Matches) -> None:
        """Set up; expressions are evaluated when the devices of a request are needed first.

        Args:
            pools: what the node can use, from `gather_pools`. Devices are tried in their order.
            claims: the claims.
            matches: evaluates expressions.
        """
        self.pools = pools
        self.queries = [query for claim in claims for request in claim.requests for query in request]
        self.everything = [DeviceCandidate(device, pool) for pool in pools if pool.usable for device in pool.devices]
        self.failures: dict[DeviceQuery, str] = {}
        """Why the first device on which a selector of a request fails is not among its devices."""
        self._matches = matches
        self._selected: dict[DeviceQuery, list[DeviceCandidate]] = {}

    def of(self, query: DeviceQuery) -> list[DeviceCandidate]:
        """Return the devices that match a request."""
        known = self._selected.get(query)
        if known is None:
            charge(1 + len(self.everything) * (1 + len(query.expressions)))
            alike: dict[object, bool] = {}  # partitions of a device mostly share what expressions read
            known = [candidate for candidate in self.everything if self._is_selected(query, candidate.device, alike)]
            self._selected[query] = known
        return known

    def unsupported(self, query: DeviceQuery) -> str:
        """Return the field for which a device that matches a request is not allocated; empty if there is none.

        A selector that fails on such a device may read that very field. On a node without other devices it does not
        reject the device.
        """
        devices = [device for pool in self.pools for device in pool.unsupported]
        charge(len(devices) * (1 + len(query.expressions)))
        return next((device.kind.unsupported for device in devices if self._may_match(query, device)), "")

    def _may_match(self, query: DeviceQuery, device: PublishedDevice) -> bool:
        try:
            return all(self._matches(expression, device) for expression in query.expressions)
        except SelectorFailure:
            return not self.everything

    def reordered(self, ordered: Mapping[DeviceQuery, list[DeviceCandidate]]) -> "DeviceCandidates":
        """Return the same devices in another order, by request."""
        other = copy(self)
        other._selected = {**self._selected, **ordered}
        return other

    def _is_selected(self, query: DeviceQuery, device: PublishedDevice, alike: dict[object, bool]) -> bool:
        key = id(device.attributes), id(device.capacity), device.shared, device.id[0]
        known = alike.get(key)
        if known is None:
            known = alike[key] = self._judge(query, device)
        return known

    def _judge(self, query: DeviceQuery, device: PublishedDevice) -> bool:
        try:
            return all(self._matches(expression, device) for expression in query.expressions)
        except SelectorFailure as error:
            # Without the name of the device: nodes with the same problem are counted together.
            self.failures.setdefault(query, f"request {query.name}: {error}")
            return False


@dataclass(slots=True)
class _Position:
    """The next device to find: of a claim, a request, one of its alternatives; ``start`` is the first candidate."""

    claim: int
    request: int
    alternative: int = 0
    granted: int = 0
    start: int = 0


def allocate(
    candidates: DeviceCandidates,
    claims: Sequence[ClaimQuery],
    in_use: DevicesInUse,
    rule: CloseRule | None = None,
) -> list[list[Grant]] | None:
    """Return the devices of each claim, None if the node has too few.

    Args:
        candidates: devices of the node, for these claims at least.
        claims: the unallocated claims of the pod.
        in_use: devices that are not free.
        rule: how close the GPUs of the pod must be; None if that does not matter.

    Raises:
        DeviceAllocationError: a selector fails on a device that is needed. Or a request for all devices meets a pool
            that is incomplete or invalid. Or the claims ask for more devices than a pod may have.
        OverBudgetError: the search takes too long.
    """
    budget = active_budget()
    if budget is None:
        return _Search(candidates, claims, in_use, rule).run()
    before = budget.spent
    try:
        return _Search(candidates, claims, in_use, rule).run()
    except OverBudgetError as error:
        if 2 * (budget.spent_on_claims + budget.spent - before) > budget.operations:
            error.remedy = _remedy(claims)
        raise
    finally:
        budget.spent_on_claims += budget.spent - before


def _remedy(claims: Sequence[ClaimQuery]) -> str:
    """Return how to change claims so that the search for their devices takes less."""
    constraints = (constraint for claim in claims for constraint in claim.constraints)
    texts = list(
        dict.fromkeys(
            f"{'distinct' if entry.distinct else 'match'}Attribute {entry.attribute}" for entry in constraints
        )
    )
    if not texts:
        return "Use fewer requests in the ResourceClaims, or fewer devices in each"
    more = f" and {len(texts) - MAX_NAMED_CONSTRAINTS} more" if len(texts) > MAX_NAMED_CONSTRAINTS else ""
    named = ", ".join(texts[:MAX_NAMED_CONSTRAINTS])
    return f"Use fewer requests in the ResourceClaims, or fewer constraints on their devices ({named}{more})"


class _Search:
    """State of the search: what the grants so far occupy."""

    def __init__(
        self,
        candidates: DeviceCandidates,
        claims: Sequence[ClaimQuery],
        in_use: DevicesInUse,
        rule: CloseRule | None,
    ) -> None:
        self._rule = rule
        self._gpus: list[int] = list(rule.held) if rule is not None else []
        self._candidates = candidates
        self._claims = claims
        self._in_use = in_use
        self._counts: dict[DeviceQuery, int] = {}
        self._of_all: dict[DeviceQuery, list[DeviceCandidate]] = {}
        self._begun = 0
        self._dead_ends: set[object] = set()
        self._kinds: dict[DeviceId, int] = {}
        self._grants: list[list[Grant]] = [[] for _ in claims]
        self._taken: dict[DeviceId, set[int]] = {}
        self._shares: dict[DeviceId, list[Mapping[str, Amount]]] = {}
        self._counters: dict[PoolId, dict[tuple[str, str], Number]] = {}
        self._overdrawn: set[PoolId] = set()
        self._values: dict[AttributeConstraint, list[AttributeValue]] = {
            constraint: [] for claim in claims for constraint in claim.constraints
        }

    def run(self) -> list[list[Grant]] | None:
        """Search; return the grants by claim."""
        total = sum(
            min(self._count(query) for query in request) for claim in self._claims for request in claim.requests
        )
        if total > MAX_DEVICES_OF_POD:
            raise DeviceAllocationError(f"its claims ask for {total} devices, a pod gets {MAX_DEVICES_OF_POD} at most")
        if self._rule is not None and not self._rule.is_possible:
            return None
        if self._next(_Position(0, 0)):
            return self._grants
        for claim in self._claims:
            for query in (query for request in claim.requests for query in request):
                if query in self._candidates.failures:
                    raise DeviceAllocationError(self._candidates.failures[query])
        return None

    # ------------------------------------------------------------ candidates

    def _count(self, query: DeviceQuery) -> int:
        """Return how many devices a request takes."""
        count = self._counts.get(query)
        if count is None:
            count = self._counts[query] = query.count or self._count_all(query)
        return count

    def _count_all(self, query: DeviceQuery) -> int:
        for pool in self._candidates.pools:
            if pool.problem:
                raise DeviceAllocationError(f"request {query.name} asks for all devices, and {pool.problem}")
        self._of_all[query] = [c for c in self._candidates.of(query) if self._suffices(query, c.device)]
        if query in self._candidates.failures:
            raise DeviceAllocationError(self._candidates.failures[query])
        return len(self._of_all[query])

    def _candidates_of(self, query: DeviceQuery) -> list[DeviceCandidate]:
        return self._candidates.of(query) if query.count else self._of_all[query]

    def _suffices(self, query: DeviceQuery, device: PublishedDevice) -> bool:
        """Return whether a device counts among all devices: one that has too little capacity left does not."""
        part = consumed(query.capacity, device)
        return part is not None and fits(part, device, self._in_use.shares.get(device.id, {}))

    def _kind(self, query: DeviceQuery, device: PublishedDevice) -> object:
        """Return a value that is equal for devices of which either both lead to a solution or none does."""
        if query.admin_access:
            return device.id
        if device.shared:
            used = frozenset(self._used(device.id).items())
            return self._static_kind(device.id), used, self._is_shared_already(device)
        return self._static_kind(device.id)

    def _static_kind(self, device: DeviceId) -> int:
        """Return a number that is equal for devices that are alike, apart from their use by this search."""
        if not self._kinds:
            self._number_kinds()
        return self._kinds[device]

    def _number_kinds(self) -> None:
        queries = [query for claim in self._claims for request in claim.requests for query in request]
        selected = [{candidate.device.id for candidate in self._candidates_of(query)} for query in queries]
        reads_capacity = any(query.capacity for query in queries)
        charge(len(self._candidates.everything) * (1 + len(queries)))
        numbers: dict[object, int] = {}
        for candidate in self._candidates.everything:
            device = candidate.device
            kind = (
                device.id[:2],
                device.id in self._in_use.whole,
                tuple(device.id in ids for ids in selected),
                tuple(query.tolerates(device) for query in queries),
                tuple(device.attributes.get(constraint.attribute) for constraint in self._values),
                frozenset(device.counters.items()),
                frozenset(device.capacity.items()) if device.shared or reads_capacity else None,
                self._rule.kind(device.id) if self._rule is not None else None,
            )
            self._kinds[device.id] = numbers.setdefault(kind, len(numbers))

    # ------------------------------------------------------------ search

    def _next(self, at: _Position) -> bool:
        """Find all devices from the beginning of a request on; return whether that succeeded.

        If not, nothing changed, and it is remembered what failed. A pod may have 256 requests for one device each. So
        each takes two calls on the stack and no more: `_next` and `_devices`.
        """
        while at.claim < len(self._claims) and at.request >= len(self._claims[at.claim].requests):
            at = _Position(at.claim + 1, 0)
        if at.claim >= len(self._claims):
            return self._rule is None or self._rule.accepts(self._gpus)
        self._begun += 1
        state = self._state(at) if self._begun > REQUESTS_WITHOUT_MEMORY else None
        if state is not None and state in self._dead_ends:
            return False
        for number in range(len(self._claims[at.claim].requests[at.request])):
            if self._devices(_Position(at.claim, at.request, number)):
                return True
        if state is not None and len(self._dead_ends) < MAX_DEAD_ENDS:
            self._dead_ends.add(state)
        return False

    def _devices(self, at: _Position) -> bool:
        """Find the next device of a request and all after it; return whether that succeeded."""
        query = self._claims[at.claim].requests[at.request][at.alternative]
        count = self._count(query)
        if count == 0:
            return False
        if len(self._grants[at.claim]) + count - at.granted > MAX_RESULTS:
            return False
        candidates = self._candidates_of(query)
        if len(candidates) - at.start < count - at.granted:
            return False
        failed: set[object] = set()
        last = at.start + 1 if not query.count else len(candidates)  # of all devices, the next one must be taken
        for index in range(at.start, last):
            candidate = candidates[index]
            charge(4)
            if failed and self._kind(query, candidate.device) in failed:
                continue
            if not self._take(at.claim, query, candidate):
                continue
            charge(6)
            if at.granted + 1 < count:
                satisfied = self._devices(_Position(at.claim, at.request, at.alternative, at.granted + 1, index + 1))
            else:
                satisfied = self._next(_Position(at.claim, at.request + 1))
            if satisfied:
                return True
            self._give_back(at.claim, query, candidate)
            failed.add(self._kind(query, candidate.device))
        return False

    def _state(self, at: _Position) -> object:
        """Return what decides whether the rest can be found: how many devices of each kind are in which use.

        Only devices that this search uses count: the use of all others never changes.
        """
        charge(4 * (1 + len(self._taken) + len(self._shares)))
        taken = Counter((self._static_kind(id_), frozenset(claims)) for id_, claims in self._taken.items() if claims)
        before = self._in_use.shares
        shares = Counter(
            (self._static_kind(id_), frozenset(before.get(id_, {}).items()), frozenset(self._used(id_).items()))
            for id_ in self._shares
        )
        counters = tuple((pool, tuple(left.items())) for pool, left in sorted(self._counters.items()))
        values = tuple(frozenset(values) for values in self._values.values())
        devices = frozenset(taken.items()), frozenset(shares.items())
        return at.claim, at.request, len(self._grants[at.claim]), len(self._gpus), devices, counters, values

    # ------------------------------------------------------------ one device

    def _take(self, claim: int, query: DeviceQuery, candidate: DeviceCandidate) -> bool:
        """Grant a device if it is free, tolerated, and within counters, constraints and capacity."""
        device = candidate.device
        if not self._is_free(claim, query, device) or not query.tolerates(device):
            return False
        charge(len(device.capacity))
        part = consumed(query.capacity, device)
        if part is None or not fits(part, device, self._used(device.id)) or not self._has_counters(candidate):
            return False
        gpu = self._gpu(query, device)
        if gpu is not None and self._rule is not None and not self._rule.permits([*self._gpus, gpu]):
            return False
        values = []
        for constraint in self._constraints(claim, query):
            value = device.attributes.get(constraint.attribute)
            if value is None or not self._agrees(constraint, value):
                return False
            values.append((constraint, value))
        for constraint, value in values:
            self._values[constraint].append(value)
        self._count_counters(candidate, 1)
        if device.shared:
            self._shares.setdefault(device.id, []).append(part)
        else:
            self._taken.setdefault(device.id, set()).add(claim)
        if gpu is not None:
            self._gpus.append(gpu)
        self._grants[claim].append(Grant(query, device, part if device.shared else None))
        return True

    def _gpu(self, query: DeviceQuery, device: PublishedDevice) -> int | None:
        """Return the GPU of a device; None if it does not matter how close it is to others."""
        return self._rule.index_of.get(device.id) if self._rule is not None and not query.admin_access else None

    def _give_back(self, claim: int, query: DeviceQuery, candidate: DeviceCandidate) -> None:
        device = candidate.device
        if self._gpu(query, device) is not None:
            self._gpus.pop()
        self._grants[claim].pop()
        if device.shared:
            self._shares[device.id].pop()
            if not self._shares[device.id]:
                del self._shares[device.id]
        else:
            self._taken[device.id].discard(claim)
        self._count_counters(candidate, -1)
        for constraint in self._constraints(claim, query):
            self._values[constraint].pop()

    def _constraints(self, claim: int, query: DeviceQuery) -> list[AttributeConstraint]:
        return [constraint for constraint in self._claims[claim].constraints if constraint.concerns(query)]

    def _agrees(self, constraint: AttributeConstraint, value: AttributeValue) -> bool:
        values = self._values[constraint]
        return value not in values if constraint.distinct else not values or values[0] == value

    def _is_free(self, claim: int, query: DeviceQuery, device: PublishedDevice) -> bool:
        if query.admin_access:
            return claim not in self._taken.get(device.id, ())
        return device.id not in self._in_use.whole and not self._taken.get(device.id)

    def _used(self, device: DeviceId) -> dict[str, Number]:
        """Return what is used of a shared device."""
        used = dict(self._in_use.shares.get(device, {}))
        for earlier in self._shares.get(device, ()):
            charge(len(earlier))
            for name, taken in earlier.items():
                used[name] = used.get(name, 0) + taken.value
        return used

    # ------------------------------------------------------------ counters

    def _has_counters(self, candidate: DeviceCandidate) -> bool:
        device = candidate.device
        if not device.counters or self._is_shared_already(device):
            return True
        left = self._left(candidate.pool)
        if candidate.pool.id in self._overdrawn:
            return False  # as in Kubernetes: nothing of such a pool
        return all(left[counter] >= wanted for counter, wanted in device.counters.items())

    def _count_counters(self, candidate: DeviceCandidate, sign: int) -> None:
        """Charge the counters of a device, or return them: once for all shares of it."""
        device = candidate.device
        if device.counters and not self._is_shared_already(device):
            left = self._left(candidate.pool)
            for counter, wanted in device.counters.items():
                left[counter] -= sign * wanted

    def _is_shared_already(self, device: PublishedDevice) -> bool:
        return device.shared and (device.id in self._in_use.shares or device.id in self._shares)

    def _left(self, pool: Pool) -> dict[tuple[str, str], Number]:
        left = self._counters.get(pool.id)
        if left is None:
            devices = used_devices(pool, self._in_use)
            left = self._counters[pool.id] = _counters_left(pool, devices)
            if min(left.values(), default=0) < 0:
                # Devices that pods wait for may overlap those that others are to leave: only these are taken twice.
                allocated = [device for device in devices if device.id not in self._in_use.promised]
                if min(_counters_left(pool, allocated).values()) < 0:
                    self._overdrawn.add(pool.id)  # a search takes no more than there is
        return left


def _counters_left(pool: Pool, devices: Iterable[PublishedDevice]) -> dict[tuple[str, str], Number]:
    left = dict(pool.counters)
    for device in devices:
        for counter, wanted in device.counters.items():
            left[counter] -= wanted
    return left


def used_devices(pool: Pool, in_use: DevicesInUse) -> list[PublishedDevice]:
    """Return the devices of a pool that are in use, whole or in part."""
    if pool.layout is None:
        devices = (*pool.devices, *pool.others)
        return [device for device in devices if device.id in in_use.whole or device.id in in_use.shares]
    positions = pool.layout.positions
    names = dict.fromkeys(id_[2] for ids in (in_use.whole, in_use.shares) for id_ in ids if id_[:2] == pool.id)
    return [pool.devices[positions[name]] for name in names if name in positions]
