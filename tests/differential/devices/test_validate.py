"""The checker of allocations: nothing to say of kube-scheduler's own, and each fault that is put into them is case."""

import random
from collections import Counter
from fractions import Fraction

import pytest

from tests.differential.choices import Json

from .comparison import KNOWN_FAULTS
from .generator import Case, random_case
from .hardware import NODE, node
from .inventory import quantity
from .mutations import MUTATIONS, mutated
from .oracle import Answer, Oracle
from .upstream import compared_cases
from .validate import validate

CASES = 2_500
FIRST_SEED = 2_000_000


def _from_upstream() -> list[tuple[Case, list[Json]]]:
    return [(each.case, each.answer.allocations) for each in compared_cases() if each.answer.allocations is not None]


def _missed(legal: list[tuple[Case, list[Json]]]) -> tuple[list[str], Counter[str]]:
    """The faults that are not case, and how often each was put in."""
    rng = random.Random(1)
    missed, tried = [], Counter[str]()
    for number, (case, allocations) in enumerate(legal):
        for name, mutation in MUTATIONS.items():
            changed = mutated(rng, mutation, case, allocations)
            if changed is not None:
                tried[name] += 1
                if not validate(*changed):
                    missed.append(f"{number}: {name}")
    return missed, tried


def test_each_fault_in_an_allocation_of_the_table_is_found() -> None:
    missed, tried = _missed(_from_upstream())
    assert not missed
    assert set(tried) == set(MUTATIONS)


@pytest.mark.real
@pytest.mark.timeout(600)
def test_random_allocations_are_legal_and_each_fault_in_them_is_found() -> None:
    legal = []
    with Oracle() as oracle:
        for case in map(random_case, range(FIRST_SEED, FIRST_SEED + CASES)):
            answer: Answer = oracle.answer(case)
            if answer.allocations is None:
                continue
            complaints = validate(case, answer.allocations)
            assert all(complaint.startswith(KNOWN_FAULTS) for complaint in complaints), (case, complaints)
            if not complaints:
                legal.append((case, answer.allocations))
    missed, tried = _missed(legal[: CASES // 4])
    assert not missed
    assert min(tried[name] for name in MUTATIONS) >= 10


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", Fraction(1, 2)),
        ("1Ki", Fraction(1024)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("2e3", Fraction(2000)),
        ("7", Fraction(7)),
    ],
)
def test_quantities_are_exact(text: str, number: Fraction) -> None:
    assert quantity(text) == number


def _shared(policy: Json | None, requested: str | None, consumed: str) -> list[str]:
    """What the checker says of a share of a device with 10Gi that has a policy."""
    device = {"name": "gpu", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
    if policy is not None:
        device["capacity"] = {"memory": {"value": "10Gi", "requestPolicy": policy}}
    request: Json = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    if requested is not None:
        request["capacity"] = {"requests": {"memory": requested}}
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": NODE, "pool": pool, "devices": [device]}
    case = {
        "node": node(),
        "slices": [{"metadata": {"name": "slice"}, "spec": spec}],
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "claims": [{"spec": {"devices": {"requests": [{"name": "request", "exactly": request}]}}}],
    }
    result = {
        "request": "request",
        "driver": "gpu.example.com",
        "pool": NODE,
        "device": "gpu",
        "shareID": "11111111-1111-4111-8111-111111111111",
        "consumedCapacity": {"memory": consumed},
    }
    name = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    selector = {"nodeSelectorTerms": [{"matchFields": [name]}]}
    return validate(case, [{"devices": {"results": [result]}, "nodeSelector": selector}])


_STEPS: Json = {"default": "4Gi", "validRange": {"min": "2Gi", "max": "8Gi", "step": "3Gi"}}
_VALUES: Json = {"default": "2Gi", "validValues": ["2Gi", "4Gi"]}


@pytest.mark.parametrize(
    ("policy", "requested", "consumed"),
    [
        (None, None, "10Gi"),
        (None, "3Gi", "3Gi"),
        ({"default": "1Gi"}, None, "1Gi"),
        ({"default": "1Gi"}, "3Gi", "3Gi"),
        (_VALUES, None, "2Gi"),
        (_VALUES, "1Gi", "2Gi"),
        (_VALUES, "2049Mi", "4Gi"),
        (_VALUES, "5Gi", None),
        (_STEPS, None, "4Gi"),
        (_STEPS, "1Gi", "2Gi"),
        (_STEPS, "2Gi", "2Gi"),
        (_STEPS, "2049Mi", "5Gi"),
        (_STEPS, "6Gi", "8Gi"),
        (_STEPS, "9Gi", None),
        (None, "11Gi", None),
    ],
)
def test_the_consumed_capacity_is_rounded_as_documented(
    policy: Json | None, requested: str | None, consumed: str | None
) -> None:
    for amount in ("1Gi", "2Gi", "3Gi", "4Gi", "5Gi", "8Gi", "10Gi", "11Gi"):
        assert (not _shared(policy, requested, amount)) == (amount == consumed), amount
