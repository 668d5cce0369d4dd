"""What links carry, by labels and configuration; and what gangs reserve, in whatever order it becomes known."""

from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.helpers import make_node, make_pod
from topo_scheduler.api.links import Link
from topo_scheduler.api.objects import Node
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.scheduling.surveying.link_survey import survey_links
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.topology.links import reservation_of

LEAF = "topology.scheduler/leaf-uplink-bandwidth"


def world_of(*nodes: Node, links: tuple[Link, ...] = ()) -> World:
    world = World(SchedulerConfig())
    world.links.configure(links)
    for node in nodes:
        world.put_node(node, 0)
    return world


def uplinks(world: World) -> dict[str, int | None]:
    return {"/".join(link.path): link.capacity for link in survey_links(world) if link.level != "node"}


def on(path: str, name: str, uplink: str = "", bandwidth: str = "100Gb") -> Node:
    return make_node(name, path, bandwidth=bandwidth, labels={LEAF: uplink} if uplink else None)


# ---------------------------------------------------------------- capacity


def test_a_level_of_the_configuration_sets_all_its_uplinks() -> None:
    world = world_of(on("s/l1", "a"), on("s/l2", "b"), links=(Link(level="leaf", capacity="3200Gb"),))
    assert uplinks(world) == {"s": None, "s/l1": 3_200_000, "s/l2": 3_200_000}
    assert world.look_at_links() == []


def test_oversubscription_divides_what_the_nodes_below_carry_or_the_capacity_given() -> None:
    nodes = [on("s/l1", "a"), on("s/l1", "b", bandwidth="200Gb"), on("s/l2", "c")]
    assert uplinks(world_of(*nodes, links=(Link(level="leaf", oversubscription=2),))) == {
        "s": None,
        "s/l1": 150_000,
        "s/l2": 50_000,
    }
    both = (Link(level="leaf", capacity="3200Gb", oversubscription=2), Link(level="spine", oversubscription=4))
    assert uplinks(world_of(*nodes, links=both)) == {"s": 100_000, "s/l1": 1_600_000, "s/l2": 1_600_000}


def test_a_domain_goes_before_labels_and_labels_before_the_level() -> None:
    nodes = [on("s/l1", "a", "800Gb"), on("s/l2", "b", "800Gb"), on("s/l3", "c")]
    links = (Link(level="leaf", capacity="1Tb"), Link(domain="s/l1", capacity="10Gb"))
    assert uplinks(world_of(*nodes, links=links)) == {"s": None, "s/l1": 10_000, "s/l2": 800_000, "s/l3": 1_000_000}


def test_the_configuration_gives_networks_of_nodes_whose_labels_do_not() -> None:
    world = world_of(on("s/l", "a"), on("s/l", "b", bandwidth=""), on("s/l", "c", bandwidth="0Gb"))
    world.links.configure((Link(level="node", capacity="400Gb"),))
    bandwidth = {name: int(world.nodes.bandwidth[row]) for name, row in world.nodes.row_of.items()}
    assert bandwidth == {"a": 100_000, "b": 400_000, "c": -1}
    world.links.configure(())
    assert world.nodes.bandwidth[world.nodes.row_of["b"]] == -1


def test_labels_that_disagree_are_complained_of_and_the_least_holds() -> None:
    world = world_of(on("s/l1", "a", "800Gb"), on("s/l1", "b", "400Gb"), on("s/l1", "c"), on("s/l2", "d", "1Tb"))
    (text,) = world.look_at_links()
    assert text == (
        f"label {LEAF}: nodes of s/l1 disagree: 400 Gbit/s on b, 800 on a; the lowest value"
        " is used. Give all its nodes the same"
    )
    assert uplinks(world) == {"s": None, "s/l1": 400_000, "s/l2": 1_000_000}
    assert world.look_at_links() == [], "it is reported once"
    world.put_node(on("s/l1", "a", "400Gb"), 1)
    assert world.look_at_links() == []
    world.put_node(on("s/l1", "a", "200Gb"), 2)
    assert len(world.look_at_links()) == 1, "again after it was put right"


