"""Clusters and workloads made of Kubernetes objects: folders of kubectl, manifests, a live cluster, a record."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import leaf_spine
from tests.recording.making import HeardDriver, record
from tests.scheduling.driver import fabric, gang
from tests.simulation.cases.files import write
from topo_scheduler.api.objects import Job, PartialObject
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer, Store
from topo_scheduler.simulation.apiserver.pods import bind
from topo_scheduler.simulation.cases.amounts import arrival_milli, capacity_milli
from topo_scheduler.simulation.cases.claims import capacity_of_slices
from topo_scheduler.simulation.cases.live import read_cluster_of, read_live
from topo_scheduler.simulation.cases.model import Arrival, CaseError, WorkloadCase
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.policies.names import read_policies
from topo_scheduler.simulation.tasks import Task, cases_of, run

EXAMPLES = Path(__file__).parents[3] / "examples"
GROUPS = "scheduling.x-k8s.io/v1alpha1"


def pod(name: str, gpus: int = 1, *, node: str = "", uid: str = "", **metadata: Any) -> dict[str, Any]:
    """A pod as a manifest has it; with a uid, as an API server has it."""
    limits = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "a", "image": "b", "resources": {"limits": limits, "requests": limits if uid else {}}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **({"uid": uid} if uid else {}), **metadata},
        "spec": spec,
    }


def job(name: str, pods: int = 2, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    """A Job of a gang."""
    template = {"spec": {**pod("x", gpus)["spec"], "restartPolicy": "Never"}}
    body = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}


def by_name(workload: WorkloadCase) -> dict[str, Arrival]:
    return {arrival.name: arrival for arrival in workload.arrivals}


# ---------------------------------------------------------------- a folder of kubectl get -o yaml


def test_a_running_pod_holds_its_limits_where_it_requests_nothing(tmp_path: Path) -> None:
    runs = pod("runs", 3, node="node-1")
    assert runs["spec"]["containers"][0]["resources"]["requests"] == {}
    runs["spec"]["initContainers"] = [{**runs["spec"]["containers"][0], "name": "init"}]
    both = pod("both", 2, node="node-1")
    both["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}
    write(tmp_path / "all.yaml", *leaf_spine([[1]]).nodes(), runs, both)
    first, other = read_cluster(str(tmp_path)).pods
    for container in (*first.spec.containers, *first.spec.init_containers):
        assert container.resources.requests == {"nvidia.com/gpu": "3"}
    assert other.spec.containers[0].resources.requests == {"cpu": "1"}


def snapshot(folder: Path) -> Path:
    """Write what kubectl would: lists and single objects, YAML and JSON."""
    nodes = [node | {"kind": "Node", "apiVersion": "v1"} for node in leaf_spine([[2, 2]]).nodes()]
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": nodes}))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-train", "controller": True}
    running = [
        pod(f"train-{n}", 8, node=f"node-{n + 1}", uid=f"u-{n}", ownerReferences=[owner], namespace="team")
        for n in range(2)
    ]
    ended = pod("ended", 1, node="node-1", uid="u-ended") | {"status": {"phase": "Succeeded"}}
    waiting = pod("waiting", 4, uid="u-waiting", creationTimestamp="2026-01-01T00:00:00Z")
    (folder / "pods.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [*running, ended, waiting]}, indent=1)
    )
    train = job("train") | {"metadata": {"name": "train", "namespace": "team", "uid": "u-train"}}
    (folder / "more").mkdir()
    write(
        folder / "more" / "rest.yml",
        train,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"a": "b"}}},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "team"}},
        {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 2}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000},
        {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "p"},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "passed-over"}, "spec": {"ports": []}},
        {
            "apiVersion": "topology.scheduler/v1alpha1",
            "kind": "TopologySchedulerConfig",
            "spec": {"maxNodesToScore": 7},
        },
    )
    return folder


def test_a_folder_of_kubectl(tmp_path: Path) -> None:
    cluster = read_cluster(str(snapshot(tmp_path)))
    assert (len(cluster.nodes), capacity_milli(cluster.nodes)) == (4, 32_000)
    assert [cluster_pod.metadata.name for cluster_pod in cluster.pods] == ["train-0", "train-1"]
    (owner,) = cluster.owners.values()
    assert isinstance(owner, Job)
    assert owner.metadata.uid == "u-train"
    assert [group.key.name for group in cluster.groups] == ["g"]
    assert [budget.metadata.name for budget in cluster.budgets] == ["b"]
    assert [namespace.metadata.labels for namespace in cluster.namespaces] == [{"a": "b"}]
    assert [storage_class.metadata.name for storage_class in cluster.storage["storageclasses"]] == ["fast"]
    assert cluster.priority_classes[0]["value"] == 1000
    assert cluster.topology is not None
    assert cluster.topology.max_nodes_to_score == 7


def test_kinds_of_the_same_name_in_other_apis_are_passed_over(tmp_path: Path) -> None:
    longhorn = {"apiVersion": "longhorn.io/v1beta2", "kind": "Node"}
    names = [{"name": f"node-{number}", "namespace": "longhorn-system"} for number in (1, 2)]
    foreign = [{**longhorn, "metadata": name, "spec": {}} for name in names]
    cluster = read_cluster(write(tmp_path / "all.yaml", *leaf_spine([[2]]).nodes(), *foreign))
    assert (len(cluster.nodes), capacity_milli(cluster.nodes)) == (2, 16_000)


def test_lists_in_lists(tmp_path: Path) -> None:
    nodes = {"apiVersion": "v1", "kind": "NodeList", "items": list(leaf_spine([[2]]).nodes())}
    whole = {"apiVersion": "v1", "kind": "List", "items": [nodes, pod("waits")]}
    for name, text in (("all.yaml", yaml.safe_dump(whole)), ("all.json", json.dumps(whole))):
        (tmp_path / name).write_text(text)
        assert len(read_cluster(str(tmp_path / name)).nodes) == 2
        assert len(read_workload(str(tmp_path / name)).arrivals) == 1


def test_what_has_its_pods_beside_it_need_not_be_known(tmp_path: Path) -> None:
    """Nor need a template that is none of pods."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u-d", "controller": True}
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d", "uid": "u-d"},
        "spec": {"template": {"spec": pod("x")["spec"]}},
    }
    runs = pod("d-1", node="node-1", uid="u-1", ownerReferences=[owner])
    sealed = {"kind": "SealedSecret", "metadata": {"name": "s"}, "spec": {"template": {"metadata": {"name": "s"}}}}
    file = write(tmp_path / "all.yaml", daemons, runs, sealed, pod("waits"))
    assert list(by_name(read_workload(file))) == ["default/waits"]


