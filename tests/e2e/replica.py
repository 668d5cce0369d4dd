"""One replica of the daemon, as `topo-scheduler run` has it, in the loop of the test."""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.internal_errors import process_killed
from topo_scheduler.api.config import Configuration, TopologySchedulerConfig, TopologySpec
from topo_scheduler.api.process import ClientConnection, LeaderElection, MetricsSettings, SchedulerConfig
from topo_scheduler.api.recording import Recording
from topo_scheduler.api.scoring import TopologyConstraints
from topo_scheduler.api.sharing import GpusByAnnotation
from topo_scheduler.daemon import Daemon
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.recording.replay import Report, replay
from topo_scheduler.runtime.config_files import read_configuration

SHORT_LEASE = LeaderElection(lease_duration=2.0, renew_deadline=1.5, retry_period=0.2)
NO_ELECTION = LeaderElection(leader_elect=False)


def configured(
    *,
    election: LeaderElection = NO_ELECTION,
    bind_timeout: float = 5.0,
    max_binds_in_flight: int = 48,
    gpus_by_annotation: tuple[str, ...] = (),
    **constraints: object,
) -> Configuration:
    """A configuration for tests; constraints as in ``spec.topologyConstraints``.

    ``gpus_by_annotation`` namespaces that may have GPUs that no limit names.
    """
    return Configuration(
        SchedulerConfig(
            leader_election=election,
            client_connection=ClientConnection(bind_timeout=bind_timeout, max_binds_in_flight=max_binds_in_flight),
            metrics=MetricsSettings(bind_address="127.0.0.1", port=0),
            pod_initial_backoff_seconds=0.2,
            pod_max_backoff_seconds=1.0,
        ),
        TopologySchedulerConfig(
            spec=TopologySpec(
                topology_constraints=TopologyConstraints.model_validate(constraints),
                gpus_by_annotation=GpusByAnnotation(namespaces=gpus_by_annotation),
            )
        ),
    )


def written(path: Path, **spec: Any) -> Configuration:
    """Write a TopologySchedulerConfig, and return it with a SchedulerConfig for tests."""
    base = configured().scheduler.model_dump(by_alias=True, mode="json", exclude={"spec"})
    document = {"apiVersion": "topology.scheduler/v1alpha1", "kind": "TopologySchedulerConfig", "spec": spec}
    put(path, yaml.safe_dump_all([base, document]))
    return read_configuration(path)


def put(path: Path, text: str) -> None:
    """Write a file that a process reads meanwhile: it is the old one or the new one, never half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def recorded(configuration: Configuration, directory: Path) -> Configuration:
    """The same, recording into a directory, unless it says where itself."""
    scheduler = configuration.scheduler
    if scheduler.record.directory:
        return configuration
    recording = scheduler.model_copy(update={"record": Recording(directory=str(directory))})
    return replace(configuration, scheduler=recording)


def replayed(replica: "Replica") -> Report:
    """Replay what a replica that ended recorded; fail where it differs."""
    if not replica.daemon.outputs.state().record_calls:
        return Report()
    report = replay(Path(replica.daemon.configuration.scheduler.record.directory))
    assert report.first is None, report.first
    assert report.notes == []
    assert report.skipped == 0
    return report


class Replica:
    """A daemon with its own connection."""

    def __init__(
        self,
        kubeconfig: Path,
        configuration: Configuration,
        config_path: Path | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self._kubeconfig = kubeconfig
        self._configuration = configuration
        self._config_path = config_path
        self.daemon: Daemon
        self.client: Client
        self.task: asyncio.Task[None]
        self.ended = False
        self.may_be_refused = False
        """Whether the API server may answer 403 in this test; otherwise RBAC of the manifests lacks something."""

    async def start(self) -> "Replica":
        self.client = await Client.connect(str(self._kubeconfig))
        self.daemon = Daemon(self._configuration, self.client, config_path=self._config_path, wall=self._wall)
        self.task = asyncio.create_task(self.daemon.run(), name="daemon")
        return self

    async def wait_leading(self, timeout: float = 30) -> None:
        """Wait until it schedules; if it ends instead, raise why."""
        leading = asyncio.create_task(self.daemon.leading.wait())
        try:
            done, _ = await asyncio.wait({leading, self.task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if self.task in done:
                self.task.result()
            assert leading in done, f"not leading within {timeout} s"
        finally:
            leading.cancel()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return not self.task.done()

    async def stop(self) -> None:
        """End it as SIGTERM does."""
        self.ended = True
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.client.close()

    async def kill(self) -> None:
        """End it as SIGKILL does: nothing more reaches the server, the Lease included."""
        self.ended = True
        process_killed()
        await self.client.close()
        self.task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self.task

    async def get(self, path: str) -> tuple[int, str]:
        """Get a path of its own HTTP server."""
        port = await self.daemon.wait_served()
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples whose labels include these."""
        _, text = await self.get("/metrics")
        total = 0.0
        for line in text.splitlines():
            match = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total


LEASE = ("leases", "topology-scheduler", "kube-system")
CANDIDATE = configured(election=SHORT_LEASE, bind_timeout=1.0)
