"""Clusters with ResourceSlices and workloads with claims: files in, every device used once, all given back."""

from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.simulate.cases import EVERY, run, where
from tests.simulation.cases.files import write
from tests.state.device_objects import DRIVER, Json, claim, gpu, mig_slices, slice_of
from topo_scheduler.simulation.cases.model import ClusterCase
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.virtual.history import RunHistory

GROUP = "resource.k8s.io/v1"
RUNS = "simulate.topology.scheduler/runs"
ARRIVES = "simulate.topology.scheduler/arrives"


def node(name: str) -> Json:
    labels = {"topology.scheduler/spine": "s1", "topology.scheduler/leaf": "l1"}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {"cpu": "64", "pods": "110"}, "conditions": conditions}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def published(item: Json) -> Json:
    return {"apiVersion": GROUP, "kind": "ResourceSlice", **item}


def device_class() -> Json:
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    return {"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}


def asking(count: int = 1, *expressions: str) -> Json:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    exactly = {"deviceClassName": "gpu", "count": count, **({"selectors": selectors} if selectors else {})}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def template(name: str, spec: Json) -> Json:
    return {
        "apiVersion": GROUP,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }


def job(name: str, pods: int, entry: Json, **annotations: str) -> Json:
    containers = [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "devices"}]}}]
    spec = {"containers": containers, "restartPolicy": "Never", "resourceClaims": [{"name": "devices", **entry}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": {"spec": spec}},
    }


def by_template(name: str) -> Json:
    return {"resourceClaimTemplateName": name}


def simulated(folder: Path, cluster: list[Json], workload: list[Json], policy: str = "topo") -> RunHistory:
    """Return what happens to a workload on a cluster, each of them in a file."""
    case = case_of(folder, cluster)
    arrivals = read_workload(write(folder / "workload.yaml", *workload), cluster=case).arrivals
    return run(policy, case, arrivals)


def case_of(folder: Path, cluster: list[Json]) -> ClusterCase:
    return read_cluster(write(folder / "cluster.yaml", *cluster))


def whole(*nodes: str) -> list[Json]:
    slices = [published(slice_of(name, map(gpu, range(8)))) for name in nodes]
    return [*map(node, nodes), *slices, device_class()]


def test_jobs_with_claims_run_and_give_their_devices_back(tmp_path: Path) -> None:
    jobs = [
        template("four", asking(4)),
        job("first", 4, by_template("four"), **{RUNS: "60s"}),
        job("second", 4, by_template("four"), **{RUNS: "60s", ARRIVES: "10s"}),
    ]
    history = simulated(tmp_path, whole("n1", "n2"), jobs)
    first, second = history.outcomes
    assert (first.started, first.ended) == (0.0, 60.0)
    assert (second.arrived, second.started, second.ended) == (10.0, 60.0, 120.0), "it waits for the devices"
    assert history.capacity == (8000, 8000)
    assert {stay.milli for stay in history.stays} == {4000}


def test_pods_with_an_extended_resource_run_and_give_their_devices_back(tmp_path: Path) -> None:
    backing = device_class()
    backing["spec"]["extendedResourceName"] = "nvidia.com/gpu"

    def plain(name: str, **annotations: str) -> Json:
        item = job(name, 4, {}, **annotations)
        spec = item["spec"]["template"]["spec"]
        del spec["resourceClaims"]
        spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 4}}
        return item

    jobs = [plain("first", **{RUNS: "60s"}), plain("second", **{RUNS: "60s", ARRIVES: "10s"})]
    history = simulated(tmp_path, [*whole("n1", "n2")[:-1], backing], jobs)
    first, second = history.outcomes
    assert (first.started, first.ended) == (0.0, 60.0)
    assert (second.started, second.ended) == (60.0, 120.0), "it waits for the devices"
    assert {stay.milli for stay in history.stays} == {4000}


def test_templates_may_be_with_the_cluster(tmp_path: Path) -> None:
    history = simulated(tmp_path, [*whole("n1"), template("two", asking(2))], [job("j", 1, by_template("two"))])
    assert where(history) == {"default/j": ["n1"]}


def test_a_template_that_is_missing_is_a_reason(tmp_path: Path) -> None:
    (outcome,) = simulated(tmp_path, whole("n1"), [job("j", 1, by_template("absent"))]).outcomes
    assert outcome.started == inf
    assert "template absent; check that it exists" in outcome.reason


def test_pods_that_share_a_claim_share_its_node_and_free_it_together(tmp_path: Path) -> None:
    shared: Json = {"apiVersion": GROUP, "kind": "ResourceClaim", "metadata": {"name": "shared"}, "spec": asking(8)}
    named = {"resourceClaimName": "shared"}
    jobs = [
        shared,
        template("eight", asking(8)),
        job("a", 1, named, **{RUNS: "30s"}),
        job("b", 1, named, **{RUNS: "90s"}),
        job("c", 1, by_template("eight"), **{ARRIVES: "1s"}),
    ]
    history = simulated(tmp_path, whole("n1"), jobs)
    assert [outcome.started for outcome in history.outcomes] == [0.0, 0.0, 90.0]


def test_mig_partitions(tmp_path: Path) -> None:
    selector = f"device.attributes['{DRIVER}'].profile == '2g.20gb'"
    cluster = [node("n1"), *map(published, mig_slices("n1", 2)), device_class()]
    jobs = [template("mig", asking(1, selector)), job("j", 6, by_template("mig")), job("k", 1, by_template("mig"))]
    history = simulated(tmp_path, cluster, jobs)
    assert [outcome.started for outcome in history.outcomes] == [0.0, inf], "three places on each of two GPUs"
    assert {stay.milli for stay in history.stays} == {250}


def test_a_cluster_where_devices_are_in_use(tmp_path: Path) -> None:
    taken = claim("c", "n1", *(f"gpu-{number}" for number in range(6)), pods=["running"])
    running = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "running", "uid": "uid-running"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "a"}],
            "resourceClaims": [{"name": "d", "resourceClaimName": "c"}],
        },
    }
    cluster = [*whole("n1"), running, {"apiVersion": GROUP, "kind": "ResourceClaim", **taken, "spec": asking(6)}]
    history = simulated(tmp_path, cluster, [template("two", asking(2)), job("j", 2, by_template("two"))])
    (outcome,) = history.outcomes
    assert outcome.started == inf
    assert "the nodes have room for 1" in outcome.reason
    (before,) = history.stays
    assert (before.pod, before.milli) == ("running", 6000)


@pytest.mark.parametrize("policy", EVERY.split(","))
def test_every_policy_knows_claims(tmp_path: Path, policy: str) -> None:
    jobs: list[Any] = [template("four", asking(4)), job("j", 4, by_template("four"), **{RUNS: "60s"})]
    history = simulated(tmp_path, whole("n1", "n2"), jobs, policy)
    assert history.outcomes[0].ended == 60.0
