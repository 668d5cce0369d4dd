"""Snapshots of small clusters in which everything a filter looks at collides often; the same from the same seed."""

import copy
import random

from . import placement, resources
from .choices import NAMESPACES, POD_LABELS, Json, chance, labels
from .nodes import namespaces, nodes
from .volumes import Storage

ASPECTS = {
    "resources": 3.0,
    "nodeSelector": 1.0,
    "nodeAffinity": 2.0,
    "podAffinity": 1.6,
    "podAntiAffinity": 1.6,
    "spread": 2.4,
    "tolerations": 2.0,
    "ports": 1.2,
    "volumes": 3.2,
    "features": 0.7,
}
"""What a pod may ask for, and how often; in every snapshot two of them are five times as frequent."""

ANNOTATION = "differential.test/aspects"
PRIORITIES = (None, None, 0, 0, 100, 1000, -10)


def snapshot(seed: int) -> Json:
    """The snapshot of a seed."""
    return _Generator(random.Random(seed)).snapshot()


class _Generator:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._nodes = nodes(rng, rng.randint(5, 15))
        self._node_names = [node["metadata"]["name"] for node in self._nodes]
        self._popular = rng.sample(self._node_names, 3)
        self._storage = Storage(rng, self._node_names)
        self._namespaces = rng.choices(NAMESPACES, k=rng.randint(1, 3))
        frequent = rng.choices(list(ASPECTS), k=2)
        self._aspect_weights = [weight * (5 if name in frequent else 1) for name, weight in ASPECTS.items()]

    def snapshot(self) -> Json:
        rng = self._rng
        existing = [self._existing(f"pod-{index}") for index in range(rng.randint(0, 4 * len(self._nodes)))]
        nominated = [self._nominated(f"nominated-{index}") for index in range(rng.choice((0, 1, 2, 4, 8)))]
        pending = [self._pending(f"pending-{index}") for index in range(rng.randint(8, 20))]
        return {
            "nodes": self._nodes,
            "pods": existing + nominated,
            "pending": pending,
            "namespaces": namespaces(rng),
            **self._storage.objects,
        }

    def _pod(self, name: str, aspects: list[str]) -> Json:
        rng, namespace = self._rng, self._rng.choice(self._namespaces)
        pod: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "annotations": {ANNOTATION: ",".join(aspects)},
            },
            "spec": {},
            "status": {},
        }
        if pod_labels := labels(rng, POD_LABELS, 0.75):
            pod["metadata"]["labels"] = pod_labels
        priority = rng.choice(PRIORITIES)
        if priority is not None:
            pod["spec"]["priority"] = priority
        resources.containers(rng, pod["spec"], "resources" in aspects)
        self._constrain(pod, aspects)
        return pod

    def _constrain(self, pod: Json, aspects: list[str]) -> None:
        rng, names = self._rng, self._node_names
        if "nodeSelector" in aspects:
            placement.node_selector(rng, pod, names)
        if "nodeAffinity" in aspects:
            placement.node_affinity(rng, pod, names)
        if "podAffinity" in aspects:
            placement.pod_affinity(rng, pod, "podAffinity")
        if "podAntiAffinity" in aspects:
            placement.pod_affinity(rng, pod, "podAntiAffinity")
        if "spread" in aspects:
            placement.spread(rng, pod)
        if "tolerations" in aspects:
            placement.tolerations(rng, pod)
        elif chance(rng, 0.45):  # or else taints decide most pairs
            pod["spec"]["tolerations"] = [{"operator": "Exists"}]
        if "ports" in aspects:
            placement.ports(rng, pod)
        if "features" in aspects:
            placement.features(rng, pod)
        if "volumes" in aspects:
            count = rng.choice((1, 1, 1, 2, 3))
            pod["spec"]["volumes"] = [self._storage.volume(pod, f"volume-{index}") for index in range(count)]

    def _pending(self, name: str) -> Json:
        rng = self._rng
        pod = self._pod(name, self._aspects(rng.choice((0, 1, 1, 2, 2, 3))))
        pod["status"]["phase"] = "Pending"
        if chance(rng, 0.05):
            pod["status"]["nominatedNodeName"] = rng.choice(self._node_names)
        if chance(rng, 0.08):
            odd(rng, pod)
        return pod

    def _existing(self, name: str) -> Json:
        rng = self._rng
        pod = self._pod(name, self._aspects(rng.choice((0, 0, 1, 1, 1, 2))))
        pod["spec"]["nodeName"] = self._node() if chance(rng, 0.97) else "gone"
        pod["status"]["phase"] = rng.choice(("Running", "Running", "Running", "Running", "Pending", "Succeeded"))
        if chance(rng, 0.02):
            pod["status"]["phase"] = "Failed"
        if chance(rng, 0.08):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if chance(rng, 0.04):
            pod["status"]["nominatedNodeName"] = rng.choice(self._node_names)
        if chance(rng, 0.25):
            resources.resize(rng, pod)
        if chance(rng, 0.05):
            odd(rng, pod)
        return pod

    def _nominated(self, name: str) -> Json:
        rng = self._rng
        pod = self._pod(name, self._aspects(rng.choice((0, 1, 2, 2))))
        pod["status"].update(phase="Pending", nominatedNodeName=self._node())
        if chance(rng, 0.05):
            pod["status"]["phase"] = "Failed"
        if chance(rng, 0.05):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if chance(rng, 0.05):
            pod["status"]["nominatedNodeName"] = "gone"
        return pod

    def _node(self) -> str:
        names: list[str] = self._popular if chance(self._rng, 0.4) else self._node_names
        return self._rng.choice(names)

    def _aspects(self, count: int) -> list[str]:
        chosen = self._rng.choices(list(ASPECTS), self._aspect_weights, k=count)
        return list(dict.fromkeys(chosen))


EMPTY: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("affinity", ({}, {"nodeAffinity": {}}, {"podAffinity": {}, "podAntiAffinity": {}})),
    ("nodeSelector", ({},)),
    ("tolerations", ([],)),
    ("topologySpreadConstraints", ([],)),
    ("volumes", ([], [{"name": "nothing"}])),
    ("initContainers", ([],)),
    ("overhead", ({},)),
    ("resources", ({}, {"requests": {}}, {"limits": {}})),
)
"""Nothing, said at length; an API server leaves nulls out, so there are none."""


def odd(rng: random.Random, pod: Json) -> None:
    """Empty a field of a pod."""
    field, ways = rng.choice(EMPTY)
    pod["spec"][field] = copy.deepcopy(rng.choice(ways))
    if chance(rng, 0.2):
        pod["metadata"]["labels"] = {}
    if chance(rng, 0.2):
        rng.choice(pod["spec"]["containers"])["resources"] = rng.choice(({}, {"requests": {}}))
