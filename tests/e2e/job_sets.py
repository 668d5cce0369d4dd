"""JobSets, and the Jobs that their controller would create."""

from typing import Any

from . import objects
from .cluster import Cluster

JOB_SETS = "jobsets.jobset.x-k8s.io"


async def create_job_set(cluster: Cluster, name: str, jobs: int, each: int, **spec: Any) -> None:
    """Create a JobSet that is a gang, and its Jobs as the JobSet controller would."""
    annotations = objects.ours({"gang-size": str(jobs * each)})
    item = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
    }
    made = await cluster.api.create(JOB_SETS, item)
    owner = {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": name,
        "uid": made["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for number in range(jobs):
        job = objects.job(f"{name}-{number}", each, 8, **spec)
        job["metadata"]["ownerReferences"] = [owner]
        job["spec"]["template"]["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": name}
        await cluster.apply(job)


async def wait_until_collected(cluster: Cluster) -> None:
    """Wait until Kubernetes deletes what is below a JobSet that is gone: it looks for new kinds twice a minute."""
    await create_job_set(cluster, "probe", 1, 1)
    await cluster.api.delete(JOB_SETS, "probe", "default")

    async def collected() -> bool:
        return await cluster.api.find("jobs", "probe-0", "default") is None

    await cluster.wait_until(collected, 90, "the Job of a deleted JobSet deleted")