def test_an_owner_that_owns_itself_is_read_all_the_same(tmp_path: Path) -> None:
    above = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-j", "controller": True}
    looped = job("j")
    looped["metadata"] |= {"uid": "u-j", "ownerReferences": [above]}
    file = write(tmp_path / "all.yaml", pod("a", uid="u-a", ownerReferences=[above]), looped)
    assert [arrival.seconds for arrival in read_workload(file).arrivals] == [None]


def test_default_is_the_namespace_of_pods_that_name_none(tmp_path: Path) -> None:
    file = write(tmp_path / "all.yaml", pod("a"), pod("a", 2, namespace="default"))
    with pytest.raises(CaseError, match=r"all.yaml:\d+: Pod default/a: there is another of this name in .*all.yaml:1"):
        read_workload(file)
    assert len(read_workload(write(tmp_path / "two.yaml", pod("a"), pod("a", namespace="other"))).arrivals) == 2


def test_what_waits_in_a_folder_is_its_workload(tmp_path: Path) -> None:
    workload = read_workload(str(snapshot(tmp_path)))
    assert list(by_name(workload)) == ["default/waiting"]
    (waiting,) = workload.arrivals[0].pods
    assert waiting.metadata.uid == "u-waiting"


def pending_gang(folder: Path, *others: dict[str, Any]) -> str:
    """The pending pods of a Job of three, on a cluster with room for two of them."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-train", "controller": True}
    members = [pod(f"train-{n}", 8, uid=f"u-{n}", ownerReferences=[owner]) for n in range(3)]
    running = pod("runs", 8, node="node-3", uid="u-runs")
    return write(folder / "all.yaml", *leaf_spine([[3]]).nodes(), running, *members, *others)


def test_pending_pods_of_one_controller_are_one_workload(tmp_path: Path) -> None:
    train = job("train", pods=3)
    train["metadata"]["uid"] = "u-train"
    file = pending_gang(tmp_path, train, pod("single", uid="u-single"))
    assert {name: len(arrival.pods) for name, arrival in by_name(read_workload(file)).items()} == {
        "default/train": 3,
        "default/single": 1,
    }
    (policy,) = read_policies("topo")
    outcome = run(Task(policy, 1, file, file)).run
    assert (outcome.arrived, outcome.started, outcome.pods_placed) == (2, 1, 1)
    assert outcome.never_ran_reasons[0].startswith("1 workload default/train: ")
    assert outcome.warnings == []


def test_pods_whose_owner_is_not_in_the_files_are_warned_about(tmp_path: Path) -> None:
    file = pending_gang(tmp_path)
    (policy,) = read_policies("topo")
    outcome = run(Task(policy, 1, file, file)).run
    assert outcome.pods_placed == 2
    (warning,) = outcome.warnings
    assert warning.startswith("Job default/train, which owns pods of default/train, is not among the objects read")


def test_a_snapshot_of_filter(tmp_path: Path) -> None:
    nodes = list(leaf_spine([[2]]).nodes())
    file = tmp_path / "snapshot.json"
    bound, waits = pod("runs", node="node-1", uid="u-1"), pod("waits", uid="u-2")
    file.write_text(json.dumps({"nodes": nodes, "pods": [bound], "pending": [waits], "namespaces": []}))
    assert [running.metadata.name for running in read_cluster(str(file)).pods] == ["runs"]
    assert list(by_name(read_workload(str(file)))) == ["default/waits"]


# ---------------------------------------------------------------- manifests


def test_every_example_has_its_pods() -> None:
    pods = {
        "01-single-gpu": (1, 1000),
        "02-eight-gpus-prefer-leaf": (1, 8000),
        "03-multi-node-training": (4, 16_000),
        "04-inference-deployment": (3, 3000),
        "05-bare-pod-gang": (2, 16_000),
        "06-linked-gpus": (2, 8000),
    }
    for name, expected in pods.items():
        (arrival,) = read_workload(str(EXAMPLES / f"{name}.yaml")).arrivals
        assert (len(arrival.pods), arrival_milli(arrival)) == expected
        assert {pod.spec.scheduler_name for pod in arrival.pods} == {"topology-aware-scheduler"}


def test_controllers_make_pods_as_in_a_cluster(tmp_path: Path) -> None:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    body = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    sets = [
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": kind.lower()}, "spec": body}
        for kind in ("Deployment", "StatefulSet")
    ]
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "annotations": {"topology.scheduler/expected-duration": "2h"}},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": job("x")["spec"]}}]},
    }
    spec = write(tmp_path / "all.yaml", job("train"), *sets, jobset)
    arrivals = by_name(read_workload(spec))
    train = arrivals["default/train"]
    assert [member.metadata.name.rpartition("-")[0] for member in train.pods] == ["train-0", "train-1"]
    assert [member.metadata.labels["batch.kubernetes.io/job-completion-index"] for member in train.pods] == ["0", "1"]
    assert train.pods[0].spec.containers[0].resources.requests == {"nvidia.com/gpu": "8"}
    assert {type(owner) for owner in train.owners.values()} == {Job}
    assert [member.metadata.name for member in arrivals["default/statefulset"].pods] == [
        f"statefulset-{n}" for n in range(3)
    ]
    deployed = arrivals["default/deployment"]
    assert {owner.kind for owner in deployed.owners.values() if isinstance(owner, PartialObject)} == {
        "ReplicaSet",
        "Deployment",
    }
    made = arrivals["default/js"]
    assert len(made.pods) == 4
    assert made.seconds == 7200
    assert [member.metadata.labels["jobset.sigs.k8s.io/job-global-index"] for member in made.pods] == [
        "0",
        "0",
        "1",
        "1",
    ]
    # By the references of pods and owners, from each pod to the JobSet.
    reference = made.pods[0].metadata.controller
    assert reference is not None
    above = made.owners[reference.uid].metadata.controller
    assert above is not None
    assert made.owners[above.uid].metadata.name == "js"
    assert read_workload(spec) == read_workload(spec)


def test_when_and_for_how_long(tmp_path: Path) -> None:
    def annotated(name: str, **annotations: str) -> dict[str, Any]:
        named = {f"{key.replace('__', '.').replace('_', '-')}": value for key, value in annotations.items()}
        prefixed = {
            (f"topology.scheduler/{key}" if key == "expected-duration" else f"simulate.topology.scheduler/{key}"): value
            for key, value in named.items()
        }
        return {"metadata": {"name": name, "annotations": prefixed}}

    spec = write(
        tmp_path / "all.yaml",
        pod("late") | annotated("late", arrives="1h30m", runs="10m", expected_duration="1h"),
        pod("expects") | annotated("expects", expected_duration="1h", arrives="0"),
        pod("first") | annotated("first", runs="10m", arrives="0h0m"),
        job("deadline", activeDeadlineSeconds=600),
        job("rounds", completions=6) | annotated("rounds", expected_duration="1h"),
        pod("forever"),
    )
    times = {name: (arrival.at, arrival.seconds) for name, arrival in by_name(read_workload(spec)).items()}
    assert times == {
        "default/expects": (0.0, 3600.0),
        "default/first": (0.0, 600.0),
        "default/deadline": (0.0, 600.0),
        "default/rounds": (0.0, 3 * 3600.0),
        "default/forever": (0.0, None),
        "default/late": (5400.0, 600.0),
    }
    assert [arrival.name for arrival in read_workload(spec).arrivals][-1] == "default/late"


def test_pods_of_one_group_arrive_together(tmp_path: Path) -> None:
    named = {"scheduling.x-k8s.io/pod-group": "g"}
    group = {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 3}}
    gangs = {"topology.scheduler/gang-name": "h", "topology.scheduler/gang-size": "2"}
    members = [pod(f"g-{n}", labels=named) for n in range(3)]
    others = [pod(f"h-{n}", annotations=gangs) for n in range(2)]
    workload = read_workload(write(tmp_path / "all.yaml", *members, group, *others))
    arrivals = by_name(workload)
    assert {name: len(arrival.pods) for name, arrival in arrivals.items()} == {"default/g": 3, "default/h": 2}
    assert [pod_group.minimum for pod_group in arrivals["default/g"].groups] == [3]


def test_priorities_come_from_the_cluster(tmp_path: Path) -> None:
    urgent = pod("urgent")
    urgent["spec"]["priorityClassName"] = "high"
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = read_cluster(str(snapshot(folder)))
    spec = write(tmp_path / "job.yaml", urgent)
    assert read_workload(spec, cluster=cluster).arrivals[0].pods[0].spec.priority == 1000
    with pytest.raises(CaseError, match=r"job.yaml:1: Pod urgent: .*no PriorityClass with name high was found"):
        read_workload(spec)


# ---------------------------------------------------------------- a live cluster


async def test_a_live_cluster(tmp_path: Path) -> None:
    server = EmbeddedAPIServer(Store(seed=1))
    await server.start()
    try:
        store = server.store
        for node in leaf_spine([[2, 2]]).nodes():
            store.create("nodes", node)
        store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 7})
        labels = {"a": "b"}
        template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
        body = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        owner = store.create("replicasets.apps", {"metadata": {"name": "rs"}, "spec": body})
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "controller": True}
        reference["uid"] = owner["metadata"]["uid"]
        store.create("pods", pod("runs", ownerReferences=[reference]))
        claims = {"claims": [{"name": "gpu"}]}
        waits = pod("waits")
        waits["spec"]["containers"][0]["resources"] |= claims
        store.create("pods", waits)
        store.create("storageclasses.storage.k8s.io", {"metadata": {"name": "fast"}, "provisioner": "p"})
        bind(store, "default", "runs", {"metadata": {"name": "runs"}, "target": {"name": "node-1"}})
        before = store.revision
        client = await Client.connect(str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        try:
            cluster = await read_cluster_of(client)
        finally:
            await client.close()
        assert store.revision == before, "nothing is written"
    finally:
        await server.stop()
    assert capacity_milli(cluster.nodes) == 32_000
    assert [cluster_pod.metadata.name for cluster_pod in cluster.pods] == ["runs"]
    assert [(arrival.name, arrival.at, arrival.seconds, arrival.source) for arrival in cluster.waiting] == [
        ("default/waits", 0.0, None, "live")
    ]
    assert read_workload("live", cluster=cluster).arrivals == cluster.waiting
    assert [controller.metadata.name for controller in cluster.owners.values()] == ["rs"]
    assert "default" in {namespace.metadata.name for namespace in cluster.namespaces}
    assert [storage_class.metadata.name for storage_class in cluster.storage["storageclasses"]] == ["fast"]
    priorities = {
        priority_class["metadata"]["name"]: priority_class["value"] for priority_class in cluster.priority_classes
    }
    assert priorities["high"] == 7


def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"^live: "):
        read_live(str(tmp_path / "kubeconfig"), None)


# ---------------------------------------------------------------- a record of the daemon


def recorded(d: HeardDriver, _: object = None) -> None:
    """A pod that runs, then two gangs; the first ends."""
    d.nodes(*fabric({"s1/l1": 4, "s1/l2": 4}))
    for number in range(2):
        d.now += 60
        d.apply(*gang(4, name=f"team-{number}"))
        d.settle()
    d.now += 600
    d.delete(*(member for member in list(d.pods.values()) if member.metadata.name.startswith("team-0")))
    d.settle()


def test_a_record_is_a_cluster_and_a_workload(tmp_path: Path) -> None:
    record(tmp_path / "record", recorded)
    cluster = read_cluster(str(tmp_path / "record"))
    assert (len(cluster.nodes), capacity_milli(cluster.nodes)) == (8, 64_000)
    assert cluster.topology is not None
    workload = read_workload(str(tmp_path / "record"), cluster=cluster)
    assert [(arrival.name, arrival.at, len(arrival.pods)) for arrival in workload.arrivals] == [
        ("default/team-0", 60.0, 4),
        ("default/team-1", 120.0, 4),
    ]
    assert [arrival.seconds for arrival in workload.arrivals] == [pytest.approx(660, abs=1), None]
    assert not any(pod.spec.node_name for arrival in workload.arrivals for pod in arrival.pods)


def test_what_if_of_a_record(tmp_path: Path) -> None:
    record(tmp_path, recorded)
    (policy,) = read_policies("topo")
    for change, gpus in (("add-leaf:2x8", 80), ("drain:l1", 64)):
        task = Task(policy, 1, str(tmp_path), str(tmp_path), changes=(change,), what_if=change)
        cluster, workload = cases_of(task)
        assert capacity_milli(cluster.nodes) == gpus * 1000
        done = run(task).run
        assert (done.what_if, done.arrived, done.started) == (change, len(workload.arrivals), 2)


def test_a_damaged_record_is_reported(tmp_path: Path) -> None:
    record(tmp_path, recorded)
    (file,) = tmp_path.glob("*.jsonl.zst")
    file.write_bytes(b"nothing")
    with pytest.raises(CaseError, match=file.name):
        read_cluster(str(tmp_path))


# ---------------------------------------------------------------- devices


def claim_of(owner: str) -> dict[str, Any]:
    """A claim that Kubernetes made for a pod."""
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}]
    metadata = {"name": f"{owner}-gpus", "ownerReferences": owners}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": {}}


def test_a_pod_with_a_claim_of_its_own_is_no_controller_of_others(tmp_path: Path) -> None:
    objects = write(tmp_path / "objects.yaml", pod("p", uid="uid-p"), claim_of("p"))
    assert list(by_name(read_workload(objects))) == ["default/p"]


def test_a_cluster_may_have_its_gpus_in_slices_only(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8"}}}
    gpu = {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n", "pool": pool, "devices": [gpu, {"name": "nic-0"}]}
    devices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n"}, "spec": spec}
    cluster = read_cluster(write(tmp_path / "cluster.yaml", node, devices))
    assert capacity_of_slices(cluster) == {"n": 1000}, "a NIC is no GPU"
    with pytest.raises(CaseError, match="is the device plugin or the driver running there"):
        read_cluster(write(tmp_path / "bare.yaml", node))
