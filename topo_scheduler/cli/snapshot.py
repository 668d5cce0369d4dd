"""A snapshot of the cluster: nodes and pods, listed once into a `World`.

Nothing is watched and nothing is written, so any kubeconfig that may list nodes and pods is enough.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.cli.common import USAGE, CommandFailure
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import (
    KubeError,
    Misanswered,
    Misconfigured,
    Unauthorized,
    Undecodable,
    Unreachable,
    lacks_rights,
)
from topo_scheduler.kube.connection.resources import NODES, PODS
from topo_scheduler.kube.reading.listing import list_all

if TYPE_CHECKING:
    from topo_scheduler.api.config import Configuration
    from topo_scheduler.scheduling.world import World

_PERMISSIONS: Final = "the permissions that each command needs are in docs/reference/cli-permissions.md"


@dataclass(frozen=True, slots=True)
class Listed:
    """All nodes and pods, and messages on what could not be read."""

    nodes: list[Node]
    pods: list[Pod]
    problems: list[str] = field(default_factory=list)


@asynccontextmanager
async def connected(kubeconfig: str | None, context: str | None) -> AsyncIterator[Client]:
    """Connect while the context lasts; an error of the server ends the command with one line.

    Raises:
        CommandFailure: the kubeconfig can't be used, or the server does not answer or refuses a request.
    """
    try:
        client = await Client.connect(kubeconfig or None, context or None)
    except Misconfigured as error:
        raise CommandFailure(str(error), USAGE) from error
    try:
        yield client
    except KubeError as error:
        raise CommandFailure(_explained(error, client.server)) from error
    finally:
        await client.close()


def _explained(error: KubeError, server: str) -> str:
    if isinstance(error, Misanswered | Undecodable):
        remedy = "check whether a proxy or a load balancer answers in its place"
        return f"the answer of the API server {server} can't be read; {remedy} ({error})"
    if isinstance(error, Unreachable):
        remedy = "check whether it runs, or choose another one by --kubeconfig and --context"
        return f"the API server {server} does not answer; {remedy} ({error})"
    if isinstance(error, Unauthorized):
        return f"{error}: the server {server} does not accept the credentials of the kubeconfig; renew them"
    return f"{error}; {_PERMISSIONS}" if lacks_rights(error) else str(error)


async def list_cluster(client: Client) -> Listed:
    """List nodes and pods; raises ``KubeError``."""
    (nodes, bad_nodes), (pods, bad_pods) = await asyncio.gather(list_all(client, NODES), list_all(client, PODS))
    return Listed(nodes, pods, [*bad_nodes, *bad_pods])


def build_world(listed: Listed, configuration: "Configuration") -> "World":
    """Return nodes, fabric and resources of bound pods: enough to show a cluster, without compiling kernels."""
    from topo_scheduler.scheduling.world import World

    world = World(configuration.scheduler)
    world.configure(configuration.topology.spec)
    for node in listed.nodes:
        listed.problems.extend(world.put_node(node, 0.0))
    for pod in listed.pods:
        if pod.spec.node_name and not pod.finished:
            listed.problems.extend(world.bound(pod)[1])
    listed.problems.extend(world.unread_labels.complaints())
    listed.problems.extend(world.hardware.complaints())
    world.links.settle(world.layout)
    listed.problems.extend(world.links.problems)
    return world
