"""What the Python functions beside the expressions say is what kube-scheduler's CEL says."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.differential.choices import Json

from .expressions import PREDICATES, ExpressionError
from .generator import random_case
from .hardware import NODE, node
from .inventory import Device, pools
from .oracle import ERROR, FEASIBLE, INFEASIBLE, Oracle
from .requests import selectors

SEEDS = 40


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


def _devices() -> list[Device]:
    devices = [device for seed in range(SEEDS) for pool in pools(random_case(seed)) for device in pool.every_device]
    return list({repr((device.driver, sorted(device.raw.items()))): device for device in devices}.values())


def _question(device: Device, text: str) -> Json:
    """A case that is feasible where the expression holds for a device."""
    bare: Json = {
        key: device.raw[key] for key in ("attributes", "capacity", "allowMultipleAllocations") if key in device.raw
    }
    spec = {
        "driver": device.driver,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "device", **bare}],
    }
    request = {
        "deviceClassName": "any",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": selectors([text]),
        "adminAccess": True,
    }
    return {
        "node": node(),
        "slices": [{"metadata": {"name": "slice"}, "spec": spec}],
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "claims": [
            {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}}}
        ],
    }


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_every_expression_says_the_same_as_cel(oracle: Oracle) -> None:
    differing, seen = [], Counter[str]()
    for device in _devices():
        for text, predicate in PREDICATES.items():
            try:
                ours = FEASIBLE if predicate(device) else INFEASIBLE
            except ExpressionError:
                ours = ERROR
            answer = oracle.answer(_question(device, text))
            seen[ours] += 1
            if answer.outcome != ours:
                differing.append((text, device.raw, ours, answer))
    assert not differing, differing[0]
    assert min(seen[outcome] for outcome in (FEASIBLE, INFEASIBLE, ERROR)) > 100
