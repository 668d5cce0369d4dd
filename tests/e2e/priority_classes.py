"""The priority classes of the end-to-end tests."""

from .api import ApiError
from .cluster import Cluster


async def create_priority_classes(cluster: Cluster, ranks: int = 0) -> None:
    """Create the priority classes of the tests; they have no namespace and stay. ``ranks``: e2e-rank-0 and so on."""
    for name, value, policy in (
        ("e2e-high", 1000, "PreemptLowerPriority"),
        ("e2e-patient", 1000, "Never"),
        ("e2e-low", 10, "PreemptLowerPriority"),
        *((f"e2e-rank-{rank}", 100 + rank, "PreemptLowerPriority") for rank in range(ranks)),
    ):
        item = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "preemptionPolicy": policy,
        }
        try:
            await cluster.api.create("priorityclasses", item)
        except ApiError as error:
            if error.status != 409:
                raise
