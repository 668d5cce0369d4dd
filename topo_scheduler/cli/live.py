"""A view of the cluster that follows changes: nodes, pods and devices are listed once, then watched."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.cli.common import CommandFailure, say
from topo_scheduler.cli.device_listing import readable_kinds
from topo_scheduler.cli.device_views import device_sinks
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.resources import NODES, PODS
from topo_scheduler.kube.reading.listing import TIMEOUT_SECONDS
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.kube.reading.sinks import Calls, Deleted
from topo_scheduler.scheduling.world import World

FIRST_LIST_SECONDS = 30.0
"""Longest wait for the first lists of nodes and pods, in seconds."""


class LiveWorld:
    """A world that follows the cluster, and the pods that hold resources of it."""

    def __init__(self, configuration: Configuration) -> None:
        self._world = World(configuration.scheduler)
        self._world.configure(configuration.topology.spec)
        self._pods: dict[str, Pod] = {}
        self.device_sinks = device_sinks(self._world)

    @property
    def world(self) -> World:
        """Current nodes, fabric, links and resources of pods."""
        self._world.settle_devices()
        self._world.links.settle(self._world.layout)
        return self._world

    @property
    def pods(self) -> list[Pod]:
        """The bound pods that have not finished."""
        return list(self._pods.values())

    def nodes_applied(self, nodes: Sequence[Node]) -> None:
        """Handle nodes that appeared or changed."""
        for node in nodes:
            self._world.put_node(node, 0.0)

    def nodes_deleted(self, references: Sequence[Deleted]) -> None:
        """Handle deleted nodes."""
        for reference in references:
            self._world.remove_node(reference.name, reference.uid)

    def pods_applied(self, pods: Sequence[Pod]) -> None:
        """Handle pods that appeared or changed."""
        for pod in pods:
            if pod.finished:
                self._forget(pod.metadata.uid)
            elif pod.spec.node_name:
                self._pods[pod.metadata.uid] = pod
                self._world.bound(pod)

    def pods_deleted(self, references: Sequence[Deleted]) -> None:
        """Handle deleted pods."""
        for reference in references:
            self._forget(reference.uid)

    def _forget(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            self._world.release(uid)


@asynccontextmanager
async def following(client: Client, configuration: Configuration) -> AsyncIterator[LiveWorld]:
    """Follow the cluster while the context lasts.

    Raises:
        CommandFailure: nodes and pods were not listed in time.
        KubeError: they may not be listed, or the API server does not answer.
    """
    for kind in (NODES, PODS):  # fail at once, as the reflectors below would retry forever
        await client.request("GET", kind.collection(None), query={"limit": "1"}, timeout=TIMEOUT_SECONDS)
    live = LiveWorld(configuration)
    kinds, problems = await readable_kinds(client, TIMEOUT_SECONDS)
    for problem in problems:
        say(f"warning: {problem}", err=True)
    reflectors: tuple[Reflector[Any], ...] = (
        Reflector(client, NODES, Calls(live.nodes_applied, live.nodes_deleted)),
        Reflector(client, PODS, Calls(live.pods_applied, live.pods_deleted)),
        *(Reflector(client, kind, live.device_sinks[kind.plural]) for kind in kinds),
    )
    tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
    try:
        try:
            async with asyncio.timeout(FIRST_LIST_SECONDS):
                for reflector in reflectors:
                    await reflector.synced.wait()
        except TimeoutError:
            raise CommandFailure(f"nodes and pods could not be listed within {FIRST_LIST_SECONDS:g} s") from None
        yield live
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
