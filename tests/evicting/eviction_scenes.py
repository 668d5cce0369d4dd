"""Scenes of evictions: a gang that preempts, and the API server that evicts its victims."""

import asyncio
from collections.abc import AsyncIterator, Container, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from tests.helpers import Owner, make_node, make_pod
from tests.kube.owner_objects import Json, controller_reference
from tests.kube.virtual import now
from tests.kube.world import World
from tests.observability.samples import samples
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import OwnerReference, PartialObject, Pod
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.writing.evictions import Evictor
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.runtime.executor import Executor, Writers
from topo_scheduler.runtime.owner_confirmation import OwnerConfirmation
from topo_scheduler.scheduling.instructions import Preempt


@dataclass
class RecordedEvents:
    """An event recorder that keeps the reasons of events."""

    reasons: list[str] = field(default_factory=list)

    def record(self, regarding: object, kind: str, reason: str, note: str, action: str, *, more: bool = False) -> None:
        """As of an EventRecorder."""
        self.reasons.append(reason)


@dataclass
class EvictionScene:
    """One full node a victim, an engine that preempts, and an executor that writes to an API server."""

    world: World
    driver: Driver
    executor: Executor
    events: RecordedEvents
    tasks: list[asyncio.Task[None]]

    def decide(self) -> int:
        """Have the engine take a step, and start what it wants; return how many evictions that are."""
        self.driver.said.clear()
        self.driver.now = now()
        self.driver.step()
        wanted = [instruction for instruction in self.driver.said if isinstance(instruction, Preempt)]
        for instruction in wanted:
            self.executor.carry_out(instruction)
        return len(wanted)

    async def settled(self) -> None:
        """Wait until everything that was started has ended."""
        await asyncio.gather(*self.tasks)

    @property
    def evictions(self) -> int:
        """Evictions that reached the server."""
        return self.world.asked("create", "pods/eviction")

    def counted(self) -> dict[str, float]:
        """Return how many preemptions a scrape shows, by outcome."""
        name = "topology_scheduler_preemption_victims_total"
        seen = samples(self.executor._metrics)
        return {dict(labels)["outcome"]: value for (metric, labels), value in seen.items() if metric == name}

    @property
    def running(self) -> int:
        """Victims that are not being deleted."""
        pods = self.world.server.store.list("pods")
        return sum("deletionTimestamp" not in pod["metadata"] for pod in pods if "-low-" in pod["metadata"]["name"])


@asynccontextmanager
async def eviction_scene(
    w: World, owner: Json, size: int = 2, confirm: bool = True, nodes: int = 0, of_tenant: Container[int] = ()
) -> AsyncIterator[EvictionScene]:
    """Begin a scene in which a gang of ``size`` pods below ``owner`` would preempt as many pods.

    There are as many nodes, or more if ``nodes`` says so, in leaves of eight. Victims on those ``of_tenant`` are of
    another namespace.
    """
    nodes = nodes or size
    d = Driver([make_node(f"n{n}", f"s1/l{n // 8}") for n in range(nodes)])
    d.now = now()
    d.engine.budgets_known()
    report_namespaces(w, d)
    if of_tenant:
        w.server.store.create("namespaces", {"metadata": {"name": "tenant"}})
    name, victims = owner["metadata"]["name"], []
    for n in range(nodes):
        of, namespace = f"{name}-low-{n}", "tenant" if n in of_tenant else "default"
        uid = w.create_pod(of, namespace, finalizers=["example.com/wait"]).metadata.uid
        victim = make_pod(of, namespace=namespace, uid=uid, gpus=8, node=f"n{n}", scheduler="other", phase="Running")
        victims.append(victim)
    d.apply(*victims)
    uid = owner["metadata"]["uid"]
    d.own(Owner(owner["kind"], owner["metadata"]["name"], uid=uid))
    members = _members(owner, size)
    for member in members:
        member.metadata.uid = w.create_pod(member.metadata.name).metadata.uid
    d.apply(*members)

    def changed(uid: str) -> None:
        chain = owners.resolve(_members(owner, 1)[0].metadata)
        if reason := getattr(chain, "gone", ""):
            d.now = now()
            d.disown(uid, reason)

    owners = OwnerDirectory(w.client, on_change=changed, needed=lambda uid: True, clock=now)
    await owners.complete(_members(owner, 1)[0].metadata)
    tasks: list[asyncio.Task[None]] = []
    events = RecordedEvents()

    def start(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.create_task(work, name=name))

    async def nothing(_: object) -> str:
        return ""

    writers = Writers(
        *cast("tuple[Any, Any, Any, Any]", 4 * (None,)),
        Evictor(w.client),
        PodStatusWriter(w.client),
        *cast("tuple[Any, Any, Any]", (events, None, None)),
    )
    asked = OwnerConfirmation(d.engine, owners, w.client, now)
    executor = Executor(
        d.engine,
        writers,
        Metrics(Snapshot),
        name="topo-scheduler",
        workers=48,
        clock=now,
        wall=now,
        start=start,
        changed=lambda: None,
        confirm=asked.of_pending if confirm else nothing,
    )
    try:
        yield EvictionScene(w, d, executor, events, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def report_namespaces(w: World, d: Driver) -> None:
    """Report the namespaces of the API server to the engine, as their watch does."""
    d.engine.namespaces_applied([msgspec.convert(space, PartialObject) for space in w.server.store.list("namespaces")])


def _members(owner: Json, size: int) -> list[Pod]:
    reference = controller_reference(owner)
    return [
        make_pod(
            f"{reference['name']}-{n}",
            gpus=8,
            owner=OwnerReference(reference["apiVersion"], reference["kind"], reference["name"], reference["uid"], True),
            priority=10,
            annotations={"gang-name": "train", "gang-size": str(size)},
        )
        for n in range(size)
    ]
