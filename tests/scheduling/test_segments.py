"""Gangs in segments: so many consecutive ranks in one leaf."""

from itertools import product

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, configured, fabric
from tests.scheduling.gang_pods import annotated_gang, leaf_by_rank, rank_of
from tests.scheduling.running_pods import fill_nodes


def test_each_segment_is_within_one_leaf() -> None:
    d = Driver(fabric({"s1/a": 3, "s1/b": 3, "s1/c": 3}))
    members = annotated_gang(6, segment_size="2")
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s1-a", "s1-a", "s1-b", "s1-b", "s1-c", "s1-c"]


def test_without_segments_two_leaves_would_do() -> None:
    d = Driver(fabric({"s1/a": 3, "s1/b": 3, "s1/c": 3}))
    members = annotated_gang(6)
    d.run(*members)
    assert len(set(leaf_by_rank(d, members))) == 2


def test_segments_are_near_each_other() -> None:
    d = Driver(fabric({"s1/a": 2, "s1/b": 4, "s1/c": 2, "s2/a": 2, "s2/b": 2}))
    fill_nodes(d, "s1-b-1", "s1-b-2", "s1-b-3")
    members = annotated_gang(4, segment_size="2", placement="preferred")
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s2-a", "s2-a", "s2-b", "s2-b"], "the two leaves of s1 have a full one between"


def test_a_segment_that_does_not_divide_the_gang_is_a_problem() -> None:
    d = Driver(fabric({"s1/a": 8}))
    members = annotated_gang(6, segment_size="4")
    assert d.run(*members) == {}
    assert d.told(members[0])[-1].startswith(
        "Refused: annotation topology.scheduler/segment-size: 4 does not divide the gang's 6 pods;"
        " write one of 1, 2, 3, 6"
    )


def test_a_segment_that_no_leaf_holds_makes_the_gang_too_large() -> None:
    d = Driver(fabric({"s1/a": 3, "s1/b": 3}))
    members = annotated_gang(4, segment_size="4")
    assert d.run(*members) == {}
    assert "No leaf holds a segment of 4 pods even when empty" in d.told(members[0])[-1]


def test_a_lost_member_goes_back_to_its_segment() -> None:
    d = Driver(fabric({"s1/a": 3, "s1/b": 3}))
    members = annotated_gang(4, segment_size="2")
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s1-a", "s1-a", "s1-b", "s1-b"]
    lost = next(pod for pod in members if rank_of(pod) == 2)
    d.delete(lost)
    again = annotated_gang(4, segment_size="2")[0]
    d.run(again)
    assert rank_of(again) == 2
    assert again.spec.node_name.startswith("s1-b")


def test_what_is_lost_of_a_segment_that_is_torn_goes_where_most_of_it_runs() -> None:
    d = Driver(fabric({"s1/a": 4}))
    members = annotated_gang(4, segment_size="4", placement="preferred")
    d.run(*members)
    members.sort(key=rank_of)
    lost = members.pop()
    for pod, node in zip(members, ("s1-a-1", "s1-b-1", "s1-b-2"), strict=True):
        pod.spec.node_name = node
    after = Driver(fabric({"s1/a": 4, "s1/b": 4}))
    after.apply(*members)
    (again,) = [
        pod
        for pod in annotated_gang(4, segment_size="4", placement="preferred")
        if pod.metadata.name == lost.metadata.name
    ]
    after.run(again)
    assert again.spec.node_name.startswith("s1-b-")


def test_a_lost_member_waits_for_room_where_its_segment_runs() -> None:
    d = Driver(fabric({"s1/a": 4, "s1/b": 2}))
    members = annotated_gang(6, segment_size="2", placement="preferred")
    d.run(*members)
    assert leaf_by_rank(d, members) == ["s1-a"] * 4 + ["s1-b"] * 2
    lost, other = (next(pod for pod in members if rank_of(pod) == rank) for rank in (5, 0))
    node = lost.spec.node_name
    d.delete(lost, other)
    busy = fill_nodes(d, node)
    again = annotated_gang(6, segment_size="2", placement="preferred")[:2]
    d.run(*again)
    placed = [pod for pod in again if pod.spec.node_name]
    assert [rank_of(pod) for pod in placed] in ([], [0]), "rank 5 has no room in s1/b"
    d.delete(*busy)
    d.settle()
    assert {pod.spec.node_name[:4] for pod in again} == {"s1-a", "s1-b"}
    assert {rank_of(pod): pod.spec.node_name[:4] for pod in again} == {0: "s1-a", 5: "s1-b"}


@pytest.mark.parametrize(("subgroup", "expected"), [("2", 3), ("3", 2), ("4", 2), ("x", 2)])
def test_subgroups_of_a_leaderworkerset(subgroup: str, expected: int) -> None:
    """Those that divide the group are segments; 4 does not divide 6, so that is not followed."""
    d = Driver(fabric({"s1/a": 3, "s1/b": 3, "s1/c": 3}))
    lws = "leaderworkerset.sigs.k8s.io/"
    members = [
        make_pod(
            f"lws-0-{n}",
            gpus=8,
            labels={f"{lws}name": "lws", f"{lws}group-index": "0", f"{lws}worker-index": str(n)},
            annotations={f"{lws}size": "6", f"{lws}subgroup-size": subgroup},
        )
        for n in range(6)
    ]
    d.run(*members)
    assert len(set(leaf_by_rank(d, members))) == expected


