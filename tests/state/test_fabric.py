"""The fabric: an order of nodes in which every domain is one range, however it came to be."""

import random
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state.node_labels import Labels, labels_at
from topo_scheduler.api.labels import ACCELERATOR_LEVELS, FAMILIES, PREFIX, UNLABELLED
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.state.topology import fabric as fabric_module
from topo_scheduler.state.topology.fabric import Fabric, Layout, Path
from topo_scheduler.state.topology.natural_sort import natural_key


def build(places: Mapping[str, str]) -> Fabric:
    fabric = Fabric(FabricConfig())
    for row, (name, path) in enumerate(places.items()):
        fabric.put(row, name, labels_at(path))
    return fabric


def tree(fabric: Fabric, names: list[str]) -> dict[Path, list[str]]:
    """Return the leaves in order, each with its nodes in order."""
    layout = fabric.layout(len(names))
    ranges = pairwise(layout.offsets.tolist())
    return {
        path: [names[row] for row in layout.order[low:high]]
        for path, (low, high) in zip(layout.paths, ranges, strict=True)
    }


def check(layout: Layout, nodes: int) -> None:
    """Assert what holds of every layout."""
    assert sorted(layout.order.tolist()) == sorted(np.flatnonzero(layout.leaf_of_row >= 0).tolist())
    assert len(layout.order) == nodes
    assert layout.offsets[0] == 0
    assert layout.offsets[-1] == nodes
    assert (np.diff(layout.offsets) > 0).all(), "a leaf without nodes does not exist"
    assert len(set(layout.paths)) == len(layout.paths) == len(layout.offsets) - 1
    assert all(len(path) == layout.depth for path in layout.paths)
    for leaf in range(len(layout.paths)):
        for at in range(int(layout.offsets[leaf]), int(layout.offsets[leaf + 1])):
            row = layout.order[at]
            assert layout.leaf_of_row[row] == leaf
            assert layout.position[row] == at
    assert layout.aligned.tolist() == [int(UNLABELLED not in path) for path in layout.paths]
    assert len(layout.domains) == layout.depth + 1
    for depth, offsets in enumerate(layout.domains):
        if not layout.paths:
            continue
        assert offsets[0] == 0
        assert offsets[-1] == len(layout.paths)
        seen: set[Path] = set()
        for index, (low, high) in enumerate(pairwise(offsets.tolist())):
            inside = {path[:depth] for path in layout.paths[low:high]}
            assert inside == {layout.domain_path(depth, index)}
            assert not inside & seen, "one domain is one range"
            seen |= inside
            assert all(layout.domain_of_leaf(depth, leaf) == index for leaf in range(low, high))
    assert layout.domains[layout.depth].tolist() == list(range(len(layout.paths) + 1))


def test_nodes_stand_in_natural_order() -> None:
    names = ["n-10", "n-2", "n-1", "m-3", "n-1b", "n-02"]
    fabric = build(dict.fromkeys(names, "spine-1/leaf-1"))
    (nodes,) = tree(fabric, names).values()
    assert nodes == ["m-3", "n-1", "n-1b", "n-02", "n-2", "n-10"]


def test_leaves_and_spines_stand_in_natural_order() -> None:
    places = {
        f"n{i}": f"spine-{s}/leaf-{leaf}" for i, (s, leaf) in enumerate([(10, 1), (2, 11), (2, 9), (1, 100), (2, 10)])
    }
    assert list(tree(build(places), list(places))) == [
        ("spine-1", "leaf-100"),
        ("spine-2", "leaf-9"),
        ("spine-2", "leaf-10"),
        ("spine-2", "leaf-11"),
        ("spine-10", "leaf-1"),
    ]


def test_one_leaf_name_under_two_spines_is_two_leaves() -> None:
    places = {"a": "spine-1/leaf-1", "b": "spine-2/leaf-1", "c": "spine-1/leaf-1"}
    fabric = build(places)
    assert tree(fabric, list(places)) == {("spine-1", "leaf-1"): ["a", "c"], ("spine-2", "leaf-1"): ["b"]}
    layout = fabric.layout(3)
    assert layout.find("leaf-1") == [(2, 0), (2, 1)]
    assert layout.find("spine-2/leaf-1") == [(2, 1)]
    assert layout.find("spine-1") == [(1, 0)]
    assert layout.find("spine-2/leaf-2") == []
    assert layout.find("af-1") == []


