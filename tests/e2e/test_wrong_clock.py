"""A scheduler whose own clock is wrong: timestamps of objects are compared with the clock of the API server."""

import time

import pytest

from . import objects
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .priority_classes import create_priority_classes
from .replica import SHORT_LEASE, configured

ENDING = 3.0
"""Seconds that the deleted pod takes to end."""


@pytest.mark.parametrize("elects", [False, True], ids=["alone", "with a lease"])
@pytest.mark.parametrize("off", [600.0, -3600.0], ids=["ahead", "behind"])
async def test_a_pod_that_ends_soon_is_awaited_and_no_other_evicted(
    cluster: Cluster,
    start_replica: StartReplica,
    off: float,
    elects: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    configuration = configured(election=SHORT_LEASE) if elects else configured()
    await start_replica(configuration, wall=lambda: time.time() + off)
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [2]})
    slowly = cluster.let_pods_end_slowly(ENDING)
    await cluster.apply(
        *(
            objects.pod(f"low-{n}", 8, slowly, priorityClassName="e2e-low", terminationGracePeriodSeconds=int(ENDING))
            for n in range(2)
        )
    )
    await cluster.wait_bound("low", 2)
    node = (await cluster.api.get("pods", "low-0"))["spec"]["nodeName"]
    await cluster.api.delete("pods", "low-0")
    await cluster.apply(objects.pod("urgent", 8, priorityClassName="e2e-high"))
    assert nodes_of(await cluster.wait_bound("urgent", 1)) == [node]
    (other,) = [pod for pod in await cluster.pods_of("low") if pod["metadata"]["name"] == "low-1"]
    assert "deletionTimestamp" not in other["metadata"]
    assert f"clock of this machine is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'}" in caplog.text
