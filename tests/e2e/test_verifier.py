"""The verifier finds what it is there to find."""

from typing import Any

from . import objects
from .api import Json
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


def test_half_bound_and_unknown_nodes() -> None:
    assert "half bound" in verify_gang(fabric((4,)), gang("s1-l1-1", ""))[0]
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
