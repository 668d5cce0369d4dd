"""A cluster with an embedded server, controllers and kubelets, and daemons that come and go, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import patch

from tests.crds import migration_definition
from tests.e2e import objects
from topo_scheduler import daemon as daemon_module
from topo_scheduler.api.config import Configuration, TopologySchedulerConfig, TopologySpec
from topo_scheduler.api.process import ClientConnection, LeaderElection, SchedulerConfig
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.daemon import Daemon
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.recovery.controller import runner
from topo_scheduler.runtime import term as term_module
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.simulation.apiserver import Json, Store
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.pods import bind
from topo_scheduler.simulation.controllers import controllers
from topo_scheduler.simulation.kubelet import RUN_SECONDS, Kubelet

from .loop import PROCESS, START, VirtualLoop
from .watcher import LoopWatcher
from .wire import Server, Wire

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
LEAVES: Final = {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4}
ALONE: Final = LeaderElection(leader_elect=False)
ELECTED: Final = LeaderElection(lease_duration=15.0, renew_deadline=10.0, retry_period=2.0)


def configured(election: LeaderElection = ALONE, **recovery: Any) -> Configuration:
    """A configuration with recovery on."""
    scheduler = SchedulerConfig(
        leader_election=election,
        client_connection=ClientConnection(bind_timeout=5.0),
        pod_initial_backoff_seconds=0.5,
        pod_max_backoff_seconds=2.0,
    )
    spec = RecoverySpec.model_validate({"enabled": True, "force_delete": True, "debounce": 5.0, **recovery})
    return Configuration(scheduler, TopologySchedulerConfig(spec=TopologySpec(recovery=spec)))


@asynccontextmanager
async def _unserved(*_: object) -> AsyncIterator[int]:
    """In the place of serving health over HTTP."""
    yield 0


@contextmanager
def _without_system() -> Any:
    """No sockets of its own, no thread of kopf, no collections of garbage, no measuring of real time."""
    with (
        patch.object(daemon_module, "listening", _unserved),
        patch.object(runner, "Watcher", LoopWatcher),
        patch.object(term_module, "gc"),
        patch.object(daemon_module, "gc"),
        patch.object(term_module, "STEP_SECONDS", float("inf")),
        patch.object(term_module, "EXPLAIN_SECONDS", float("inf")),
    ):
        yield


class Process:
    """One replica of the daemon. ``skew`` seconds that its wall clock is ahead."""

    def __init__(self, world: "World", number: int, configuration: Configuration, skew: float = 0.0) -> None:
        self.name = name = f"daemon-{number}"
        self.killed = False
        self.stopped = False
        self._loop = loop = world.loop
        context = copy_context()
        context.run(PROCESS.set, name)
        self.wire = Wire(world.server, copy_context(), self._fall)
        client = Client(self.wire.transport(), user_agent=name)
        # What one process calls a moment means nothing to another.
        own = 10_000.0 * number

        def make() -> Daemon:
            return Daemon(
                configuration,
                client,
                clock=lambda: loop.time() + own,
                wall=lambda: EPOCH.timestamp() + loop.time() + skew,
                lease_clock=lambda: loop.time() + own,
            )

        self.daemon = context.run(make)
        self.task = loop.create_task(self.daemon.run(), name=name, context=context)

    @property
    def leads(self) -> bool:
        """Whether it schedules."""
        return not self.killed and self.daemon.leading.is_set()

    @property
    def engine(self) -> Engine:
        """Its engine, while it leads."""
        assert self.daemon.term is not None
        return self.daemon.term.engine

    def _fall(self) -> None:
        """Be dead at this very moment."""
        self.wire.dead = self.killed = True
        self._loop.stop_process(self.name)

    async def kill(self) -> None:
        """End it as SIGKILL does."""
        self._fall()
        await self.bury()

    async def bury(self) -> None:
        """Clear away what is left of one that was killed."""
        await self._loop.end_process(self.name)

    async def end(self) -> None:
        """End it as SIGTERM does."""
        self.task.cancel()
        await asyncio.wait([self.task])
        self.killed = True
        if not self.task.cancelled() and (error := self.task.exception()) is not None:
            raise error

    def sleep(self) -> None:
        """Stop it as SIGSTOP does."""
        self.stopped = True
        self._loop.stop_process(self.name)

    def wake(self) -> None:
        """Let it go on, believing what it believed."""
        self.stopped = False
        self._loop.continue_process(self.name)


class World:
    """Everything there is. Used within `cluster`."""

    def __init__(self, loop: VirtualLoop, *, seed: int = 1, window: int = 10_000) -> None:
        self.loop = loop
        self.store = Store(clock=self._wall, seed=seed, window=window)
        self.server = Server(self.store, bookmark_seconds=30.0)
        self.kubelet = Kubelet(self.store)
        self.controllers = controllers(self.store)
        self.processes: list[Process] = []
        self.started = 0
        self.gangs: dict[str, int] = {}
        """Members of each gang that was submitted and does not end by itself."""

    def _wall(self) -> datetime:
        return EPOCH + timedelta(seconds=self.loop.time())

    # ------------------------------------------------------------ daemons

    def start(self, configuration: Configuration | None = None, *, skew: float = 0.0) -> Process:
        """Start a replica."""
        self.started += 1
        process = Process(self, self.started, configuration or configured(), skew)
        self.processes.append(process)
        return process

    @property
    def leader(self) -> Process | None:
        """Who schedules."""
        leading = [process for process in self.processes if process.leads]
        return leading[-1] if leading else None

    async def until(self, holds: Callable[[], object], seconds: float = 60.0, step: float = 0.1) -> None:
        """Let time pass until something holds."""
        end = self.loop.time() + seconds
        while not holds():
            assert self.loop.time() < end, f"not within {seconds:g} s"
            self._no_surprise()
            await asyncio.sleep(step)

    async def run(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)
        self._no_surprise()

    def _no_surprise(self) -> None:
        for process in self.processes:
            if not process.killed and process.task.done():
                process.task.result()
                raise AssertionError(f"{process.name} ended by itself")

    async def leading(self, seconds: float = 120.0) -> Process:
        """Wait until a replica leads; return it."""
        await self.until(lambda: self.leader is not None, seconds)
        assert self.leader is not None
        return self.leader

    # ------------------------------------------------------------ the cluster

    def define_migrations(self) -> None:
        """Install the definition of Migrations."""
        self.store.create("customresourcedefinitions.apiextensions.k8s.io", migration_definition())

    def add_fabric(self, leaves: Mapping[str, int], gpus: int = 8) -> list[str]:
        """Create nodes: ``{"s1/l1": 2}`` is ``s1-l1-1`` and ``s1-l1-2``."""
        names = []
        for path, count in leaves.items():
            names += [self.add_node(path, number, gpus) for number in range(1, count + 1)]
        return names

    def add_node(self, path: str, number: int, gpus: int = 8) -> str:
        """Create a node of a leaf."""
        spine, _, leaf = path.partition("/")
        name = f"{spine}-{leaf}-{number}"
        self.store.create("nodes", objects.node(name, spine=spine, leaf=leaf, gpus=gpus))
        return name

    def delete_node(self, name: str) -> None:
        """An administrator deletes a node."""
        self.store.delete("nodes", name)

    def gang(
        self,
        name: str,
        members: int,
        *,
        gpus: int = 8,
        run: float | None = None,
        said: Mapping[str, str] | None = None,
    ) -> None:
        """Submit a Job that is a gang."""
        job = objects.gang(name, members, gpus, said, run=run)
        job["spec"]["backoffLimit"] = 1_000
        self.store.create("jobs.batch", job)
        if run is None:
            self.gangs[name] = members

    def replicas(self, name: str, count: int, *, gpus: int = 1) -> None:
        """Submit a ReplicaSet."""
        self.store.create("replicasets.apps", objects.replicated("ReplicaSet", name, count, gpus))

    def foreign(self, name: str, node: str, *, gpus: int) -> None:
        """Another scheduler binds a pod, which runs for a while."""
        self.store.create("pods", objects.pod(name, gpus, run=60.0, scheduler="other"), "default")
        bind(self.store, "default", name, {"metadata": {"name": name}, "target": {"name": node}})

    def fail(self, *nodes: str) -> None:
        """Nodes fall silent."""
        for name in nodes:
            self.kubelet.fail_node(name)

    def heal(self, *nodes: str) -> None:
        """Nodes come back."""
        for name in nodes:
            self.kubelet.heal_node(name)

    @asynccontextmanager
    async def controllers_stand(self) -> AsyncIterator[None]:
        """No controller makes pods again meanwhile."""
        await self.controllers.stop()
        try:
            yield
        finally:
            await self.controllers.start()

    def request(self, name: str, *pods: str) -> None:
        """A user asks for a move."""
        spec = {"cause": "a test asks for it", "pods": [{"name": pod} for pod in pods]}
        body = {"apiVersion": "topology.scheduler/v1alpha1", "kind": "Migration", "metadata": {"name": name}}
        self.store.create(MIGRATIONS, {**body, "spec": spec}, "default")

    def delete(self, kind: str, name: str) -> None:
        """A user deletes an object."""
        self.store.delete(kind, name, "default", DeleteOptions(propagation="Background"))

    # ------------------------------------------------------------ what there is

    def pods(self, *, bound: bool | None = None) -> list[Json]:
        """Return the pods that are not over, with or without those that have a node."""
        pods = [record.obj for record in self.store.list("pods")]
        alive = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        return alive if bound is None else [pod for pod in alive if bool(pod["spec"].get("nodeName")) == bound]

    def nodes_of(self, job: str) -> list[str]:
        """Return the nodes of the pods of a job that are bound and stay, one a pod."""
        return sorted(
            pod["spec"]["nodeName"]
            for pod in self.pods(bound=True)
            if owner_of(pod) == job and not pod["metadata"].get("deletionTimestamp")
        )

    def migrations(self) -> dict[str, Json]:
        """Return all Migrations, by name."""
        return {record.key.name: record.obj for record in self.store.list(MIGRATIONS)}

    def phases(self) -> list[str]:
        """Return how far all Migrations are."""
        return [str((migration.get("status") or {}).get("phase", "")) for migration in self.migrations().values()]

    def whole(self, *names: str) -> bool:
        """Return whether all members of these gangs are bound to nodes that are well, or of all gangs."""
        silent = {name for name in self.node_names() if not self.kubelet._node(name).responsive}
        return all(
            len(where := self.nodes_of(name)) == self.gangs[name] and not silent.intersection(where)
            for name in (names or self.gangs)
        )

    def node_names(self) -> Iterable[str]:
        """Return the names of all nodes."""
        return [record.key.name for record in self.store.list("nodes")]


MIGRATIONS: Final = "migrations.topology.scheduler"


def owner_of(pod: Json) -> str:
    """Return the name of the controller of a pod."""
    return next(
        (str(owner["name"]) for owner in pod["metadata"].get("ownerReferences") or () if owner.get("controller")), ""
    )


@asynccontextmanager
async def cluster(
    leaves: Mapping[str, int] = LEAVES, *, migrations: bool = True, window: int = 10_000
) -> AsyncIterator[World]:
    """A world that lives on the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop) and loop.time() >= START
    world = World(loop, window=window)
    with _without_system():
        async with world.controllers, world.kubelet:
            if migrations:
                world.define_migrations()
            world.add_fabric(leaves)
            try:
                yield world
            finally:
                for process in world.processes:
                    await process.kill()


__all__ = ["ALONE", "ELECTED", "LEAVES", "MIGRATIONS", "RUN_SECONDS", "Process", "World", "cluster", "configured"]
