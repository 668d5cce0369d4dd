"""Ask the API server which kinds it serves and which version it is."""

import asyncio
import logging
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from topo_scheduler.api.objects import PartialObject
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.resources import Resource, group_version_path
from topo_scheduler.kube.connection.served import served_kinds, served_versions

logger = logging.getLogger(__name__)

KEPT_SECONDS = 600.0
"""How long, in seconds, the cached kinds of a group are valid."""

MISSING_SECONDS = 60.0
"""Seconds after which discovery requests a missing kind again: its CRD may have been created."""

LIST_SECONDS = 10.0
"""How long, in seconds, the list of served groups and versions is valid for a group or version that it lacks."""

CORE = "v1"
"""The only version of the core group, which has no name."""


class Discovery:
    """Finds the resource of a kind, metadata only, and caches the result.

    One request lists all groups and versions, so groups and versions that pods invent cost no request each.
    """

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._versions: frozenset[str] = frozenset()
        self._listed = float("-inf")
        self._groups: dict[str, tuple[float, dict[str, Resource[PartialObject]]]] = {}

    def knows(self, api_version: str, kind: str) -> bool:
        """Return whether `find` answers from its cache, without a request.

        Raises:
            ValueError: ``api_version`` is not a valid apiVersion.
        """
        group_version_path(api_version)
        if api_version != CORE and api_version not in self._versions and self._outdated:
            return False
        served = api_version == CORE or api_version in self._versions
        for version in (*([api_version] if served else ()), *self._other_versions(api_version)):
            kinds = self._cached(version, kind)
            if kinds is None or kind in kinds:
                return kinds is not None
        return True

    async def find(self, api_version: str, kind: str) -> Resource[PartialObject] | None:
        """Return the resource, or None if no version of its group serves that kind.

        References outlive versions: an object created with one version can be read with another version that is
        still served.

        Raises:
            ValueError: ``api_version`` is not a valid apiVersion.
            KubeError: the request failed.
        """
        group_version_path(api_version)
        served = api_version == CORE or await self._is_served(api_version)
        if served and (resource := await self._find(api_version, kind)) is not None:
            return resource
        for other in self._other_versions(api_version):
            if (resource := await self._find(other, kind)) is not None:
                return resource
        return None

    async def _find(self, api_version: str, kind: str) -> Resource[PartialObject] | None:
        # One lock per group and version: a group whose server hangs must not delay the others.
        async with self._locks.setdefault(api_version, asyncio.Lock()):
            kinds = self._cached(api_version, kind)
            if kinds is None:
                kinds = await self._ask(api_version)
                self._groups[api_version] = (self._clock(), kinds)
        return kinds.get(kind)

    def _cached(self, api_version: str, kind: str) -> dict[str, Resource[PartialObject]] | None:
        """Return the cached kinds of a group and version; None if they are too old to look up this kind."""
        learnt, kinds = self._groups.get(api_version, (float("-inf"), {}))
        age = self._clock() - learnt
        return None if age > KEPT_SECONDS or (kind not in kinds and age > MISSING_SECONDS) else kinds

    def _other_versions(self, api_version: str) -> list[str]:
        """Return the other served versions of the group of a version."""
        group = api_version.rpartition("/")[0]
        return sorted(version for version in self._versions - {api_version} if version.rpartition("/")[0] == group)

    @property
    def _outdated(self) -> bool:
        """Whether the list of served versions is too old to say that it lacks one."""
        return self._clock() - self._listed >= LIST_SECONDS

    def forget(self, api_version: str) -> None:
        """Drop the cached kinds of a group and version, because one of them is no longer served."""
        self._groups.pop(api_version, None)
        self._versions -= {api_version}
        self._listed = float("-inf")

    async def _is_served(self, api_version: str) -> bool:
        async with self._locks.setdefault("", asyncio.Lock()):
            if api_version not in self._versions and self._outdated:
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
