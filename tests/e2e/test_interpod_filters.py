"""Pods that look at other pods, end to end."""

from typing import Any

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .replica import Replica

HOST = "kubernetes.io/hostname"


def labelled(item: Json, **labels: str) -> Json:
    item["metadata"]["labels"] = labels
    return item


def away_from(app: str, **term: Any) -> Json:
    wanted = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOST, **term}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [wanted]}}


def with_port(name: str, port: int) -> Json:
    item = objects.pod(name, 1)
    item["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
    return item


async def test_a_host_port_is_given_once_a_node(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(*(with_port(f"web-{number}", 8080) for number in range(3)))
    names = [f"web-{number}" for number in range(3)]

    async def two_bound() -> list[str]:
        nodes = [node for name in names for node in nodes_of(await cluster.pods_of(name)) if node]
        return nodes if len(nodes) == 2 else []

    assert set(await cluster.wait_until(two_bound, 15, "two of three bound")) == {"s1-l1-1", "s1-l1-2"}
    (waiting,) = [pod for name in names for pod in await cluster.pods_of(name) if not pod["spec"].get("nodeName")]
    await cluster.wait_note(waiting, "2 node(s) didn't have free ports for the requested pod ports")


async def test_replicas_keep_apart_and_namespaces_are_chosen_by_label(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [3]})
    await cluster.add_namespace("e2e-prod", stage="production")
    await cluster.apply(labelled(objects.pod("there", 1, namespace="e2e-prod"), app="db"))
    (database,) = await cluster.wait_bound("there", 1, namespace="e2e-prod")
    selector = {"namespaceSelector": {"matchLabels": {"stage": "production"}}}
    for name in ("one", "two"):
        affinity = away_from("web")
        terms = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        terms += away_from("db", **selector)["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        await cluster.apply(labelled(objects.pod(name, 1, affinity=affinity), app="web"))
    placed = {node for name in ("one", "two") for node in nodes_of(await cluster.wait_bound(name, 1))}
    assert len(placed) == 2
    assert database["spec"]["nodeName"] not in placed
