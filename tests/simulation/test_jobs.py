"""Jobs of the embedded cluster."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.simulation.apiserver import DeleteOptions
from topo_scheduler.simulation.apiserver.pods import evict
from topo_scheduler.simulation.controllers.job import FINALIZER, INDEX, format_indexes, parse_indexes
from topo_scheduler.simulation.kubelet import EXIT_CODE, RUN_SECONDS

from .conftest import Cluster, job

pytestmark = pytest.mark.looptime

IGNORE_DISRUPTIONS = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}


async def _work(cluster: Cluster, rounds: int = 20) -> None:
    """Bind whatever waits until nothing new comes."""
    for _ in range(rounds):
        await cluster.settle()
        if not cluster.bind_all():
            return


def _conditions(status: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}


async def test_a_job_has_its_pods_and_they_know_their_job(cluster: Cluster) -> None:
    owner = cluster.store.create("jobs.batch", job("train", parallelism=3, completions=5))
    await cluster.settle()
    pods = cluster.pods()
    assert len(pods) == 3
    for pod in pods:
        assert pod.key.name.startswith("train-")
        [ref] = pod["metadata"]["ownerReferences"]
        assert (ref["uid"], ref["controller"], ref["blockOwnerDeletion"]) == (owner["metadata"]["uid"], True, True)
        assert pod["metadata"]["finalizers"] == [FINALIZER]
        assert pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "train"
        assert pod["metadata"]["labels"]["controller-uid"] == owner["metadata"]["uid"]
    assert cluster.status("jobs.batch", "train")["active"] == 3


async def test_a_job_completes(cluster: Cluster) -> None:
    body = job("train", parallelism=2, completions=3, annotations={RUN_SECONDS: "10"})
    cluster.store.create("jobs.batch", body)
    await _work(cluster)
    assert cluster.status("jobs.batch", "train")["ready"] == 2
    for _ in range(2):
        await asyncio.sleep(11)
        await _work(cluster)
    await asyncio.sleep(11)
    await cluster.settle()
    status = cluster.status("jobs.batch", "train")
    assert status["succeeded"] == 3
    assert "active" not in status
    assert _conditions(status) == {"SuccessCriteriaMet": "True", "Complete": "True"}
    assert status["startTime"] < status["completionTime"]
    assert set(cluster.phases().values()) == {"Succeeded"}
    assert all("finalizers" not in pod["metadata"] for pod in cluster.pods())


async def test_an_indexed_job_gives_each_pod_its_number(cluster: Cluster) -> None:
    body = job("train", parallelism=2, completions=3, completionMode="Indexed", annotations={RUN_SECONDS: "10"})
    cluster.store.create("jobs.batch", body)
    await _work(cluster)
    indexes = {pod["metadata"]["annotations"][INDEX]: pod for pod in cluster.pods()}
    assert sorted(indexes) == ["0", "1"]
    assert indexes["0"]["metadata"]["labels"][INDEX] == "0"
    assert indexes["0"]["spec"]["hostname"] == "train-0"
    assert indexes["0"]["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"
    await asyncio.sleep(11)
    await _work(cluster)
    assert cluster.status("jobs.batch", "train")["completedIndexes"] == "0,1"
    await asyncio.sleep(11)
    await cluster.settle()
    assert cluster.status("jobs.batch", "train")["completedIndexes"] == "0-2"


async def test_the_number_of_a_pod_that_failed_is_given_again(cluster: Cluster) -> None:
    body = job("train", parallelism=3, completions=3, completionMode="Indexed")
    cluster.store.create("jobs.batch", body)
    await _work(cluster)
    lost = next(pod for pod in cluster.pods() if pod["metadata"]["annotations"][INDEX] == "1")
    cluster.store.delete("pods", *lost.key.address)
    await _work(cluster)
    assert sorted(pod["metadata"]["annotations"][INDEX] for pod in cluster.pods()) == ["0", "1", "2"]
    assert cluster.store.find("pods", *lost.key.address) is None


async def test_a_job_gives_up(cluster: Cluster) -> None:
    body = job("train", backoffLimit=2, annotations={RUN_SECONDS: "1", EXIT_CODE: "3"})
    cluster.store.create("jobs.batch", body)
    for _ in range(5):
        await _work(cluster)
        await asyncio.sleep(2)
    await cluster.settle()
    status = cluster.status("jobs.batch", "train")
    assert status["failed"] == 3
    assert _conditions(status)["Failed"] == "True"
    assert status["conditions"][-1]["reason"] == "BackoffLimitExceeded"
    assert list(cluster.phases().values()) == ["Failed"] * 3


async def test_a_pod_that_was_evicted_counts_as_failed(cluster: Cluster) -> None:
    cluster.store.create("jobs.batch", job("train", parallelism=1))
    await _work(cluster)
    cluster.store.delete("pods", *cluster.pods()[0].key.address)
    await _work(cluster)
    status = cluster.status("jobs.batch", "train")
    assert (status["failed"], status["active"]) == (1, 1)


async def test_a_policy_may_ignore_disruptions(cluster: Cluster) -> None:
    cluster.store.create("jobs.batch", job("train", parallelism=1, podFailurePolicy=IGNORE_DISRUPTIONS))
    await _work(cluster)
    for _ in range(3):
        name = next(iter(cluster.phases()))
        evict(cluster.store, "default", name, {"metadata": {"name": name}})
        await _work(cluster)
        assert name not in cluster.phases()
    status = cluster.status("jobs.batch", "train")
    assert "failed" not in status
    assert status["active"] == 1


async def test_a_pool_of_workers_is_done_when_one_was_and_all_have_ended(cluster: Cluster) -> None:
    cluster.store.create("jobs.batch", job("train", parallelism=2))
    cluster.store.modify(
        "jobs.batch", "train", "default", lambda obj: {**obj, "spec": {**obj["spec"], "parallelism": 3}}
    )
    body = job("pool", parallelism=2, annotations={RUN_SECONDS: "5"})
    cluster.store.create("jobs.batch", body)
    await _work(cluster)
    assert cluster.status("jobs.batch", "pool")["active"] == 2
    await asyncio.sleep(6)
    await _work(cluster)
    assert _conditions(cluster.status("jobs.batch", "pool"))["Complete"] == "True"


async def test_a_job_is_suspended_and_resumed(cluster: Cluster) -> None:
    cluster.store.create("jobs.batch", job("train", parallelism=2, completions=2, suspend=True))
    await _work(cluster)
    assert cluster.pods() == []
    assert _conditions(cluster.status("jobs.batch", "train")) == {"Suspended": "True"}
    _suspend(cluster, False)
    await _work(cluster)
    assert len(cluster.pods()) == 2
    assert _conditions(cluster.status("jobs.batch", "train")) == {"Suspended": "False"}
    _suspend(cluster, True)
    await _work(cluster)
    assert cluster.pods() == []
    assert "active" not in cluster.status("jobs.batch", "train")


def _suspend(cluster: Cluster, value: bool) -> None:
    cluster.store.modify(
        "jobs.batch", "train", "default", lambda obj: {**obj, "spec": {**obj["spec"], "suspend": value}}
    )


async def test_fewer_at_a_time(cluster: Cluster) -> None:
    cluster.store.create("jobs.batch", job("train", parallelism=4, completions=8))
    await cluster.settle()
    cluster.store.modify(
        "jobs.batch", "train", "default", lambda obj: {**obj, "spec": {**obj["spec"], "parallelism": 1}}
    )
    await cluster.settle()
    assert len(cluster.pods()) == 1


@pytest.mark.parametrize(("policy", "left"), [("Background", 0), ("Foreground", 0), ("Orphan", 2), (None, 2)])
async def test_what_is_left_of_a_job_that_is_deleted(cluster: Cluster, policy: str | None, left: int) -> None:
    cluster.store.create("jobs.batch", job("train", parallelism=2, completions=2))
    await _work(cluster)
    cluster.store.delete("jobs.batch", "train", "default", DeleteOptions(propagation=policy))
    await cluster.settle()
    assert cluster.store.find("jobs.batch", "train", "default") is None
    assert len(cluster.pods()) == left
    for pod in cluster.pods():
        assert "ownerReferences" not in pod["metadata"]
        assert "finalizers" not in pod["metadata"]


@given(st.sets(st.integers(0, 40)))
def test_indexes_as_text(indexes: set[int]) -> None:
    assert parse_indexes(format_indexes(indexes)) == indexes


@pytest.mark.parametrize(("indexes", "text"), [(set(), ""), ({3}, "3"), ({0, 1}, "0,1"), ({1, 3, 4, 5, 7}, "1,3-5,7")])
def test_indexes_are_written_as_the_api_does(indexes: set[int], text: str) -> None:
    assert format_indexes(indexes) == text


async def test_pods_of_another_namespace_that_name_a_job_as_their_controller_are_not_its_pods(cluster: Cluster) -> None:
    owner = cluster.store.create("jobs.batch", job("train", parallelism=1, completions=2, completionMode="Indexed"))
    await cluster.settle()
    cluster.store.create("namespaces", {"metadata": {"name": "elsewhere"}})
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": owner["metadata"]["uid"]}
    metadata = {"name": "borrowed", "ownerReferences": [{**reference, "controller": True}]}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    cluster.store.create("pods", pod, "elsewhere")
    await cluster.settle()
    (own,) = (pod for pod in cluster.pods() if pod.key.namespace != "elsewhere")
    cluster.store.delete("pods", own.key.name, own.key.namespace, DeleteOptions(grace=0))
    await _work(cluster)
    assert cluster.status("jobs.batch", "train")["active"] == 1
    assert [pod["metadata"]["uid"] for pod in cluster.pods() if pod.key.namespace != "elsewhere"] != [
        own["metadata"]["uid"]
    ]
