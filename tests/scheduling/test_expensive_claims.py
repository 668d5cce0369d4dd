"""Claims whose search for devices exceeds its budget: the message names what to change in them."""

from typing import Any

import pytest

from tests.helpers import make_node
from tests.scheduling.device_driver import DRIVER, DeviceDriver, slice_of
from topo_scheduler.api.devices import DeviceAttribute
from topo_scheduler.scheduling import barrier


def hard_driver() -> DeviceDriver:
    """One node with devices that are alike in some attributes."""
    d = DeviceDriver([make_node("n1", "s1/l1", gpus=0)])
    published = slice_of("n1", 64)
    for number, device in enumerate(published.spec.devices):
        device.attributes |= {"a": DeviceAttribute(int_=number % 7), "b": DeviceAttribute(int_=number**2 % 13)}
    d.slices(published)
    return d


def hard_claim(**constraints: str) -> dict[str, Any]:
    """Return a claim of ten requests, with a constraint on all and others on pairs of them."""
    requests = [
        {"name": f"r{number}", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3}}
        for number in range(10)
    ]
    entries: list[dict[str, Any]] = [{"requests": [], kind: name} for kind, name in constraints.items()]
    entries += [
        {"requests": [f"r{number}", f"r{(number + 3) % 10}"], "matchAttribute": f"{DRIVER}/b"} for number in range(6)
    ]
    return {"devices": {"requests": requests, "constraints": entries}}


@pytest.mark.unrecorded  # it lowers a constant
def test_constraints_of_a_claim_that_exceed_the_budget_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "ATTEMPT_OPERATIONS", 50_000)
    d = hard_driver()
    pod = d.pod("p", hard_claim(distinctAttribute=f"{DRIVER}/a"))
    d.run(pod)
    assert d.told(pod)[-1].startswith(
        "In backoff: the search for a placement was stopped, it takes more than 50,000 operations."
        " Use fewer requests in the ResourceClaims, or fewer constraints on their devices"
        f" (distinctAttribute {DRIVER}/a, matchAttribute {DRIVER}/b). The scheduler retries in"
    )
