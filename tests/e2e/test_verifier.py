"""The verifier finds what it is there to find."""

from typing import Any

from . import objects
from .api import Json
from .links_verifier import verify_links
from .verifier import milli, verify_capacity, verify_gang


def fabric(*spines: tuple[int, ...], **more: Any) -> list[Json]:
    """Spines of leaves of nodes."""
    return [
        objects.node(f"s{s}-l{leaf}-{n}", spine=f"s{s}", leaf=f"l{leaf}", **{"model": "H100", **more})
        for s, leaves in enumerate(spines, 1)
        for leaf, size in enumerate(leaves, 1)
        for n in range(1, size + 1)
    ]


def gang(*nodes: str, gpus: int = 8) -> list[Json]:
    """A gang with a member on each of the nodes."""
    pods = [objects.pod(f"member-{n}", gpus) for n in range(len(nodes))]
    for pod, node in zip(pods, nodes, strict=True):
        pod["spec"]["nodeName"] = node
    return pods


def test_quantities() -> None:
    said = {"1": 1000, "500m": 500, "1Ki": 1_024_000, "1k": 10**6, "1.5": 1500, "100n": 1, "2Gi": 2**31 * 1000}
    assert {text: milli(text) for text in said} == said


def test_a_good_placement_breaks_nothing() -> None:
    assert not verify_gang(fabric((4, 4), (4,)), gang("s1-l1-1", "s1-l1-2", "s1-l1-3", "s1-l1-4"))
    assert not verify_gang(fabric((4, 4), (4,)), gang(*(f"s1-l{leaf}-{n}" for leaf in (1, 2) for n in (1, 2, 3))))
    assert not verify_gang(fabric((2,), (2,)), gang("s1-l1-1", "s1-l1-2", "s2-l1-1"))


def test_more_leaves_than_needed() -> None:
    (problem,) = verify_gang(fabric((4, 4)), gang("s1-l1-1", "s1-l2-1"))
    assert "2 leaves where 1 could hold it" in problem
    assert not verify_gang(fabric((4, 4)), gang("s1-l1-1", "s1-l2-1"), asked=objects.ours({"placement": "preferred"}))


def test_leaves_of_one_name_under_two_spines_are_two() -> None:
    problems = verify_gang(fabric((2, 2), (2, 2)), gang("s1-l1-1", "s1-l1-2", "s2-l1-1", "s2-l1-2"))
    assert any("without a common domain" in problem for problem in problems)


def test_limits_per_leaf_raise_what_is_needed() -> None:
    nodes = fabric((8, 8))
    members = gang(*(f"s1-l{leaf}-{n}" for leaf in (1, 2) for n in (1, 2, 3, 4)))
    assert not verify_gang(nodes, members, max_nodes_per_leaf=4, max_gpus_per_leaf=32)
    problems = verify_gang(nodes, gang(*(f"s1-l1-{n}" for n in range(1, 9))), max_nodes_per_leaf=4)
    assert any("8 nodes in s1/l1, allowed are 4" in problem for problem in problems)


def test_partially_bound_and_unknown_nodes() -> None:
    assert "partially bound" in verify_gang(fabric((4,)), gang("s1-l1-1", ""))[0]
    assert "do not exist" in verify_gang(fabric((4,)), gang("elsewhere"))[0]


def test_capacity_counts_all_pods_that_run() -> None:
    nodes, members = fabric((2,)), gang("s1-l1-1", "s1-l1-2", gpus=6)
    (other,) = gang("s1-l1-1", gpus=4)
    assert verify_gang(nodes, members, [other]) == ["node s1-l1-1 is over its nvidia.com/gpu"]
    other["status"] = {"phase": "Succeeded"}
    assert not verify_capacity(nodes, [*members, other])


def test_bandwidth_and_model() -> None:
    nodes = fabric((2,), bandwidth="100Gb")
    asked = objects.ours({"network-bandwidth": "200Gb", "gpu-model": "A100"})
    problems = verify_gang(nodes, gang("s1-l1-1"), asked=asked)
    assert "node s1-l1-1 has 100Gb, asked is 200Gb" in problems
    assert "node s1-l1-1 has H100 GPUs, asked is A100" in problems
    nodes[1]["metadata"]["labels"][objects.MODEL] = "A100"
    assert any("several GPU models" in p for p in verify_gang(nodes, gang("s1-l1-1", "s1-l1-2")))


# ---------------------------------------------------------------- links


def sending(*where: str, bandwidth: str = "200Gb", name: str = "g") -> list[dict[str, Any]]:
    annotations = {"gang-id": f"default/{name}", "network-bandwidth": bandwidth}
    pods = []
    for number, node in enumerate(where):
        item = objects.pod(f"{name}-{number}", 8, annotations)
        item["spec"]["nodeName"] = node
        pods.append(item)
    return pods


def test_links_are_verified_in_both_directions() -> None:
    nodes = fabric((2, 2))
    leaf = [{"level": "leaf", "capacity": "300Gb"}]
    across = sending("s1-l1-1", "s1-l2-1")
    assert not verify_links(nodes, across, {}, leaf)
    twice = [*across, *sending("s1-l1-2", "s1-l2-2", name="h")]
    assert verify_links(nodes, twice, {}, leaf) == [
        "link of s1/l1 carries 300000 Mbit/s, 400000 were promised",
        "link of s1/l2 carries 300000 Mbit/s, 400000 were promised",
    ]
    assert not verify_links(nodes, twice, {}), "what is not known is not limited"
    assert not verify_links(nodes, sending("s1-l1-1", "s1-l1-2"), {}, leaf), "nothing leaves the leaf"


def test_links_of_nodes_and_labels_are_verified() -> None:
    nodes = [objects.node(f"n{n}", spine="s1", leaf=f"l{n}", bandwidth="100Gb") for n in (1, 2)]
    (first, second) = verify_links(nodes, sending("n1", "n2"), {})
    assert first == "link of s1/l1/n1 carries 100000 Mbit/s, 200000 were promised" and "n2" in second
    nodes[0]["metadata"]["labels"]["topology.scheduler/leaf-uplink-bandwidth"] = "50Gb"
    assert verify_links(nodes, sending("n1", "n2", bandwidth="80Gb"), {}) == [
        "link of s1/l1 carries 50000 Mbit/s, 80000 were promised"
    ]
    half = [{"domain": "s1/l2", "oversubscription": 2}]
    problems = verify_links(nodes, sending("n1", "n2", bandwidth="60Gb"), {}, half)
    assert "link of s1/l2 carries 50000 Mbit/s, 60000 were promised" in problems


def test_what_an_owner_asks_for_counts() -> None:
    nodes = fabric((1, 1))
    members = sending("s1-l1-1", "s1-l2-1")
    for pod in members:
        del pod["metadata"]["annotations"]["topology.scheduler/network-bandwidth"]
        pod["metadata"]["ownerReferences"] = [{"uid": "u", "controller": True}]
    owner = {"u": {"metadata": {"annotations": {"topology.scheduler/network-bandwidth": "200Gb"}}}}
    limit = [{"level": "leaf", "capacity": "100Gb"}]
    assert len(verify_links(nodes, members, owner, limit)) == 2
    assert not verify_links(nodes, members, {}, limit)
