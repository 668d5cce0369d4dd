"""The kubelet: what it takes and refuses, how pods run, end and go, and what a failing node means."""

import asyncio
from typing import Any

import pytest

from topo_scheduler.simulation.apiserver import DeleteOptions, Store
from topo_scheduler.simulation.apiserver.objects import condition
from topo_scheduler.simulation.controllers import controllers
from topo_scheduler.simulation.fit import requests_of
from topo_scheduler.simulation.kubelet import EXIT_CODE, RUN_SECONDS, Kubelet

from .conftest import Cluster, Json, job, pod

pytestmark = pytest.mark.looptime


async def _bound(cluster: Cluster, name: str, *, node: str = "node-1", **more: Any) -> None:
    cluster.store.create("pods", pod(name, **more))
    cluster.bind(name, node)
    await cluster.settle()


def _status(cluster: Cluster, name: str) -> Json:
    return cluster.status("pods", name)


async def test_a_pod_that_is_bound_runs(cluster: Cluster) -> None:
    await _bound(cluster, "a", gpu=2)
    status = _status(cluster, "a")
    assert status["phase"] == "Running"
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "PodScheduled": "True", "Initialized": "True", "Ready": "True", "ContainersReady": "True",
    }  # fmt: skip
    assert status["startTime"] == "2030-01-01T00:00:00Z"
    assert status["podIP"].startswith("10.")
    assert status["qosClass"] == "BestEffort"
    assert status["containerStatuses"][0]["ready"] is True
    assert cluster.kubelet.used("node-1") == {"nvidia.com/gpu": 2, "pods": 1}


async def test_a_pod_runs_as_long_as_it_says_and_ends_as_it_says(cluster: Cluster) -> None:
    await _bound(cluster, "good", annotations={RUN_SECONDS: "3600.5"}, gpu=1)
    await _bound(cluster, "bad", annotations={RUN_SECONDS: "7200", EXIT_CODE: "3"}, gpu=1)
    await _bound(cluster, "endless", gpu=1)
    await asyncio.sleep(3599)
    assert set(cluster.phases().values()) == {"Running"}
    await asyncio.sleep(3602)
    assert cluster.phases() == {"good": "Succeeded", "bad": "Failed", "endless": "Running"}
    ended = _status(cluster, "bad")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["finishedAt"]) == (3, "2030-01-01T02:00:00Z")
    assert (condition(cluster.store.get("pods", "good", "default").obj, "Ready") or {})["reason"] == "PodCompleted"
    assert cluster.kubelet.used("node-1") == {"nvidia.com/gpu": 1, "pods": 1}


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ({"cpu": "8001m"}, "OutOfcpu"),
        ({"memory": "33Gi"}, "OutOfmemory"),
        ({"nvidia.com/gpu": "9"}, "OutOfnvidia.com/gpu"),
        ({"example.com/nothing": "1"}, "OutOfexample.com/nothing"),
        ({"cpu": "9", "nvidia.com/gpu": "9"}, "OutOfcpu"),
    ],
)
async def test_what_a_node_does_not_have(cluster: Cluster, requests: dict[str, str], reason: str) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"requests": requests}
    cluster.store.create("pods", body)
    cluster.bind("a")
    await cluster.settle()
    status = _status(cluster, "a")
    assert (status["phase"], status["reason"]) == ("Failed", reason)
    assert "Node didn't have enough resource" in status["message"]
    assert cluster.kubelet.used("node-1") == {}


async def test_a_node_is_full_after_so_many(cluster: Cluster) -> None:
    cluster.add_node("small", pods="2")
    for name in ("a", "b", "c"):
        await _bound(cluster, name, node="small")
    assert [_status(cluster, name)["phase"] for name in ("a", "b", "c")] == ["Running", "Running", "Failed"]
    assert _status(cluster, "c")["reason"] == "OutOfpods"


