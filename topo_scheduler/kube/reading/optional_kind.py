"""Follow a kind that a cluster may not serve: its definition may come and go at any moment.

A kind that is not served costs one request a minute, and no warning and no watch. Once it is served, a reflector
follows it. If its definition is deleted, its objects are reported as deleted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError
from topo_scheduler.kube.connection.resources import Object, Resource
from topo_scheduler.kube.connection.served import served_kinds
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.kube.reading.sinks import Deleted, Sink

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

ASK_SECONDS: Final = 60.0
"""Interval between requests for the served kinds, in seconds."""


async def is_served(client: Client, resource: Resource[T]) -> bool:
    """Return whether the API server serves a kind for lists and watches.

    Raises:
        KubeError: the API server did not answer.
    """
    kinds = await served_kinds(client, resource.api_version)
    return any(kind.name == resource.plural and {"list", "watch"} <= set(kind.verbs) for kind in kinds)


class OptionalKind(Generic[T]):
    """Follows one kind while it is served. ``tried`` is set once that is known, and its first list was tried."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        sink: Sink[T],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: float = ASK_SECONDS,
    ) -> None:
        self.resource = resource
        self.tried = asyncio.Event()
        self._client = client
        self._sink = _KnownObjects(sink)
        self._clock = clock
        self._pause = pause
        self._reflector: Reflector[T] | None = None

    def staleness(self, now: float) -> float:
        """Return the seconds since the last page, event or bookmark; 0 while the kind is not served."""
        return self._reflector.staleness(now) if self._reflector is not None else 0.0

    async def run(self) -> NoReturn:
        """Follow the kind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            following: list[asyncio.Task[None]] = []
            while True:
                try:
                    served = await is_served(self._client, self.resource)
                except KubeError as error:
                    logger.info("it is not known whether %s are served: %s", self.resource.described, error)
                else:
                    if served and self._reflector is None:
                        logger.info("%s are served", self.resource.described)
                        self._reflector = Reflector(self._client, self.resource, self._sink, clock=self._clock)
                        following = [tasks.create_task(self._follow(self._reflector))]
                    elif not served:
                        self._leave(following)
                        self.tried.set()
                await asyncio.sleep(self._pause)
        raise AssertionError("this ends by being cancelled")

    async def _follow(self, reflector: Reflector[T]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run(), name=f"reflect {self.resource.described}")
            await reflector.tried.wait()
            self.tried.set()

    def _leave(self, following: Sequence[asyncio.Task[None]]) -> None:
        if self._reflector is None:
            return
        logger.info("%s are no longer served", self.resource.described)
        self._reflector = None
        for task in following:
            task.cancel()
        self._sink.drop_all()


class _KnownObjects(Generic[T]):
    """Passes objects on, and remembers which exist."""

    def __init__(self, sink: Sink[T]) -> None:
        self._sink = sink
        self._known: dict[tuple[str, str], str] = {}

    def applied(self, objects: Sequence[T]) -> None:
        """Pass on objects that exist now."""
        for item in objects:
            self._known[item.metadata.namespace, item.metadata.name] = item.metadata.uid
        self._sink.applied(objects)

    def deleted(self, references: Sequence[Deleted]) -> None:
        """Pass on objects that no longer exist."""
        for reference in references:
            self._known.pop(reference[:2], None)
        self._sink.deleted(references)

    def synced(self) -> None:
        """Pass on that a list is complete."""
        self._sink.synced()

    def drop_all(self) -> None:
        """Report all objects as deleted."""
        deletions = [Deleted(*key, uid) for key, uid in self._known.items()]
        self._known.clear()
        self._sink.deleted(deletions)
