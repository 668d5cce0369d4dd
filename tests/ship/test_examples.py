"""Every file in examples/ is what a user may copy: right by Kubernetes, by our annotations and by our configuration."""

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from topo_scheduler.api.annotations import USERS_MAY_WRITE, Source, read_annotations, unknown_annotations
from topo_scheduler.api.config import load_configuration
from topo_scheduler.api.labels import GPU_RESOURCES, PREFIX
from topo_scheduler.api.process import API_VERSION, SCHEDULER_NAME, SchedulerConfig
from topo_scheduler.api.scoring import ScoringWeights
from topo_scheduler.simulation.demo import claim_files, example_files

from .manifests import EXAMPLES, Object, read

CONFIG = EXAMPLES / "10-scheduler-config.yaml"
FILES = sorted(EXAMPLES.glob("*.yaml"))
WORKLOADS = [path for path in FILES if path != CONFIG]


def _objects(path: Path) -> list[Object]:
    return read(path)


def _pod_spec(item: Object) -> dict[str, Any]:
    spec: dict[str, Any] = item["spec"] if item["kind"] == "Pod" else item["spec"]["template"]["spec"]
    return spec


def _gpus(item: Object) -> int:
    limits = [container["resources"]["limits"] for container in _pod_spec(item)["containers"]]
    return sum(int(limit.get(name, 0)) for limit in limits for name in GPU_RESOURCES)


def test_the_promised_examples_are_there_and_nothing_else() -> None:
    assert [path.name for path in FILES] == [
        "01-single-gpu.yaml",
        "02-eight-gpus-prefer-leaf.yaml",
        "03-multi-node-training.yaml",
        "04-inference-deployment.yaml",
        "05-bare-pod-gang.yaml",
        "06-linked-gpus.yaml",
        "10-scheduler-config.yaml",
    ]
    assert sorted(path.name for path in EXAMPLES.iterdir() if path not in FILES) == ["claims", "plugins"]
    assert [path.name for path in claim_files(EXAMPLES)] == ["01-gpus.yaml", "02-mig-instances.yaml"]


def test_the_packages_beside_them_are_no_examples_of_the_demo() -> None:
    manifests, config = example_files(EXAMPLES)
    assert manifests == WORKLOADS
    assert config == CONFIG


@pytest.mark.parametrize("path", [*FILES, *claim_files(EXAMPLES)], ids=lambda path: path.name)
def test_says_at_the_top_what_happens(path: Path) -> None:
    comment = "\n".join(line for line in path.read_text().split("\napiVersion")[0].splitlines())
    assert all(line.startswith("#") or not line for line in comment.splitlines())
    assert path.name in comment, "the command to try it, with this file's name"
    if path != CONFIG:
        assert "What happens:" in comment


@pytest.mark.parametrize("path", claim_files(EXAMPLES), ids=lambda path: path.name)
def test_claims_come_from_the_template_of_their_file(path: Path) -> None:
    template, job = _objects(path)
    assert (template["apiVersion"], template["kind"]) == ("resource.k8s.io/v1", "ResourceClaimTemplate")
    (entry,) = _pod_spec(job)["resourceClaims"]
    assert entry["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert _pod_spec(job)["schedulerName"] == SCHEDULER_NAME
    assert [container["resources"]["claims"] for container in _pod_spec(job)["containers"]] == [
        [{"name": entry["name"]}]
    ]


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.name)
def test_is_complete_for_the_api_server(path: Path) -> None:
    versions = {"Job": "batch/v1", "Deployment": "apps/v1", "Pod": "v1"}
    for item in _objects(path):
        assert item["apiVersion"] == versions[item["kind"]]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", item["metadata"]["name"])
        assert "namespace" not in item["metadata"], "the user's namespace"
        spec = _pod_spec(item)
        assert spec["schedulerName"] == SCHEDULER_NAME
        assert spec.get("restartPolicy", "Always") == ("Always" if item["kind"] == "Deployment" else "Never")
        for container in spec["containers"]:
            assert re.fullmatch(r"(registry\.k8s\.io/)?[a-z]+:\d[\w.]*", container["image"]), (
                "pinned, from a public registry"
            )
        assert _gpus(item) > 0


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.name)
def test_uses_only_known_annotations_with_good_values(path: Path) -> None:
    for item in _objects(path):
        annotations = item["metadata"].get("annotations", {})
        assert all(isinstance(value, str) for value in annotations.values()), "Kubernetes takes strings only"
        chain = [Source(item["kind"], item["metadata"]["name"], annotations)]
        assert read_annotations(chain).problems == ()
        assert unknown_annotations(chain) == []
        assert {name for name in annotations if name.startswith(PREFIX)} <= set(USERS_MAY_WRITE)


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.name)
def test_gpu_count_and_limits_say_the_same(path: Path) -> None:
    for item in _objects(path):
        request = read_annotations([Source(item["kind"], "", item["metadata"].get("annotations", {}))])
        if request.gpu_count is None:
            continue
        pods = item["spec"].get("parallelism", 1) if item["kind"] == "Job" else 1
        assert request.gpu_count == pods * _gpus(item)


def test_names_differ_so_that_all_can_be_applied_together() -> None:
    names = sorted((item["kind"], item["metadata"]["name"]) for path in WORKLOADS for item in _objects(path))
    assert len(set(names)) == len(names)


def test_training_is_a_gang_of_four_with_sixteen_gpus() -> None:
    (job,) = _objects(EXAMPLES / "03-multi-node-training.yaml")
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 4
    request = read_annotations([Source("Job", "training", job["metadata"]["annotations"])])
    assert (request.gpu_count, request.bandwidth, request.strategy) == (16, 200_000, "consolidated")
    assert "annotations" not in job["spec"]["template"].get("metadata", {}), "the Job's own metadata is enough"


def test_the_bare_gang_has_as_many_pods_as_it_says() -> None:
    pods = _objects(EXAMPLES / "05-bare-pod-gang.yaml")
    requests = [read_annotations([Source("Pod", "", pod["metadata"]["annotations"])]) for pod in pods]
    for name, members in groupby(requests, key=lambda request: request.gang_name):
        sizes = [request.gang_size for request in members]
        assert name
        assert set(sizes) == {len(sizes)}


def test_the_configuration_is_accepted_and_as_promised() -> None:
    kinds = [document["kind"] for document in read(CONFIG)]
    assert kinds == ["SchedulerConfig", "TopologySchedulerConfig"]
    assert {document["apiVersion"] for document in read(CONFIG)} == {API_VERSION}
    configuration = load_configuration({CONFIG.name: CONFIG.read_text()})
    constraints = configuration.topology.spec.topology_constraints
    assert (constraints.max_nodes_per_leaf, constraints.max_gpus_per_leaf) == (None, None), (
        "a limit below the size of a leaf spreads gangs that fit into one"
    )
    assert configuration.topology.spec.scoring_weights == ScoringWeights()
    assert configuration.scheduler == SchedulerConfig(), (
        "every value shown is the default: leaving it out changes nothing"
    )
