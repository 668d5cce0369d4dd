"""What a decision costs if neither its pod nor the cluster has devices, counted in calls of Python functions."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric
from tests.scheduling.function_calls import calls_of, of_package
from topo_scheduler.api.objects import Pod

PODS = 20
MAX_CALLS = 335
"""So many calls took one decision before this package knew devices."""


def pods_of(name: str, gpus: int) -> list[Pod]:
    return [make_pod(f"{name}-{n}", gpus=gpus) for n in range(PODS)]


@pytest.mark.unrecorded
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_pods_without_devices_cost_what_they_cost_before_devices(gpus: int) -> None:
    d = Driver(fabric({f"s{spine}/l{leaf}": 32 for spine in (1, 2) for leaf in (1, 2)}))
    d.run(*pods_of("warm", gpus))
    d.apply(*pods_of("measured", gpus))
    calls = of_package(calls_of(d.step))
    assert len(d.flight) == PODS
    # Rounded down: a few calls depend on the order of uids, which earlier tests of the process shift.
    assert calls.total() // PODS <= MAX_CALLS, calls.most_common(20)
