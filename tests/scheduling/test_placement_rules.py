"""placementRules: how far gangs may spread beside the size rule, against every set of leaves there is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import Owner, controlled_by, make_node, make_pod
from tests.scheduling.affinity_pods import one_gpu_spec, pod_anti_affinity, web_gang
from tests.scheduling.driver import Driver, configured, fabric, gang
from tests.scheduling.planning import ask_of, small_of
from tests.scheduling.reference import Machine, Path, Reference, Rule, Want
from tests.scheduling.reference_clusters import clusters, wants
from topo_scheduler.api.config import ConfigError, load_configuration
from topo_scheduler.scheduling.extensions.extension import Demand
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure
from topo_scheduler.state.decision import Verdict

# ---------------------------------------------------------------- against every set of leaves


@dataclass
class Bounded(Reference):
    """The reference, with at most so many leaves, all in one domain of a level."""

    max_leaves: int = 0
    outermost: int = 0

    def _fewest(self, fits: Mapping[Path, int], depth: int, *, labelled: bool) -> int:
        fewest = super()._fewest(fits, depth, labelled=labelled)
        return 0 if self.max_leaves and fewest > self.max_leaves else fewest

    def _lowest(self, fits: Mapping[Path, int], *, labelled: bool) -> Rule | None:
        for depth in range(self.depth - 1, self.outermost - 1, -1):
            if fewest := self._fewest(fits, depth, labelled=labelled):
                return Rule(depth, fewest)
        return None


@dataclass(frozen=True)
class Asked:
    """A demand in the reference's terms: leaves, and how many levels from the outside are shared."""

    leaves: int
    levels: int
    required: bool


asked = st.builds(
    Asked, leaves=st.sampled_from([0, 1, 1, 2, 3]), levels=st.sampled_from([0, 0, 1, 2, 3]), required=st.booleans()
)


def bounded(machines: Sequence[Machine], want: Want, demands: Sequence[Asked]) -> Bounded:
    reference = Bounded(machines, want)
    for demand in demands:
        cap, shared = demand.leaves, min(demand.levels, reference.depth)
        if shared == reference.depth:
            cap, shared = 1, reference.depth - 1
        if cap:
            reference.max_leaves = min(reference.max_leaves or cap, cap)
        reference.outermost = max(reference.outermost, shared)
    return reference


@settings(deadline=None, max_examples=200)
@given(clusters(), wants, st.lists(asked, min_size=1, max_size=2, unique_by=lambda demand: demand.required))
def test_a_gang_is_placed_as_the_rules_say_or_not_at_all(
    machines: list[Machine], want: Want, demands: list[Asked]
) -> None:
    small = small_of(machines, want)
    levels = small.world.layout.levels
    ask = replace(
        ask_of(want),
        demands=tuple(
            Demand(
                "rule",
                1,
                demand.leaves,
                levels[min(demand.levels, len(levels)) - 1] if demand.levels else "",
                demand.required,
            )
            for demand in demands
        ),
    )
    planned = small.plan(ask)
    reference = bounded(machines, want, demands)
    best = reference.best()
    if not best:
        reference = bounded(machines, want, [demand for demand in demands if demand.required])
        best = reference.best()
        event("without what is preferred" if best else "no place")
    if not best:
        assert isinstance(planned, PlacementFailure)
        return
    event(f"at most {reference.max_leaves} leaves, {reference.outermost} levels")
    assert isinstance(planned, Placement), f"{best[0]} would do"
    rule = reference.rule()
    assert rule is not None
    assert (planned.rule.depth, planned.rule.leaves) == (rule.depth, rule.leaves)
    chosen = tuple(small.world.layout.paths[leaf] for leaf in planned.leaves)
    assert chosen in {option.leaves for option in best}
    used = {small.world.layout.paths[int(small.world.layout.leaf_of_row[row])] for row in planned.rows[0]}
    assert len(used) <= (reference.max_leaves or len(used))
    assert len({path[: reference.outermost] for path in used}) == 1


