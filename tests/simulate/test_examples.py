"""Every policy runs the project's own examples, whatever annotations they carry and on whichever object."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.helpers import make_node
from tests.simulate.cases import of, run
from tests.simulation.cases.files import write
from tests.state.device_objects import DRIVER, Json, mig_slices
from topo_scheduler.api.annotations import (
    CHECKPOINT_INTERVAL,
    EXPECTED_DURATION,
    GANG,
    GANG_NAME,
    GANG_SIZE,
    GPU_ARCHITECTURE,
    GPU_COUNT,
    GPU_FRACTION,
    GPU_LOCALITY,
    GPU_MEMORY,
    GPU_MIN_BANDWIDTH,
    GPU_MODEL,
    GPU_MODEL_MIXED,
    GPU_REQUIREMENTS,
    KNOWN,
    LATENCY_SENSITIVE,
    MIG_PROFILE,
    MOVABLE,
    NETWORK_BANDWIDTH,
    ON_FAILURE,
    PLACEMENT,
    PLACEMENT_STRATEGY,
    PREFERRED_DOMAIN,
    PREFERRED_LEVEL,
    RELAX_AFTER,
    REQUIRED_LEVEL,
    SEGMENT_LEVEL,
    SEGMENT_SIZE,
    WRITTEN,
)
from topo_scheduler.simulation.cases.model import ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.policies.names import NAMES, TOPO
from topo_scheduler.simulation.virtual.history import RunHistory

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
MANIFESTS: Final = sorted(EXAMPLES.glob("0*.yaml"))
CLAIMS: Final = sorted(EXAMPLES.glob("claims/*.yaml"))
DEVICE_CLASSES: Final = {
    "gpu.nvidia.com": "!has(device.attributes['gpu.nvidia.com'].profile)",
    "mig.nvidia.com": "has(device.attributes['gpu.nvidia.com'].profile)",
}
VALUES: Final = {
    GPU_COUNT: "16",
    GPU_FRACTION: "0.5",
    GPU_MODEL: "NVIDIA-H100-80GB-HBM3",
    GPU_MODEL_MIXED: "true",
    GPU_LOCALITY: "nvlink",
    GPU_MIN_BANDWIDTH: "600G",
    GPU_MEMORY: "40Gi",
    GPU_ARCHITECTURE: "hopper",
    MIG_PROFILE: "1g.10gb",
    GPU_REQUIREMENTS: "preferred",
    PREFERRED_DOMAIN: "spine-1/leaf-1",
    NETWORK_BANDWIDTH: "200Gb",
    LATENCY_SENSITIVE: "true",
    PLACEMENT_STRATEGY: "distributed",
    PLACEMENT: "preferred",
    GANG: "true",
    GANG_NAME: "named",
    GANG_SIZE: "4",
    REQUIRED_LEVEL: "leaf",
    PREFERRED_LEVEL: "leaf",
    RELAX_AFTER: "10m",
    SEGMENT_SIZE: "2",
    SEGMENT_LEVEL: "leaf",
    EXPECTED_DURATION: "10m",
    MOVABLE: "false",
    ON_FAILURE: "restart-gang",
    CHECKPOINT_INTERVAL: "10m",
}
JOB: Final = """
apiVersion: batch/v1
kind: Job
metadata:
  name: annotated
  annotations: {on_job}
spec:
  completionMode: Indexed
  parallelism: 4
  completions: 4
  template:
    metadata:
      annotations: {on_pod}
    spec:
      schedulerName: topology-aware-scheduler
      restartPolicy: Never
      containers:
        - name: work
          image: busybox:1.36
          resources:
            limits: {limits}
"""
ALONE: Final = (GPU_FRACTION,)
"""Annotations that GPU limits exclude."""
BESIDE: Final = {
    GANG_NAME: (GANG_SIZE,),
    SEGMENT_LEVEL: (SEGMENT_SIZE,),
    RELAX_AFTER: (REQUIRED_LEVEL,),
    GPU_REQUIREMENTS: (GPU_LOCALITY,),
    MIG_PROFILE: (GPU_REQUIREMENTS,),
}
"""Annotations that mean something beside others only."""


@pytest.fixture(scope="module")
def fabric() -> ClusterCase:
    """Return a cluster with room for any of the examples."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    return of(
        [
            make_node(f"n-{spine}-{leaf}-{node}", f"spine-{spine}/leaf-{leaf}", gpus=8, labels=labels)
            for spine in (1, 2)
            for leaf in (1, 2)
            for node in range(4)
        ]
    )


