"""Fits and choices that are kept for nodes that are alike: what they depend on, and their bound."""

from typing import Any

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, driver, taken
from tests.scheduling.partitioned_nodes import partitioned, profile
from topo_scheduler.api.migrations import SeatDevice
from topo_scheduler.api.objects import PodResourceClaim
from topo_scheduler.scheduling.devices import node_devices
from topo_scheduler.scheduling.reserving.seat_devices import seat_allocation

IN_ALL = 24


def test_sets_of_claims_share_what_is_kept_for_nodes_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod asks otherwise and changes the use of a node. All of them would keep 15 times as many."""
    monkeypatch.setattr(node_devices, "MAX_KNOWN_FITS_IN_ALL", IN_ALL)
    d = driver({"s1/l1": 4})
    anything, something = {"operator": "Exists"}, {"key": "a", "operator": "Exists"}
    kinds: list[dict[str, Any]] = [{}, {"tolerations": [anything]}, {"tolerations": [something]}]
    for number in range(30):
        pod = d.pod(f"p{number}", asking(**kinds[number % len(kinds)]))
        d.run(pod)
        assert pod.spec.node_name
    devices = d.engine.world.around.devices
    assert devices is not None and len(devices._fits) == len(kinds)
    for fits in devices._fits.values():
        assert 0 < len(fits.known) <= IN_ALL // len(kinds)
        assert 0 < len(fits.choices._known) <= IN_ALL // len(kinds)


def test_which_of_two_claims_is_allocated_matters_to_what_fits() -> None:
    """One of them may have any device, the other a single one: the node had the same use before and after."""
    d = DeviceDriver([make_node("n1", "s1/l1", gpus=0)], 5)
    d.claim("any", asking(1))
    d.claim("last", asking(1, selectors=[{"cel": {"expression": "device.attributes['gpu.example.com'].numa == 1"}}]))
    whole, last = d.claims["default", "any"], d.claims["default", "last"]
    d.put_claim(taken(whole, "n1", "gpu-4"))
    pod = make_pod("p")
    pod.spec.resource_claims = [
        PodResourceClaim("a", resource_claim_name="any"),
        PodResourceClaim("b", resource_claim_name="last"),
    ]
    d.run(pod)
    assert not d.where(pod)
    d.put_claim(whole)
    d.put_claim(taken(last, "n1", "gpu-4"))
    d.settle(1)
    d.settle(60)
    assert set(d.where(pod).values()) == {"n1"}


@pytest.mark.unrecorded
@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
def test_whether_claims_have_devices_or_pods_wait_for_them_matters_to_what_fits(order: tuple[str, str]) -> None:
    """Claims have overlapping slots of one node, as two schedulers allocated them. A pod waits for one of the other."""
    d = DeviceDriver([make_node(name, "s1/l1", gpus=0) for name in ("n1", "n2")])
    for name in ("n1", "n2"):
        d.slices(*partitioned(name))
    pod = d.pod("p", profile("7g"), priority=-1)
    for name, node, device in (("a", "n1", "1g-1"), ("b", "n2", "1g-1"), ("c", "n2", "7g-0")):
        d.claim(name, profile(device.partition("-")[0]))
        d.put_claim(taken(d.claims["default", name], node, f"gpu-0-{device}"))
    d.apply(pod)
    d.engine.world.settle_devices()
    d.engine.world.count_devices("w", [seat_allocation([SeatDevice(DRIVER, "n1", "gpu-0-7g-0")])], counts=True)
    membership, devices = d.engine.workloads.of_pod(pod.metadata.uid), d.engine.world.around.devices
    assert membership is not None and devices is not None
    claims, row_of = membership[1].cls.claims, d.engine.world.nodes.row_of
    fits = {name: devices.fit(claims, row_of[name]).now for name in order}
    assert fits == {"n1": 1, "n2": 0}