@pytest.mark.parametrize("value", ["0Gb", "-5Gb", "fast", "9999999Tb"])
def test_labels_that_make_no_sense_are_named_and_ignored(value: str) -> None:
    world = world_of(on("s/l1", "a", value), on("s/l1", "b", "400Gb"))
    (text,) = world.look_at_links()
    assert text.startswith(f"node a: label {LEAF}: ")
    assert text.endswith("it is ignored")
    assert uplinks(world)["s/l1"] == 400_000


def test_what_can_not_be_added_up_is_unknown_and_complained_of() -> None:
    world = world_of(on("s/l1", "a"), on("s/l1", "b", bandwidth=""), links=(Link(level="leaf", oversubscription=2),))
    (text,) = world.look_at_links()
    assert "as b of s/l1 have no bandwidth label; 1 uplink counts as unlimited" in text
    assert "topology.scheduler/network-bandwidth" in text
    assert uplinks(world)["s/l1"] is None


def test_levels_and_domains_that_are_not_there_are_complained_of() -> None:
    links = (Link(level="rack", capacity="1Gb"), Link(domain="l9", capacity="1Gb"), Link(domain="l1", capacity="1Gb"))
    world = world_of(on("s1/l1", "a"), on("s2/l1", "b"), links=links)
    rack, nowhere, several = world.look_at_links()
    assert "no node has a label for a level called rack; there are spine, leaf" in rack
    assert "no domain is called l9" in nowhere
    assert "l1 may mean s1/l1, s2/l1" in several
    assert uplinks(world) == {"s1": None, "s2": None, "s1/l1": 1000, "s2/l1": 1000}


@pytest.mark.parametrize("first", ["l1", "s/l1"])
def test_two_entries_that_mean_one_domain_are_complained_of_and_the_least_holds(first: str) -> None:
    second = "s/l1" if first == "l1" else "l1"
    links = (Link(domain=first, capacity="3Gb"), Link(domain=second, capacity="2Gb"), Link(domain="s", capacity="9Gb"))
    world = world_of(on("s/l1", "a"), links=links)
    (text,) = world.look_at_links()
    assert text == f"spec.links: {first} and {second} both mean s/l1; the lowest value is used"
    assert uplinks(world)["s/l1"] == 2000


def test_nodes_without_a_leaf_label_share_no_uplink_that_exists() -> None:
    world = world_of(on("s/l1", "a"), on("s/", "b"), links=(Link(level="leaf", capacity="1Gb"),))
    assert uplinks(world) == {"s": None, "s/l1": 1000, "s/unlabelled": None}


def test_clusters_without_labels_of_links_are_not_checked() -> None:
    world = world_of(on("s/l1", "a"))
    assert world.look_at_links() == []
    assert not world.links.limited


# ---------------------------------------------------------------- annotations


@pytest.mark.parametrize(
    ("bandwidth", "gang", "reserved"),
    [
        ("1000", "default/g", 1000),
        ("1000", "", None),
        ("0", "default/g", None),
        ("-1", "default/g", None),
        ("9999999999", "default/g", None),
        ("1e3", "default/g", None),
    ],
)
def test_only_what_this_scheduler_could_have_written_is_read(bandwidth: str, gang: str, reserved: int | None) -> None:
    pod = make_pod("p", node="a", annotations={"reserved-bandwidth": bandwidth, "gang-id": gang})
    reservation = reservation_of(pod)
    assert (reservation and reservation[1]) == reserved


def test_a_gang_of_another_namespace_is_another_gang() -> None:
    world = world_of(on("s/l1", "a"), on("s/l2", "b"))
    for name, namespace in (("a", "x"), ("b", "y")):
        annotations = {"reserved-bandwidth": "1000", "gang-id": "x/g"}
        world.bound(make_pod(name, gpus=1, node=name, namespace=namespace, annotations=annotations))
    assert len(world.links) == 2
    assert not any(link.reserved for link in survey_links(world))


