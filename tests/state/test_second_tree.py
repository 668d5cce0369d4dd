"""Accelerator domains as numbers by row, and woven into the order of the network."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state.node_labels import labels_at
from topo_scheduler.api.labels import ACCELERATOR_LEVELS, UNLABELLED
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.state.topology.fabric import Fabric, Layout, Path
from topo_scheduler.state.topology.topology_merge import crossed, depth_in, leaves_in

DOMAIN, SUB = ACCELERATOR_LEVELS
TOPOGRAPH = "accelerator.topograph.run/"
Place = tuple[str, str, str]
"""Path in the network, accelerator domain and sub-domain of a node; empty where not told."""


def labels(place: Place) -> dict[str, str]:
    path, domain, sub = place
    topograph = {TOPOGRAPH + "domain": domain, TOPOGRAPH + "sub-domain": sub}
    return labels_at(path) | {key: value for key, value in topograph.items() if value}


def build(*places: Place) -> Layout:
    fabric = Fabric(FabricConfig())
    for row, place in enumerate(places):
        fabric.put(row, f"n{row}", labels(place))
    return fabric.layout(len(places))


def shape(layout: Layout) -> dict[str, list[int]]:
    """Return the rows of each leaf by its path."""
    ranges = pairwise(layout.offsets.tolist())
    return {"/".join(p): layout.order[low:high].tolist() for p, (low, high) in zip(layout.paths, ranges, strict=True)}


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(("level", "key"), [(level, key) for level, keys in ACCELERATOR_LEVELS.items() for key in keys])
def test_every_label_gives_its_level(level: str, key: str) -> None:
    fabric = Fabric(FabricConfig())
    fabric.put(0, "n", {key: "x"} if level == DOMAIN else {TOPOGRAPH + "domain": "d", key: "x"})
    tree = fabric.layout(1).accelerators
    assert tree is not None
    assert tree.paths(level)[0][-1] == "x"
    assert fabric.levels_by_key()[key] == level


def test_of_several_labels_the_first_wins() -> None:
    fabric = Fabric(FabricConfig())
    fabric.put(0, "n", {"nvidia.com/gpu.clique": "late", TOPOGRAPH + "domain": "early"})
    tree = fabric.layout(1).accelerators
    assert tree is not None and tree.paths(DOMAIN) == (("early",),)


def test_a_label_that_names_a_level_of_the_network_is_no_second_tree() -> None:
    levels = [{"name": "leaf", "labels": ["l"]}, {"name": "nvlink", "labels": ["nvidia.com/gpu.clique"]}]
    fabric = Fabric(FabricConfig.model_validate({"levels": levels}))
    fabric.put(0, "n", {"l": "a", "nvidia.com/gpu.clique": "x"})
    assert fabric.layout(1).accelerators is None
    assert fabric.layout(1).levels == ("leaf", "nvlink")


def test_without_labels_there_is_no_second_tree_and_nothing_to_weave_in() -> None:
    layout = build(("s/a", "", ""), ("s/b", "", ""))
    assert layout.accelerators is None
    assert crossed(layout, (DOMAIN, SUB)) is layout
    assert layout.every_level == ("spine", "leaf")


def test_one_name_in_two_domains_is_two_sub_domains() -> None:
    layout = build(("s/a", "x", "1"), ("s/a", "y", "1"))
    assert layout.accelerators is not None
    assert layout.accelerators.paths(SUB) == (("x", "1"), ("y", "1"))
    assert set(shape(crossed(layout, (SUB,)))) == {"s/a/x/1", "s/a/y/1"}


def test_a_sub_domain_of_nothing_is_none() -> None:
    layout = build(("s/a", "x", "1"), ("s/a", "", "1"))
    assert layout.accelerators is not None
    assert layout.accelerators.of_row(SUB).tolist() == [0, -1]


def test_a_level_of_which_there_is_no_domain_does_not_exist() -> None:
    layout = build(("s/a", "x", ""), ("s/a", "", "1"))
    assert layout.every_level == ("spine", "leaf", DOMAIN)
    assert crossed(layout, (SUB,)) is layout


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"accelerators": [{"name": "leaf", "labels": ["x"]}]}, "accelerators: another level is called 'leaf' already"),
        (
            {"accelerators": [{"name": "a", "labels": ["x"]}, {"name": "a", "labels": ["y"]}]},
            "another level is called 'a' already; a name means one level",
        ),
    ],
)
def test_a_name_means_one_level(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FabricConfig.model_validate(config)


def test_an_empty_list_reads_none() -> None:
    fabric = Fabric(FabricConfig(accelerators=()))
    fabric.put(0, "n", {"nvidia.com/gpu.clique": "x"})
    assert fabric.layout(1).accelerators is None
    assert "nvidia.com/gpu.clique" not in fabric.levels_by_key()


# ---------------------------------------------------------------- where levels are woven in


def test_a_rack_of_two_leaves_is_between_them_and_their_spine() -> None:
    layout = crossed(build(("s/a", "x", ""), ("s/b", "x", ""), ("s/c", "y", "")), (DOMAIN,))
    assert layout.levels == ("spine", DOMAIN, "leaf")
    assert shape(layout) == {"s/x/a": [0], "s/x/b": [1], "s/y/c": [2]}


def test_domains_within_leaves_are_below_them() -> None:
    layout = crossed(build(("s/a", "x", ""), ("s/a", "y", ""), ("s/b", "z", "")), (DOMAIN,))
    assert layout.levels == ("spine", "leaf", DOMAIN)
    assert shape(layout) == {"s/a/x": [0], "s/a/y": [1], "s/b/z": [2]}


def test_a_domain_across_everything_is_outermost_and_cuts_leaves() -> None:
    layout = crossed(build(("s/a", "x", ""), ("s/a", "y", ""), ("t/b", "x", "")), (DOMAIN,))
    assert layout.levels == (DOMAIN, "spine", "leaf")
    assert shape(layout) == {"x/s/a": [0], "x/t/b": [2], "y/s/a": [1]}


def test_both_levels_each_at_its_place() -> None:
    layout = build(("s/a", "x", "1"), ("s/b", "x", "2"), ("t/c", "x", "3"))
    assert crossed(layout, (SUB, DOMAIN)).levels == (DOMAIN, "spine", "leaf", SUB)
    assert crossed(layout, (SUB,)).levels == ("spine", "leaf", SUB)


def test_nodes_without_the_level_are_not_there() -> None:
    layout = crossed(build(("s/a", "x", ""), ("s/a", "", "")), (DOMAIN,))
    assert shape(layout) == {"s/a/x": [0]}
    assert layout.leaf_of_row.tolist() == [0, -1]


def test_the_same_levels_are_the_same_object() -> None:
    layout = build(("s/a", "x", "1"))
    assert crossed(layout, (SUB, DOMAIN)) is crossed(crossed(layout, (DOMAIN,)), (DOMAIN, SUB))
    assert crossed(crossed(layout, (DOMAIN,)), ()) is layout


names = st.sampled_from(["a", "b", "c", ""])
places = st.lists(st.tuples(st.sampled_from(["s/a", "s/b", "t/a", "t/b", "s/", "/a", ""]), names, names), max_size=12)


@settings(deadline=None)
@given(places, st.sampled_from([(DOMAIN,), (SUB,), (DOMAIN, SUB)]))
def test_every_domain_of_every_level_of_either_tree_is_one_range(
    node_places: list[Place], woven: tuple[str, ...]
) -> None:
    network = build(*node_places)
    layout = crossed(network, woven)
    tree = network.accelerators
    if tree is None or not layout.woven:
        return
    inside = set(layout.order.tolist())
    row_domains = [tree.of_row(level) for level in layout.woven]
    assert inside == {row for row in range(len(node_places)) if all(of_row[row] >= 0 for of_row in row_domains)}
    assert len(set(layout.paths)) == len(layout.paths)
    for depth in range(layout.depth + 1):
        ranges = pairwise(layout.offsets[layout.domains[depth]].tolist())
        by_domain = {layout.domain_path(depth, at): layout.order[low:high] for at, (low, high) in enumerate(ranges)}
        assert len(by_domain) == len(layout.domains[depth]) - 1, "a domain is one range"
        by_path: dict[Path, set[int]] = {}
        for row in inside:
            by_path.setdefault(layout.paths[int(layout.leaf_of_row[row])][:depth], set()).add(row)
        assert {path: set(rows.tolist()) for path, rows in by_domain.items()} == by_path
    for level, of_row in zip(layout.woven, row_domains, strict=True):
        depth = layout.levels.index(level) + 1
        domains = [layout.domain_of_leaf(depth, int(leaf)) for leaf in layout.leaf_of_row[layout.order]]
        rows = layout.order.tolist()
        alike = {(layout_domain, int(of_row[row])) for layout_domain, row in zip(domains, rows, strict=True)}
        assert (
            len(alike) == len({layout_domain for layout_domain, _ in alike}) == len({of_tree for _, of_tree in alike})
        )
        # In one domain nodes are in the order of the network.
        for domain in set(domains):
            positions = [
                int(network.position[row])
                for layout_domain, row in zip(domains, rows, strict=True)
                if layout_domain == domain
            ]
            if layout.woven == (level,):
                assert positions == sorted(positions)
    for depth in range(network.depth + 1):
        assert depth_in(layout, network, depth_in(network, layout, depth)) == depth
    assert leaves_in(network, network, (0, 1)) == (0, 1)


# ---------------------------------------------------------------- labels change


@settings(deadline=None, max_examples=50)
@given(places, places, st.randoms(use_true_random=False))
def test_what_became_is_what_would_be_built(before: list[Place], after: list[Place], shuffler: random.Random) -> None:
    fabric = Fabric(FabricConfig())
    count = max(len(before), len(after))
    for row, place in enumerate(before):
        fabric.put(row, f"n{row}", labels(place))
        if shuffler.random() < 0.3:
            crossed(fabric.layout(count), (DOMAIN,))
    for row in range(count):
        if row < len(after):
            fabric.put(row, f"n{row}", labels(after[row]))
        else:
            fabric.remove(row)
    fresh = Fabric(FabricConfig())
    for row in shuffler.sample(range(len(after)), len(after)):
        fresh.put(row, f"n{row}", labels(after[row]))
    updated, rebuilt = (crossed(source.layout(count), (DOMAIN, SUB)) for source in (fabric, fresh))
    assert (updated.paths, updated.levels, updated.woven) == (rebuilt.paths, rebuilt.levels, rebuilt.woven)
    assert np.array_equal(updated.order, rebuilt.order) and np.array_equal(updated.offsets, rebuilt.offsets)
    assert all(np.array_equal(a, b) for a, b in zip(updated.domains, rebuilt.domains, strict=True))


def test_a_label_that_changes_alone_is_a_change() -> None:
    fabric = Fabric(FabricConfig())
    assert fabric.put(0, "n", labels(("s/a", "x", "")))
    before = fabric.layout(1)
    assert not fabric.put(0, "n", labels(("s/a", "x", "")))
    assert fabric.put(0, "n", labels(("s/a", "y", "")))
    assert fabric.layout(1).generation > before.generation
    assert crossed(fabric.layout(1), (DOMAIN,)).paths == (("s", "a", "y"),)
    assert UNLABELLED not in fabric.layout(1).paths[0]