@settings(deadline=None, max_examples=100)
@given(clusters(), wants, asked, st.data())
def test_members_placed_again_keep_to_a_required_rule(
    machines: list[Machine], want: Want, demand: Asked, data: st.DataObject
) -> None:
    """As far as those that run do."""
    small = small_of(machines, want)
    layout = small.world.layout
    usable = [machine.name for machine in machines if machine.usable and machine.gpus]
    if not usable or not want.gpus:
        return
    running = small.rows(*data.draw(st.lists(st.sampled_from(usable), min_size=1, max_size=2)))
    reference = bounded(machines, want, [replace(demand, required=True)])
    levels = layout.levels
    level = levels[min(demand.levels, len(levels)) - 1] if demand.levels else ""
    planned = small.plan(replace(ask_of(want), running=running, demands=(Demand("rule", 1, demand.leaves, level),)))
    if isinstance(planned, PlacementFailure):
        return
    home = {layout.paths[int(layout.leaf_of_row[row])] for row in running}
    if len({path[: reference.outermost] for path in home}) > 1 or (
        reference.max_leaves and len(home) > reference.max_leaves
    ):
        return
    event("repaired")
    used = home | {layout.paths[int(layout.leaf_of_row[row])] for row in planned.rows[0]}
    assert len({path[: reference.outermost] for path in used}) == 1
    assert len(used) <= (reference.max_leaves or len(used))


# ---------------------------------------------------------------- in the words of the issue

BEST_EFFORT = "topologyConstraints: {enforcement: preferred}"


def driver(nodes: Mapping[str, int], rules: str, more: str = BEST_EFFORT) -> Driver:
    return Driver(fabric(nodes), configured(f"{{{more}, placementRules: [{rules}]}}"))


def leaves(d: Driver, *pods: object) -> set[str]:
    return {node.rpartition("-")[0] for node in d.where(*pods).values()}  # type: ignore[arg-type]


def occupy(d: Driver, *nodes: str) -> None:
    d.apply(*(make_pod(f"on-{n}", gpus=8, node=n, phase="Running", scheduler="other") for n in nodes))


def test_from_n_nodes_on_at_most_k_leaves() -> None:
    d = driver({"s1/l1": 4, "s1/l2": 4, "s1/l3": 4}, "{name: tight, nodes: 4, maxLeaves: 2}")
    occupy(d, "s1-l1-1", "s1-l1-2", "s1-l1-3", "s1-l2-1", "s1-l2-2", "s1-l2-3", "s1-l3-1", "s1-l3-2", "s1-l3-3")
    small, large = gang(3, name="small"), gang(4, name="large")
    assert d.run(*large) == {}
    assert d.told(large[0])[0].endswith(
        "The gang needs 1 leaf with room for 4 pods of 8 GPUs; the most free is s1/l1 with room for 1."
    ), "there is no room for four anywhere"
    d.run(*small)
    assert leaves(d, *small) == {"s1-l1", "s1-l2", "s1-l3"}, "three nodes are fewer than four"


def test_the_reason_names_the_rule_where_it_is_the_cause() -> None:
    d = driver({"s1/l1": 4, "s1/l2": 4, "s1/l3": 4}, "{name: tight, maxLeaves: 1}")
    occupy(d, "s1-l1-1", "s1-l2-1", "s1-l3-1")
    pods = gang(4)
    assert d.run(*pods) == {}
    assert d.told(pods[0])[0].endswith(
        "Placement rule tight asks for at most 1 leaf, and no such place is free; without that there is room."
    )
    assert d.marked() == {pod.metadata.name for pod in pods}
    d.delete(*[pod for pod in d.pods.values() if pod.metadata.name == "on-s1-l2-1"])
    d.settle()
    assert leaves(d, *pods) == {"s1-l2"}


