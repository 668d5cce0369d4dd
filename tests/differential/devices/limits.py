"""Cases at the limits of the API: 32 requests, results, selectors and constraints, 128 devices in a slice."""

import random
from typing import Final

from tests.differential.choices import Json

from .expressions import EXCLUDING_EXPRESSIONS, GPU
from .hardware import NODE, node
from .requests import classes, selectors

MOST_RESULTS: Final = 32
MOST_SLICE_DEVICES: Final = 128
MOST_ALTERNATIVES: Final = 8


def limits(rng: random.Random) -> Json:
    """A case whose claim is at a limit, or one above it; where it is infeasible, a search ends soon."""
    devices, requests, constraints = rng.choice(_KINDS)(rng)
    claim: Json = {"requests": requests}
    if constraints:
        claim["constraints"] = constraints
    slices = [devices[start : start + MOST_SLICE_DEVICES] for start in range(0, len(devices), MOST_SLICE_DEVICES)]
    return {
        "node": node(),
        "slices": [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"limits-{index}"},
                "spec": {
                    "driver": GPU,
                    "nodeName": NODE,
                    "pool": {"name": NODE, "generation": 1, "resourceSliceCount": len(slices)},
                    "devices": part,
                },
            }
            for index, part in enumerate(slices)
        ],
        "classes": classes(rng, set()),
        "claims": [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "claim-0", "namespace": "default", "uid": "uid-claim-0"},
                "spec": {"devices": claim},
            }
        ],
        "allocated": [],
    }


Parts = tuple[list[Json], list[Json], list[Json]]


def _devices(count: int) -> list[Json]:
    attributes = {
        "type": {"string": "gpu"},
        "model": {"string": "h100"},
        "numa": {"int": 0},
        "healthy": {"bool": True},
    }
    return [
        {
            "name": f"gpu-{index}",
            "attributes": {**attributes, "index": {"int": index}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index in range(count)
    ]


def _exactly(count: int = 1, **fields: object) -> Json:
    return {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **fields}


def _every() -> Json:
    return {"deviceClassName": "gpu", "allocationMode": "All"}


def _one_count(rng: random.Random) -> Parts:
    count = rng.choice((MOST_RESULTS - 1, MOST_RESULTS, MOST_RESULTS + 1, 2**31))
    return _devices(rng.choice((32, 34, 130))), [{"name": "many", "exactly": _exactly(count)}], []


def _all(rng: random.Random) -> Parts:
    return _devices(rng.choice((0, 31, 32, 33))), [{"name": "all", "exactly": _every()}], []


def _all_and_one(rng: random.Random) -> Parts:
    requests = [{"name": "all", "exactly": _every()}, {"name": "one", "exactly": _exactly(adminAccess=True)}]
    return _devices(rng.choice((30, 31, 32))), requests, []


def _many_requests(rng: random.Random) -> Parts:
    count = rng.choice((MOST_RESULTS - 1, MOST_RESULTS))
    requests: list[Json] = [{"name": f"request-{index}", "exactly": _exactly()} for index in range(count)]
    constraints = [
        {kind: f"{GPU}/{name}"} for kind, name in (("matchAttribute", "numa"), ("distinctAttribute", "index"))
    ]
    return _devices(MOST_RESULTS + 2), requests, rng.choice(([], constraints, constraints * 16))


def _many_shares(rng: random.Random) -> Parts:
    (device,) = _devices(1)
    policy = {"default": rng.choice(("1Gi", "2500Mi", "0"))}
    device.update(allowMultipleAllocations=True, capacity={"memory": {"value": "80Gi", "requestPolicy": policy}})
    requests = [{"name": f"request-{index}", "exactly": _exactly()} for index in range(MOST_RESULTS)]
    return [device], requests, []


def _many_alternatives(rng: random.Random) -> Parts:
    counts = [*rng.sample((33, 40, 100, 35, 36, 37, 38), MOST_ALTERNATIVES - 1), rng.choice((1, MOST_RESULTS, 33))]
    alternatives = [{"name": f"choice-{index}", **_exactly(count)} for index, count in enumerate(counts)]
    requests: list[Json] = [{"name": "first", "firstAvailable": alternatives}]
    if rng.random() < 0.5:
        requests.insert(0, {"name": "before", "exactly": _exactly()})
    return _devices(rng.choice((33, 34))), requests, []


def _many_selectors(rng: random.Random) -> Parts:
    texts = [expression.text for expression in EXCLUDING_EXPRESSIONS]
    if rng.random() < 0.5:
        texts[-1] = f"device.attributes['{GPU}'].model == 'a100'"
    return _devices(4), [{"name": "chosen", "exactly": _exactly(2, selectors=selectors(texts))}], []


_KINDS: Final = (
    _one_count,
    _all,
    _all_and_one,
    _many_requests,
    _many_shares,
    _many_alternatives,
    _many_selectors,
)
