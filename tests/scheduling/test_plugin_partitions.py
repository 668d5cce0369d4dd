"""MIG instances of NVIDIA's device plugin are counted by profile: those of pods, and those that are free."""

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Node, Pod, Quantity
from topo_scheduler.scheduling.surveying.plugin_partitions import plugin_partitions

H100 = "NVIDIA-H100-80GB-HBM3"


def mixed(name: str, **counts: int) -> Node:
    """Return a node with instances by resource name; ``_`` stands for the dot."""
    resources: dict[str, Quantity] = {
        f"nvidia.com/mig-{key.removeprefix('x').replace('_', '.')}": count for key, count in counts.items()
    }
    return make_node(name, "s/l", model=H100, allocatable={"cpu": "64", "memory": "512Gi", "pods": 110, **resources})


def single(name: str, model: str, count: int) -> Node:
    return make_node(name, "s/l", gpus=count, model=model)


def mig_pod(name: str, resource: str, count: int) -> Pod:
    pod = make_pod(name, gpus=0)
    pod.spec.containers[0].resources.requests[f"nvidia.com/mig-{resource}"] = count
    return pod


def test_instances_by_profile_of_both_strategies() -> None:
    nodes = [
        mixed("mixed-1", x1g_10gb=7, x3g_40gb=2, x1g_10gb_me=1),
        mixed("mixed-2", x1g_10gb=7),
        single("single", f"{H100}-MIG-2g.20gb", 3),
        single("shared", f"{H100}-MIG-2g.20gb-SHARED", 12),
        single("whole", H100, 8),
    ]
    d = Driver(nodes)
    d.apply(make_pod("p", gpus=2, node="single", phase="Running"))
    d.run(mig_pod("a", "1g.10gb", 2), mig_pod("b", "3g.40gb", 2))
    assert plugin_partitions(d.engine.world) == {
        ("nvidia.com", "1g.10gb", "allocated"): 2,
        ("nvidia.com", "1g.10gb", "free"): 12,
        ("nvidia.com", "3g.40gb", "allocated"): 2,
        ("nvidia.com", "3g.40gb", "free"): 0,
        ("nvidia.com", "1g.10gb+me", "allocated"): 0,
        ("nvidia.com", "1g.10gb+me", "free"): 1,
        ("nvidia.com", "2g.20gb", "allocated"): 2,
        ("nvidia.com", "2g.20gb", "free"): 1,
        ("nvidia.com", "2g.20gb.shared", "allocated"): 0,
        ("nvidia.com", "2g.20gb.shared", "free"): 12,
    }


def test_deleted_and_changed_nodes_do_not_count() -> None:
    d = Driver([mixed("n", x1g_10gb=7)])
    d.engine.nodes_applied([single("n", H100, 8)], d.now)
    assert plugin_partitions(d.engine.world) == {}
