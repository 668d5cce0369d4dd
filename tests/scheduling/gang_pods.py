"""Pods of gangs with annotations, ranks and segments, and where their ranks run."""

from collections.abc import Sequence
from typing import Any

from tests.helpers import make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Pod


def annotated_gang(size: int, name: str = "g", gpus: int = 8, created: float = 0, **annotations: str) -> list[Pod]:
    """Return the pods of a gang; annotations are given with underscores for hyphens."""
    pod_annotations = {key.replace("_", "-"): value for key, value in annotations.items()}
    pod_annotations |= {"gang-name": name, "gang-size": str(size)}
    return [make_pod(f"{name}-{n}", gpus=gpus, annotations=pod_annotations, created=created) for n in range(size)]


def rank_of(pod: Pod) -> int:
    """Return the rank that the scheduler wrote on a pod."""
    return int(pod.metadata.annotations["topology.scheduler/rank"])


def leaf_by_rank(d: Driver, pods: list[Pod]) -> list[str]:
    """Return the leaf of each rank of a placed gang."""
    placed = sorted((rank_of(pod), pod.spec.node_name.rpartition("-")[0]) for pod in pods)
    assert [rank for rank, _ in placed] == list(range(len(pods)))
    return [leaf for _, leaf in placed]


def nodes_by_rank(pods: Sequence[Pod]) -> list[str]:
    """Return the node of each rank of a placed gang."""
    return [
        node
        for _, node in sorted((int(p.metadata.annotations["topology.scheduler/rank"]), p.spec.node_name) for p in pods)
    ]


LWS = "leaderworkerset.sigs.k8s.io/"


def launcher_gang(segments: int, size: int, *, gpus: int = 8, **annotations: Any) -> list[Pod]:
    """Return a gang in segments; the first pod of each segment has no GPUs."""
    large = annotated_gang(segments * size, gpus=gpus, segment_size=str(size), **annotations)
    small = annotated_gang(segments * size, gpus=0, segment_size=str(size), **annotations)
    return [few if at % size == 0 else many for at, (few, many) in enumerate(zip(small, large, strict=True))]


def leader_worker_set(size: int, subgroup: int, *, leader_gpus: int = 8, policy: str = "") -> list[Pod]:
    """Return the pods of a group of a LeaderWorkerSet with subgroups."""
    policy_annotation = {f"{LWS}subgroup-policy-type": policy} if policy else {}
    return [
        make_pod(
            f"lws-0-{n}",
            gpus=leader_gpus if n == 0 else 8,
            cpu="1",
            labels={f"{LWS}name": "lws", f"{LWS}group-index": "0", f"{LWS}worker-index": str(n)},
            annotations={f"{LWS}size": str(size), f"{LWS}subgroup-size": str(subgroup), **policy_annotation},
        )
        for n in range(size)
    ]
