"""Recovery in a cluster: its configuration, Migrations and their phases."""

from typing import Any

from topo_scheduler.api.config import Configuration, TopologySchedulerConfig
from topo_scheduler.api.recovery import RecoverySpec

from .api import Json
from .cluster import Cluster
from .replica import configured


def recovery_configuration(**spec: Any) -> Configuration:
    """Return a configuration with recovery enabled and a short debounce."""
    base = configured()
    wanted = RecoverySpec.model_validate({"enabled": True, "debounce": 0.5, **spec})
    topology = base.topology.spec.model_copy(update={"recovery": wanted})
    return Configuration(base.scheduler, TopologySchedulerConfig(spec=topology))


async def wait_for_migration(cluster: Cluster, *phases: str, timeout: float = 30) -> Json:
    """Wait until a Migration is in one of these phases, and return it."""

    async def reached() -> Json | None:
        migrations = await cluster.api.list("migrations", None)
        return next(
            (candidate for candidate in migrations if (candidate.get("status") or {}).get("phase") in phases), None
        )

    return await cluster.wait_until(reached, timeout, f"a Migration in phase {' or '.join(phases)}")


async def undeleted_pods(cluster: Cluster, name: str) -> list[Json]:
    """Return the pods of a workload that are not being deleted."""
    pods = await cluster.pods_of(name)
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def migration(name: str, *pods: str) -> Json:
    """Return a Migration of these pods."""
    return {
        "apiVersion": "topology.scheduler/v1alpha1",
        "kind": "Migration",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"cause": "a test asks for it", "pods": [{"name": pod} for pod in pods]},
    }
