"""Ask the API server which kinds it serves and which version it is."""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import PartialObject
from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.errors import NotFound, retried
from topo_scheduler.kube.resources import Resource, group_version_path

logger = logging.getLogger(__name__)

KEPT_SECONDS = 600.0
"""How long the kinds of a group are believed."""

MISSING_SECONDS = 60.0
"""After this long, a kind that was not served is asked for again: its CRD may have come."""

TIMEOUT_SECONDS = 10.0


class _Kind(Base):
    name: str = ""
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _Kinds(Base):
    resources: list[_Kind] | None = None


_kinds = msgspec.json.Decoder(_Kinds)


class Discovery:
    """Finds the resource of a kind, metadata only; what it learnt is kept for a while."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._groups: dict[str, tuple[float, dict[str, Resource[PartialObject]]]] = {}

    async def find(self, api_version: str, kind: str) -> Resource[PartialObject] | None:
        """The resource, or None if that kind is not served.

        Raises ``ValueError`` for what cannot be an apiVersion, and what the request raises.
        """
        path = group_version_path(api_version)
        async with self._lock:
            learnt, kinds = self._groups.get(api_version, (float("-inf"), {}))
            age = self._clock() - learnt
            if age > KEPT_SECONDS or (kind not in kinds and age > MISSING_SECONDS):
                kinds = await self._ask(api_version, path)
                self._groups[api_version] = (self._clock(), kinds)
        return kinds.get(kind)

    async def _ask(self, api_version: str, path: str) -> dict[str, Resource[PartialObject]]:
        try:
            answer = await retried(
                lambda: self._client.request("GET", path, timeout=TIMEOUT_SECONDS), attempts=4, longest=5.0
            )
        except NotFound:
            return {}
        group, slash, version = api_version.rpartition("/")
        return {
            served.kind: Resource(
                group if slash else "", version, served.name, served.kind, PartialObject, served.namespaced, True
            )
            for served in decode(_kinds, answer).resources or []
            if "/" not in served.name and "get" in served.verbs
        }
