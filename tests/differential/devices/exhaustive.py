"""An allocator that tries everything, slowly: it shows that the rules below are all that kube-scheduler's goes by.

Beside the API's documentation these are, as observed:

- Within one attempt, devices for administrators consume counters and capacity like others, which must be free.
- A device that is not shared and is given to an administrator is lost for later requests that are not for
  administrators; administrators may have what claims before were given, but nothing twice in one claim.
- Where more of a counter is in use than there is, no device of the pool that consumes counters can be had.
"""

import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tests.differential.choices import Json

from .copies import expected_configuration, expected_selector
from .generator import Case
from .inventory import Device, DeviceID, full_name
from .validate import MOST_RESULTS, Amounts, Chosen, Inventory, consumption, fits, tolerated, violations

MOST_STEPS: Final = 20_000
"""Sets of devices that are tried, before a case is given up."""


class GivenUpError(Exception):
    """The case has too many ways."""


class UnusableRequestError(Exception):
    """No node can serve a request as it is, or not while a pool is being updated."""


@dataclass(frozen=True, slots=True)
class Use:
    """A device that is given to a request."""

    chosen: Chosen
    device: Device


def allocate(case: Case) -> list[Json] | None:
    """Return the allocations in the first way that works, None if none does.

    Raises:
        ExpressionError: a selector fails for a device that the node has access to.
        UnusableRequestError: a request, or one of its alternatives, cannot be tried at all.
        GivenUpError: there are too many ways.
    """
    return _Search(case).allocations()


