"""Accelerator domains and units of rails, at an API server."""

from . import objects
from .cluster import Cluster, annotation, nodes_of
from .objects import PREFIX
from .replica import Replica

CLIQUE = "nvidia.com/gpu.clique"


async def test_a_gang_has_a_rack_of_two_leaves_or_waits_for_one(cluster: Cluster, daemon: Replica) -> None:
    """Rack r1 is leaves l1 and l2, rack r2 leaves l3 and l4; a node of r1 is taken."""
    names = await cluster.add_fabric({"s1": [2, 2, 2, 2]}, gpus=4)
    for name in names:
        await cluster.label_node(name, {CLIQUE: f"uuid.{(int(name.split('-')[1][1:]) + 1) // 2}"})
    await cluster.occupy("s1-l1-1", 4)
    required = {"required-level": "accelerator-domain"}
    await cluster.apply(objects.gang("five", 5, 4, required))
    (pod, *_) = await cluster.wait_pods("five", 5)
    note = "No accelerator-domain could hold the gang's 5 pods even if it were empty"
    await cluster.wait_note(pod, note, reason="FailedScheduling")
    await cluster.apply(objects.gang("four", 4, 4, required))
    pods = await cluster.wait_bound("four", 4)
    assert set(nodes_of(pods)) == {"s1-l3-1", "s1-l3-2", "s1-l4-1", "s1-l4-2"}
    assert {annotation(member, "address").count(".") for member in pods} == {2}
    await cluster.apply(objects.gang("more", 4, 4, required))
    (pod, *_) = await cluster.wait_pods("more", 4)
    note = "The gang needs 2 leaves in 1 accelerator-domain with room for 4 pods of 4 GPUs; the most free is s1/uuid.1"
    await cluster.wait_note(pod, note, reason="FailedScheduling")
    await cluster.label_node("s1-l1-1", {CLIQUE: None})
    await cluster.free("s1-l1-1")
    await cluster.label_node("s1-l1-1", {CLIQUE: "uuid.1"})
    pods = await cluster.wait_bound("more", 4)
    assert set(nodes_of(pods)) == {"s1-l1-1", "s1-l1-2", "s1-l2-1", "s1-l2-2"}


async def test_nodes_on_the_same_rails_are_one_leaf(cluster: Cluster, daemon: Replica) -> None:
    rails = {f"{PREFIX}leaf-rail-{rail}": f"-rail{rail}" for rail in range(4)}
    await cluster.add_nodes(
        objects.node(f"n{unit}-{n}", gpus=8, labels={key: f"su{unit}{name}" for key, name in rails.items()})
        for unit in (1, 2)
        for n in (1, 2)
    )
    await cluster.occupy("n1-1")
    await cluster.apply(objects.gang("near", 2, 8, {"required-level": "leaf"}))
    pods = await cluster.wait_bound("near", 2)
    assert set(nodes_of(pods)) == {"n2-1", "n2-2"}
    assert {annotation(pod, "address").rpartition(".")[0] for pod in pods} == {"su2-rail[0-3]"}