def test_nodes_that_lack_a_level_share_one_child_of_their_known_parent_behind_its_named_ones() -> None:
    places = {"a": "spine-1/leaf-9", "b": "spine-1/", "c": "spine-1/", "d": "/leaf-1", "e": "/", "f": "spine-2/x"}
    fabric = build(places)
    assert tree(fabric, list(places)) == {
        ("spine-1", "leaf-9"): ["a"],
        ("spine-1", UNLABELLED): ["b", "c"],
        ("spine-2", "x"): ["f"],
        (UNLABELLED, "leaf-1"): ["d"],
        (UNLABELLED, UNLABELLED): ["e"],
    }
    assert fabric.unlabelled() == ["b", "c", "d", "e"]
    check(fabric.layout(6), 6)


def test_a_cluster_without_any_label_is_one_unaligned_leaf() -> None:
    fabric = build({"a": "", "b": ""})
    layout = fabric.layout(2)
    assert layout.paths == ((UNLABELLED,),)
    assert layout.aligned.tolist() == [0]
    assert fabric.unlabelled() == ["a", "b"]
    check(layout, 2)


def test_a_cluster_without_nodes_has_no_domains() -> None:
    layout = Fabric(FabricConfig()).layout(8)
    assert layout.paths == ()
    assert len(layout.order) == 0
    assert layout.find("leaf-1") == []


def test_a_level_appears_with_the_first_label_and_vanishes_with_the_last() -> None:
    names = ["a", "b"]
    fabric = build({"a": "/leaf-1", "b": "/leaf-2"})
    assert fabric.layout(2).levels == ("leaf",)
    fabric.put(0, "a", labels_at("spine-1/leaf-1"))
    assert fabric.layout(2).levels == ("spine", "leaf")
    assert tree(fabric, names) == {("spine-1", "leaf-1"): ["a"], (UNLABELLED, "leaf-2"): ["b"]}
    fabric.put(0, "a", labels_at("/leaf-1"))
    assert tree(fabric, names) == {("leaf-1",): ["a"], ("leaf-2",): ["b"]}
    fabric.put(0, "a", labels_at("spine-1/leaf-1"))
    fabric.remove(0)
    assert tree(fabric, names) == {("leaf-2",): ["b"]}


def test_labels_that_say_the_same_change_nothing() -> None:
    fabric = build({"a": "spine-1/leaf-1"})
    layout = fabric.layout(1)
    assert not fabric.put(0, "a", labels_at("spine-1/leaf-1") | {"other": "label"})
    assert fabric.layout(1) is layout
    assert fabric.put(0, "a", labels_at("spine-1/leaf-2"))
    assert fabric.layout(1) is not layout
    assert fabric.layout(1).generation > layout.generation


RAILS = FabricConfig.model_validate({"rails": {"labels": ["rail-0", "rail-1"]}})
OWN_LEVELS = FabricConfig.model_validate(
    {"levels": [{"name": "row", "labels": ["row"]}, {"name": "rack", "labels": ["r", "s"]}]}
)
FAMILY_KEYS = {
    key for families in FAMILIES.values() for family in families for key in (*family.markers, *family.keys.values())
}
ACCELERATOR_KEYS = {key for keys in ACCELERATOR_LEVELS.values() for key in keys}


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (FabricConfig(), FAMILY_KEYS),
        (FabricConfig(), ACCELERATOR_KEYS),
        (RAILS, {"rail-0", "rail-1", "topology.scheduler/leaf"}),
        (OWN_LEVELS, {"row", "r", "s"}),
    ],
    ids=["families", "accelerators", "rails", "own levels"],
)
@given(st.data())
def test_labels_by_which_no_nodes_differ_change_no_position(
    config: FabricConfig, keys: set[str], data: st.DataObject
) -> None:
    labels = st.dictionaries(st.sampled_from(sorted({*keys, "other"})), st.sampled_from(["", "a", "b"]), max_size=6)
    before, after = data.draw(labels), data.draw(labels)
    fabric = Fabric(config)
    fabric.put(0, "node", before)
    conflicts, generation = fabric.complaints(), fabric.generation
    changed = fabric.put(0, "node", after)
    if not fabric.tells_apart(before, after):
        assert not changed and fabric.generation == generation and fabric.complaints() in ([], conflicts)