class _Search:
    def __init__(self, case: Case) -> None:
        self._claims: list[Json] = case["claims"]
        self._inventory = Inventory(case)
        self._requests = [
            (number, request)
            for number, claim in enumerate(self._claims)
            for request in claim["spec"]["devices"]["requests"]
        ]
        self._uses: list[Use] = []
        self._steps = 0
        self._matching: dict[tuple[int, str], list[Device]] = {}
        self._in_use = self._counters_in_use()
        self._broken = any(pool.problem and pool.concerns_node for pool in self._inventory.pools)
        for _, request in self._requests:
            for spec in request.get("firstAvailable") or [request["exactly"]]:
                self._check(spec)

    def _check(self, spec: Json) -> None:
        """Check a request or an alternative, even one whose turn may never come."""
        if spec.get("deviceClassName") not in self._inventory.classes:
            raise UnusableRequestError("no such device class")
        if spec["allocationMode"] not in ("ExactCount", "All"):
            raise UnusableRequestError("unknown allocation mode")
        if spec["allocationMode"] == "All" and self._broken:
            raise UnusableRequestError("all devices, but a pool is incomplete or contradicts itself")

    def allocations(self) -> list[Json] | None:
        if not self._search(0):
            return None
        return [self._allocation(number, claim) for number, claim in enumerate(self._claims)]

    def _search(self, position: int) -> bool:
        if position == len(self._requests):
            return True
        number, request = self._requests[position]
        alternatives = [(each["name"], each) for each in request.get("firstAvailable", ())]
        for alternative, spec in alternatives or [(None, request.get("exactly"))]:
            chosen = Chosen(number, request["name"], alternative, spec)
            for devices in self._sets(chosen):
                self._steps += 1
                if self._steps > MOST_STEPS:
                    raise GivenUpError
                self._uses += [Use(chosen, device) for device in devices]
                if self._allowed(number) and self._search(position + 1):
                    return True
                del self._uses[len(self._uses) - len(devices) :]
        return False

    def _sets(self, chosen: Chosen) -> Iterator[Sequence[Device]]:
        """The sets of devices that a request may get, each by itself."""
        devices = self._matches(chosen)
        if chosen.every:
            consumed = self._inventory.in_use.consumed
            devices = [device for device in devices if fits(device, chosen.spec, consumed.get(device.id, {}))]
            if devices and all(tolerated(device, chosen.spec) for device in devices):
                yield devices
            return
        left = MOST_RESULTS - sum(use.chosen.claim == chosen.claim for use in self._uses)
        if chosen.spec["count"] <= left:
            devices = [device for device in devices if tolerated(device, chosen.spec) and fits(device, chosen.spec, {})]
            yield from itertools.combinations(devices, chosen.spec["count"])

    def _matches(self, chosen: Chosen) -> list[Device]:
        key = chosen.claim, chosen.name
        if key not in self._matching:
            devices = self._inventory.devices.values()
            self._matching[key] = [device for device in devices if self._inventory.matches(device, chosen.spec)]
        return self._matching[key]

    def _allowed(self, number: int) -> bool:
        uses = [use for use in self._uses if use.chosen.claim == number]
        if len(uses) > MOST_RESULTS or any(
            violations(self._claims[number], [(use.chosen, use.device) for use in uses])
        ):
            return False
        return self._exclusive() and self._within_capacity_and_counters()

    def _exclusive(self) -> bool:
        given: dict[DeviceID, set[int]] = defaultdict(set)
        for chosen, device in ((use.chosen, use.device) for use in self._uses):
            if not chosen.admin and device.id in self._inventory.in_use.whole:
                return False
            if device.shareable:
                continue
            if chosen.claim in given[device.id] or (given[device.id] and not chosen.admin):
                return False
            given[device.id].add(chosen.claim)
        return True

    def _within_capacity_and_counters(self) -> bool:
        consumed: dict[DeviceID, Amounts] = {id: {**each} for id, each in self._inventory.in_use.consumed.items()}
        counters: dict[tuple[str, str], dict[tuple[str, str], Fraction]] = {}
        for use in self._uses:
            device = use.device
            if not (device.shareable and device.id in consumed):
                for counter_set, name, amount in device.counters:
                    of_pool = counters.setdefault((device.driver, device.pool), defaultdict(Fraction))
                    of_pool[counter_set, name] += amount
            if device.shareable:
                amounts = consumed.setdefault(device.id, {})
                for short_name, wanted in consumption(device, use.chosen.spec).items():
                    name = full_name(device.driver, short_name)
                    amounts[name] = amounts.get(name, Fraction(0)) + (wanted or 0)
                    if amounts[name] > device.capacity[name]:
                        return False
        return all(
            self._in_use[pool.driver, pool.name][key] + counters[pool.driver, pool.name][key] <= amount
            for pool in self._inventory.pools
            if (pool.driver, pool.name) in counters
            for key, amount in pool.counters.items()
        )

    def _counters_in_use(self) -> dict[tuple[str, str], dict[tuple[str, str], Fraction]]:
        """What devices in use consume, by pool."""
        counters: dict[tuple[str, str], dict[tuple[str, str], Fraction]] = {}
        in_use = self._inventory.in_use.whole | self._inventory.in_use.shared
        for pool in self._inventory.pools:
            of_pool = counters.setdefault((pool.driver, pool.name), defaultdict(Fraction))
            for device in pool.every_device:
                if device.id in in_use:
                    for counter_set, name, amount in device.counters:
                        of_pool[counter_set, name] += amount
        return counters

    def _allocation(self, number: int, claim: Json) -> Json:
        uses = [use for use in self._uses if use.chosen.claim == number]
        chosen = list(dict.fromkeys((use.chosen.name, use.chosen.spec["deviceClassName"]) for use in uses))
        allocation: Json = {"devices": {"results": [_result(use) for use in uses]}}
        if config := expected_configuration(claim, chosen, self._inventory.classes):
            allocation["devices"]["config"] = config
        if selector := expected_selector([use.device for use in uses], self._inventory.node):
            allocation["nodeSelector"] = selector
        return allocation


def _result(use: Use) -> Json:
    device, spec = use.device, use.chosen.spec
    result = {"request": use.chosen.name, "driver": device.driver, "pool": device.pool, "device": device.raw["name"]}
    copied: Json = {
        "adminAccess": use.chosen.admin,
        "tolerations": spec.get("tolerations"),
        "bindingConditions": device.raw.get("bindingConditions"),
        "bindingFailureConditions": device.raw.get("bindingFailureConditions"),
    }
    if device.shareable:
        copied["shareID"] = str(uuid.uuid4())
        copied["consumedCapacity"] = {
            name: f"{(amount or 0) * 1000}m" for name, amount in consumption(device, spec).items()
        }
    return {**result, **{name: value for name, value in copied.items() if value}}
