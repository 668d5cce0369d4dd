"""Namespaces share a cluster: by quotas, by domains reserved for some, and by whose turn it is."""

import time
from pathlib import Path

import pytest

from topo_scheduler.scheduling.surveying.waiting import longest_waits, shares

from . import objects
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .replica import Replica, written

A, B = "e2e-team-a", "e2e-team-b"


pytestmark = pytest.mark.usefixtures("config_read_often")


async def test_a_gang_waits_for_its_quota_until_that_is_raised(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    quota = {"namespaces": ["e2e-team-*"], "hard": {"gpus": 24}}
    await start_replica(written(file, quotas=[quota]), config_path=file)
    await cluster.add_fabric({"s1": [4]})
    await cluster.add_namespace(A)
    await cluster.add_namespace(B)
    await cluster.apply(objects.gang("first", 2, namespace=A))
    await cluster.wait_bound("first", 2, namespace=A)
    await cluster.apply(objects.gang("second", 2, namespace=A))
    (pod, *_) = await cluster.wait_pods("second", 2, namespace=A)
    await cluster.wait_note(pod, f"Quota of namespace {A}: 16 of 24 gpus in use, 16 more asked.")
    await cluster.apply(objects.pod("small", 8, namespace=B))
    (small,) = await cluster.wait_bound("small", 1, namespace=B)
    await cluster.api.delete("pods", "small", B, grace=0)
    written(file, quotas=[{**quota, "hard": {"gpus": 32}}])
    await cluster.wait_bound("second", 2, namespace=A)
    assert small["spec"]["nodeName"]


async def test_a_reserved_domain_is_for_its_namespaces_only(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    reserved = {"domain": "s1/l2", "namespaces": [A]}
    await start_replica(written(file, domainAccess=[reserved]), config_path=file)
    await cluster.add_fabric({"s1": [2, 2]})
    await cluster.add_namespace(A)
    await cluster.add_namespace(B)
    await cluster.apply(*(objects.pod(f"b-{number}", 8, namespace=B) for number in range(3)))

    async def two_bound() -> bool:
        return sum(bool(pod["spec"].get("nodeName")) for pod in await cluster.pods_of("b", B)) == 2

    await cluster.wait_until(two_bound, 15, "two of three bound")
    pods = await cluster.pods_of("b", B)
    (waiting,) = (pod for pod in pods if not pod["spec"].get("nodeName"))
    await cluster.wait_note(waiting, "2 node(s) in a domain that is reserved for other namespaces")
    assert leaves_of([pod for pod in pods if pod["spec"].get("nodeName")]) == {"s1-l1"}
    await cluster.apply(objects.gang("a", 2, namespace=A))
    assert leaves_of(await cluster.wait_bound("a", 2, namespace=A)) == {"s1-l2"}


async def test_the_namespace_that_holds_less_goes_first(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.add_namespace(A)
    await cluster.add_namespace(B)
    await cluster.occupy("s1-l1-2")
    await cluster.apply(objects.pod("holds", 8, namespace=A))
    await cluster.wait_bound("holds", 1, namespace=A)
    await cluster.apply(objects.pod("older", 8, namespace=A))
    (older,) = await cluster.wait_pods("older", 1, namespace=A)
    await cluster.wait_unschedulable(older)
    await cluster.apply(objects.pod("newer", 8, namespace=B))
    (newer,) = await cluster.wait_pods("newer", 1, namespace=B)
    await cluster.wait_unschedulable(newer)
    await cluster.free("s1-l1-2")
    assert nodes_of(await cluster.wait_bound("newer", 1, namespace=B)) == ["s1-l1-2"]
    assert not (await cluster.fresh(older))["spec"].get("nodeName")
    term = daemon.daemon.term
    assert term is not None
    assert shares(term.engine) == {A: 500_000 / 1e6, B: 500_000 / 1e6}
    assert longest_waits(term.engine, time.monotonic())["unschedulable"] > 0