def test_one_that_not_even_the_empty_cluster_can_keep_is_reported_as_such() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 2}, "{name: tight, maxLeaves: 1}")
    pods = gang(4)
    assert d.run(*pods) == {}
    assert "Placement rule tight asks for at most 1 leaf, and not even the empty cluster holds" in d.told(pods[0])[0]


def test_the_same_spine() -> None:
    nodes = {"s1/l1": 2, "s1/l2": 2, "s2/l1": 2, "s2/l2": 2}
    busy = ("s1-l1-1", "s1-l2-1", "s2-l1-1", "s2-l2-1")
    free = driver(nodes, "")
    occupy(free, *busy)
    pods = gang(4)
    free.run(*pods)
    assert len(leaves(free, *pods)) == 4, "over both spines where nothing forbids it"
    d = driver(nodes, "{name: spine, level: spine}")
    occupy(d, *busy)
    pods = gang(4)
    assert d.run(*pods) == {}
    assert "Placement rule spine asks for all leaves in 1 spine" in d.told(pods[0])[0]
    few = gang(2, name="few")
    d.run(*few)
    assert len(leaves(d, *few)) == 2


def test_a_preferred_rule_is_tried_first_and_then_done_without() -> None:
    """Without the rule two leaves of one spine; with it two spines, where that is one leaf."""
    d = driver({"s1/l1": 4, "s1/l2": 4}, "{name: soft, maxLeaves: 1, enforcement: preferred}")
    occupy(d, "s1-l1-1")
    first, second = gang(4, name="first"), gang(3, name="second")
    d.run(*first)
    assert leaves(d, *first) == {"s1-l2"}
    d.run(*second)
    assert leaves(d, *second) == {"s1-l1"}
    occupy(
        d2 := driver({"s1/l1": 4, "s1/l2": 4}, "{name: soft, maxLeaves: 1, enforcement: preferred}"),
        "s1-l1-1",
        "s1-l2-1",
    )
    third = gang(4, name="third")
    d2.run(*third)
    assert leaves(d2, *third) == {"s1-l1", "s1-l2"}


def test_a_rule_may_ask_for_fewer_leaves_further_out() -> None:
    """Four small leaves under one spine, or two large ones under two: the size rule takes the lower level."""
    nodes = {**{f"s1/l{n}": 2 for n in range(1, 5)}, "s2/l1": 4, "s3/l1": 4}
    plain, pods = driver(nodes, "", "topologyConstraints: {}"), gang(8)
    plain.run(*pods)
    assert leaves(plain, *pods) == {"s1-l1", "s1-l2", "s1-l3", "s1-l4"}
    d, pods = driver(nodes, "{name: two, maxLeaves: 2}", "topologyConstraints: {}"), gang(8)
    d.run(*pods)
    assert leaves(d, *pods) == {"s2-l1", "s3-l1"}
    rule = next(decision.rule for decision in d.decisions() if decision.verdict is Verdict.PLACED)
    assert rule is not None
    assert (rule.leaves, rule.depth) == (2, 0)


def test_of_several_the_first_that_is_for_a_gang_holds() -> None:
    rules = "{name: large, nodes: 3, maxLeaves: 2}, {name: small, maxLeaves: 1}"
    nodes = {"s1/l1": 2, "s1/l2": 2, "s1/l3": 2, "s1/l4": 2}
    d = driver(nodes, rules)
    two, four = gang(2, name="two"), gang(4, name="four")
    d.run(*four, *two)
    assert len(leaves(d, *four)) == 2
    assert len(leaves(d, *two)) == 1


def test_a_rule_is_for_namespaces_labels_and_sizes() -> None:
    match = "match: {namespaces: [ml], labels: {tier: gold}, minMembers: 3}"
    nodes = {f"s1/l{n}": 1 for n in range(1, 9)}
    for namespace, labels, size, held in (
        ("ml", {"tier": "gold"}, 3, True),
        ("web", {"tier": "gold"}, 3, False),
        ("ml", {"tier": "lead"}, 3, False),
        ("ml", {}, 3, False),
        ("ml", {"tier": "gold"}, 2, False),
    ):
        d = driver(nodes, f"{{name: gold, {match}, maxLeaves: 1}}")
        pods = [
            make_pod(
                f"p{n}",
                gpus=8,
                namespace=namespace,
                labels=labels,
                annotations={"gang-name": "g", "gang-size": str(size)},
            )
            for n in range(size)
        ]
        assert len(d.run(*pods)) == (0 if held else size), (namespace, labels, size)


