"""Follow the PodGroups of every served API, and notice when an API appears or disappears.

Most clusters serve at most one of these APIs, and a definition may appear at any moment. So the directory asks the
server periodically which of them it serves. It also asks at once when a pod names a PodGroup of an API that was not
served. Guarantees: an API that is not served costs no warning and no watch. A failed request changes nothing that
was known.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from topo_scheduler.api.groups import PLURAL, VERSIONS, GroupApi, PodGroupObject
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError
from topo_scheduler.kube.connection.resources import Resource
from topo_scheduler.kube.connection.served import served_kinds, served_versions
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.state.pods.pod_groups import GroupKey, PodGroup, Serving, read_group

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 30.0
"""Interval between requests for the served APIs, in seconds."""

SOON_SECONDS: Final = 1.0
"""Least seconds between two such requests, however often a pod names a missing API."""

Found = Resource[PodGroupObject]


class GroupFacts(Protocol):
    """The consumer of PodGroups. Called on the event loop, in order, never concurrently."""

    def groups_applied(self, groups: Sequence[PodGroup]) -> None:
        """These PodGroups exist now, in this state."""

    def groups_deleted(self, groups: Sequence[tuple[GroupKey, str]]) -> None:
        """These PodGroups no longer exist; with their uids."""

    def groups_served(self, api: GroupApi, serving: Serving, requested_at: float) -> None:
        """Report how an API is served; ``asked`` is when the request was sent, in seconds of the directory's clock."""


async def served_groups(client: Client) -> dict[GroupApi, Found]:
    """Return the served PodGroup resources, in the newest version of each API that the scheduler understands.

    Raises:
        KubeError: no answer.
    """
    listed = await served_versions(client)
    served = {}
    for api, versions in VERSIONS.items():
        for version in versions:
            if version in listed.get(api, ()) and await _has_groups(client, f"{api}/{version}"):
                served[api] = Resource(str(api), version, PLURAL, "PodGroup", PodGroupObject)
                break
    return served


async def _has_groups(client: Client, api_version: str) -> bool:
    kinds = await served_kinds(client, api_version)
    return any(kind.name == PLURAL and kind.namespaced and {"list", "watch"} <= set(kind.verbs) for kind in kinds)


@dataclass(slots=True)
class _ServedApi:
    """One API that is served."""

    resource: Found
    reflector: Reflector[PodGroupObject]
    sink: "_GroupSink"
    task: asyncio.Task[Any]


class GroupDirectory:
    """Keeps ``facts`` informed of all existing PodGroups."""

    def __init__(self, client: Client, facts: GroupFacts, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._facts = facts
        self._clock = clock
        self._followed: dict[GroupApi, _ServedApi] = {}
        self._answered = asyncio.Event()
        self._again = asyncio.Event()

    async def run(self) -> NoReturn:
        """Follow all served APIs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._again.clear()
                requested_at = self._clock()
                try:
                    served = await served_groups(self._client)
                except KubeError as error:
                    logger.info("it is not known which PodGroups are served: %s", error)
                else:
                    self._take(served, requested_at, tasks)
                    self._answered.set()
                await self._pause(requested_at)
        raise AssertionError("this ends by being cancelled")

    def ask_again(self) -> None:
        """Request the served APIs soon: a pod names a PodGroup of an API that was not served."""
        self._again.set()

    async def settled(self) -> None:
        """Wait until the served APIs are known and all their PodGroups are listed."""
        await self._answered.wait()
        for followed in list(self._followed.values()):
            await followed.reflector.synced.wait()

    def staleness(self, now: float) -> dict[str, float]:
        """Return the seconds since the last message of each watch."""
        return {followed.resource.described: followed.reflector.staleness(now) for followed in self._followed.values()}

    async def _pause(self, requested_at: float) -> None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await self._again.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, requested_at + SOON_SECONDS - self._clock()))

    def _take(self, served: dict[GroupApi, Found], requested_at: float, tasks: asyncio.TaskGroup) -> None:
        for api in GroupApi:
            resource, followed = served.get(api), self._followed.get(api)
            if followed is not None and followed.resource != resource:
                logger.info("%s are no longer served as %s", resource_name(api), followed.resource.api_version)
                self._leave(api)
                followed = None
            if resource is None:
                self._facts.groups_served(api, Serving.ABSENT, requested_at)
            elif followed is None:
                logger.info("%s are served as %s", resource_name(api), resource.api_version)
                self._facts.groups_served(api, Serving.UNKNOWN, requested_at)
                self._follow(api, resource, tasks)

    def _follow(self, api: GroupApi, resource: Found, tasks: asyncio.TaskGroup) -> None:
        sink = _GroupSink(api, resource.version, self._facts, self._clock)
        reflector = Reflector(self._client, resource, sink, clock=self._clock)
        task = tasks.create_task(reflector.run(), name=f"reflect {resource.described}")
        self._followed[api] = _ServedApi(resource, reflector, sink, task)

    def _leave(self, api: GroupApi) -> None:
        followed = self._followed.pop(api)
        followed.task.cancel()
        followed.sink.close()


class _GroupSink:
    """Converts the PodGroups of one API."""

    def __init__(self, api: GroupApi, version: str, facts: GroupFacts, clock: Callable[[], float]) -> None:
        self._api = api
        self._version = version
        self._facts = facts
        self._clock = clock
        self._known: dict[GroupKey, str] = {}
        self._open = True

    def applied(self, objects: Sequence[PodGroupObject]) -> None:
        """These PodGroups exist now."""
        groups = [read_group(self._api, self._version, item) for item in objects]
        if self._open:
            self._known.update((group.key, group.uid) for group in groups)
            self._facts.groups_applied(groups)

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These PodGroups no longer exist."""
        deleted_groups = [
            (GroupKey(self._api, reference.namespace, reference.name), reference.uid) for reference in references
        ]
        if self._open:
            for key, _ in deleted_groups:
                self._known.pop(key, None)
            self._facts.groups_deleted(deleted_groups)

    def synced(self) -> None:
        """All existing PodGroups have been delivered."""
        if self._open:
            self._facts.groups_served(self._api, Serving.LISTED, self._clock())

    def close(self) -> None:
        """The API is gone, and all PodGroups with it."""
        self._open = False
        self._facts.groups_deleted(list(self._known.items()))


def resource_name(api: GroupApi) -> str:
    """Return the resource name of an API's PodGroups for messages."""
    return f"{PLURAL}.{api}"
