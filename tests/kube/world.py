"""An embedded API server, a client of it, and small things to look at what happens."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.fence import UNFENCED
from topo_scheduler.kube.connection.resources import PODS, Object, Resource
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer

from .virtual import now

T = TypeVar("T", bound=Object)
Json = dict[str, Any]


@dataclass
class World:
    """A server and its administrator's client."""

    server: EmbeddedAPIServer
    client: Client

    def create_pod(self, name: str, namespace: str = "default", **metadata: Any) -> Pod:
        """A pending pod of our scheduler."""
        spec = {"schedulerName": "topo-scheduler", "containers": [{"name": "main", "image": "train"}]}
        obj = {"metadata": {"name": name, **metadata}, "spec": spec}
        self.server.store.create("pods", obj, namespace)
        return self.pod(name, namespace)

    def pod(self, name: str, namespace: str = "default") -> Pod:
        """The pod as the server has it."""
        return Codec(PODS).one(self.server.store.get("pods", name, namespace).encoded())

    def annotate(self, name: str, key: str, value: str, *, kind: str = "pods", namespace: str = "default") -> None:
        """Set an annotation."""

        def change(obj: Json) -> Json:
            metadata = obj["metadata"]
            annotations = {**metadata.get("annotations", {}), key: value}
            return {**obj, "metadata": {**metadata, "annotations": annotations}}

        self.server.store.modify(kind, name, namespace, change)

    def remove_pod(self, name: str, namespace: str = "default") -> None:
        """Take a pod away, in one event."""
        store = self.server.store
        store.remove(store.kind("pods"), store.get("pods", name, namespace))

    def versions(self, kind: str = "pods") -> dict[str, str]:
        """Name and resourceVersion of all objects of a kind, as the server has them."""
        return {
            record["metadata"]["name"]: record["metadata"]["resourceVersion"] for record in self.server.store.list(kind)
        }

    def asked(self, verb: str, resource: str) -> int:
        """How many such requests came in."""
        return sum(entry.verb == verb and entry.full_resource == resource for entry in self.server.requests)

    def reflector(self, resource: Resource[T], sink: "View[T]", **options: Any) -> Reflector[T]:
        """A reflector that goes by the loop's time."""
        return Reflector(self.client, resource, sink, clock=now, **options)


@asynccontextmanager
async def world(server: EmbeddedAPIServer | None = None) -> AsyncIterator[World]:
    """A server of its own for a test."""
    async with server or EmbeddedAPIServer() as running, connected(running) as client:
        yield World(running, client)


@asynccontextmanager
async def connected(server: EmbeddedAPIServer, token: str | None = None) -> AsyncIterator[Client]:
    """Another client, of the administrator or of the token's user."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = server.write_kubeconfig(Path(folder) / "config", token)
        client = (await Client.connect(str(kubeconfig))).fenced(UNFENCED)
    try:
        yield client
    finally:
        await client.close()


@dataclass
class View(Generic[T]):
    """A sink that believes what the watch reports, and remembers how it was reported."""

    objects: dict[tuple[str, str], T] = field(default_factory=dict)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    lists: int = 0

    def applied(self, objects: Sequence[T]) -> None:
        self.calls.append(("applied", [item.metadata.name for item in objects]))
        for item in objects:
            self.objects[item.metadata.namespace, item.metadata.name] = item

    def deleted(self, references: Sequence[Deleted]) -> None:
        self.calls.append(("deleted", [reference.name for reference in references]))
        for namespace, name, uid in references:
            removed = self.objects.pop((namespace, name))
            assert removed.metadata.uid == uid, "told of the end of something else"

    def synced(self) -> None:
        self.lists += 1

    @property
    def versions(self) -> dict[str, str]:
        """Name and resourceVersion of what is believed to exist."""
        return {name: item.metadata.resource_version for (_, name), item in self.objects.items()}

    def applications(self, name: str) -> int:
        """How often an object was applied."""
        return sum(names.count(name) for call, names in self.calls if call == "applied")


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Have these run beside the test, and end with it; if one fails, the test does."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in failed:
        task.result()


async def eventually(true: Callable[[], object], within: float = 5.0) -> None:
    """Wait until something holds, looking less and less often."""
    end = now() + within
    pause = 0.001
    while not true():
        assert now() < end, f"not within {within} s"
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.2)


@contextmanager
def warnings_logged() -> Iterator[list[str]]:
    """Collect what is logged about the API server as a warning or worse."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("topo_scheduler.kube")
    logger.addHandler(handler)
    try:
        yield warnings
    finally:
        logger.removeHandler(handler)