def test_pods_alone_are_not_meant() -> None:
    d = driver({"s1/l1": 1}, "{name: none, level: rail}")
    pod = make_pod("p", gpus=8)
    assert d.run(pod) == {"p": "s1-l1-1"}


def test_an_unknown_level_is_complained_of_and_a_required_rule_waits_for_it() -> None:
    d = driver({"s1/l1": 4}, "{name: rails, level: core}")
    pods = gang(2)
    assert d.run(*pods) == {}
    assert "Placement rule rails asks for all leaves in 1 core, and no node has a label" in d.told(pods[0])[0]
    assert [
        complaint
        for complaint in d.complaints()
        if "placementRules: rails" in complaint and "Its gangs stay pending" in complaint
    ]
    d.nodes(*(make_node(f"s1-l1-{n}", "c1/s1/l1") for n in range(1, 5)))
    d.settle()
    assert len(d.where(*pods)) == 2


def test_a_preferred_rule_for_an_unknown_level_is_ignored_and_complained_of() -> None:
    d = driver({"s1/l1": 4}, "{name: rails, level: core, enforcement: preferred}")
    pods = gang(2)
    assert len(d.run(*pods)) == 2
    assert [
        complaint
        for complaint in d.complaints()
        if "placementRules: rails" in complaint and "It is ignored" in complaint
    ]


def test_the_innermost_level_is_one_leaf() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 2}, "{name: one, level: leaf}")
    occupy(d, "s1-l1-1", "s1-l2-1")
    pods = gang(2)
    assert d.run(*pods) == {}
    assert "asks for all leaves in 1 leaf" in d.told(pods[0])[0]


def test_rules_are_reloaded() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 2}, "{name: one, level: leaf}")
    occupy(d, "s1-l1-1", "s1-l2-1")
    pods = gang(2)
    assert d.run(*pods) == {}
    d.engine.configure(configured(f"{{{BEST_EFFORT}}}"))
    d.settle()
    assert len(d.where(*pods)) == 2


def test_a_gang_of_different_pods_keeps_to_them_as_well() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 2, "s2/l1": 2}, "{name: spine, nodes: 3, level: spine}")
    occupy(d, "s1-l1-1", "s1-l2-1")
    annotations = {"gang-name": "g", "gang-size": "4", "gpu-model-mixed": "true"}
    pods = [make_pod(f"p{n}", gpus=8 if n else 7, annotations=annotations) for n in range(4)]
    assert d.run(*pods) == {}
    assert "Placement rule spine asks for all leaves in 1 spine" in d.told(pods[0])[0]
    d.delete(*[pod for pod in list(d.pods.values()) if pod.metadata.name.startswith("on-")])
    d.settle()
    assert leaves(d, *pods) == {"s1-l1", "s1-l2"}


def test_a_gang_whose_members_look_at_each_other_keeps_to_them_as_well() -> None:
    """A rack a pod, so the gang needs as many nodes as it has pods, and no spine has four racks."""
    racks = {"n1": "s1/l1", "n2": "s1/l1", "n3": "s1/l2", "n4": "s2/l1", "n5": "s2/l1"}
    for rule, held in (("nodes: 4, level: spine", True), ("nodes: 5, level: spine", False)):
        nodes = [make_node(name, leaf, labels={"rack": name}) for name, leaf in racks.items()]
        d = Driver(nodes, configured(f"{{placementRules: [{{name: spine, {rule}}}]}}"))
        pods = web_gang(4, one_gpu_spec(affinity=pod_anti_affinity("rack")))
        assert len(d.run(*pods)) == (0 if held else 4), rule
        if held:
            assert "Placement rule spine asks for all leaves in 1 spine, and not even" in d.told(pods[0])[0]
    three = web_gang(3, one_gpu_spec(affinity=pod_anti_affinity("rack")))
    d = Driver(nodes, configured("{placementRules: [{name: spine, level: spine}]}"))
    assert set(d.run(*three).values()) == {"n1", "n2", "n3"}


