"""Whether allocations are legal for a case, by what the API's documentation says of it, not by how anyone allocates.

``validate`` judges what was allocated; it never says that something could have been allocated.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from tests.differential.choices import Json

from .copies import configuration_problems, copied_problems, node_selector_problems
from .expressions import PREDICATES, ExpressionError
from .inventory import Device, DeviceID, Pool, full_name, pools, quantity

MOST_RESULTS: Final = 32
"""In the allocation of one claim."""

BLOCKING_EFFECTS: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A request of a claim, or the alternative that was chosen of it."""

    claim: int
    request: str
    alternative: str | None
    spec: Json

    @property
    def name(self) -> str:
        return self.request if self.alternative is None else f"{self.request}/{self.alternative}"

    @property
    def admin(self) -> bool:
        return bool(self.spec.get("adminAccess"))

    @property
    def every(self) -> bool:
        return bool(self.spec.get("allocationMode") == "All")


@dataclass(slots=True)
class Taken:
    """A result that names a device which may be allocated."""

    chosen: Chosen
    device: Device
    result: Json


Amounts = dict[str, Fraction]
"""Of capacities, by name with their domain."""


def _amounts() -> Amounts:
    return defaultdict(Fraction)


@dataclass(slots=True)
class InUse:
    """What claims allocated before use."""

    whole: set[DeviceID] = field(default_factory=set)
    shared: set[DeviceID] = field(default_factory=set)
    consumed: dict[DeviceID, Amounts] = field(default_factory=lambda: defaultdict(_amounts))


