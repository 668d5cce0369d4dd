"""Deployments, ReplicaSets, StatefulSets, disruption budgets, and what goes with its owner."""

import asyncio
from typing import Any

import pytest

from topo_scheduler.simulation.apiserver import DeleteOptions, StatusError
from topo_scheduler.simulation.apiserver.objects import changed
from topo_scheduler.simulation.apiserver.pods import evict

from .conftest import Cluster, pod, replicated

pytestmark = pytest.mark.looptime


async def _run(cluster: Cluster) -> None:
    for _ in range(20):
        await cluster.settle()
        if not cluster.bind_all():
            return


def _spec(cluster: Cluster, kind: str, name: str, **fields: Any) -> None:
    cluster.store.modify(kind, name, "default", lambda obj: changed(obj, "spec", **fields))


async def test_a_deployment_has_a_replica_set_that_has_the_pods(cluster: Cluster) -> None:
    deployment = cluster.store.create("deployments.apps", replicated("web", 3))
    await _run(cluster)
    [replica_set] = cluster.store.list("replicasets.apps")
    assert replica_set["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]
    assert replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    mark = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set.key.name == f"web-{mark}"
    assert len(cluster.pods()) == 3
    for owned in cluster.pods():
        assert owned.key.name.startswith(f"web-{mark}-")
        assert owned["metadata"]["labels"] == {"app": "web", "pod-template-hash": mark}
        assert owned["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    status = cluster.status("deployments.apps", "web")
    assert (status["replicas"], status["updatedReplicas"], status["availableReplicas"]) == (3, 3, 3)
    assert status["observedGeneration"] == 1
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Available": "True", "Progressing": "True"}


async def test_a_deployment_is_scaled(cluster: Cluster) -> None:
    cluster.store.create("deployments.apps", replicated("web", 3))
    await _run(cluster)
    for replicas in (5, 1, 0, 2):
        _spec(cluster, "deployments.apps", "web", replicas=replicas)
        await _run(cluster)
        assert len(cluster.pods()) == replicas
        assert cluster.status("deployments.apps", "web").get("availableReplicas", 0) == replicas


async def test_a_new_template_replaces_the_old_pods(cluster: Cluster) -> None:
    cluster.store.create("deployments.apps", replicated("web", 2))
    await _run(cluster)
    before = set(cluster.phases())
    new = cluster.store.get("deployments.apps", "web", "default")["spec"]["template"]
    changed_template = {**new, "spec": {**new["spec"], "priorityClassName": "system-cluster-critical"}}
    _spec(cluster, "deployments.apps", "web", template=changed_template)
    await _run(cluster)
    assert len(cluster.pods()) == 2
    assert before.isdisjoint(cluster.phases())
    scales = sorted(rs["spec"]["replicas"] for rs in cluster.store.list("replicasets.apps"))
    assert scales == [0, 2]
    _spec(cluster, "deployments.apps", "web", template=new)
    await _run(cluster)
    assert len(cluster.store.list("replicasets.apps")) == 2, "an old version is taken up again"


async def test_a_replica_set_replaces_what_is_lost(cluster: Cluster) -> None:
    cluster.store.create("replicasets.apps", replicated("web", 2))
    await _run(cluster)
    cluster.store.delete("pods", *cluster.pods()[0].key.address)
    await _run(cluster)
    assert list(cluster.phases().values()) == ["Running", "Running"]


async def test_a_replica_set_gives_up_first_what_is_worth_least(cluster: Cluster) -> None:
    cluster.store.create("replicasets.apps", replicated("web", 3))
    await cluster.settle()
    kept = cluster.pods()[1].key.name
    cluster.bind(kept)
    await cluster.settle()
    _spec(cluster, "replicasets.apps", "web", replicas=1)
    await cluster.settle()
    assert list(cluster.phases()) == [kept]


async def test_a_stateful_set_goes_in_order(cluster: Cluster) -> None:
    cluster.store.create("statefulsets.apps", replicated("db", 3, serviceName="db"))
    for count in (1, 2, 3):
        await cluster.settle()
        assert list(cluster.phases()) == [f"db-{index}" for index in range(count)]
        cluster.bind_all()
    await cluster.settle()
    first = cluster.store.get("pods", "db-0", "default")
    assert first["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "db-0"
    assert first["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"
    assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("db-0", "db")
    assert cluster.status("statefulsets.apps", "db")["readyReplicas"] == 3
    cluster.store.delete("pods", "db-1", "default")
    await _run(cluster)
    assert list(cluster.phases()) == ["db-0", "db-1", "db-2"]
    _spec(cluster, "statefulsets.apps", "db", replicas=1)
    await _run(cluster)
    assert list(cluster.phases()) == ["db-0"]


async def test_a_stateful_set_in_parallel(cluster: Cluster) -> None:
    cluster.store.create("statefulsets.apps", replicated("db", 3, podManagementPolicy="Parallel"))
    await cluster.settle()
    assert list(cluster.phases()) == ["db-0", "db-1", "db-2"]
    await _run(cluster)
    template = cluster.store.get("statefulsets.apps", "db", "default")["spec"]["template"]
    newer = changed(template, "spec", priorityClassName="system-cluster-critical")
    _spec(cluster, "statefulsets.apps", "db", template=newer)
    await _run(cluster)
    assert {p["spec"]["priority"] for p in cluster.pods()} == {2_000_000_000}
    _spec(cluster, "statefulsets.apps", "db", replicas=0)
    await _run(cluster)
    assert cluster.pods() == []


# Disruption budgets


def _budget(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "budget"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 3}, 1),
        ({"minAvailable": 5}, 0),
        ({"minAvailable": "50%"}, 2),
        ({"maxUnavailable": 1}, 1),
        ({"maxUnavailable": "30%"}, 2),
    ],
)
async def test_what_a_budget_allows(cluster: Cluster, spec: dict[str, Any], allowed: int) -> None:
    cluster.store.create("deployments.apps", replicated("web", 4))
    cluster.store.create("poddisruptionbudgets.policy", _budget(**spec))
    await _run(cluster)
    status = cluster.status("poddisruptionbudgets.policy", "budget")
    assert status["disruptionsAllowed"] == allowed
    assert (status["currentHealthy"], status["expectedPods"]) == (4, 4)


async def test_an_eviction_waits_for_the_replacement_of_the_last(cluster: Cluster) -> None:
    cluster.store.create("deployments.apps", replicated("web", 2))
    cluster.store.create("poddisruptionbudgets.policy", _budget(minAvailable=1))
    await _run(cluster)
    first, second = cluster.phases()
    evict(cluster.store, "default", first, {"metadata": {"name": first}})
    await cluster.settle()
    with pytest.raises(StatusError) as refused:
        evict(cluster.store, "default", second, {"metadata": {"name": second}})
    assert refused.value.code == 429
    await _run(cluster)
    evict(cluster.store, "default", second, {"metadata": {"name": second}})


# Garbage


async def test_everything_goes_with_its_owner(cluster: Cluster) -> None:
    cluster.store.create("deployments.apps", replicated("web", 2))
    await _run(cluster)
    cluster.store.delete("deployments.apps", "web", "default")
    await cluster.settle()
    assert cluster.store.list("replicasets.apps") == []
    assert cluster.pods() == []


async def test_an_owner_goes_last_when_its_dependents_are_to_go_first(cluster: Cluster) -> None:
    cluster.store.create("deployments.apps", replicated("web", 2))
    await _run(cluster)
    order: list[str] = []
    cluster.store.observe(lambda table, event: order.append(table) if event.after is None else None)
    cluster.store.delete("deployments.apps", "web", "default", DeleteOptions(propagation="Foreground"))
    await cluster.settle()
    assert order == ["pods", "pods", "replicasets.apps", "deployments.apps"]


async def test_what_never_had_an_owner_goes(cluster: Cluster) -> None:
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
    cluster.store.create("configmaps", {"metadata": {"name": "a", "ownerReferences": [ref]}})
    await cluster.settle()
    assert cluster.store.find("configmaps", "a", "default") is None


async def test_the_last_owner_decides(cluster: Cluster) -> None:
    owners = [cluster.store.create("configmaps", {"metadata": {"name": name}}) for name in ("a", "b")]
    refs = [{"apiVersion": "v1", "kind": "ConfigMap", "name": o.key.name, "uid": o["metadata"]["uid"]} for o in owners]
    cluster.store.create("configmaps", {"metadata": {"name": "shared", "ownerReferences": refs}})
    cluster.store.delete("configmaps", "a", "default")
    await cluster.settle()
    shared = cluster.store.get("configmaps", "shared", "default")
    assert [ref["name"] for ref in shared["metadata"]["ownerReferences"]] == ["b"]
    cluster.store.delete("configmaps", "b", "default")
    await cluster.settle()
    assert cluster.store.find("configmaps", "shared", "default") is None


async def test_a_namespace_is_emptied_before_it_goes(cluster: Cluster) -> None:
    cluster.store.create("namespaces", {"metadata": {"name": "team"}})
    await cluster.settle()
    assert cluster.store.find("serviceaccounts", "default", "team") is not None
    cluster.store.create("deployments.apps", replicated("web", 2), "team")
    cluster.store.create("pods", pod("a"), "team")
    await _run(cluster)
    cluster.store.delete("namespaces", "team")
    with pytest.raises(StatusError) as refused:
        cluster.store.create("pods", pod("b"), "team")
    assert refused.value.code == 403
    await cluster.settle()
    assert cluster.store.find("namespaces", "team") is None
    assert cluster.pods() == []


async def test_what_a_controller_cannot_read_does_not_stop_the_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    broken = replicated("odd", 1)
    broken["spec"]["replicas"] = "many"
    cluster.store.create("replicasets.apps", broken)
    cluster.store.create("replicasets.apps", replicated("web", 1))
    await _run(cluster)
    assert list(cluster.phases().values()) == ["Running"]
    assert "replicaset of default/odd" in caplog.text


async def test_what_is_refused_is_tried_again(cluster: Cluster) -> None:
    body = replicated("web", 2)
    body["spec"]["template"]["spec"]["priorityClassName"] = "later"
    cluster.store.create("replicasets.apps", body)
    await cluster.settle()
    assert cluster.pods() == []
    cluster.store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "later"}, "value": 1})
    await asyncio.sleep(2)
    assert len(cluster.pods()) == 2
