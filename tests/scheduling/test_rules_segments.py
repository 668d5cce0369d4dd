"""placementRules for gangs whose segments lie in domains above the leaf: rules count leaves all the same."""

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, configured, fabric, gang
from topo_scheduler.api.objects import Pod

PREFERRED = "topologyConstraints: {enforcement: preferred}"


def in_segments(pods: list[Pod], level: str) -> list[Pod]:
    for pod in pods:
        pod.metadata.annotations |= {
            "topology.scheduler/segment-size": "2",
            "topology.scheduler/segment-level": level,
        }
    return pods


def leaves(where: dict[str, str]) -> set[str]:
    return {node.rpartition("-")[0] for node in where.values()}


def small(rule: str) -> Driver:
    """Spine s1 has four leaves of one node, s4 two leaves of two."""
    tree = {f"c1/s1/l{n}": 1 for n in range(1, 5)} | {"c2/s3/l5": 1, "c2/s4/l6": 2, "c2/s4/l7": 2}
    return Driver(fabric(tree), configured(f"{{{PREFERRED}, placementRules: [{{name: near, {rule}}}]}}"))


@pytest.mark.parametrize("level", ["spine", "core"])
@pytest.mark.parametrize("rule", ["maxLeaves: 2", "maxLeaves: 2, level: spine", "maxLeaves: 2, enforcement: preferred"])
def test_a_rule_counts_leaves_and_not_the_domains_of_segments(rule: str, level: str) -> None:
    assert leaves(small(rule).run(*in_segments(gang(4), level))) == {"c2-s4-l6", "c2-s4-l7"}


@pytest.mark.parametrize("level", ["spine", "core"])
@pytest.mark.parametrize("rule", ["level: spine", "level: leaf, enforcement: preferred"])
def test_the_level_of_a_rule_may_be_that_of_segments_or_further_in(rule: str, level: str) -> None:
    where = small(rule).run(*in_segments(gang(4), level))
    assert {leaf.rpartition("-")[0] for leaf in leaves(where)} < {"c1-s1", "c2-s4"}, "one spine"


@pytest.mark.parametrize("level", ["spine", "core"])
def test_what_no_leaf_holds_is_reported_as_such(level: str) -> None:
    d, pods = small("level: leaf"), in_segments(gang(4), level)
    assert d.run(*pods) == {}
    assert "asks for all leaves in 1 leaf, and not even the empty cluster holds the gang so" in d.told(pods[0])[-1]


def test_a_rule_may_ask_for_an_accelerator_domain_inside_that_of_segments() -> None:
    nodes = [
        make_node(f"n{n}", f"s{n // 6}/l{n // 3}", labels={"nvidia.com/gpu.clique": f"x.{n // 3}"}) for n in range(12)
    ]
    d = Driver(nodes, configured("{placementRules: [{name: near, level: accelerator-domain}]}"))
    d.apply(*(make_pod(f"taken-{n}", gpus=8, node=f"n{n}", scheduler="another") for n in (0, 4)))
    where = d.run(*in_segments(gang(2) + gang(4, gpus=4, name="h"), "spine"))
    assert len(where) == 6
    for name in ("g", "h"):
        assert len({int(node[1:]) // 3 for pod, node in where.items() if pod.startswith(name)}) == 1


@pytest.mark.parametrize("level", ["core", "spine"])
def test_so_it_may_where_the_network_has_levels_between(level: str) -> None:
    racks = {"c1/s1/l1": "x", "c1/s1/l2": "x", "c1/s2/l3": "y", "c1/s2/l4": "y"}
    nodes = [
        make_node(f"{path[-2:]}-{n}", path, labels={"nvidia.com/gpu.clique": rack})
        for path, rack in racks.items()
        for n in (1, 2)
    ]
    d = Driver(nodes, configured("{placementRules: [{name: near, level: accelerator-domain, maxLeaves: 1}]}"))
    d.apply(*(make_pod(f"taken-{leaf}", gpus=8, node=f"{leaf}-1", scheduler="another") for leaf in ("l1", "l2", "l3")))
    assert leaves(d.run(*in_segments(gang(2), level))) == {"l4"}


def test_lost_members_keep_to_the_rule() -> None:
    """Room in a third leaf is none for them."""
    d = Driver(
        fabric({"s1/l1": 1, "s1/l2": 3, "s1/l3": 3}),
        configured(f"{{{PREFERRED}, placementRules: [{{name: near, maxLeaves: 2}}]}}"),
    )
    pods = in_segments(gang(6), "spine")
    assert leaves(d.run(*pods)) == {"s1-l2", "s1-l3"}
    lost = pods[5]
    d.delete(lost)
    other = make_pod("other", gpus=8, node=lost.spec.node_name, scheduler="another")
    d.apply(other)
    (again,) = in_segments(gang(6)[5:], "spine")
    assert d.run(again) == {}
    d.finish(other)
    d.settle()
    assert d.where(again) == {again.metadata.name: lost.spec.node_name}


@pytest.mark.parametrize("rule", ["level: leaf", "maxLeaves: 1", "maxLeaves: 1, level: leaf"])
def test_a_rule_that_comes_later_tears_no_segment(rule: str) -> None:
    """Those that run don't keep to it: what is lost goes back to the spine of its segment, or waits."""
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2, "s2/l3": 4}), configured(f"{{{PREFERRED}}}"))
    d.apply(blocker := make_pod("blocker", gpus=8, node="s2-l3-1", scheduler="another"))
    pods = in_segments(gang(4), "spine")
    assert leaves(d.run(*pods)) == {"s1-l1", "s1-l2"}
    d.delete(blocker)
    d.engine.configure(configured(f"{{{PREFERRED}, placementRules: [{{name: near, {rule}}}]}}"))
    lost = pods[0]
    d.delete(lost)
    other = make_pod("other", gpus=8, node=lost.spec.node_name, scheduler="another")
    d.apply(other)
    (again,) = in_segments(gang(4)[:1], "spine")
    assert d.run(again) == {}
    assert not [text for text in d.told(again) if "internal fault" in text.lower()]
    d.finish(other)
    d.settle(3)
    assert d.where(again) == {again.metadata.name: lost.spec.node_name}


