"""Reads single nodes from the API server."""

from typing import Final

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import NotFound, TooLarge
from topo_scheduler.kube.connection.resources import NODES

READ_SECONDS: Final = 10.0
MAX_NODE_BYTES: Final = 1024 * 1024


async def node_exists(client: Client, name: str) -> bool:
    """Return whether a node exists now.

    Raises:
        KubeError: the API server gives no answer, or refuses it.
    """
    try:
        await client.read(NODES.path("", name), name, timeout=READ_SECONDS, most_bytes=MAX_NODE_BYTES)
    except NotFound:
        return False
    except TooLarge:
        return True
    return True
