"""What tenants write on their objects takes nothing from others, and is refused with the remedy."""

from . import objects
from .cluster import Cluster
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
