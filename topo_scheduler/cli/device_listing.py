"""ResourceSlices, DeviceClasses and ResourceClaims of a cluster, listed once: what commands need to show devices.

Imports nothing that a command does not need before its first request.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Forbidden, NotFound
from topo_scheduler.kube.connection.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from topo_scheduler.kube.reading.listing import list_all

DEVICE_KINDS: Final[tuple[Resource[Any], ...]] = (RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS)

_WITHOUT: Final = {
    RESOURCE_SLICES.plural: "devices are not shown",
    DEVICE_CLASSES.plural: "devices that pods get by extended resources do not count as GPUs",
    RESOURCE_CLAIMS.plural: "devices are shown without their holders",
}
"""What follows if a kind may not be listed."""


@dataclass(slots=True)
class ListedDevices:
    """ResourceSlices, DeviceClasses and ResourceClaims of a cluster.

    Attributes:
        objects: by plural name of the kind; a kind that is not served or may not be listed is missing.
        problems: what could not be read.
    """

    objects: dict[str, list[Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


async def list_devices(client: Client) -> ListedDevices:
    """List what is known of devices. A cluster without the API has none.

    Raises:
        KubeError: no answer from the API server.
    """
    listed = ListedDevices()
    for kind in DEVICE_KINDS:
        try:
            objects, problems = await list_all(client, kind)
        except NotFound:
            return listed
        except Forbidden:
            listed.problems.append(forbidden(kind))
            if kind is RESOURCE_SLICES:
                return listed
        else:
            listed.objects[kind.plural] = objects
            listed.problems += problems
            if not objects and kind is RESOURCE_SLICES:
                return listed  # no devices, so no holders
    return listed


def forbidden(kind: Resource[Any]) -> str:
    """Return what follows if a kind may not be listed."""
    return (
        f"{kind.described} may not be listed, so {_WITHOUT[kind.plural]}; docs/reference/cli-permissions.md has the"
        " permissions"
    )


async def readable_kinds(client: Client, timeout: float) -> tuple[list[Resource[Any]], list[str]]:
    """Return which kinds of devices can be watched, and messages on those that may not be listed."""
    kinds: list[Resource[Any]] = []
    problems: list[str] = []
    for kind in DEVICE_KINDS:
        try:
            await client.request("GET", kind.collection(None), query={"limit": "1"}, timeout=timeout)
        except (Forbidden, NotFound) as error:
            if isinstance(error, Forbidden):
                problems.append(forbidden(kind))
            if kind is RESOURCE_SLICES:
                break
        else:
            kinds.append(kind)
    return kinds, problems