class Inventory:
    """What a case has: its pools, classes and devices in use."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case
        self.node: Json = case["node"]
        self.pools = pools(case)
        self.classes: dict[str, Json] = {each["metadata"]["name"]: each["spec"] for each in case.get("classes", ())}
        self.in_use = _in_use(case)

    @cached_property
    def devices(self) -> dict[DeviceID, Device]:
        return {device.id: device for pool in self.pools if pool.problem is None for device in pool.devices}

    def matches(self, device: Device, request: Json) -> bool:
        """Whether a device has what the class and the request select.

        Raises:
            ExpressionError: a selector ends with an error.
        """
        selectors = [*self.classes[request["deviceClassName"]].get("selectors", ()), *request.get("selectors", ())]
        if selectors and not device.attributes_known:
            raise ExpressionError("an attribute of an unknown type")
        return all(PREDICATES[each["cel"]["expression"]](device) for each in selectors)

    def could_fail(self) -> bool:
        """Whether a selector of any request ends with an error for any device that the node has access to."""
        for claim in self.case["claims"]:
            for request in claim["spec"]["devices"]["requests"]:
                for spec in request.get("firstAvailable") or [request["exactly"]]:
                    if spec["deviceClassName"] in self.classes and self._fails(spec):
                        return True
        return False

    def _fails(self, spec: Json) -> bool:
        for pool in self.pools:
            for device in pool.every_device:
                try:
                    self.matches(device, spec)
                except ExpressionError:
                    return True
        return False


def validate(case: Mapping[str, Any], allocations: Sequence[Json]) -> list[str]:
    """Return what is illegal about the allocations for the claims of a case; nothing if they are legal."""
    inventory = Inventory(case)
    claims = case["claims"]
    if len(allocations) != len(claims):
        return [f"{len(allocations)} allocations for {len(claims)} claims"]
    complaints: list[str] = []
    taken: list[Taken] = []
    for index, (claim, allocation) in enumerate(zip(claims, allocations, strict=True)):
        chosen = list(_chosen(index, claim, allocation))
        uses = list(_taken(inventory, chosen, allocation, complaints))
        if len(_results(allocation)) > MOST_RESULTS:
            complaints.append(f"claim {index}: more than {MOST_RESULTS} results")
        for each in chosen:
            complaints += _count_problems(inventory, each, [use for use in uses if use.chosen is each])
        complaints += violations(claim, [(use.chosen, use.device) for use in uses])
        devices = [use.device for use in uses]
        complaints += node_selector_problems(index, allocation, devices, inventory.node)
        names = [(each.name, each.spec["deviceClassName"]) for each in chosen]
        complaints += configuration_problems(index, claim, allocation, names, inventory.classes)
        taken += uses
    for use in taken:
        complaints += _device_problems(inventory, use)
    return [*complaints, *_exclusion_problems(inventory, taken), *_counter_problems(inventory, taken)]


def choices(case: Mapping[str, Any], allocations: Sequence[Json]) -> list[tuple[int, frozenset[DeviceID]]]:
    """Return which alternative each request got, 0 where there is none, and which devices: by claim and request."""
    choices = []
    for index, (claim, allocation) in enumerate(zip(case["claims"], allocations, strict=True)):
        devices: dict[str, set[DeviceID]] = defaultdict(set)
        for result in _results(allocation):
            devices[result["request"]].add((result["driver"], result["pool"], result["device"]))
        requests = claim["spec"]["devices"]["requests"]
        for request, chosen in zip(requests, _chosen(index, claim, allocation), strict=True):
            names = [each["name"] for each in request.get("firstAvailable", ())]
            position = 0 if chosen.alternative is None else names.index(chosen.alternative)
            choices.append((position, frozenset(devices[chosen.name])))
    return choices


def _results(allocation: Json) -> list[Json]:
    results: list[Json] = allocation.get("devices", {}).get("results") or []
    return results


def _in_use(case: Mapping[str, Any]) -> InUse:
    in_use = InUse()
    for claim in case.get("allocated", ()):
        for result in _results(claim.get("status", {}).get("allocation") or {}):
            if result.get("adminAccess"):
                continue
            device = result["driver"], result["pool"], result["device"]
            if "shareID" not in result:
                in_use.whole.add(device)
                continue
            in_use.shared.add(device)
            for name, amount in result.get("consumedCapacity", {}).items():
                in_use.consumed[device][full_name(device[0], name)] += quantity(amount)
    return in_use


def _chosen(index: int, claim: Json, allocation: Json) -> Iterator[Chosen]:
    """The requests, and for those with alternatives the first one that a result names."""
    named = [result["request"] for result in _results(allocation)]
    for request in claim["spec"]["devices"]["requests"]:
        if "exactly" in request:
            yield Chosen(index, request["name"], None, request["exactly"])
            continue
        for alternative in request["firstAvailable"]:
            if f"{request['name']}/{alternative['name']}" in named:
                yield Chosen(index, request["name"], alternative["name"], alternative)
                break
        else:
            yield Chosen(index, request["name"], "none", {"deviceClassName": "", "count": 1})


def _taken(inventory: Inventory, chosen: Sequence[Chosen], allocation: Json, complaints: list[str]) -> Iterator[Taken]:
    by_name = {each.name: each for each in chosen}
    for result in _results(allocation):
        device = inventory.devices.get((result["driver"], result["pool"], result["device"]))
        if result["request"] not in by_name:
            complaints.append(f"{result['request']}: no such request, or its other alternative was chosen")
        elif device is None:
            complaints.append(f"{result['request']}: the node has no device {result['device']} in {result['pool']}")
        else:
            yield Taken(by_name[result["request"]], device, result)


def _count_problems(inventory: Inventory, chosen: Chosen, taken: Sequence[Taken]) -> Iterator[str]:
    ids = [use.device.id for use in taken]
    if len(set(ids)) < len(ids):
        yield f"{chosen.name}: a device twice for one request"
    if not chosen.every:
        if len(ids) != chosen.spec.get("count", 1):
            yield f"{chosen.name}: {len(ids)} devices, not {chosen.spec.get('count', 1)}"
        return
    broken = [pool for pool in inventory.pools if pool.problem and pool.concerns_node]
    if broken:
        yield f"{chosen.name}: every device, though pool {broken[0].name} {broken[0].problem}"
        return
    every = {id for id, device in inventory.devices.items() if _eligible(inventory, device, chosen.spec)}
    if set(ids) != every:
        yield f"{chosen.name}: {len(ids)} devices, but {len(every)} match"
    if not ids:
        yield f"{chosen.name}: no device"


def _eligible(inventory: Inventory, device: Device, spec: Json) -> bool:
    """Whether a device is among "all": it matches, and has room for the capacity that is asked for."""
    return inventory.matches(device, spec) and fits(device, spec, inventory.in_use.consumed.get(device.id, {}))


def _device_problems(inventory: Inventory, use: Taken) -> Iterator[str]:
    chosen, device, result = use.chosen, use.device, use.result
    where = f"{chosen.name}, {'/'.join(device.id)}"
    try:
        if not inventory.matches(device, chosen.spec):
            yield f"{where}: is not selected"
    except ExpressionError as error:
        yield f"{where}: a selector fails: {error}"
    if not tolerated(device, chosen.spec):
        yield f"{where}: a taint is not tolerated"
    if not fits(device, chosen.spec, {}):
        yield f"{where}: has not the capacity, or its policy forbids the amount"
    if bool(result.get("adminAccess")) != chosen.admin:
        yield f"{where}: adminAccess is not that of the request"
    yield from copied_problems(where, chosen.spec, device, result, consumption(device, chosen.spec))


def tolerated(device: Device, spec: Json) -> bool:
    """Whether a request tolerates every taint of a device that has an effect."""
    return all(
        taint["effect"] not in BLOCKING_EFFECTS or any(_tolerates(each, taint) for each in spec.get("tolerations", ()))
        for taint in device.raw.get("taints", ())
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """An empty effect or key stands for all; the operator is Equal unless it is named."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or bool(toleration.get("value", "") == taint.get("value", ""))


