"""A tenant nominates its pods to all nodes itself, for a scheduler that does not exist: others wait for them once."""

import pytest

from topo_scheduler.scheduling.preemption import nomination_trust, nominations_of_others

from . import objects
from .cluster import Cluster
from .conftest import StartReplica

TENANT = "e2e-hostile"
COUNTS_SECONDS = 4.0


async def test_pods_of_no_scheduler_that_are_nominated_everywhere_delay_others_once(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, start_replica: StartReplica
) -> None:
    for module in (nomination_trust, nominations_of_others):
        monkeypatch.setattr(module, "COUNTS_SECONDS", COUNTS_SECONDS)
    await start_replica()
    await cluster.add_fabric({"s1": [2]})
    await cluster.add_namespace(TENANT)
    names = [node["metadata"]["name"] for node in await cluster.api.list("nodes", None)]
    for round_ in ("first", "second"):
        for node in names:
            pod = objects.pod(f"{round_}-{node}", 8, schedulerName="nobody")
            made = await cluster.api.create("pods", {**pod, "metadata": {**pod["metadata"], "namespace": TENANT}})
            await cluster.set_pod_status(made, {"nominatedNodeName": node})
        await cluster.apply(objects.pod(f"victim-{round_}", 8))
        if round_ == "first":
            (pending,) = await cluster.wait_pods("victim-first", 1)
            await cluster.wait_note(pending, "0/2 nodes are available")
        await cluster.wait_bound(f"victim-{round_}", 1, timeout=COUNTS_SECONDS + 10 if round_ == "first" else 3)
