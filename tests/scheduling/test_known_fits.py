"""Fits and choices that are kept for nodes that are alike have a bound for all sets of claims together."""

from typing import Any

import pytest

from tests.scheduling.device_driver import asking, driver
from topo_scheduler.scheduling.devices import node_devices

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