def test_removing_an_unknown_row_is_no_change() -> None:
    fabric = build({"a": "spine-1/leaf-1"})
    layout = fabric.layout(1)
    fabric.remove(7)
    assert fabric.layout(1) is layout


# ---------------------------------------------------------------- incremental and from scratch

ROWS = 8
changes = st.lists(
    st.tuples(
        st.integers(0, ROWS - 1),
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {},
                optional={
                    PREFIX + "core": st.sampled_from(["c-1", "c-2", ""]),
                    PREFIX + "spine": st.sampled_from(["s-1", "s-2", "s-10", UNLABELLED]),
                    PREFIX + "leaf": st.sampled_from(["l-1", "l-2", "l-11", "1", "l"]),
                },
            ),
        ),
        st.booleans(),
    ),
    max_size=40,
)


@given(changes, st.randoms(use_true_random=False))
def test_changes_one_by_one_end_where_a_new_build_ends(
    steps: list[tuple[int, Labels | None, bool]], shuffler: random.Random
) -> None:
    fabric = Fabric(FabricConfig())
    now: dict[int, Labels] = {}
    for row, labels, look in steps:
        if labels is None:
            fabric.remove(row)
            now.pop(row, None)
        else:
            fabric.put(row, f"node-{row}", labels)
            now[row] = labels
        if look:
            check(fabric.layout(ROWS), len(now))
    anew = Fabric(FabricConfig())
    rows = list(now)
    shuffler.shuffle(rows)
    for row in rows:
        anew.put(row, f"node-{row}", now[row])
    assert same(fabric.layout(ROWS), anew.layout(ROWS))
    assert fabric.unlabelled() == anew.unlabelled()


def same(first: Layout, other: Layout) -> bool:
    """Whether two layouts say the same; the generation depends on how they came to be."""
    return (
        first.levels == other.levels
        and first.paths == other.paths
        and len(first.domains) == len(other.domains)
        and all(
            np.array_equal(a, b)
            for a, b in zip(
                (first.order, first.offsets, first.aligned, first.leaf_of_row, first.position, *first.domains),
                (other.order, other.offsets, other.aligned, other.leaf_of_row, other.position, *other.domains),
                strict=True,
            )
        )
    )


def test_a_node_may_change_its_name_and_the_row_its_node() -> None:
    fabric = build({"b": "s/l", "a": "s/l"})
    fabric.remove(0)
    fabric.put(0, "0", labels_at("s/l"))
    assert fabric.layout(2).order.tolist() == [0, 1]


# ---------------------------------------------------------------- cost


class Counter:
    """Counts the calls of a function that is called once for each unit of work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)


def large(leaves: int) -> Iterator[tuple[int, str, Labels]]:
    for number in range(leaves * 16):
        yield number, f"node-{number}", labels_at(f"spine-{number // 512}/leaf-{number // 16}")


def test_the_work_of_one_change_does_not_grow_with_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    work = []
    for leaves in (8, 625):
        fabric = Fabric(FabricConfig())
        for row, name, labels in large(leaves):
            fabric.put(row, name, labels)
        fabric.layout(leaves * 16)
        with monkeypatch.context() as patched:
            touched = Counter(patched, fabric_module.Leaf, "refresh")
            keys = Counter(patched, fabric_module, "natural_key")
            fabric.put(5, "node-5", labels_at("spine-0/leaf-3"))
            fabric.layout(leaves * 16)
            work.append((touched.calls, keys.calls))
    assert work[0] == work[1]
    assert work[0][0] == 2, "the leaf it left and the leaf it came to"


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["", "a", "leaf-"]), st.sampled_from(["", "-b"]))
def test_numbers_in_names_are_compared_as_numbers(first: int, other: int, before: str, after: str) -> None:
    keys = [natural_key(f"{before}{number}{after}") for number in (first, other)]
    assert (keys[0] < keys[1]) == (first < other)


@given(st.text("ab01-.", max_size=8), st.text("ab01-.", max_size=8))
def test_different_names_have_different_places(first: str, other: str) -> None:
    keys = [natural_key(name) for name in (first, other)]
    assert (keys[0] == keys[1]) == (first == other)
    assert (keys[0] < keys[1]) != (keys[0] >= keys[1])