def test_segments_of_another_level() -> None:
    d = Driver(
        fabric({"s1/a": 2, "s1/b": 2, "s2/a": 2, "s2/b": 1}),
        configured("{topologyConstraints: {enforcement: preferred}}"),
    )
    members = annotated_gang(6, segment_size="3", segment_level="spine")
    d.run(*members)
    assert [leaf[:2] for leaf in leaf_by_rank(d, members)] == ["s1"] * 3 + ["s2"] * 3


# ---------------------------------------------------------------- against every way to place segments


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, list[int]], int, int, bool]:
    """Free GPUs of up to twelve nodes in leaves of two spines; segment size, number of segments, enforcement."""
    free: dict[str, list[int]] = {}
    for _ in range(draw(st.integers(1, 12))):
        leaf = f"{draw(st.sampled_from(['s1', 's2']))}/{draw(st.sampled_from('abcd'))}"
        free.setdefault(leaf, []).append(draw(st.integers(0, 3)))
    return free, draw(st.integers(2, 4)), draw(st.integers(1, 4)), draw(st.booleans())


def test_a_gang_that_must_share_a_leaf_is_in_one_piece_anyway() -> None:
    d = Driver(fabric({"s1/a": 4}))
    members = annotated_gang(4, segment_size="2", segment_level="spine", required_level="leaf")
    assert len(d.run(*members)) == 4


def test_a_gang_waits_for_a_segment_level_for_which_no_node_has_a_label() -> None:
    d = Driver(fabric({"s1/a": 4}))
    members = annotated_gang(4, segment_size="2", segment_level="core")
    assert d.run(*members) == {}
    assert "Its annotation segment-level asks for core, for which no node has a label" in d.told(members[0])[-1]


@settings(deadline=None, max_examples=100)
@given(clusters())
def test_segments_of_an_outer_level_as_well(cluster: tuple[dict[str, list[int]], int, int, bool]) -> None:
    """The same with spines for leaves: what is in a leaf does not matter, nor how many leaves there are."""
    free, segment, count, _ = cluster
    d = Driver(fabric({leaf: len(nodes) for leaf, nodes in free.items()}, gpus=3))
    fill(d, free)
    members = annotated_gang(
        segment * count, gpus=1, segment_size=str(segment), segment_level="spine", placement="preferred"
    )
    d.run(*members)
    held: dict[str, int] = {}
    for leaf, nodes in free.items():
        held[leaf[:2]] = held.get(leaf[:2], 0) + sum(nodes)
    best = best_by_hand({spine: many // segment for spine, many in held.items()}, count)
    if best is None:
        assert d.where(*members) == {}
        return
    by_rank = [leaf[:2] for leaf in leaf_by_rank(d, members)]
    for number in range(count):
        assert len(set(by_rank[number * segment : (number + 1) * segment])) == 1
    assert len(set(by_rank)) == best[1]


def fill(d: Driver, free: dict[str, list[int]]) -> None:
    """Leave so many of the three GPUs of each node free."""
    for leaf, nodes in free.items():
        for number, gpus in enumerate(nodes, 1):
            if gpus < 3:
                node = f"{leaf.replace('/', '-')}-{number}"
                d.apply(make_pod(f"busy-{node}", gpus=3 - gpus, scheduler="other", node=node, phase="Running"))


def best_by_hand(
    held: dict[str, int], count: int, depth: int | None = None, leaves: int | None = None
) -> tuple[int, int, int] | None:
    """The best (level outwards, leaves, width) of all ways to give leaves so many segments, by trying all of them."""
    names = sorted(held)
    ranks = []
    for dealt in product(*(range(min(held[name], count) + 1) for name in names)):
        if sum(dealt) != count:
            continue
        used = [at for at, segments in enumerate(dealt) if segments]
        out = 0 if len({names[at][:2] for at in used}) == 1 else 1
        # The size rule's own bounds, where they must be kept.
        if depth is not None and (out > depth or len(used) > (leaves or 0)):
            continue
        ranks.append((out, len(used), used[-1] - used[0]))
    return min(ranks, default=None)


@settings(deadline=None, max_examples=200)
@given(clusters())
def test_segments_are_placed_as_well_as_any_hand_could(cluster: tuple[dict[str, list[int]], int, int, bool]) -> None:
    free, segment, count, required = cluster
    d = Driver(fabric({leaf: len(nodes) for leaf, nodes in free.items()}, gpus=3))
    fill(d, free)
    members = annotated_gang(
        segment * count, gpus=1, segment_size=str(segment), placement="required" if required else "preferred"
    )
    d.run(*members)
    rule = best_by_hand({leaf: 3 * len(nodes) // segment for leaf, nodes in free.items()}, count)
    held = {leaf: sum(nodes) // segment for leaf, nodes in free.items()}
    now = best_by_hand(held, count, rule[0], rule[1]) if rule else None
    if now is None and rule is not None and not required:
        now = best_by_hand(held, count)
    if now is None:
        assert d.where(*members) == {}
        event("no room")
        return
    by_rank = leaf_by_rank(d, members)
    for number in range(count):
        assert len(set(by_rank[number * segment : (number + 1) * segment])) == 1
    names = [leaf.replace("/", "-") for leaf in sorted(free)]
    used = sorted({names.index(leaf) for leaf in by_rank})
    out = 0 if len({leaf[:2] for leaf in by_rank}) == 1 else 1
    assert (out, len(used), used[-1] - used[0]) == now
    event(f"{len(used)} leaves")