def consumption(device: Device, spec: Json) -> dict[str, Fraction | None]:
    """How much of each capacity a request consumes; None where the policy of the device forbids the amount."""
    requested = (spec.get("capacity") or {}).get("requests", {})
    return {
        name: _rounded(quantity(requested[name]) if name in requested else None, capacity)
        for name, capacity in device.raw.get("capacity", {}).items()
    }


def _rounded(requested: Fraction | None, capacity: Json) -> Fraction | None:
    policy = capacity.get("requestPolicy") or {}
    if requested is None:
        return quantity(policy.get("default", capacity["value"]))
    if values := policy.get("validValues"):
        return min((valid for valid in map(quantity, values) if valid >= requested), default=None)
    if valid_range := policy.get("validRange"):
        least = quantity(valid_range["min"])
        amount = max(requested, least)
        if "step" in valid_range:
            step = quantity(valid_range["step"])
            amount = least + -((least - amount) // step) * step
        return None if "max" in valid_range and amount > quantity(valid_range["max"]) else amount
    return requested


def fits(device: Device, spec: Json, consumed: Mapping[str, Fraction]) -> bool:
    """Whether a request may consume what it asks of a device, beside what others consume of it."""
    amounts = consumption(device, spec)
    if set((spec.get("capacity") or {}).get("requests", {})) - set(amounts):
        return False
    return all(
        amount is not None
        and consumed.get(full_name(device.driver, name), 0) + amount <= device.capacity[full_name(device.driver, name)]
        for name, amount in amounts.items()
    )


def violations(claim: Json, uses: Sequence[tuple[Chosen, Device]]) -> Iterator[str]:
    """The constraints of a claim that devices violate."""
    for constraint in claim["spec"]["devices"].get("constraints", ()):
        names = constraint.get("requests")
        covered = [device for chosen, device in uses if not names or {chosen.request, chosen.name} & set(names)]
        attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
        if any(attribute not in device.attributes for device in covered):
            yield f"constraint {attribute}: a device has no such attribute"
            continue
        values = [(type(device.attributes[attribute]), device.attributes[attribute]) for device in covered]
        if "matchAttribute" in constraint and len(set(values)) > 1:
            yield f"matchAttribute {attribute}: values differ"
        if "distinctAttribute" in constraint and len(set(values)) < len(values):
            yield f"distinctAttribute {attribute}: a value twice"


def _exclusion_problems(inventory: Inventory, taken: Sequence[Taken]) -> Iterator[str]:
    """Devices in use, devices twice, and more capacity consumed than there is."""
    in_use = inventory.in_use
    users: Counter[DeviceID] = Counter()
    users_of_claim: Counter[tuple[int, DeviceID]] = Counter()
    consumed = {id: {**amounts} for id, amounts in in_use.consumed.items()}
    for use in taken:
        id = use.device.id
        if not use.device.shareable:
            users_of_claim[use.chosen.claim, id] += 1
        if use.chosen.admin:
            continue
        if id in in_use.whole:
            yield f"{use.chosen.name}: {'/'.join(id)} is in use"
        if not use.device.shareable:
            users[id] += 1
            continue
        amounts = consumed.setdefault(id, {})
        for short_name, amount in consumption(use.device, use.chosen.spec).items():
            name = full_name(use.device.driver, short_name)
            amounts[name] = amounts.get(name, Fraction(0)) + (amount or 0)
        for name, capacity in use.device.capacity.items():
            if amounts[name] > capacity:
                yield f"{use.chosen.name}: {'/'.join(id)} has not enough {name}"
    if any(count > 1 for count in users.values()):
        yield "a device that is not shared is allocated twice"
    if any(count > 1 for count in users_of_claim.values()):
        yield "a device that is not shared is allocated twice to one claim"


def _counter_problems(inventory: Inventory, taken: Sequence[Taken]) -> Iterator[str]:
    """More of a counter consumed than there is. A device consumes once, also if it is shared; administrators do not."""
    new = {use.device.id for use in taken if not use.chosen.admin} - inventory.in_use.shared
    for pool in inventory.pools:
        used: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        wanted: set[str] = set()
        for device in pool.every_device:
            if device.id in new | inventory.in_use.whole | inventory.in_use.shared:
                for counter_set, name, amount in device.counters:
                    used[counter_set, name] += amount
                    if device.id in new:
                        wanted.add(counter_set)
        yield from _overcommitted(pool, used, wanted)


def _overcommitted(pool: Pool, used: Mapping[tuple[str, str], Fraction], wanted: set[str]) -> Iterator[str]:
    for (counter_set, name), amount in used.items():
        if counter_set in wanted and amount > pool.counters.get((counter_set, name), 0):
            yield f"pool {pool.name}: more than all of counter {counter_set}/{name}"