def _history(policy: str, fabric: ClusterCase, workload: WorkloadCase) -> RunHistory:
    return run(policy, fabric, workload.arrivals)


def _placed(history: RunHistory) -> int:
    return sum(stay.job >= 0 for stay in history.stays)


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_every_policy_places_every_example(policy: str, manifest: Path, fabric: ClusterCase) -> None:
    workload = read_workload(str(manifest))
    assert workload.arrivals
    assert _placed(_history(policy, fabric, workload)) == sum(len(arrival.pods) for arrival in workload.arrivals)


def _devices(node: str) -> list[Json]:
    """Return a node and its four GPUs that can be split, two of them below each PCIe root."""
    labels = {"topology.scheduler/spine": "s1", "topology.scheduler/leaf": "l1"}
    status = {"allocatable": {"cpu": "64", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}
    slices = json.loads(json.dumps(mig_slices(node, 4)).replace(DRIVER, "gpu.nvidia.com"))
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}, "status": status},
        *({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **item} for item in slices),
    ]


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("manifest", CLAIMS, ids=lambda path: path.stem)
def test_every_policy_places_every_example_of_claims(policy: str, manifest: Path, tmp_path: Path) -> None:
    classes = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == 'gpu.nvidia.com' && {expression}"}}]},
        }
        for name, expression in DEVICE_CLASSES.items()
    ]
    cluster = read_cluster(write(tmp_path / "cluster.yaml", *_devices("n1"), *_devices("n2"), *classes))
    workload = read_workload(str(manifest), cluster=cluster)
    assert workload.arrivals
    history = _history(policy, cluster, workload)
    assert _placed(history) == sum(len(arrival.pods) for arrival in workload.arrivals), history.complaints


def test_every_example_of_a_workload_is_run() -> None:
    kinds = ("\nkind: Job\n", "\nkind: Pod\n", "\nkind: JobSet\n", "\nkind: Deployment\n", "\nkind: StatefulSet\n")
    paths = [path for path in EXAMPLES.rglob("*.yaml") if any(kind in f"\n{path.read_text()}" for kind in kinds)]
    assert sorted(paths) == sorted([*MANIFESTS, *CLAIMS])


def test_every_annotation_that_is_read_is_tried() -> None:
    assert set(VALUES) == KNOWN - WRITTEN


@pytest.mark.parametrize("on", ["job", "pod"])
@pytest.mark.parametrize("annotation", sorted(VALUES))
def test_every_policy_runs_every_annotation(annotation: str, on: str, fabric: ClusterCase, tmp_path: Path) -> None:
    said = {name: VALUES[name] for name in (annotation, *BESIDE.get(annotation, ()))}
    if annotation == GPU_COUNT and on == "pod":
        said[GPU_COUNT] = "4"
    written = "{" + ", ".join(f'{name}: "{value}"' for name, value in said.items()) + "}"
    limits = "{}" if annotation in ALONE else "{nvidia.com/gpu: 4}"
    file = tmp_path / "job.yaml"
    file.write_text(
        JOB.format(on_job=written if on == "job" else "{}", on_pod=written if on == "pod" else "{}", limits=limits)
    )
    workload = read_workload(str(file))
    for policy in NAMES:
        history = _history(policy, fabric, workload)
        expected = 0 if annotation == GPU_FRACTION else 4  # no node here shares its GPUs
        assert _placed(history) == expected, f"{policy}: {history.complaints}"


@pytest.mark.parametrize("policy", [name for name in NAMES if name != TOPO])
def test_baselines_do_not_understand_what_owners_ask_of_topology(policy: str, tmp_path: Path) -> None:
    written = f'{{{REQUIRED_LEVEL}: "leaf", {NETWORK_BANDWIDTH}: "999Tb"}}'
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(on_job=written, on_pod="{}", limits="{nvidia.com/gpu: 8}"))
    workload = read_workload(str(file))
    narrow = read_cluster("leaf-spine:spines=2,leaves=2,nodes=1,gpus=8")
    assert _placed(_history(policy, narrow, workload)) == 4
    assert _placed(_history(TOPO, narrow, workload)) == 0