def test_of_the_nodes_of_a_gang_those_that_are_gone_are_counted() -> None:
    world = world_of(on("s/l", "a"), on("s/l", "b"), on("s/l", "c"))
    for node in "abc":
        world.links.put(f"u{node}", ("ns", "g"), node, 1000)
    world.remove_node("c")
    rows, missing = world.links.rows_of(("ns", "g"))
    assert ([world.nodes.names[row] for row in rows], missing) == (["a", "b"], 1)


# ---------------------------------------------------------------- in whatever order

NAMES = st.sampled_from(["n1", "n2", "n3", "n4", "n5", "n6"])
PATHS = st.sampled_from(["s1/l1", "s1/l2", "s2/l1", "s2/l1", ""])
UIDS = st.sampled_from([f"u{number}" for number in range(12)])
GANGS = st.sampled_from(["g1", "g2", "g3"])


class Reservations(RuleBasedStateMachine):
    """Reservations kept up to date against the words of the formula, and against those of a process that starts now."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(SchedulerConfig())
        self.pods: dict[str, tuple[str, str, int]] = {}
        self.paths: dict[str, str] = {}

    @rule(name=NAMES, path=PATHS)
    def a_node_comes_or_moves(self, name: str, path: str) -> None:
        self.world.put_node(make_node(name, path), 0)
        self.paths[name] = path

    @rule(name=NAMES)
    def a_node_goes(self, name: str) -> None:
        self.world.remove_node(name)
        self.paths.pop(name, None)

    @rule(number=st.integers(1, 300))
    def many_nodes_come(self, number: int) -> None:
        for index in range(number):
            self.world.put_node(make_node(f"more-{index}", "s3/l1"), 0)
            self.paths[f"more-{index}"] = "s3/l1"

    @rule(uid=UIDS, gang=GANGS, node=NAMES, bandwidth=st.integers(1, 5))
    def reserve(self, uid: str, gang: str, node: str, bandwidth: int) -> None:
        self.world.links.put(uid, ("ns", gang), node, bandwidth)
        self.pods[uid] = (gang, node, bandwidth)

    @rule(uid=UIDS)
    def release(self, uid: str) -> None:
        assert self.world.links.drop(uid) == (uid in self.pods)
        self.pods.pop(uid, None)

    @invariant()
    def all_is_as_the_formula_has_it(self) -> None:
        assert self.reserved(self.world) == self.expected()

    def teardown(self) -> None:
        fresh = World(SchedulerConfig())
        for uid, (gang, node, bandwidth) in reversed(self.pods.items()):
            fresh.links.put(uid, ("ns", gang), node, bandwidth)
        for name, path in reversed(self.paths.items()):
            fresh.put_node(make_node(name, path), 0)
        assert self.reserved(fresh) == self.reserved(self.world)

    def reserved(self, world: World) -> dict[str, int]:
        links = {"/".join(link.path): link.reserved for link in survey_links(world) if link.level != "node"}
        links |= {name: int(world.nodes.reserved_bandwidth[row]) for name, row in world.nodes.row_of.items()}
        return {name: amount for name, amount in links.items() if amount}

    def expected(self) -> dict[str, int]:
        places = {name: path or "unlabelled/unlabelled" for name, path in self.paths.items()}
        if not any(self.paths.values()):
            places = dict.fromkeys(self.paths, "unlabelled")
        nodes: dict[str, set[str]] = defaultdict(set)
        asked: dict[str, int] = Counter()
        for gang, node, bandwidth in self.pods.values():
            nodes[gang].add(node)
            asked[gang] = max(asked[gang], bandwidth)
        amounts: Counter[str] = Counter()
        for gang, used in nodes.items():
            below: Counter[str] = Counter()
            for node in used & places.keys():
                path = places[node].split("/")
                below.update(["/".join(path[:depth]) for depth in range(1, len(path) + 1)] + [node])
            for link, count in below.items():
                amounts[link] += asked[gang] * min(count, len(used) - count)
        return {link: amount for link, amount in amounts.items() if amount}


TestReservations = Reservations.TestCase
TestReservations.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
