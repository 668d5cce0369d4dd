"""Random cases: a node, the devices it has access to, claims to allocate and claims that are; the same from one seed.

Nodes are small, so that claims are often feasible and often are not, with every part of the API.
"""

import random
from collections import defaultdict
from fractions import Fraction
from typing import Final

from tests.differential.choices import Json, chance

from .hardware import Hardware, node
from .inventory import Device, Pool, full_name, pools
from .limits import limits
from .requests import Requests, classes

THEMES: Final = {
    "selectors": 2.0,
    "firstAvailable": 1.5,
    "all devices": 1.2,
    "matchAttribute": 1.8,
    "distinctAttribute": 1.2,
    "admin access": 1.0,
    "taints": 1.5,
    "partitions": 2.2,
    "shares": 2.4,
    "binding conditions": 0.8,
    "several nodes": 1.5,
    "pools": 1.4,
    "configuration": 0.8,
    "several claims": 1.5,
}
"""What of the API a case is about, and how often; a case has some of them."""

LIMITS_SHARE: Final = 0.015
"""Of cases at the limits of the API."""

Case = Json
"""``node``, ``slices``, ``classes``, ``claims``, ``allocated`` (claims with devices in use), and ``features``."""


def random_case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    features: set[str] = set()
    if chance(rng, LIMITS_SHARE):
        case = limits(rng)
        features.add("limits")
    else:
        count = rng.choice((1, 2, 2, 3, 3, 4))
        themes = set(rng.choices(list(THEMES), list(THEMES.values()), k=count))
        slices = Hardware(rng, themes, features).slices
        case = {
            "node": node(),
            "slices": slices,
            "classes": classes(rng, themes),
            "claims": Requests(rng, themes, features, slices).claims(),
        }
        case["allocated"] = _Allocated(rng, case, features).claims()
    return {**case, "features": sorted(features) or ["none"]}


class _Allocated:
    """Claims that were allocated before, mostly without contradictions."""

    def __init__(self, rng: random.Random, case: Json, features: set[str]) -> None:
        self._rng = rng
        self._features = features
        self._results: list[Json] = []
        self._used: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
        self._share = rng.choice((0.0, 0.0, 0.15, 0.15, 0.3, 0.5))
        for pool in pools(case) if self._share else ():
            for device in pool.every_device:
                if chance(rng, self._share) and self._consume_counters(pool, device):
                    self._allocate(device)
        if self._share and chance(rng, 0.1):
            self._results.append({"driver": "gone.example.com", "pool": "gone", "device": "gone"})

    def claims(self) -> list[Json]:
        claims: list[Json] = []
        left = list(self._results)
        while left:
            count = self._rng.choice((1, 1, 2))
            results, left = left[:count], left[count:]
            claims.append(_allocated_claim(f"allocated-{len(claims)}", results))
        return claims

    def _consume_counters(self, pool: Pool, device: Device) -> bool:
        amounts = {(pool.name, counter_set, name): amount for counter_set, name, amount in device.counters}
        for key, amount in amounts.items():
            if self._used[key] + amount > pool.counters.get(key[1:], Fraction(0)):
                if not chance(self._rng, 0.02):
                    return False
                self._features.add("overcommitted counters")
        for key, amount in amounts.items():
            self._used[key] += amount
        return True

    def _allocate(self, device: Device) -> None:
        rng = self._rng
        result = {"driver": device.driver, "pool": device.pool, "device": device.raw["name"]}
        if chance(rng, 0.06):
            self._features.add("allocated for administrators")
            self._results.append({**result, "adminAccess": True})
            return
        self._features.add("allocated devices")
        if not device.shareable:
            self._results.append(result)
            return
        self._features.add("allocated shares")
        left = dict(device.capacity)
        for _ in range(rng.choice((1, 1, 2, 3))):
            consumed = {}
            for name in device.raw.get("capacity", {}):
                wanted = Fraction(rng.choice((1, 2) if name == "cores" else _MEMORY))
                amount = min(left[full_name(device.driver, name)], wanted)
                left[full_name(device.driver, name)] -= amount
                consumed[name] = str(amount)
            share = {**result, "shareID": f"00000000-0000-4000-8000-{len(self._results):012d}"}
            if consumed:
                share["consumedCapacity"] = consumed
            self._results.append(share)


_MEMORY: Final = tuple(gibibytes * 2**30 for gibibytes in (5, 10, 20, 40))


def _allocated_claim(name: str, results: list[Json]) -> Json:
    requests = []
    for index, result in enumerate(results):
        request: Json = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
        if result.get("adminAccess"):
            request["adminAccess"] = True
        requests.append({"name": f"request-{index}", "exactly": request})
    named = [{"request": f"request-{index}", **result} for index, result in enumerate(results)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": named}}},
    }
