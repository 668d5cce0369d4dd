"""What tenants write on their objects takes nothing from others, and is refused with the remedy."""

from . import objects
from .api import Json
from .cluster import Cluster, annotation, nodes_of
from .conftest import StartReplica
from .replica import configured

FORGED = {
    "charged-gpus": "8",
    "gpu-index": "0,1,2,3,4,5,6,7",
    "reserved-bandwidth": "9999999",
    "gang-id": "e2e-evil/forged",
    "rank": "0",
}


async def test_forged_charges_take_no_gpu(cluster: Cluster, start_replica: StartReplica) -> None:
    """Pods that a tenant puts on nodes itself say that they hold all GPUs there."""
    first = await start_replica()
    nodes = await cluster.add_fabric({"s1": [2]})
    cluster.overbooked_by_others.update(nodes)  # as the verifier sees it, which believes what pods say
    await cluster.add_namespace("e2e-evil")
    await cluster.apply(
        *(
            objects.pod(f"forged-{number}", 0, FORGED, namespace="e2e-evil", nodeName=node)
            for number, node in enumerate(nodes)
        )
    )
    await cluster.apply(objects.pod("one", 8))
    await cluster.wait_bound("one", 1)
    await first.stop()
    await start_replica()  # it learns of all pods as they are found
    await cluster.apply(objects.pod("two", 8))
    await cluster.wait_bound("two", 1)


async def test_gpus_that_no_limit_names_need_a_permission(cluster: Cluster, start_replica: StartReplica) -> None:
    """No ResourceQuota counts them: an administrator permits them to namespaces, and to no others."""
    await start_replica(configured(gpus_by_annotation=("e2e-team-*",)))
    await cluster.add_fabric({"s1": [2]})
    await cluster.add_namespace("e2e-team-a")
    await cluster.apply(
        objects.pod("greedy", 0, {"gpu-count": "8"}),
        objects.pod("slice", 0, {"gpu-fraction": "0.5"}),
        objects.pod("granted", 0, {"gpu-count": "8"}, namespace="e2e-team-a"),
        objects.job("honest", 2, 4, {"gpu-count": "8"}),
    )
    await cluster.wait_bound("honest", 2)
    await cluster.wait_bound("granted", 1, namespace="e2e-team-a")
    for name, asks in (("greedy", "asks for 8 GPUs"), ("slice", "asks for a share of a GPU")):
        (pod,) = await cluster.wait_pods(name, 1)
        await cluster.wait_note(pod, asks)
        await cluster.wait_note(pod, "namespace default may not")
        await cluster.wait_note(pod, "gpusByAnnotation.namespaces")
        assert not pod["spec"].get("nodeName")


async def test_a_pod_that_borrows_an_owner_of_another_namespace_is_no_member(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """Two of three members exist. Pods of another namespace name their Job as owner, by its uid, before and after.

    Without its controllers, because garbage collection deletes such pods, and the Job makes its third pod at once.
    """
    nodes = await cluster.add_fabric({"s1": [4]})
    await cluster.add_namespace("e2e-evil")
    await cluster.apply(objects.gang("train", 3))
    job = await cluster.api.get("jobs", "train")
    pods = await cluster.wait_pods("train", 3)
    async with cluster.without_controllers():
        third = pods[2]["metadata"]["name"]
        await cluster.api.patch("pods", third, {"metadata": {"finalizers": None}})  # which the Job's controller removes
        await cluster.api.delete("pods", third, grace=0)
        await cluster.wait_pods("train", 2)
        await cluster.apply(borrowing("early", job), borrowing("bound", job, nodes[3]))
        await start_replica()
        (member, *_) = await cluster.pods_of("train")
        await cluster.wait_note(member, "waiting for 1 of 3 pods")
        await cluster.apply(borrowing("late", job))

        async def waits() -> bool:
            return not any(nodes_of(await cluster.pods_of("train")))

        await cluster.holds_for(3.0, waits, "the gang lacks its third member")
    members = await cluster.wait_bound("train", 3)
    assert {annotation(pod, "rank") for pod in members} == {"0", "1", "2"}
    assert {annotation(pod, "gang-id") for pod in members} == {f"default/{job['metadata']['uid']}"}
    assert not any(nodes_of([*await cluster.pods_of("early", "e2e-evil"), *await cluster.pods_of("late", "e2e-evil")]))


def borrowing(name: str, job: Json, node: str = "") -> Json:
    """A pod that says in its metadata that it is the third member of another namespace's Job of three."""
    claims = {"gang-size": "3", "gpu-model": "H300"}
    spec: Json = {}
    if node:  # what the scheduler itself writes of pods that it binds
        claims |= {"gang-id": f"default/{job['metadata']['uid']}", "rank": "2", "gang-minimum": "3"}
        spec["nodeName"] = node
    pod = objects.pod(name, 0 if node else 8, claims, namespace="e2e-evil", **spec)
    pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] = "2"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner | {key: job["metadata"][key] for key in ("name", "uid")}]
    return pod
