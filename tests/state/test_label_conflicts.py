"""Nodes that two tools put into different leaves: reported by name, placed by the first label; others are served."""

from tests.helpers import make_node
from tests.scheduling.driver import Driver, gang
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.state.topology.fabric import Fabric

OURS, THEIRS = PREFIX + "leaf", "fabric.topograph.run/tier-0"


def labelled(*leaves: tuple[str, str]) -> Fabric:
    """A fabric of nodes n0, n1 and so on, each with the leaf that we and that others tell."""
    fabric = Fabric(FabricConfig())
    for number, (ours, theirs) in enumerate(leaves):
        fabric.put(number, f"n{number}", {OURS: ours, THEIRS: theirs})
    return fabric


def test_a_node_in_two_leaves_is_reported_once_until_it_is_put_right() -> None:
    fabric = labelled(*[("l1", "x")] * 3, *[("l2", "y")] * 3, ("l2", "x"))
    (text,) = fabric.complaints()
    assert text.startswith(f"node n6: labels {OURS} and {THEIRS} name different leaves, ")
    assert f"{OURS} is used" in text
    assert fabric.complaints() == []
    assert fabric.layout(7).paths == (("l1",), ("l2",))
    fabric.put(6, "n6", {OURS: "l2", THEIRS: "y"})
    assert fabric.complaints() == []
    fabric.put(6, "n6", {OURS: "l2", THEIRS: "x"})
    assert fabric.complaints() == [text], "again"
    fabric.remove(6)
    assert fabric.complaints() == []


def test_two_nodes_that_were_swapped() -> None:
    fabric = labelled(("a", "x"), ("a", "x"), ("a", "y"), ("b", "y"), ("b", "y"), ("b", "x"))
    (text,) = fabric.complaints()
    assert text.startswith("nodes n2, n5: ")


def test_leaves_torn_in_equal_parts_name_all_their_nodes() -> None:
    (text,) = labelled(("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")).complaints()
    assert text.startswith("nodes n0, n1, n2 and 1 more: ")


def test_other_names_and_larger_or_smaller_parts_are_no_contradiction() -> None:
    assert labelled(("a", "x"), ("a", "x"), ("b", "y")).complaints() == []
    assert labelled(("a", "x"), ("a", "y"), ("b", "z")).complaints() == []
    assert labelled(("a", "x"), ("b", "x"), ("c", "y")).complaints() == []


def test_rails_and_a_first_family_without_leaves_are_none_either() -> None:
    fabric = Fabric(FabricConfig())
    for number, (ours, theirs) in enumerate([("a", "x"), ("a", "x"), ("a", "y"), ("b", "y"), ("b", "y"), ("b", "x")]):
        fabric.put(number, f"n{number}", {OURS: ours, THEIRS: theirs, PREFIX + "leaf-rail-0": "r0"})
    assert fabric.complaints() == []
    for number in range(6):
        fabric.put(number, f"n{number}", {PREFIX + "spine": "s", THEIRS: f"x{number}"})
    assert fabric.complaints() == []


def test_labels_of_ones_own_level() -> None:
    levels = [{"name": "row", "labels": ["x/row"]}, {"name": "rack", "labels": ["x/rack", "x/old-rack"]}]
    fabric = Fabric(FabricConfig.model_validate({"levels": levels}))
    for number, (new, old) in enumerate([("1", "a"), ("1", "a"), ("2", "b"), ("2", "b"), ("2", "a")]):
        fabric.put(number, f"n{number}", {"x/row": "r", "x/rack": new, "x/old-rack": old})
    (text,) = fabric.complaints()
    assert text.startswith("node n4: labels x/rack and x/old-rack name different leaves, ")


def test_the_rest_is_served() -> None:
    places = [("l1", "x")] * 2 + [("l2", "y")] * 2 + [("l2", "x")]
    d = Driver(make_node(f"n{n}", f"s/{ours}", labels={THEIRS: theirs}) for n, (ours, theirs) in enumerate(places))
    assert len(d.run(*gang(5, gpus=1))) == 5
    (text,) = d.complaints()
    assert "node n4: " in text


def test_a_circle_of_labels_is_two_branches() -> None:
    """The path identifies a domain, so that a is below b, and b below a, is no contradiction."""
    d = Driver([make_node("n0", "a/b"), make_node("n1", "b/a"), make_node("n2", "a/a"), make_node("n3", "a/a")])
    assert set(d.run(*gang(2)).values()) == {"n2", "n3"}
    assert d.engine.world.layout.paths == (("a", "a"), ("a", "b"), ("b", "a"))
