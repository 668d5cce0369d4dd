"""Clusters and workloads that are made up from a few numbers.

``leaf-spine:spines=8,leaves=16,nodes=16,gpus=8``: so many spines, leaves under each, nodes in each leaf, GPUs a node.
``jobs:count=200,every=60,seconds=3600,gpus=1+8+64,each=8``: so many jobs, on average so far apart and so long
(exponential), each of one of these sizes, in pods of at most ``each`` GPUs.
"""

from collections.abc import Mapping
from random import Random
from typing import Final

from topo_scheduler.api.annotations import GANG_NAME, GANG_SIZE
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import (
    Container,
    Node,
    NodeCondition,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from topo_scheduler.api.process import SCHEDULER_NAME
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase

LEAF_SPINE: Final = "leaf-spine"
JOBS: Final = "jobs"
GPU: Final = "nvidia.com/gpu"
MODEL: Final = "nvidia.com/gpu.product"


def make_node(name: str, labels: Mapping[str, str], allocatable: Mapping[str, Quantity]) -> Node:
    """Return a node that is ready. Its uid is made of its name."""
    return Node(
        metadata=ObjectMeta(name=name, uid=f"node-{name}", labels={"kubernetes.io/hostname": name, **labels}),
        status=NodeStatus(allocatable=dict(allocatable), conditions=[NodeCondition("Ready", "True")]),
    )


def make_pod(
    name: str,
    requests: Mapping[str, Quantity],
    *,
    annotations: Mapping[str, str] | None = None,
    priority: int = 0,
    namespace: str = "default",
) -> Pod:
    """Return a pod that waits for this scheduler; what it requests of extended resources are its limits too."""
    limits = {key: value for key, value in requests.items() if "/" in key}
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace=namespace, uid=f"pod-{namespace}-{name}", annotations=dict(annotations or {})
        ),
        spec=PodSpec(
            scheduler_name=SCHEDULER_NAME,
            priority=priority,
            containers=[Container("main", ResourceRequirements(dict(requests), limits))],
        ),
    )


def leaf_spine(spec: str) -> ClusterCase:
    """Return the cluster of ``leaf-spine:…``.

    Raises:
        CaseError: a key that is none, or a number out of range.
    """
    numbers = read_numbers(spec, {"spines": 2, "leaves": 4, "nodes": 8, "gpus": 8, "cpu": 128, "memory": 1024})
    spines, leaves, per_leaf = (int(numbers[key]) for key in ("spines", "leaves", "nodes"))
    if spines * leaves * per_leaf > 200_000:
        raise CaseError(f"--cluster: {spec}: {spines * leaves * per_leaf} nodes are too many; write at most 200,000")
    nodes = []
    for spine in range(1, spines + 1):
        for leaf in range(1, leaves + 1):
            place = {f"{PREFIX}spine": f"spine-{spine}", f"{PREFIX}leaf": f"leaf-{leaf}", MODEL: "GPU"}
            has = {"cpu": str(int(numbers["cpu"])), "memory": f"{int(numbers['memory'])}Gi", "pods": "110"}
            if numbers["gpus"]:
                has[GPU] = str(int(numbers["gpus"]))
            nodes += [make_node(f"s{spine}-l{leaf}-n{number}", place, has) for number in range(1, per_leaf + 1)]
    return ClusterCase(spec, tuple(nodes))


def jobs(spec: str, seed: int = 42) -> WorkloadCase:
    """Return the workload of ``jobs:…``, the same for the same seed.

    Raises:
        CaseError: a key that is none, or a number out of range.
    """
    known = {"count": 200.0, "every": 60.0, "seconds": 3600.0, "gpus": 8.0, "each": 8.0, "cpu": 4.0}
    sizes: list[int] = []
    rest = []
    for part in spec.partition(":")[2].split(","):
        if part.startswith("gpus=") and "+" in part:
            try:
                sizes = [int(size) for size in part[5:].split("+")]
            except ValueError:
                raise CaseError(f"--workload: {spec}: {part!r} is no list of numbers such as gpus=1+8+64") from None
        else:
            rest.append(part)
    numbers = read_numbers(f"{JOBS}:{','.join(rest)}", known, "--workload")
    sizes = sizes or [int(numbers["gpus"])]
    if min(sizes) < 1 or numbers["each"] < 1:
        raise CaseError(f"--workload: {spec}: a job needs at least one GPU")
    draw, at, found = Random(f"{JOBS} {seed}"), 0.0, []
    for number in range(int(numbers["count"])):
        size = draw.choice(sizes)
        found.append(make_job(f"job-{number}", at, _drawn(draw, numbers["seconds"]), size, int(numbers["each"])))
        at += _drawn(draw, numbers["every"])
    return WorkloadCase(spec, tuple(found))


def make_job(name: str, at: float, seconds: float | None, gpus: int, each: int, *, cpu: int = 4) -> Arrival:
    """Return a job of so many GPUs, in pods of ``each`` at most: a gang, where there is more than one.

    ``cpu`` of each GPU.
    """
    pods, each = (1, gpus) if gpus <= each else (-(-gpus // each), each)
    annotations = {GANG_NAME: name, GANG_SIZE: str(pods)} if pods > 1 else {}
    asked: dict[str, Quantity] = {"cpu": str(cpu * each), "memory": f"{8 * each}Gi", GPU: each}
    return Arrival(
        name,
        at,
        seconds,
        tuple(
            make_pod(f"{name}-{number}" if pods > 1 else name, asked, annotations=annotations) for number in range(pods)
        ),
    )


def read_numbers(spec: str, known: Mapping[str, float], option: str = "--cluster") -> dict[str, float]:
    """Return the numbers of ``name:key=number,…``; what is not given is as in ``known``.

    Raises:
        CaseError: a key that is none, or what is no number from 0 on.
    """
    found = dict(known)
    for part in filter(None, spec.partition(":")[2].split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise CaseError(f"{option}: {spec}: {key!r} is no key of it; write {', '.join(known)}")
        try:
            found[key] = float(value)
        except ValueError:
            found[key] = -1.0
        if not 0 <= found[key] < 1e12:
            raise CaseError(f"{option}: {spec}: {part!r} is not a number from 0 on")
    return found


def _drawn(draw: Random, mean: float) -> float:
    return round(draw.expovariate(1 / mean), 3) if mean else 0.0
