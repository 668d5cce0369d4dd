"""The API groups and versions that an API server serves, and the kinds of one version."""

from typing import Final

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import NotFound, Unreachable
from topo_scheduler.kube.connection.resources import group_version_path
from topo_scheduler.kube.connection.retrying import retried

TIMEOUT_SECONDS: Final = 10.0
ATTEMPTS: Final = 4
LONGEST_PAUSE_SECONDS: Final = 5.0


class ServedKind(Base):
    """A kind or a subresource of one version. ``name`` is its plural; that of a subresource contains a slash."""

    name: str = ""
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _ServedKinds(Base):
    resources: tuple[ServedKind, ...] | None = None


class _ServedVersion(Base):
    version: str = ""


class _ServedGroup(Base):
    name: str = ""
    versions: tuple[_ServedVersion, ...] = ()


class _ServedGroups(Base):
    groups: tuple[_ServedGroup, ...] = ()


_GROUPS: Final = msgspec.json.Decoder(_ServedGroups)
_KINDS: Final = msgspec.json.Decoder(_ServedKinds)


async def served_versions(client: Client) -> dict[str, frozenset[str]]:
    """Return the versions of each API group by its name. The core group is not listed.

    Raises:
        KubeError: the API server did not answer.
    """
    groups = decode(_GROUPS, await _get(client, "/apis")).groups
    return {group.name: frozenset(version.version for version in group.versions) for group in groups}


async def served_kinds(client: Client, api_version: str) -> tuple[ServedKind, ...]:
    """Return the kinds of a group and version; none if the API server does not list that version.

    Raises:
        ValueError: the text is no apiVersion.
        KubeError: the API server did not answer. A load balancer without a backend may have answered 404.
    """
    try:
        return decode(_KINDS, await _get(client, group_version_path(api_version))).resources or ()
    except NotFound as error:
        group, slash, version = api_version.rpartition("/")
        if not slash or version in (await served_versions(client)).get(group, ()):
            raise Unreachable(f"{error} ({api_version} is served)") from error
        return ()


async def _get(client: Client, path: str) -> bytes:
    return await retried(
        lambda: client.request("GET", path, timeout=TIMEOUT_SECONDS), attempts=ATTEMPTS, longest=LONGEST_PAUSE_SECONDS
    )
