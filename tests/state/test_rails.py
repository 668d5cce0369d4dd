"""Rail-optimised fabrics: nodes whose NICs hang on the same leaves are one unit, in the leaf's place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.api.process import Rails
from topo_scheduler.state.topology.fabric import Fabric
from topo_scheduler.state.topology.rails import unit_name


def rails(*leaves: str, **levels: str) -> dict[str, str]:
    """Return the labels of a node whose NIC of each rail hangs on a leaf; an empty one is not told."""
    labels = {f"{PREFIX}leaf-rail-{rail}": leaf for rail, leaf in enumerate(leaves) if leaf}
    return labels | {PREFIX + level: name for level, name in levels.items()}


def paths(*labels: dict[str, str], config: FabricConfig | None = None) -> list[str]:
    """Return the path of the leaf of each node."""
    fabric = Fabric(config or FabricConfig())
    for row, node_labels in enumerate(labels):
        fabric.put(row, f"n{row}", node_labels)
    layout = fabric.layout(len(labels))
    return ["/".join(layout.paths[leaf]) for leaf in layout.leaf_of_row.tolist()]


@pytest.mark.parametrize(
    ("leaves", "name"),
    [
        (["su1-rail0", "su1-rail1", "su1-rail2"], "su1-rail[0-2]"),
        (["leaf-9", "leaf-10", "leaf-11"], "leaf-[9-11]"),
        (["leaf-08", "leaf-09", "leaf-10"], "leaf-[08-10]"),
        (["leaf-1", "leaf-3", "leaf-4"], "leaf-[1,3-4]"),
        (["r1-su2", "r2-su2"], "r[1-2]-su2"),
        (["blue", "red"], "[blue,red]"),
        (["leaf", "leaf-1"], "leaf[,-1]"),
        (["only"], "only"),
    ],
)
def test_a_unit_is_named_by_its_leaves(leaves: list[str], name: str) -> None:
    assert unit_name(frozenset(leaves)) == name


label_values = st.from_regex(r"\A[a-c0-2]([-a-c0-2]{0,4}[a-c0-2])?\Z")
sets = st.frozensets(label_values, min_size=1, max_size=5)


@given(sets, sets)
def test_no_two_units_have_one_name(first: frozenset[str], other: frozenset[str]) -> None:
    assert (unit_name(first) == unit_name(other)) == (first == other)


def test_nodes_on_the_same_leaves_are_one_unit_whatever_the_order_of_their_rails() -> None:
    units = paths(rails("a1", "a2"), rails("a2", "a1"), rails("b1", "b2"))
    assert units == ["a[1-2]", "a[1-2]", "b[1-2]"]


def test_the_unit_takes_the_place_of_a_leaf_that_is_labelled_too() -> None:
    assert paths(rails("a1", "a2", leaf="a1", spine="s")) == ["s/a[1-2]"]


def test_levels_above_are_those_of_any_other_labels() -> None:
    labels = {"fabric.topograph.run/tier-1": "core-7", "fabric.topograph.run/tier-0": "a1", **rails("a1", "a2")}
    assert paths(labels) == ["core-7/a[1-2]"]


def test_a_node_that_lacks_a_rail_is_no_full_member_of_the_unit() -> None:
    assert paths(rails("a1", "a2"), rails("a1", "")) == ["a[1-2]", "a1"]


def test_a_node_with_one_rail_hangs_on_that_leaf() -> None:
    assert paths(rails("a1"), {PREFIX + "leaf": "a1"}) == ["a1", "a1"]


def test_labels_and_level_may_be_named() -> None:
    own = {"levels": [{"name": "rack", "labels": ["example.com/rack"]}]}
    config = FabricConfig.model_validate(own | {"rails": {"labels": ["x/0", "x/1"], "level": "rack"}})
    assert paths({"x/0": "l0", "x/1": "l1"}, {"example.com/rack": "r"}, config=config) == ["l[0-1]", "r"]


def test_no_labels_no_rails() -> None:
    config = FabricConfig(rails=Rails(labels=()))
    assert paths(rails("a1", "a2", leaf="a1"), config=config) == ["a1"]


def test_a_level_of_rails_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="rails: no level is called 'rack'; there are region, zone"):
        FabricConfig.model_validate({"rails": {"level": "rack"}})


def test_levels_of_ones_own_without_a_leaf_have_no_rails() -> None:
    config = FabricConfig.model_validate({"levels": [{"name": "rack", "labels": ["example.com/rack"]}]})
    assert paths(rails("a1", "a2") | {"example.com/rack": "r"}, config=config) == ["r"]


def test_a_rail_that_is_recabled_moves_the_node() -> None:
    fabric = Fabric(FabricConfig())
    fabric.put(0, "n0", rails("a1", "a2"))
    fabric.put(1, "n1", rails("a1", "b2"))
    assert len(fabric.layout(2).paths) == 2
    fabric.put(1, "n1", rails("a1", "a2"))
    assert fabric.layout(2).paths == (("a[1-2]",),)
