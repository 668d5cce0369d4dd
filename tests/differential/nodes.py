"""Random nodes: labels that are missing, taints, odd allocatable values, declared features."""

import random

from .choices import (
    BETA_REGION,
    BETA_ZONE,
    HOSTNAME,
    NODE_LABELS,
    REGION,
    REGIONS,
    UNSCHEDULABLE,
    ZONE,
    ZONES,
    Json,
    chance,
    labels,
    some,
)

TAINTS: tuple[Json, ...] = (
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "team-a", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "team-b", "effect": "NoExecute"},
    {"key": "maintenance", "effect": "PreferNoSchedule"},
    {"key": "age", "value": "5", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
    {"key": UNSCHEDULABLE, "effect": "NoSchedule"},
)
FEATURES = ("RestartAllContainersOnContainerExits", "SomethingNew", "UserNamespacesHostNetworkSupport")


def nodes(rng: random.Random, count: int) -> list[Json]:
    return [_node(rng, f"node-{index}") for index in range(count)]


def _node(rng: random.Random, name: str) -> Json:
    node: Json = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": _labels(rng, name)},
        "spec": {},
        "status": {"allocatable": allocatable(rng)},
    }
    if chance(rng, 0.05):
        del node["metadata"]["labels"]
    if chance(rng, 0.3):
        node["spec"]["taints"] = [dict(taint) for taint in rng.sample(TAINTS, rng.randint(1, 2))]
    if chance(rng, 0.08):
        node["spec"]["unschedulable"] = True
    if chance(rng, 0.7):
        node["status"]["declaredFeatures"] = sorted(some(rng, FEATURES, 3))
    return node


def _labels(rng: random.Random, name: str) -> dict[str, str]:
    node_labels = labels(rng, NODE_LABELS, 0.6)
    if chance(rng, 0.93):
        node_labels[HOSTNAME] = name
    if chance(rng, 0.9):
        node_labels[ZONE] = rng.choice(ZONES) if chance(rng, 0.97) else ""
    if chance(rng, 0.8):
        node_labels[REGION] = rng.choice(REGIONS)
    if chance(rng, 0.15):
        node_labels[BETA_ZONE] = node_labels.get(ZONE) or rng.choice(ZONES)
        node_labels[BETA_REGION] = node_labels.get(REGION) or rng.choice(REGIONS)
    if node_labels.get(ZONE) and chance(rng, 0.4):  # as the drivers of cloud disks do
        node_labels.update(
            {f"topology.{provider}/zone": node_labels[ZONE] for provider in ("gke.io", "ebs.csi.aws.com")}
        )
    return node_labels


def allocatable(rng: random.Random) -> Json:
    amounts: Json = {
        "cpu": rng.choice(("4", "8", "16", "32", "3500m", "7.5", "64", "0")),
        "memory": rng.choice(("8Gi", "16Gi", "64Gi", "9000000000", "6e9", "12288Mi")),
        "pods": rng.choice(("3", "6", "10", "20", "110", "110")),
        "ephemeral-storage": rng.choice(("10Gi", "50Gi", "100G")),
    }
    if chance(rng, 0.7):
        amounts["nvidia.com/gpu"] = rng.choice(("0", "2", "4", "8", "8"))
    if chance(rng, 0.5):
        amounts["example.com/dongle"] = rng.choice(("1", "3", "1k"))
    if chance(rng, 0.4):
        amounts["hugepages-2Mi"] = rng.choice(("0", "64Mi", "1Gi"))
    if chance(rng, 0.2):
        amounts.update({"attachable-volumes-disk": "2", "kubernetes.io/special": "1", "bare": "1"})
    if chance(rng, 0.06):
        amounts.update(cpu=rng.choice(("2m", "3m", "5m", "1e-3")), memory=rng.choice(("100", "200.5", "1Ki")))
    if chance(rng, 0.04):
        del amounts[rng.choice(("cpu", "memory", "pods"))]
    return amounts


def namespaces(rng: random.Random) -> list[Json]:
    known = {"team": ("a", "b"), "stage": ("production", "test", "")}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels(rng, known, 0.6)}}
        for name in ("default", "team-a", "team-b")
        if chance(rng, 0.93)
    ]
