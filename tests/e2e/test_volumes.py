"""Pods with volume claims, end to end: a volume controller binds, and the test is the provisioner."""

import pytest

from topo_scheduler.simulation.controllers.volumes import PROVISIONER

from . import objects
from .api import Json
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .replica import Replica, configured
from .volume_objects import DISK, HOST, LOCAL, claim, storage_class, using, volume

ZONE = "topology.kubernetes.io/zone"
SELECTED_NODE = "volume.kubernetes.io/selected-node"


async def wait_claim_bound(cluster: Cluster, name: str) -> Json:
    async def bound() -> Json | None:
        volume_claim = await cluster.api.get("persistentvolumeclaims", name)
        return volume_claim if volume_claim.get("status", {}).get("phase") == "Bound" else None

    return await cluster.wait_until(bound, 30, f"claim {name} bound")


async def wait_selected(cluster: Cluster, name: str) -> str:
    """Wait until a node was chosen for a claim; return it."""

    async def chosen() -> str:
        volume_claim = await cluster.api.get("persistentvolumeclaims", name)
        return str((volume_claim["metadata"].get("annotations") or {}).get(SELECTED_NODE, ""))

    return await cluster.wait_until(chosen, 30, f"a node chosen for {name}")


async def provision(cluster: Cluster, name: str, node: str, mode: str = "ReadWriteOnce", *, here: bool = True) -> None:
    """Make the volume of a claim as a provisioner does; ``here``: only the node can use it."""
    volume_claim = await cluster.api.get("persistentvolumeclaims", name)
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": "default"}
    reference["uid"] = volume_claim["metadata"]["uid"]
    made = f"made-{name}-{volume_claim['metadata']['uid'][:8]}"
    on = (HOST, node) if here else None
    await cluster.apply(volume(made, "disk", mode, on=on, claimRef=reference))


async def test_local_volumes_are_reserved_for_the_pods_that_wait_for_them(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [3]})
    await cluster.apply(LOCAL, *(volume(f"pv-{n}", "local", on=(HOST, f"s1-l1-{n}")) for n in (1, 2)))
    names = ("one", "two")
    await cluster.apply(*(claim(f"{name}-data", "local") for name in names))
    await cluster.apply(*(objects.pod(name, 1, volumes=using(f"{name}-data")) for name in names))
    where = {name: nodes_of(await cluster.wait_bound(name, 1))[0] for name in names}
    assert set(where.values()) == {"s1-l1-1", "s1-l1-2"}
    for name, node in where.items():
        bound = await wait_claim_bound(cluster, f"{name}-data")
        assert bound["spec"]["volumeName"] == f"pv-{node[-1]}"
    await cluster.apply(claim("three-data", "local"), objects.pod("three", 1, volumes=using("three-data")))
    (three,) = await cluster.wait_pods("three", 1)
    await cluster.wait_note(three, "3 node(s) didn't find available persistent volumes to bind")
    await cluster.apply(volume("pv-3", "local", on=(HOST, "s1-l1-3")))
    assert nodes_of(await cluster.wait_bound("three", 1)) == ["s1-l1-3"]


async def test_a_volume_is_made_for_the_node_that_was_chosen_and_again_when_that_fails(
    cluster: Cluster, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(DISK, claim("data", "disk"), objects.pod("p", 1, volumes=using("data")))
    node = await wait_selected(cluster, "data")
    (pod,) = await cluster.pods_of("p")
    assert not pod["spec"].get("nodeName"), "not before its volume is there"
    # The provisioner can't: it takes the node away.
    await cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"annotations": {SELECTED_NODE: None}}})
    await cluster.wait_note(pod, 'provisioning failed for PVC "data"', reason="BindFailed")
    node = await wait_selected(cluster, "data")
    await provision(cluster, "data", node)
    assert nodes_of(await cluster.wait_bound("p", 1)) == [node]
    assert (await wait_claim_bound(cluster, "data"))["spec"]["volumeName"].startswith("made-data")


