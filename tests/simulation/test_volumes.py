"""Claims get volumes: at once, when a scheduler has chosen, or from the provisioner."""

from typing import Any

import pytest

from topo_scheduler.simulation.apiserver.objects import changed
from topo_scheduler.simulation.controllers.volumes import PROVISIONER

from .conftest import Cluster, Json, pod, replicated

pytestmark = pytest.mark.looptime

SELECTED_NODE = "volume.kubernetes.io/selected-node"
ZONE = "topology.kubernetes.io/zone"


def add_class(cluster: Cluster, name: str, provisioner: str, mode: str) -> None:
    body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
    cluster.store.create("storageclasses.storage.k8s.io", body)


def claim(name: str, of: str, size: str = "1Gi", **spec: Any) -> Json:
    wants = {"storageClassName": of, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name}, "spec": {**wants, **spec}}


def volume(name: str, of: str, size: str = "1Gi", **spec: Any) -> Json:
    has = {"storageClassName": of, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}}
    return {"metadata": {"name": name}, "spec": {**has, **spec}}


def state(cluster: Cluster, name: str) -> tuple[str, str]:
    """Phase and volume of a claim."""
    volume_claim = cluster.store.get("persistentvolumeclaims", name, "default")
    return volume_claim["status"]["phase"], volume_claim["spec"].get("volumeName", "")


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.store.get("persistentvolumes", name)["status"]["phase"])


async def test_an_immediate_claim_gets_the_smallest_volume_that_will_do(cluster: Cluster) -> None:
    for name, size in (("big", "9Gi"), ("fit", "3Gi"), ("tiny", "1Gi")):
        cluster.store.create("persistentvolumes", volume(name, "", size))
    cluster.store.create("persistentvolumeclaims", claim("data", "", "2Gi"))
    await cluster.settle()
    assert state(cluster, "data") == ("Bound", "fit")
    assert [phase(cluster, name) for name in ("big", "fit", "tiny")] == ["Available", "Bound", "Available"]


async def test_a_claim_that_waits_gets_the_volume_a_scheduler_reserves(cluster: Cluster) -> None:
    add_class(cluster, "local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer")
    for name in ("one", "two"):
        cluster.store.create("persistentvolumes", volume(name, "local"))
    made = cluster.store.create("persistentvolumeclaims", claim("data", "local"))
    await cluster.settle()
    assert state(cluster, "data") == ("Pending", "")
    reference = {"namespace": "default", "name": "data", "uid": made["metadata"]["uid"]}
    cluster.store.modify("persistentvolumes", "two", "", lambda obj: changed(obj, "spec", claimRef=reference))
    await cluster.settle()
    assert state(cluster, "data") == ("Bound", "two")
    annotations = cluster.store.get("persistentvolumeclaims", "data", "default")["metadata"]["annotations"]
    assert annotations["pv.kubernetes.io/bind-completed"] == "yes"


async def test_a_volume_is_made_where_the_chosen_node_can_use_it_and_goes_with_its_claim(cluster: Cluster) -> None:
    add_class(cluster, "disk", PROVISIONER, "WaitForFirstConsumer")
    cluster.add_node("node-z", labels={ZONE: "z"})
    cluster.store.create("persistentvolumeclaims", claim("data", "disk", "5Gi"))
    await cluster.settle()
    assert state(cluster, "data") == ("Pending", "")
    annotations = {SELECTED_NODE: "node-z"}
    cluster.store.modify(
        "persistentvolumeclaims", "data", "default", lambda obj: changed(obj, "metadata", annotations=annotations)
    )
    await cluster.settle()
    bound, name = state(cluster, "data")
    assert bound == "Bound"
    made = cluster.store.get("persistentvolumes", name)
    assert made["spec"]["capacity"] == {"storage": "5Gi"}
    (term,) = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": ZONE, "operator": "In", "values": ["z"]}]
    cluster.store.delete("persistentvolumeclaims", "data", "default")
    await cluster.settle()
    assert cluster.store.find("persistentvolumes", name) is None


async def test_an_immediate_class_has_its_volumes_made_at_once(cluster: Cluster) -> None:
    cluster.store.create("persistentvolumeclaims", claim("data", "disk"))
    await cluster.settle()
    assert state(cluster, "data")[0] == "Pending"
    add_class(cluster, "disk", PROVISIONER, "Immediate")
    await cluster.settle()
    assert state(cluster, "data")[0] == "Bound"


async def test_a_volume_is_released_with_its_claim_and_a_claim_without_its_volume_is_lost(cluster: Cluster) -> None:
    for name in ("one", "two"):
        cluster.store.create("persistentvolumes", volume(name, ""))
        cluster.store.create("persistentvolumeclaims", claim(name, "", volumeName=name))
    await cluster.settle()
    assert state(cluster, "one") == ("Bound", "one")
    cluster.store.delete("persistentvolumeclaims", "one", "default")
    cluster.store.delete("persistentvolumes", "two")
    await cluster.settle()
    assert phase(cluster, "one") == "Released"
    assert state(cluster, "two")[0] == "Lost"


async def test_ephemeral_volumes_have_claims_that_go_with_their_pod(cluster: Cluster) -> None:
    template = {"spec": claim("x", "disk")["spec"]}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    made = cluster.store.create("pods", pod("p", volumes=volumes))
    await cluster.settle()
    volume_claim = cluster.store.get("persistentvolumeclaims", "p-scratch", "default")
    assert volume_claim["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    cluster.store.delete("pods", "p", "default")
    await cluster.settle()
    assert cluster.store.find("persistentvolumeclaims", "p-scratch", "default") is None


async def test_replicas_of_a_stateful_set_have_claims_of_their_own(cluster: Cluster) -> None:
    templates = [{"metadata": {"name": "data"}, "spec": claim("x", "disk")["spec"]}]
    more = {"podManagementPolicy": "Parallel", "volumeClaimTemplates": templates}
    cluster.store.create("statefulsets.apps", replicated("db", 2, **more))
    await cluster.settle()
    assert [c.key.name for c in cluster.store.list("persistentvolumeclaims")] == ["data-db-0", "data-db-1"]
    used = {p.key.name: p["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] for p in cluster.pods()}
    assert used == {"db-0": "data-db-0", "db-1": "data-db-1"}


async def test_a_claim_that_names_no_class_gets_the_default_one(cluster: Cluster) -> None:
    marked = {"storageclass.kubernetes.io/is-default-class": "true"}
    body = {"metadata": {"name": "usual", "annotations": marked}, "provisioner": PROVISIONER}
    cluster.store.create("storageclasses.storage.k8s.io", body)
    wants = claim("data", "")
    del wants["spec"]["storageClassName"]
    cluster.store.create("persistentvolumeclaims", wants)
    cluster.store.create("persistentvolumeclaims", claim("without", ""))
    await cluster.settle()
    assert state(cluster, "data")[0] == "Bound"
    assert cluster.store.get("persistentvolumeclaims", "data", "default")["spec"]["storageClassName"] == "usual"
    assert state(cluster, "without") == ("Pending", "")
