"""The cluster and the daemon: on the embedded server, or with ``--apiserver=real`` or ``oldest`` on a real one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from tests.controlplane import ControlPlane
from tests.crds import job_set_definition, migration_definition
from topo_scheduler import daemon as daemon_module
from topo_scheduler.api.config import Configuration
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer
from topo_scheduler.simulation.controllers import controllers
from topo_scheduler.simulation.kubelet import Kubelet

from . import invariants
from .api import Api
from .cluster import ROOT, Cluster
from .job_sets import JOB_SETS
from .proxy import FaultProxy
from .replica import Replica, configured, recorded, replayed

GATES = {"GenericWorkload": True, "GangScheduling": True, "TopologyAwareWorkloadScheduling": True}
"""PodGroups are alpha in Kubernetes 1.36: off unless asked for."""
ALPHA = ("scheduling.k8s.io/v1alpha2=true",)
ACCOUNT = ("kube-system", "topology-scheduler")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for the other server only: it is deselected, not skipped."""
    wanted = config.getoption("--apiserver")
    here = Path(__file__).parent
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        only = item.get_closest_marker("only")
        mine = here in item.path.parents
        elsewhere = only is not None and only.args[0] != wanted
        if wanted == "oldest":
            elsewhere = item.get_closest_marker("on_oldest") is None
        (left_out if mine and elsewhere else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    # The long ones first: no worker is left with one of them at the end.
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("slow") is None)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers that say which servers a test is for."""
    config.addinivalue_line("markers", "only(server): the test is for this --apiserver only")
    config.addinivalue_line("markers", "on_oldest: the test is also for --apiserver=oldest, which has no controllers")


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane | None]:
    """The real control plane, once for all tests; None where the embedded server is wanted."""
    wanted = request.config.getoption("--apiserver")
    if wanted == "embedded":
        yield None
        return
    oldest = ControlPlane(version="oldest", with_kwok=True)
    with (
        oldest
        if wanted == "oldest"
        else ControlPlane(with_kwok=True, feature_gates=GATES, runtime_config=ALPHA) as plane
    ):
        yield plane


@pytest.fixture
def garbage_pause_seconds() -> float:
    """How long the embedded server's garbage collector pauses between two dependents of one owner."""
    return 0.0


@pytest.fixture
async def cluster(plane: ControlPlane | None, tmp_path: Path, garbage_pause_seconds: float) -> AsyncIterator[Cluster]:
    """An empty cluster with controllers, simulated kubelets and the manifests' ServiceAccount and RBAC."""
    if plane is not None:
        async with Api(plane.kubeconfig) as api:
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            await cluster.install()
            cluster.scheduler_kubeconfig = await asyncio.to_thread(plane.kubeconfig_for_service_account, *ACCOUNT)
            await cluster.clear()
            await cluster.recorder.start()
            try:
                yield cluster
            finally:
                await cluster.recorder.stop()
                await cluster.clear()
        return
    async with EmbeddedAPIServer(rbac=True, bookmark_seconds=1.0) as server:
        kubelet = Kubelet(server.store, run_seconds=2.0)
        running = controllers(server.store, garbage_pause_seconds=garbage_pause_seconds)
        async with running, kubelet, Api(server.write_kubeconfig(tmp_path / "admin")) as api:
            cluster = Cluster(
                api, scheduler_kubeconfig=tmp_path / "scheduler", embedded=server, kubelet=kubelet, controllers=running
            )
            await cluster.install()
            answer = await api.request(
                "POST",
                f"/api/v1/namespaces/{ACCOUNT[0]}/serviceaccounts/{ACCOUNT[1]}/token",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
            )
            server.write_kubeconfig(cluster.scheduler_kubeconfig, answer["status"]["token"])
            await cluster.recorder.start()
            try:
                yield cluster
            finally:
                server.faults.clear()
                await cluster.recorder.stop()


@pytest.fixture
def config_read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at configuration files ten times a second."""
    monkeypatch.setattr(daemon_module, "CONFIG_POLL_SECONDS", 0.1)


Trouble = EmbeddedAPIServer | FaultProxy
"""What has `faults`, `break_watches`, `go_away` and `come_back`."""


@pytest.fixture
async def trouble(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Trouble]:
    """Where faults are added: the embedded server, or a proxy between the daemon and the real one.

    It stands before fixtures that start a daemon.
    """
    if cluster.embedded:
        yield cluster.server
        return
    direct = cluster.scheduler_kubeconfig
    async with FaultProxy(direct) as proxy:
        cluster.scheduler_kubeconfig = proxy.write_kubeconfig(tmp_path / "through-proxy")
        try:
            yield proxy
        finally:
            cluster.scheduler_kubeconfig = direct


class StartReplica(Protocol):
    """Starts a replica; waits until it schedules unless told not to."""

    def __call__(
        self,
        configuration: Configuration = ...,
        *,
        config_path: Path | None = ...,
        wait: bool = ...,
        wall: Callable[[], float] = ...,
    ) -> Awaitable[Replica]: ...


@pytest.fixture
async def start_replica(cluster: Cluster, tmp_path: Path) -> AsyncIterator[StartReplica]:
    """Starts replicas of the daemon under the manifests' ServiceAccount; at the end the invariants are checked.

    Each records what it decides, and the record must replay.
    """
    replicas: list[Replica] = []

    async def start(
        configuration: Configuration | None = None,
        *,
        config_path: Path | None = None,
        wait: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> Replica:
        recording = recorded(configuration or configured(), tmp_path / f"record-{len(replicas)}")
        replica = Replica(cluster.scheduler_kubeconfig, recording, config_path, wall)
        replicas.append(await replica.start())
        if wait:
            await replica.wait_leading()
        return replica

    started: Callable[..., Awaitable[Replica]] = start
    try:
        yield started
        await invariants.check(cluster, replicas)
        for replica in replicas:
            refused = [method for method, code in replica.client.traffic.requests if code == 403]
            assert not refused or replica.may_be_refused, f"RBAC of the manifests does not allow some {refused}"
            if not replica.ended:
                await replica.stop()
            replayed(replica)
    finally:
        for replica in replicas:
            if not replica.ended:
                await replica.stop()


@pytest.fixture
async def daemon(start_replica: StartReplica) -> Replica:
    """A daemon without leader election and with the default configuration, scheduling."""
    return await start_replica()


@pytest.fixture
async def migrations(cluster: Cluster) -> AsyncIterator[None]:
    """Serve Migrations while a test runs."""
    definition = migration_definition()
    await cluster.define(definition)
    yield
    await cluster.undefine(definition["metadata"]["name"])


@pytest.fixture
async def job_sets(cluster: Cluster) -> AsyncIterator[None]:
    """Serve JobSets, and allow the scheduler to read them."""
    await cluster.define(job_set_definition())
    owner_kinds = (ROOT / "manifests" / "owner-kinds.yaml").read_text()
    for item in yaml.safe_load_all(owner_kinds):
        if item and item["metadata"]["name"].endswith("-jobset"):
            await cluster.api.create("clusterroles", item)
            await cluster.install()
    try:
        yield
    finally:
        await cluster.api.delete("clusterroles", "topology-scheduler-owners-jobset")
        if await cluster.api.find("customresourcedefinitions", JOB_SETS) is not None:
            await cluster.undefine(JOB_SETS)
