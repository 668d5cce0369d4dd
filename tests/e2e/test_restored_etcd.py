"""An API server whose etcd was restored from a backup: resourceVersions of before are not reached for long."""

import asyncio
import shutil

import pytest

from tests.controlplane import ControlPlane
from topo_scheduler.api.process import LeaderElection
from topo_scheduler.runtime import term
from topo_scheduler.simulation.apiserver import Stray

from . import objects
from .cluster import Cluster
from .conftest import StartReplica, Trouble
from .replica import NO_ELECTION, SHORT_LEASE, configured

OLDER = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}'


@pytest.mark.parametrize("election", [NO_ELECTION, SHORT_LEASE], ids=["alone", "with a lease"])
async def test_an_older_state_begins_a_new_term(
    cluster: Cluster,
    trouble: Trouble,
    start_replica: StartReplica,
    monkeypatch: pytest.MonkeyPatch,
    election: LeaderElection,
) -> None:
    monkeypatch.setattr(term, "HISTORY_SECONDS", 0.2)
    replica = await start_replica(configured(election=election))
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("before", 1))
    await cluster.wait_bound("before", 1)
    first, identity = replica.daemon.term, replica.daemon.identity
    trouble.faults.add(Stray(OLDER), verb="list", resource="pods", times=1)
    await cluster.wait_for(lambda: replica.daemon.term is not first and replica.daemon.leading.is_set(), 10, "a term")
    await cluster.apply(objects.gang("after", 1))
    await cluster.wait_bound("after", 1)
    assert (replica.alive, replica.daemon.identity) == (True, identity)


@pytest.mark.slow
@pytest.mark.only("real")
@pytest.mark.timeout(300)
async def test_pods_are_scheduled_after_a_restore(cluster: Cluster, start_replica: StartReplica) -> None:
    plane = cluster.plane
    replica = await start_replica()
    replica.may_be_refused = True  # an API server that has just started has not read its roles
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.pod("first-0", 1))
    await cluster.wait_bound("first", 1)
    await asyncio.to_thread(_restart, plane, "etcd", "backup")
    await cluster.apply(objects.pod("second-0", 1))
    await cluster.wait_bound("second", 1, 20)
    for number in range(400):
        await cluster.api.create("secrets", {"metadata": {"name": f"newer-{number}"}, "kind": "Secret"})
    await asyncio.to_thread(_restart, plane, "backup", "etcd")
    await cluster.apply(objects.pod("third-0", 1))
    await cluster.wait_bound("third", 1, 20)


def _restart(plane: ControlPlane, source: str, target: str) -> None:
    """Restart the servers; meanwhile replace one copy of etcd's data by another."""
    for component in ("kube-apiserver", "etcd"):
        plane.halt(component, grace=5)
    shutil.rmtree(plane.directory / target, ignore_errors=True)
    shutil.copytree(plane.directory / source, plane.directory / target)
    for component in ("etcd", "kube-apiserver"):
        plane.resume(component)
    plane.restart("kube-controller-manager")