async def test_a_pod_that_waits_for_its_volume_delays_no_other_pod(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await start_replica(configured(max_binds_in_flight=1))
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(DISK, claim("data", "disk"), objects.pod("waits", 1, volumes=using("data")))
    await wait_selected(cluster, "data")
    await cluster.apply(objects.pod("plain", 1))
    await cluster.wait_bound("plain", 1)
    (waits,) = await cluster.pods_of("waits")
    assert not waits["spec"].get("nodeName")
    await cluster.wait_note(waits, "persistentvolumeclaims not bound yet: data", reason="WaitingForVolumes")
    await provision(cluster, "data", await wait_selected(cluster, "data"))
    await cluster.wait_bound("waits", 1)


async def test_a_successor_goes_on_where_a_pod_waited_for_its_volume(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    first = await start_replica()
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(DISK, claim("data", "disk"), objects.pod("p", 1, volumes=using("data")))
    node = await wait_selected(cluster, "data")
    await first.kill()
    await start_replica()
    await provision(cluster, "data", node)
    assert nodes_of(await cluster.wait_bound("p", 1)) == [node]


async def test_a_pod_goes_to_the_zone_of_its_volume(cluster: Cluster, daemon: Replica) -> None:
    zones = {"n1": "a", "n2": "b"}
    await cluster.add_nodes(objects.node(n, spine="s1", leaf="l1", labels={ZONE: z}) for n, z in zones.items())
    await cluster.apply(volume("pv", "", on=(ZONE, "b")), claim("data", "", volumeName="pv"))
    await wait_claim_bound(cluster, "data")
    await cluster.apply(objects.pod("p", 8, volumes=using("data")))
    assert nodes_of(await cluster.wait_bound("p", 1)) == ["n2"]
    await cluster.apply(objects.pod("q", 8, volumes=using("data")))
    (q,) = await cluster.wait_pods("q", 1)
    await cluster.wait_note(q, "1 Insufficient nvidia.com/gpu, 1 node(s) didn't match PersistentVolume's node affinity")


async def test_a_claim_with_read_write_once_pod_has_one_pod_at_a_time(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    mode = "ReadWriteOncePod"
    await cluster.apply(volume("pv", "", mode), claim("data", "", mode, volumeName="pv"))
    await wait_claim_bound(cluster, "data")
    await cluster.apply(objects.pod("first", 1, volumes=using("data")))
    await cluster.wait_bound("first", 1)
    await cluster.apply(objects.pod("second", 1, volumes=using("data")))
    (second,) = await cluster.wait_pods("second", 1)
    await cluster.wait_note(second, "ReadWriteOncePod access mode already in-use by another pod")
    await cluster.api.delete("pods", "first", grace=0)
    await cluster.wait_bound("second", 1)


async def test_a_claim_that_comes_later_wakes_its_pod(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("p", 1, volumes=using("data")))
    (pod,) = await cluster.wait_pods("p", 1)
    await cluster.wait_note(pod, 'persistentvolumeclaim "data" not found')
    await cluster.apply(volume("pv", ""), claim("data", "", volumeName="pv"))
    await cluster.wait_bound("p", 1)


async def test_a_gang_that_shares_a_claim_is_bound_when_its_volume_is_there(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2, 4]})
    await cluster.apply(DISK, claim("data", "disk", "ReadWriteMany"))
    await cluster.apply(objects.gang("training", 4, volumes=using("data")))
    node = await wait_selected(cluster, "data")
    pods = await cluster.wait_pods("training", 4)
    assert not any(nodes_of(pods))
    await provision(cluster, "data", node, "ReadWriteMany", here=False)
    assert leaves_of(await cluster.wait_bound("training", 4)) == {"s1-l2"}


async def test_an_ephemeral_volume(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    template = {"spec": claim("x", "disk")["spec"]}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    await cluster.apply(DISK, objects.pod("p", 1, volumes=volumes))

    async def made() -> Json | None:
        return await cluster.api.find("persistentvolumeclaims", "p-scratch")

    await cluster.wait_until(made, 30, "the claim of the pod's volume")
    node = await wait_selected(cluster, "p-scratch")
    await provision(cluster, "p-scratch", node)
    assert nodes_of(await cluster.wait_bound("p", 1)) == [node]


@pytest.mark.only("embedded")
async def test_the_simulated_provisioner_makes_volumes(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(storage_class("simulated", PROVISIONER), claim("data", "simulated"))
    await cluster.apply(objects.pod("p", 1, volumes=using("data")))
    await cluster.wait_bound("p", 1)
    assert (await wait_claim_bound(cluster, "data"))["spec"]["volumeName"].startswith("pvc-")


@pytest.mark.only("embedded")
async def test_where_storage_may_not_be_listed_only_pods_with_claims_wait(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    role = await cluster.api.get("clusterroles", "topology-scheduler")
    rules = [rule for rule in role["rules"] if "persistentvolumes" not in rule["resources"]]
    await cluster.api.patch("clusterroles", "topology-scheduler", {"rules": rules})
    replica = await start_replica()
    replica.may_be_refused = True
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("p", 1, volumes=using("data")), objects.pod("plain", 1))
    await cluster.wait_bound("plain", 1)
    (pod,) = await cluster.wait_pods("p", 1)
    await cluster.wait_note(pod, "persistentvolumes can't be listed yet: grant get, list and watch on them")
    await cluster.api.patch("clusterroles", "topology-scheduler", {"rules": role["rules"]})
    await cluster.apply(volume("pv", ""), claim("data", "", volumeName="pv"))
    await cluster.wait_bound("p", 1, timeout=60)
