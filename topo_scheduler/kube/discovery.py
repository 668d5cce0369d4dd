"""Ask the API server which kinds it serves and which version it is."""

import asyncio
import logging
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from topo_scheduler.api.objects import PartialObject
from topo_scheduler.kube.client import Client
from topo_scheduler.kube.resources import Resource, group_version_path
from topo_scheduler.kube.served import served_kinds, served_versions

logger = logging.getLogger(__name__)

KEPT_SECONDS = 600.0
"""How long the kinds of a group are believed."""

MISSING_SECONDS = 60.0
"""After this long, a kind that was not served is asked for again: its CRD may have come."""

LIST_SECONDS = 10.0
"""How long the list of served groups and versions is believed where one is missing there."""

CORE = "v1"
"""The only version of the group without a name."""


class Discovery:
    """Finds the resource of a kind, metadata only; what it learnt is kept for a while.

    Which groups and versions there are is asked once for all, so that those which pods invent cost no request each.
    """

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._versions: frozenset[str] = frozenset()
        self._listed = float("-inf")
        self._groups: dict[str, tuple[float, dict[str, Resource[PartialObject]]]] = {}

    async def find(self, api_version: str, kind: str) -> Resource[PartialObject] | None:
        """The resource, or None if that kind is not served in any version of its group.

        References outlive versions: an object that was created as one version is read as another that is served still.
        Raises ``ValueError`` for what cannot be an apiVersion, and what the request raises.
        """
        group_version_path(api_version)
        served = api_version == CORE or await self._is_served(api_version)
        if served and (found := await self._find(api_version, kind)) is not None:
            return found
        group = api_version.rpartition("/")[0]
        others = sorted(one for one in self._versions - {api_version} if one.rpartition("/")[0] == group)
        for other in others:
            if (found := await self._find(other, kind)) is not None:
                return found
        return None

    async def _find(self, api_version: str, kind: str) -> Resource[PartialObject] | None:
        # Not one lock for all groups: one whose server hangs must not delay the others.
        async with self._locks.setdefault(api_version, asyncio.Lock()):
            learnt, kinds = self._groups.get(api_version, (float("-inf"), {}))
            age = self._clock() - learnt
            if age > KEPT_SECONDS or (kind not in kinds and age > MISSING_SECONDS):
                kinds = await self._ask(api_version)
                self._groups[api_version] = (self._clock(), kinds)
        return kinds.get(kind)

    def forget(self, api_version: str) -> None:
        """Ask again for the kinds of a group and version: one that was served is not any more."""
        self._groups.pop(api_version, None)
        self._versions -= {api_version}
        self._listed = float("-inf")

    async def _is_served(self, api_version: str) -> bool:
        async with self._locks.setdefault("", asyncio.Lock()):
            if api_version not in self._versions and self._clock() - self._listed >= LIST_SECONDS:
                groups = await served_versions(self._client)
                self._versions = frozenset(f"{group}/{version}" for group in groups for version in groups[group])
                self._listed = self._clock()
                self._groups = {name: kinds for name, kinds in self._groups.items() if name in {*self._versions, CORE}}
        return api_version in self._versions

    async def _ask(self, api_version: str) -> dict[str, Resource[PartialObject]]:
        group, slash, version = api_version.rpartition("/")
        return {
            served.kind: Resource(
                group if slash else "", version, served.name, served.kind, PartialObject, served.namespaced, True
            )
            for served in await served_kinds(self._client, api_version)
            if "/" not in served.name and "get" in served.verbs
        }