async def test_gpus_are_handed_on(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await _bound(cluster, name, gpu=4)
    await _bound(cluster, "late", gpu=1)
    assert _status(cluster, "late")["reason"] == "OutOfnvidia.com/gpu"
    cluster.store.delete("pods", "a", "default")
    await cluster.settle()
    await _bound(cluster, "next", gpu=4)
    assert _status(cluster, "next")["phase"] == "Running"


@pytest.mark.parametrize(
    ("spec", "phase"),
    [
        ({"nodeSelector": {"zone": "a"}}, "Running"),
        ({"nodeSelector": {"zone": "b"}}, "Failed"),
        ({"terms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "c"]}]}]}, "Running"),
        ({"terms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]}, "Failed"),
        ({"terms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}, "Running"),
        ({"terms": [{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}]}, "Failed"),
        ({"terms": [{"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["4"]}]}]}, "Running"),
        ({"terms": [{"matchExpressions": [{"key": "rank", "operator": "Lt", "values": ["4"]}]}]}, "Failed"),
        ({"terms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["zoned"]}]}]}, "Running"),
        ({"terms": [{}]}, "Failed"),
        ({"terms": [{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}, "Running"),
    ],
)
async def test_where_a_pod_belongs(cluster: Cluster, spec: Json, phase: str) -> None:
    cluster.add_node("zoned", labels={"zone": "a", "rank": "5"})
    if "terms" in spec:
        required = {"nodeSelectorTerms": spec["terms"]}
        spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    await _bound(cluster, "a", node="zoned", **spec)
    assert _status(cluster, "a")["phase"] == phase
    assert _status(cluster, "a").get("reason") == (None if phase == "Running" else "NodeAffinity")


async def test_a_kubelet_may_refuse_for_reasons_of_its_own(store: Store) -> None:
    def no_device(pod: Json, node: Json) -> tuple[str, str] | None:
        return ("UnexpectedAdmissionError", "no device left") if "gpu" in pod["metadata"]["name"] else None

    kubelet = Kubelet(store, refuse=no_device)
    async with kubelet:
        cluster = Cluster(store, kubelet)
        cluster.add_node("node-1")
        await _bound(cluster, "gpu-pod")
        await _bound(cluster, "other")
        status = cluster.status("pods", "gpu-pod")
        assert (status["reason"], status["message"]) == ("UnexpectedAdmissionError", "no device left")
        assert cluster.phases() == {"gpu-pod": "Failed", "other": "Running"}


@pytest.mark.parametrize(
    "annotations", [{RUN_SECONDS: "long"}, {RUN_SECONDS: "nan"}, {RUN_SECONDS: "-1"}, {EXIT_CODE: "bad"}]
)
async def test_annotations_that_make_no_sense(cluster: Cluster, annotations: dict[str, str]) -> None:
    await _bound(cluster, "a", annotations=annotations)
    assert _status(cluster, "a")["reason"] == "UnexpectedAdmissionError"


async def test_what_cannot_be_understood_does_not_stop_the_rest(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(pod: Json, node: Json) -> None:
        if pod["metadata"]["name"] == "odd":
            raise RuntimeError("surprise")

    kubelet = Kubelet(store, refuse=refuse)
    async with kubelet:
        cluster = Cluster(store, kubelet)
        cluster.add_node("node-1")
        await _bound(cluster, "odd")
        await _bound(cluster, "a")
        assert cluster.phases() == {"a": "Running", "odd": "Pending"}
    assert "kubelet of default/odd" in caplog.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"containers": [{"cpu": "1"}, {"cpu": "500m"}]}, {"cpu": 1500}),
        ({"containers": [{"cpu": "1"}], "initContainers": [{"cpu": "3"}, {"cpu": "2"}]}, {"cpu": 3000}),
        ({"containers": [{"cpu": "1"}], "sidecars": [{"cpu": "1"}], "initContainers": []}, {"cpu": 2000}),
        ({"containers": [{"cpu": "1"}], "sidecars": [{"cpu": "1"}], "initContainers": [{"cpu": "4"}]}, {"cpu": 5000}),
        ({"containers": [{"memory": "1Gi"}], "overhead": {"memory": "1Mi"}}, {"memory": 2**30 + 2**20}),
        ({"containers": [{"cpu": "1"}], "whole": {"cpu": "3"}}, {"cpu": 3000}),
    ],
)
def test_what_a_pod_asks_for(body: Json, expected: dict[str, int]) -> None:
    def containers(part: str, **more: str) -> list[Json]:
        return [{"resources": {"requests": requests}, **more} for requests in body.get(part, [])]

    spec: Json = {
        "containers": containers("containers"),
        "initContainers": [*containers("sidecars", restartPolicy="Always"), *containers("initContainers")],
        "overhead": body.get("overhead"),
        "resources": {"requests": body.get("whole")},
    }
    assert requests_of({"spec": spec}) == {**expected, "pods": 1}


# Going


async def test_a_running_pod_ends_as_failed_and_goes(cluster: Cluster) -> None:
    await _bound(cluster, "a")
    watch = cluster.store.watch("pods")
    cluster.store.delete("pods", "a", "default")
    await cluster.settle()
    events = watch.pending()
    assert [kind for kind, _ in events] == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    assert events[1][1]["status"]["phase"] == "Failed"
    assert cluster.kubelet.used("node-1") == {}


async def test_a_pod_takes_its_time_to_end(store: Store) -> None:
    kubelet = Kubelet(store, start_seconds=5, stop_seconds=10)
    async with kubelet:
        cluster = Cluster(store, kubelet)
        cluster.add_node("node-1")
        await _bound(cluster, "a", gpu=8)
        assert cluster.phases() == {"a": "Pending"}
        await asyncio.sleep(6)
        assert cluster.phases() == {"a": "Running"}
        cluster.store.delete("pods", "a", "default")
        await asyncio.sleep(9)
        assert cluster.phases() == {"a": "Running"}
        assert kubelet.used("node-1")["nvidia.com/gpu"] == 8, "what is ending still holds what it has"
        await asyncio.sleep(2)
        assert cluster.phases() == {}


async def test_a_finalizer_of_others_keeps_the_object_only(cluster: Cluster) -> None:
    body = pod("a", gpu=8)
    body["metadata"]["finalizers"] = ["example.com/wait"]
    cluster.store.create("pods", body)
    cluster.bind("a")
    await cluster.settle()
    cluster.store.delete("pods", "a", "default")
    await cluster.settle()
    left = cluster.store.get("pods", "a", "default")
    assert left["metadata"]["deletionGracePeriodSeconds"] == 0
    assert left["status"]["phase"] == "Failed"
    assert cluster.kubelet.used("node-1") == {}


async def test_a_name_is_used_again_on_another_node(cluster: Cluster) -> None:
    cluster.add_node("node-2")
    await _bound(cluster, "a", annotations={RUN_SECONDS: "10"}, gpu=1)
    cluster.store.delete("pods", "a", "default")
    await cluster.settle()
    await _bound(cluster, "a", node="node-2", annotations={RUN_SECONDS: "100"}, gpu=1)
    await asyncio.sleep(50)
    assert cluster.phases() == {"a": "Running"}
    assert cluster.kubelet.used("node-1") == {}
    await asyncio.sleep(51)
    assert cluster.phases() == {"a": "Succeeded"}


async def test_a_bound_pod_that_is_replaced_at_once_is_not_run(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.store.create("pods", pod("a", gpu=1))
    cluster.bind("a")
    cluster.store.delete("pods", "a", "default", DeleteOptions(grace=0))
    cluster.store.create("pods", pod("a", gpu=1))
    await cluster.settle()
    assert cluster.phases() == {"a": "Pending"}
    assert cluster.kubelet.used("node-1") == {}
    assert not caplog.records


# Nodes


def _taints(cluster: Cluster, name: str) -> set[tuple[str, str]]:
    taints = cluster.store.get("nodes", name)["spec"].get("taints", [])
    return {(taint["key"].rpartition("/")[2], taint["effect"]) for taint in taints}


def _ready(cluster: Cluster, name: str) -> str:
    return str((condition(cluster.store.get("nodes", name).obj, "Ready") or {}).get("status"))


def test_a_node_is_tainted_until_it_says_that_it_is_ready(store: Store) -> None:
    silent = store.create("nodes", {"metadata": {"name": "silent"}})
    assert silent["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    ready = store.create("nodes", {"metadata": {"name": "ready"}, "status": status})
    assert "spec" not in ready.obj


async def test_a_new_node_becomes_ready(cluster: Cluster) -> None:
    assert _ready(cluster, "node-1") == "True"
    assert _taints(cluster, "node-1") == set()


async def test_a_node_that_says_something_is_believed(cluster: Cluster) -> None:
    status = {"conditions": [{"type": "Ready", "status": "False"}]}
    cluster.store.create("nodes", {"metadata": {"name": "sick"}, "status": status})
    await cluster.settle()
    assert _ready(cluster, "sick") == "False"
    assert _taints(cluster, "sick") == {("not-ready", "NoSchedule"), ("not-ready", "NoExecute")}


async def test_a_node_fails_and_heals(cluster: Cluster) -> None:
    await _bound(cluster, "a", annotations={RUN_SECONDS: "100"}, gpu=1)
    cluster.kubelet.fail_node("node-1")
    await cluster.settle()
    assert _ready(cluster, "node-1") == "Unknown"
    assert _taints(cluster, "node-1") == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
    assert (condition(cluster.store.get("pods", "a", "default").obj, "Ready") or {})["status"] == "False"
    await _bound(cluster, "b", gpu=1)
    assert cluster.phases() == {"a": "Running", "b": "Pending"}
    await asyncio.sleep(200)
    assert cluster.phases()["a"] == "Running", "no report of its end arrives"
    cluster.kubelet.heal_node("node-1")
    await cluster.settle()
    assert _taints(cluster, "node-1") == set()
    assert cluster.phases() == {"a": "Succeeded", "b": "Running"}


async def test_pods_of_a_failed_node_are_deleted_when_their_time_is_over(cluster: Cluster) -> None:
    forever = [{"operator": "Exists"}]
    await _bound(cluster, "patient", tolerations=forever)
    await _bound(cluster, "usual")
    cluster.kubelet.fail_node("node-1")
    await asyncio.sleep(299)
    assert "deletionTimestamp" not in cluster.store.get("pods", "usual", "default")["metadata"]
    await asyncio.sleep(3)
    usual = cluster.store.get("pods", "usual", "default")
    assert "deletionTimestamp" in usual["metadata"], "it stays, terminating, as no kubelet confirms"
    assert (condition(usual.obj, "DisruptionTarget") or {})["reason"] == "DeletionByTaintManager"
    assert "deletionTimestamp" not in cluster.store.get("pods", "patient", "default")["metadata"]
    cluster.store.delete("pods", "usual", "default", DeleteOptions(grace=0))
    assert cluster.store.find("pods", "usual", "default") is None
    cluster.kubelet.heal_node("node-1")
    await cluster.settle()
    assert (condition(cluster.store.get("pods", "patient", "default").obj, "Ready") or {})["status"] == "True"


async def test_pods_go_with_their_node(cluster: Cluster) -> None:
    cluster.store.create("jobs.batch", job("train", parallelism=1))
    await cluster.settle()
    cluster.bind_all()
    await cluster.settle()
    lost = next(iter(cluster.phases()))
    cluster.store.delete("nodes", "node-1")
    await cluster.settle()
    assert lost not in cluster.phases()
    assert len(cluster.pods()) == 1, "the job has another one"


async def test_a_pod_waits_for_its_node(cluster: Cluster) -> None:
    await _bound(cluster, "a", node="later")
    assert cluster.phases() == {"a": "Pending"}
    cluster.add_node("later")
    await cluster.settle()
    assert cluster.phases() == {"a": "Running"}


async def test_a_cordon_is_a_taint(cluster: Cluster) -> None:
    cluster.store.modify("nodes", "node-1", "", lambda obj: {**obj, "spec": {"unschedulable": True}})
    await cluster.settle()
    assert _taints(cluster, "node-1") == {("unschedulable", "NoSchedule")}


async def test_another_kubelet_takes_over(store: Store) -> None:
    async with Kubelet(store) as first:
        cluster = Cluster(store, first)
        cluster.add_node("node-1")
        await _bound(cluster, "a", annotations={RUN_SECONDS: "100"}, gpu=3)
        await asyncio.sleep(60)
    await asyncio.sleep(10)
    async with controllers(store), Kubelet(store) as second:
        await cluster.settle()
        assert second.used("node-1")["nvidia.com/gpu"] == 3
        await asyncio.sleep(25)
        assert cluster.phases() == {"a": "Running"}
        await asyncio.sleep(10)
        assert cluster.phases() == {"a": "Succeeded"}
