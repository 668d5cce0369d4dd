"""Final output of the demo: the placement as a tree, workloads with their reasons, and pods without a node."""

from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from topo_scheduler.api.annotations import GANG_NAME, SCORE
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.printable import printable
from topo_scheduler.cli import render, views
from topo_scheduler.cli.device_listing import list_devices
from topo_scheduler.cli.device_views import add_devices
from topo_scheduler.cli.snapshot import build_world, connected, list_cluster
from topo_scheduler.scheduling.world import World
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer, Store
from topo_scheduler.simulation.apiserver.objects import controller_of

MAX_LINES: Final = 3
"""Maximum events of one workload that are shown: those of a gang are similar."""

ABOUT_SCORES: Final = "A score ranks the places of one workload; those of two can't be compared."


@dataclass(slots=True)
class Group:
    """Pods of one workload that a user submitted."""

    kind: str
    name: str
    pods: list[Pod] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind} {self.name}"


async def show(screen: Console, server: EmbeddedAPIServer, configuration: Configuration) -> None:
    """Print everything; nodes and pods are read over HTTP, as by any client."""
    connection = configuration.scheduler.client_connection
    async with connected(connection.kubeconfig, None) as client:
        listed = await list_cluster(client)
        devices = await list_devices(client)
    world = build_world(listed, configuration)
    add_devices(world, devices)
    root = views.tree(world, listed.pods)
    assert root is not None
    name = configuration.scheduler.scheduler_name
    groups = workloads(server.store, [pod for pod in listed.pods if pod.spec.scheduler_name == name])
    group_of_pod = {(pod.metadata.namespace, pod.metadata.name): group.title for group in groups for pod in group.pods}
    screen.print(render.fabric(root, tenants=True, devices=True, colours=render.Palette(group_of_pod)))
    screen.print()
    screen.print(table(groups, world))
    screen.print(Text(ABOUT_SCORES, style="dim"))
    screen.print()
    screen.print(reasons(groups, messages(server.store)))
    pending = [pod for group in groups for pod in group.pods if not pod.spec.node_name]
    if not pending:
        screen.print("Every pod of every workload has a node.")
    for pod in pending:
        pod_messages = messages(server.store).get(pod.metadata.uid, [])
        screen.print(f"{pod.metadata.name} has no node: {'; '.join(pod_messages) or 'nothing was said about it yet'}")


def workloads(store: Store, pods: list[Pod]) -> list[Group]:
    """Return the pods by the workload that their user submitted; bare pods of one gang are one workload."""
    groups: dict[tuple[str, str], Group] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        kind, name = _origin(store, pod)
        groups.setdefault((kind, name), Group(kind, name)).pods.append(pod)
    return sorted(groups.values(), key=lambda group: group.title)


def _origin(store: Store, pod: Pod) -> tuple[str, str]:
    namespace, reference = pod.metadata.namespace, pod.metadata.controller
    if reference is None:
        gang = pod.metadata.annotations.get(GANG_NAME)
        return ("Gang", gang) if gang else ("Pod", pod.metadata.name)
    kind, name, version = reference.kind, reference.name, reference.api_version
    while (served := store.kinds.kind_of(version, kind)) and (owner := store.find(served, name, namespace)):
        if (controller := controller_of(owner.obj)) is None:
            break
        kind, name, version = controller["kind"], controller["name"], controller["apiVersion"]
    return kind, name


def messages(store: Store) -> dict[str, list[str]]:
    """Return the messages of the events of each pod by uid, as ``kubectl describe`` shows them."""
    messages_of_pod: dict[str, list[str]] = {}
    for event in store.list("events"):
        messages_of_pod.setdefault(event["involvedObject"].get("uid", ""), []).append(
            printable(str(event.obj.get("message", "")))
        )
    return messages_of_pod


def table(groups: list[Group], world: World) -> Table:
    """Return the table of workloads with pods, leaves and score. It fits into 80 columns."""
    rendered = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WORKLOAD", "PODS", "LEAVES", "SCORE"):
        rendered.add_column(title, overflow="fold", justify="right" if title in ("PODS", "SCORE") else "left")
    for group in groups:
        bound = [pod for pod in group.pods if pod.spec.node_name]
        leaves_and_scores = sorted(
            {
                ("/".join(world.leaf_of(pod.spec.node_name) or ()), pod.metadata.annotations.get(SCORE, ""))
                for pod in bound
            }
        )
        # A row for each leaf: in a narrow terminal, where names of leaves wrap, scores stay beside them.
        (leaf, score), *more = leaves_and_scores or [("", "")]
        rendered.add_row(group.title, f"{len(bound)}/{len(group.pods)}", leaf, score)
        for leaf, score in more:
            rendered.add_row("", "", leaf, score)
    return rendered


def reasons(groups: list[Group], messages_of_pod: dict[str, list[str]]) -> Table:
    """Return a table of workloads with the messages of their pods' events, which have the reasons."""
    rendered = Table(box=None, pad_edge=False, header_style="bold")
    rendered.add_column("WORKLOAD", overflow="fold", max_width=32)
    rendered.add_column("WHY (events of its pods)", overflow="fold")
    for group in groups:
        pod_messages = [line for pod in group.pods for line in messages_of_pod.get(pod.metadata.uid, ())]
        if len(pod_messages) > MAX_LINES:
            pod_messages[MAX_LINES - 1 :] = [f"and {len(pod_messages) - MAX_LINES + 1} more like these"]
        rendered.add_row(group.title, Text("\n".join(pod_messages)))
    return rendered