def racks(kind: str, rule: str = "level: accelerator-domain", **nodes: str) -> Driver:
    """Return nodes of one spine by the names of their leaf and NVLink domain: ``l1.x``, and ``l1.`` for none."""
    made = [
        make_node(name, f"s1/{place.split('.')[0]}", labels={"nvidia.com/gpu.clique": f"n.{clique}"} if clique else {})
        for name, place in nodes.items()
        for clique in [place.split(".")[1]]
    ]
    made.append(make_node("far", "s2/l9", labels={"nvidia.com/gpu.clique": "n.x"}))
    return Driver(made, configured(f"{{{PREFERRED}, placementRules: [{{name: near, {rule}, enforcement: {kind}}}]}}"))


@pytest.mark.parametrize("kind", ["required", "preferred"])
def test_what_is_lost_goes_to_the_part_of_its_spine_where_the_gang_runs(kind: str) -> None:
    """Domain x reaches into a spine that begins with domain w; the lost member once went there."""
    d = racks(kind, a1="l1.w", a2="l1.w", b1="l2.x", b2="l2.x", b3="l2.x")
    d.apply(taken := make_pod("taken", gpus=8, node="a1", scheduler="another"))
    pods = in_segments(gang(2), "spine")
    assert set(d.run(*pods).values()) < {"b1", "b2", "b3"}
    d.delete(taken)
    d.delete(pods[0])
    (again,) = in_segments(gang(2)[:1], "spine")
    assert d.run(again)[again.metadata.name] in {"b1", "b2", "b3"}


@pytest.mark.parametrize("segments", [True, False])
def test_a_level_that_running_members_do_not_share_keeps_no_other_member_pending(segments: bool) -> None:
    """They are on nodes that tell no NVLink domain: the rule came later. Nodes that tell one are full."""
    d = racks("required", "maxLeaves: 2", a1="l1.", a2="l1.", a3="l1.", b1="l2.x")
    d.apply(*(make_pod(f"taken-{node}", gpus=8, node=node, scheduler="another") for node in ("b1", "far")))
    pods = in_segments(gang(2), "spine") if segments else gang(2)
    assert set(d.run(*pods).values()) < {"a1", "a2", "a3"}
    d.engine.configure(configured(f"{{{PREFERRED}, placementRules: [{{name: near, level: accelerator-domain}}]}}"))
    d.delete(pods[0])
    again = in_segments(gang(2)[:1], "spine")[0] if segments else gang(2)[0]
    d.run(again)
    assert again.spec.node_name in {"a1", "a2", "a3"}, d.told(again)
