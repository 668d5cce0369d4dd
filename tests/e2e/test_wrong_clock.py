"""A scheduler whose own clock is wrong: timestamps of objects are compared with the clock of the API server."""

import asyncio
import time

import pytest

from topo_scheduler.runtime import term
from topo_scheduler.simulation.apiserver import Disconnect

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


@pytest.mark.only("embedded")
async def test_a_term_that_began_without_the_time_of_the_api_server_is_followed_by_one_with_it(
    cluster: Cluster, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(term, "HISTORY_SECONDS", 0.2)
    rule = cluster.server.faults.add(Disconnect(), where=lambda info: info.path == "/version")
    replica = await start_replica(configured(), wall=lambda: time.time() - 3600)
    cluster.server.faults.remove(rule)
    first = replica.daemon.term
    assert first is not None and first.engine.world.epoch + time.monotonic() < time.time() - 3000
    await cluster.wait_for(lambda: replica.daemon.term is not first and replica.daemon.leading.is_set(), 15, "a term")
    second = replica.daemon.term
    assert second is not None and abs(second.engine.world.epoch + time.monotonic() - time.time()) < 2.0
    assert "the clock of this term is 3600 s behind that of the API server" in caplog.text
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("after", 1))
    await cluster.wait_bound("after", 1)


@pytest.mark.only("embedded")
async def test_a_clock_of_the_machine_that_is_set_changes_nothing_in_a_term(
    cluster: Cluster, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(term, "HISTORY_SECONDS", 0.1)
    steps = [0.0]
    replica = await start_replica(configured(), wall=lambda: time.time() + steps[-1])
    before = replica.daemon.term
    for step in (3600.0, -3600.0):
        steps.append(step)
        await asyncio.sleep(1.0)
        assert replica.daemon.term is before and before is not None
        assert abs(before.engine.world.epoch + time.monotonic() - time.time()) < 2.0