def test_lost_members_come_back_within_the_rule() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 2, "s2/l1": 4}, "{name: spine, level: spine}")
    d.own(Owner("ReplicaSet", "g", uid="uid-g"))
    pods = gang(3, controlled=True)
    occupy(d, "s1-l1-1", *(f"s2-l1-{n}" for n in range(1, 5)))
    d.run(*pods)
    assert leaves(d, *pods) == {"s1-l1", "s1-l2"}
    occupy(d, "x")
    lost = next(pod for pod in pods if d.where(pod)[pod.metadata.name].startswith("s1-l2"))
    place = d.where(lost)[lost.metadata.name]
    d.delete(lost)
    occupy(d, place)
    fresh = make_pod(
        "g-again", gpus=8, annotations={"gang-name": "g", "gang-size": "3"}, owner=controlled_by("ReplicaSet", "g")
    )
    d.delete(*[pod for pod in list(d.pods.values()) if pod.metadata.name.startswith("on-s2")])
    assert d.run(fresh) == {}, "there is room beyond the spine only"
    d.delete(*[pod for pod in list(d.pods.values()) if pod.metadata.name == "on-s1-l1-1"])
    d.settle()
    assert d.where(fresh) == {"g-again": "s1-l1-1"}


# ---------------------------------------------------------------- what is refused

HEAD = "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec: "


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "{placementRules: [{name: a}]}",
            "spec.placementRules.0: rule a asks for nothing; give maxLeaves, level or both",
        ),
        ("{placementRules: [{name: a, maxLeaves: 0}]}", "spec.placementRules.0.maxLeaves"),
        ("{placementRules: [{name: a, level: Spine}]}", "spec.placementRules.0.level"),
        ("{placementRules: [{name: a b, maxLeaves: 1}]}", "spec.placementRules.0.name"),
        ("{placementRules: [{name: a, maxleaves: 1}]}", "did you mean maxLeaves?"),
        ("{placementRules: [{name: a, maxLeaves: 1, enforcement: hard}]}", "spec.placementRules.0.enforcement"),
        ("{placementRules: [{name: a, maxLeaves: 1, match: {namespace: [x]}}]}", "did you mean namespaces?"),
        (
            "{placementRules: [{name: a, maxLeaves: 1}, {name: a, nodes: 2, maxLeaves: 1}]}",
            "two placementRules are called a",
        ),
        (
            "{placementRules: [{name: few, maxLeaves: 1}, {name: many, nodes: 9, maxLeaves: 4}]}",
            "many can never hold, since few before it is for every gang it is for; put the rule for more nodes first",
        ),
        ("{maxNodesToScore: 0}", "spec.maxNodesToScore"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(spec: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_configuration({"test": HEAD + spec})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "rules",
    [
        "{name: many, nodes: 9, maxLeaves: 4}, {name: few, maxLeaves: 1}",
        "{name: few, maxLeaves: 1, match: {namespaces: [a]}}, {name: many, nodes: 9, maxLeaves: 4}",
        "{name: few, maxLeaves: 1, enforcement: preferred}, {name: many, nodes: 9, maxLeaves: 4}",
        "{name: few, maxLeaves: 1, match: {labels: {a: b}}}, {name: many, nodes: 9, maxLeaves: 4}",
    ],
)
def test_a_rule_that_can_hold_is_accepted(rules: str) -> None:
    configuration = load_configuration({"test": f"{HEAD}{{placementRules: [{rules}]}}"})
    assert len(configuration.topology.spec.placement_rules) == 2
