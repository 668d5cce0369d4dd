"""What the demo shows at its end: the placement as a tree, workloads with their reasons, and what has no node."""

from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from topo_scheduler.api.annotations import SCORE
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.printable import printable
from topo_scheduler.cli import render, views
from topo_scheduler.cli.snapshot import build_world, connected, list_cluster
from topo_scheduler.scheduling.world import World
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer, Store

MOST_LINES: Final = 3
"""Events shown of one workload: those of a gang are much alike."""

ABOUT_SCORES: Final = "A score ranks the places of one workload; those of two can't be compared."


@dataclass(slots=True)
class Group:
    """Pods of one workload, as their user knows it."""

    kind: str
    name: str
    pods: list[Pod] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind} {self.name}"


async def show(screen: Console, server: EmbeddedAPIServer, configuration: Configuration) -> None:
    """Print everything; nodes and pods are read over HTTP, as anybody would."""
    connection = configuration.scheduler.client_connection
    async with connected(connection.kubeconfig, None) as client:
        listed = await list_cluster(client)
    world = build_world(listed, configuration)
    root = views.tree(world, listed.pods)
    assert root is not None
    name = configuration.scheduler.scheduler_name
    groups = workloads(server.store, [pod for pod in listed.pods if pod.spec.scheduler_name == name])
    of_pod = {(pod.metadata.namespace, pod.metadata.name): group.title for group in groups for pod in group.pods}
    screen.print(render.fabric(root, tenants=True, colours=render.Palette(of_pod)))
    screen.print()
    screen.print(table(groups, world))
    screen.print(Text(ABOUT_SCORES, style="dim"))
    screen.print()
    screen.print(reasons(groups, messages(server.store)))
    waiting = [pod for group in groups for pod in group.pods if not pod.spec.node_name]
    if not waiting:
        screen.print("Every pod of every workload has a node.")
    for pod in waiting:
        why = messages(server.store).get(pod.metadata.uid, [])
        screen.print(f"{pod.metadata.name} has no node: {'; '.join(why) or 'nothing was said about it yet'}")


def workloads(store: Store, pods: list[Pod]) -> list[Group]:
    """Return the pods by the workload their user wrote; bare pods of one gang are one."""
    groups: dict[tuple[str, str], Group] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        kind, name = _origin(store, pod)
        groups.setdefault((kind, name), Group(kind, name)).pods.append(pod)
    return sorted(groups.values(), key=lambda group: group.title)


def _origin(store: Store, pod: Pod) -> tuple[str, str]:
    namespace, reference = pod.metadata.namespace, pod.metadata.controller
    if reference is None:
        gang = pod.metadata.annotations.get("topology.scheduler/gang-name")
        return ("Gang", gang) if gang else ("Pod", pod.metadata.name)
    kind, name, version = reference.kind, reference.name, reference.api_version
    while (served := store.kinds.of(version, kind)) and (owner := store.find(served, name, namespace)):
        above = next((ref for ref in owner["metadata"].get("ownerReferences", ()) if ref.get("controller")), None)
        if above is None:
            break
        kind, name, version = above["kind"], above["name"], above["apiVersion"]
    return kind, name


def messages(store: Store) -> dict[str, list[str]]:
    """Return what was told about each pod by uid, as ``kubectl describe`` shows it."""
    told: dict[str, list[str]] = {}
    for event in store.list("events"):
        told.setdefault(event["involvedObject"].get("uid", ""), []).append(printable(str(event.obj.get("message", ""))))
    return told


def table(groups: list[Group], world: World) -> Table:
    """Return the table of workloads: pods, leaves and score. It fits into 80 columns."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WORKLOAD", "PODS", "LEAVES", "SCORE"):
        shown.add_column(title, overflow="fold", justify="right" if title in ("PODS", "SCORE") else "left")
    for group in groups:
        bound = [pod for pod in group.pods if pod.spec.node_name]
        placed = sorted(
            {
                ("/".join(world.leaf_of(pod.spec.node_name) or ()), pod.metadata.annotations.get(SCORE, ""))
                for pod in bound
            }
        )
        leaves, scores = [leaf for leaf, _ in placed], [score for _, score in placed]
        shown.add_row(group.title, f"{len(bound)}/{len(group.pods)}", "\n".join(leaves), "\n".join(scores))
    return shown


def reasons(groups: list[Group], told: dict[str, list[str]]) -> Table:
    """Return why each workload is where it is, or why not, in the words of its pods' events."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("WORKLOAD", overflow="fold", max_width=32)
    shown.add_column("WHY (events of its pods)", overflow="fold")
    for group in groups:
        why = [line for pod in group.pods for line in told.get(pod.metadata.uid, ())]
        if len(why) > MOST_LINES:
            why[MOST_LINES - 1 :] = [f"and {len(why) - MOST_LINES + 1} more like these"]
        shown.add_row(group.title, Text("\n".join(why)))
    return shown
