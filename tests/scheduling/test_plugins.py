"""Plugins of users beside the built-in one: what they add to decisions, and what their failures do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.helpers import Owner, controlled_by, make_node, make_pod
from tests.plugins.making import anywhere, filtering, nowhere
from tests.scheduling.driver import Driver, configured, fabric, gang
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Node
from topo_scheduler.api.reasons import Reason
from topo_scheduler.plugins import (
    Bool,
    Demand,
    Filter,
    Gang,
    Int64,
    LeafSeats,
    Leaves,
    Nodes,
    Plugin,
    PodClass,
    Prefers,
    Request,
    Score,
    Strategy,
)
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.registry import BUILT_IN, Extensions
from topo_scheduler.scheduling.rules.filters import FILTERS
from topo_scheduler.state.decision import Verdict

ZONE = "example.com/zone"


def with_plugins(*plugins: Plugin) -> Extensions:
    extensions = Extensions()
    for plugin in plugins:
        extensions.register(plugin)
    return extensions


def driven(nodes: Sequence[Node], *plugins: Plugin, config: Configuration | None = None) -> Driver:
    """A driver of an engine with plugins."""
    d = Driver((), config)
    d.engine = Engine(config or Configuration(), d._resolve, with_plugins(*plugins))
    d.engine.nodes_applied(nodes, d.now)
    return d


def by_name(scores: Mapping[str, int]) -> Callable[[Nodes, Request, Int64], Int64]:
    """Score nodes by name, 0 where there is none."""

    def nodes(table: Nodes, request: Request, rows: Int64) -> Int64:
        return np.array([scores.get(table.names[row], 0) for row in rows.tolist()], np.int64)

    return nodes


# ---------------------------------------------------------------- one way for all


def test_the_built_in_plugin_is_registered_like_any_other() -> None:
    extensions = Extensions()
    assert [plugin.name for plugin in extensions.plugins] == ["topo-scheduler"]
    assert extensions.filters == list(FILTERS) == list(BUILT_IN.filters)
    assert set(extensions.strategies) == {"consolidated", "distributed", "balanced"}
    again = Extensions()
    again.plugins, again.filters, again.scores, again.strategies, again.alone = [], [], [], {}, {}
    again.register(BUILT_IN, trusted=True)
    assert (again.filters, again.scores, again.strategies, again.alone) == (
        extensions.filters,
        extensions.scores,
        extensions.strategies,
        extensions.alone,
    )


# ---------------------------------------------------------------- filters


def in_zone(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    wanted = cls.annotation(ZONE)
    if wanted is None:
        return np.ones(len(rows), np.bool_)
    accepted: Bool = nodes.label_column(ZONE)[rows] == nodes.value_id(wanted)
    return accepted


ZONES = Plugin("zones", annotations=[ZONE], node_labels=[ZONE], filters=[Filter("node(s) were elsewhere", in_zone)])


def zoned(**zones: str) -> list[Node]:
    return [make_node(name, "s1/l1", labels={ZONE: zone} if zone else {}) for name, zone in zones.items()]


def test_a_filter_decides_by_an_annotation_of_the_pod() -> None:
    d = driven(zoned(a="east", b="west", c=""), ZONES)
    east = make_pod("east", gpus=1, annotations={ZONE: "east"})
    west = make_pod("west", gpus=1, annotations={ZONE: "west"})
    assert d.run(east, west) == {"east": "a", "west": "b"}


def test_the_annotation_may_stand_on_an_owner() -> None:
    d = driven(zoned(a="east", b="west"), ZONES)
    by = controlled_by("ReplicaSet", "r")
    d.own(Owner("ReplicaSet", "r", uid="uid-r", annotations={ZONE: "west"}))
    assert d.run(make_pod("p", gpus=1, owner=by)) == {"p": "b"}


def test_pods_that_differ_in_nothing_a_plugin_reads_are_of_one_class() -> None:
    plain = driven(zoned(a="east"), ZONES)
    pods = [make_pod(f"p{n}", gpus=1, annotations={"example.com/other": str(n)}) for n in range(3)]
    plain.run(*pods)
    classes = {plain.engine.workloads.of_pod(pod.metadata.uid)[1].cls for pod in pods}  # type: ignore[index]
    assert len(classes) == 1


def test_an_empty_label_is_not_an_absent_one() -> None:
    seen = []

    def look(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
        seen.append(cls.label("team"))
        return np.ones(len(rows), np.bool_)

    d = driven(fabric({"s1/l1": 1}), Plugin("looking", labels=["team"], filters=[Filter("never", look)]))
    d.run(make_pod("with", labels={"team": ""}), make_pod("without"))
    assert set(seen) == {"", None}


def test_its_reason_is_counted_beside_the_others() -> None:
    d = driven([*zoned(a="east", b="west"), make_node("c", "s1/l1", unschedulable=True)], ZONES)
    pod = make_pod("p", gpus=1, annotations={ZONE: "north"})
    assert d.run(pod) == {}
    assert d.told(pod)[0].startswith("0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) were elsewhere.")


def test_a_label_that_changes_is_filtered_again() -> None:
    d = driven(zoned(a="west"), ZONES)
    pod = make_pod("p", gpus=1, annotations={ZONE: "east"})
    assert d.run(pod) == {}
    d.nodes(*zoned(a="east"))
    d.settle()
    assert d.where(pod) == {"p": "a"}


def test_an_annotation_that_changes_is_read_again() -> None:
    d = driven(zoned(a="west"), ZONES)
    pod = make_pod("p", gpus=1, annotations={ZONE: "east"})
    assert d.run(pod) == {}
    pod.metadata.annotations[ZONE] = "west"
    assert d.run(pod) == {"p": "a"}


def test_a_column_must_be_declared() -> None:
    d = driven(
        zoned(a="east"), Plugin("zones", annotations=[ZONE], filters=[Filter("node(s) were elsewhere", in_zone)])
    )
    pod = make_pod("p", annotations={ZONE: "east"})
    d.apply(pod)
    d.step()
    (message,) = d.told(pod)
    assert "label example.com/zone is not among the node_labels" in message


# ---------------------------------------------------------------- scores


def scored(name: str, weight: float, **scores: int) -> Plugin:
    return Plugin(
        name, scores=[Score(name, nodes=by_name({k.replace("_", "-"): v for k, v in scores.items()}), weight=weight)]
    )


def test_a_score_of_nodes_chooses_the_leaf_and_the_node_in_it() -> None:
    nodes = fabric({"s1/l1": 2, "s1/l2": 2})
    pod = make_pod("p", gpus=1)
    assert driven(nodes).run(pod) == {"p": "s1-l1-1"}
    pod = make_pod("p", gpus=1)
    d = driven(nodes, scored("likes", 0.5, s1_l2_2=1000))
    assert d.run(pod) == {"p": "s1-l2-2"}
    (decision,) = [decision for decision in d.decisions() if decision.verdict is Verdict.PLACED]
    assert decision.score is not None
    assert decision.score.added == (("likes", 500),), "the mean of the leaf's nodes"


def test_what_the_pod_prefers_itself_comes_first() -> None:
    nodes = [make_node("plain", "s1/l1", gpus=0), make_node("with-gpus", "s1/l1", gpus=8)]
    d = driven(nodes, scored("likes", 1.0, with_gpus=1000))
    assert d.run(make_pod("p")) == {"p": "plain"}, "pods without GPUs keep off nodes that have some"


def test_a_score_of_leaves_is_weighed_with_the_others() -> None:
    def last(leaves: Leaves, request: Request) -> Int64:
        scores = np.zeros(len(leaves.paths), np.int64)
        scores[-1] = 1000
        return scores

    plugin = Plugin("last", scores=[Score("lastLeaf", leaves=last, weight=0.0)])
    nodes = fabric({"s1/l1": 4, "s1/l2": 4, "s1/l3": 4})
    assert set(driven(nodes, plugin).run(*gang(2)).values()) == {"s1-l1-1", "s1-l1-2"}, "its own weight is nothing"
    config = configured("{scoringWeights: {plugins: {lastLeaf: 1}}}")
    assert set(driven(nodes, plugin, config=config).run(*gang(2)).values()) == {"s1-l3-1", "s1-l3-2"}


def test_weights_are_reloaded() -> None:
    d = driven(fabric({"s1/l1": 1, "s1/l2": 1}), scored("likes", 0.0, s1_l2_1=1000))
    assert d.run(make_pod("before", gpus=1)) == {"before": "s1-l1-1"}
    d.engine.configure(configured("{scoringWeights: {plugins: {likes: 1}}}"))
    assert d.run(make_pod("after", gpus=1)) == {"after": "s1-l2-1"}


def test_a_weight_for_a_score_that_no_plugin_has_is_complained_of() -> None:
    d = driven((), config=configured("{scoringWeights: {plugins: {coldness: 1}}}"))
    d.step()
    (complaint,) = d.complaints()
    assert "spec.scoringWeights.plugins.coldness" in complaint


def test_the_score_is_recorded_for_members_that_are_placed_again() -> None:
    d = driven(fabric({"s1/l1": 3}), scored("likes", 0.5, s1_l1_1=300, s1_l1_2=300, s1_l1_3=300))
    pods = gang(2, controlled=True)
    d.own(Owner("ReplicaSet", "g", uid="uid-g"))
    d.run(*pods)
    d.delete(pods[0])
    fresh = make_pod("again", gpus=8, annotations={"gang-name": "g", "gang-size": "2"})
    assert d.run(fresh).keys() == {"again"}
    assert d.decisions()[-1].score is not None
    assert dict(d.decisions()[-1].score.added) == {"likes": 300}  # type: ignore[union-attr]


# ---------------------------------------------------------------- how much is scored


@pytest.mark.parametrize(
    ("max_nodes", "node"), [(None, "s1-l3-1"), (12, "s1-l3-1"), (8, "s1-l2-1"), (4, "s1-l1-1"), (1, "s1-l1-1")]
)
def test_max_nodes_to_score_looks_at_the_first_places_only(max_nodes: int | None, node: str) -> None:
    plugin = scored("likes", 1.0, s1_l1_1=1, s1_l2_1=100, s1_l3_1=1000)
    spec = f"{{maxNodesToScore: {max_nodes}}}" if max_nodes else "{}"
    d = driven(fabric({"s1/l1": 4, "s1/l2": 4, "s1/l3": 4}), plugin, config=configured(spec))
    assert d.run(make_pod("p", gpus=1)) == {"p": node}


def test_what_is_not_scored_is_placed_all_the_same() -> None:
    d = driven(fabric({"s1/l1": 1, "s1/l2": 8}), config=configured("{maxNodesToScore: 1}"))
    assert len(d.run(*gang(8))) == 8


# ---------------------------------------------------------------- strategies


def deal_all(limits: Int64, members: int) -> Int64:
    dealt = np.zeros(len(limits), np.int64)
    for leaf in range(len(limits)):
        dealt[leaf] = min(int(limits[leaf]), members - int(dealt.sum()))
    return dealt


def seat_last(here: LeafSeats) -> Int64 | None:
    """Fill nodes from the last one on."""
    counts = np.zeros(len(here.rows), np.int64)
    for at in range(len(here.rows) - 1, -1, -1):
        counts[at] = min(int(here.fit[here.rows[at]]), here.members - int(counts.sum()))
    return counts


BACKWARDS = Plugin("backwards", strategies=[Strategy("backwards", deal_all, seat_last, Prefers.FULL)])


def test_a_strategy_is_named_in_the_annotation() -> None:
    d = driven(fabric({"s1/l1": 4}), BACKWARDS)
    pods = gang(2)
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/placement-strategy"] = "Backwards"
    assert set(d.run(*pods).values()) == {"s1-l1-3", "s1-l1-4"}


def test_one_that_no_plugin_has_is_refused_with_all_names() -> None:
    d = driven(fabric({"s1/l1": 4}), BACKWARDS)
    pod = make_pod("p", annotations={"placement-strategy": "sideways"})
    assert d.run(pod) == {}
    (message,) = d.told(pod)
    assert "'sideways' is not one of consolidated, distributed, balanced, backwards" in message


@pytest.mark.parametrize(
    ("leaves", "nodes", "problem"),
    [
        (lambda limits, members: limits, seat_last, "it assigned 2 members as"),
        (deal_all, lambda here: np.full(len(here.rows), 1, np.int64), "it assigned 2 members as"),
        (deal_all, lambda here: [1, 1], "it returned list, int64[4] is expected"),
        (deal_all, lambda here: here.fit.fill(0), "ValueError: assignment destination is read-only"),
    ],
    ids=["too many", "one too many", "no array", "writes"],
)
def test_an_answer_that_makes_no_sense_is_a_failure(leaves: Any, nodes: Any, problem: str) -> None:
    d = driven(fabric({"s1/l1": 4}), Plugin("odd", strategies=[Strategy("odd", leaves, nodes)]))
    pods = gang(2)
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/placement-strategy"] = "odd"
    d.apply(*pods)
    d.step()
    assert problem in d.told(pods[0])[0]
    assert d.told(pods[0])[0].startswith("Plugin odd failed: strategy: ")


# ---------------------------------------------------------------- size rules


def two_leaves_at_most(gang: Gang) -> Demand | None:
    return Demand("", leaves=1) if gang.members == 2 else None


def test_a_size_rule_of_a_plugin_narrows_the_built_in_one() -> None:
    nodes = [*fabric({"s1/l1": 2, "s1/l2": 2}), *fabric({"s2/l1": 4})]
    config = configured("{topologyConstraints: {enforcement: preferred}}")
    busy = [make_pod(f"busy-{n}", gpus=8, node=n, phase="Running", scheduler="x") for n in ("s1-l1-1", "s1-l2-1")]
    busy += [make_pod(f"busy-{n}", gpus=8, node=f"s2-l1-{n}", phase="Running", scheduler="x") for n in range(1, 5)]
    free = driven(nodes, config=config)
    free.apply(*busy)
    assert set(free.run(*gang(2)).values()) == {"s1-l1-2", "s1-l2-2"}
    d = driven(nodes, Plugin("tight", size_rule=two_leaves_at_most), config=config)
    d.apply(*busy)
    pods = gang(2)
    assert d.run(*pods) == {}
    assert (
        "Plugin tight asks for at most 1 leaf, and no such place is free; without that there is room."
        in d.told(pods[0])[0]
    )


# ---------------------------------------------------------------- failures


def raising(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    raise RuntimeError("the sensor is away")


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raising, "RuntimeError: the sensor is away"),
    "list": (lambda nodes, cls, rows: [True] * len(rows), "it returned list, bool[2] is expected"),
    "numbers": (lambda nodes, cls, rows: np.ones(len(rows), np.int64), "it returned int64[2], bool[2] is expected"),
    "too long": (lambda nodes, cls, rows: np.ones(len(rows) + 1, np.bool_), "it returned bool[3], bool[2] is expected"),
    "flat": (lambda nodes, cls, rows: np.ones((len(rows), 1), np.bool_), "it returned bool[2, 1], bool[2] is expected"),
    "none": (lambda nodes, cls, rows: None, "it returned NoneType, bool[2] is expected"),
    "writes": (lambda nodes, cls, rows: nodes.allocatable.fill(0), "ValueError: assignment destination is read-only"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_filter_that_fails_gets_an_event_on_the_pod_and_changes_nothing(kind: str) -> None:
    accepts, problem = WRONG[kind]
    d = driven(fabric({"s1/l1": 2}), filtering(accepts, name="sensor"))
    before = d.engine.world.nodes.allocatable.copy()
    pod = make_pod("p", gpus=1)
    d.apply(pod)
    d.step()
    assert d.told(pod, Reason.FAILED_SCHEDULING) == [f"Plugin sensor failed: filter: {problem}. The scheduler retries."]
    assert d.marked() == set(), "no node is lacking: an autoscaler must not add any"
    assert d.decisions() == []
    assert (d.engine.world.nodes.allocatable == before).all()


def test_its_pods_are_tried_again_with_growing_pauses_and_placed_when_it_recovers() -> None:
    tried: list[float] = []
    d: Driver

    def flaky(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
        tried.append(d.now)
        if d.now < 20:
            raise RuntimeError("away")
        return np.ones(len(rows), np.bool_)

    d = driven(fabric({"s1/l1": 1}), filtering(flaky))
    pod = make_pod("p", gpus=1)
    d.apply(pod)
    d.step()
    while not d.where(pod) and d.now < 100:
        due = d.engine.next_due()
        assert due is not None, "nothing is forgotten"
        d.settle(due - d.now)
    pauses = np.diff(sorted(set(tried))).tolist()
    assert pauses[:4] == [1, 2, 4, 8]
    assert max(pauses) <= 10
    assert d.where(pod) == {"p": "s1-l1-1"}
    assert len([t for t in d.told(pod) if "failed" in t]) == 1, "told once, not with every attempt"


def test_pods_it_does_not_concern_are_not_touched() -> None:
    d = driven(fabric({"s1/l1": 2}), filtering(raising, name="sensor", annotation=ZONE, opt_in=True))
    with_it = make_pod("with", gpus=1, annotations={ZONE: "east"}, priority=10)
    without = [make_pod(f"without-{n}", gpus=1) for n in range(8)]
    d.apply(with_it, *without)
    d.settle()
    assert len(d.where(*without)) == 8
    assert d.where(with_it) == {}


def test_those_behind_it_in_the_queue_do_not_wait_for_it() -> None:
    """Of pods that all concern it, one fails: the next is tried at once."""

    def fails_for_some(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
        if cls.annotation(ZONE):
            raise RuntimeError("away")
        return np.ones(len(rows), np.bool_)

    d = driven(fabric({"s1/l1": 2}), filtering(fails_for_some, annotation=ZONE))
    bad = [make_pod(f"bad-{n}", gpus=1, annotations={ZONE: str(n)}, priority=10) for n in range(5)]
    good = make_pod("good", gpus=1)
    d.apply(*bad, good)
    d.settle()
    assert d.where(*bad, good) == {"good": "s1-l1-1"}


def test_a_failure_leaves_no_half_built_view() -> None:
    calls = 0

    def second_time(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("away")
        return np.ones(len(rows), np.bool_)

    d = driven(fabric({"s1/l1": 1, "s1/l2": 1}), filtering(second_time))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert d.where(*pods) == {}
    d.settle(1.0)
    assert len(d.where(*pods)) == 2


def test_an_unschedulable_pod_whose_filter_fails_while_others_are_woken_is_not_lost() -> None:
    away = False

    def flaky(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
        if away:
            raise RuntimeError("away")
        return np.ones(len(rows), np.bool_)

    d = driven(fabric({"s1/l1": 1}), filtering(flaky))
    pod = make_pod("p", gpus=16)
    assert d.run(pod) == {}
    away = True
    d.nodes(make_node("big", "s1/l1", gpus=16))
    d.settle()
    assert any("Plugin test failed" in message for message in d.told(pod))
    away = False
    d.settle(1.0)
    assert d.where(pod) == {"p": "big"}


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (
            lambda table, request, rows: np.full(len(rows), 1001, np.int64),
            "it returned 1001, scores are from 0 to 1000",
        ),
        (lambda table, request, rows: np.full(len(rows), -1, np.int64), "it returned -1, scores are from 0 to 1000"),
        (lambda table, request, rows: np.ones(len(rows)), "it returned float64[2], int64[2] is expected"),
    ],
    ids=["high", "low", "floats"],
)
def test_a_score_that_makes_no_sense_is_a_failure(scores: Any, problem: str) -> None:
    d = driven(fabric({"s1/l1": 2}), Plugin("odd", scores=[Score("odd", nodes=scores)]))
    pod = make_pod("p", gpus=1)
    d.apply(pod)
    d.step()
    assert d.told(pod) == [f"Plugin odd failed: score: {problem}. The scheduler retries."]


def test_two_plugins_filter_both() -> None:
    d = driven(fabric({"s1/l1": 2}), filtering(anywhere, name="one"), filtering(nowhere, name="two"))
    pod = make_pod("p", gpus=1)
    assert d.run(pod) == {}
    assert d.told(pod)[0].startswith("0/2 nodes are available: 2 node(s) would not.")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Demand("", leaves=-1), "it demands -1 leaves from 1 nodes on"),
        ("two leaves", "it returned str, a Demand or None is expected"),
    ],
    ids=["below zero", "text"],
)
def test_a_demand_that_makes_no_sense_is_a_failure(answer: Any, problem: str) -> None:
    d = driven(fabric({"s1/l1": 2}), Plugin("odd", size_rule=lambda gang: answer))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert d.told(pods[0]) == [f"Plugin odd failed: size rule: {problem}. The scheduler retries."]


def test_no_array_that_a_plugin_gets_can_be_written_to() -> None:
    writable: list[str] = []

    def look(where: str, given: object, names: Sequence[str]) -> None:
        for name in names:
            array = getattr(given, name)
            if isinstance(array, np.ndarray) and array.flags.writeable:
                writable.append(f"{where}.{name}")

    def accepts(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
        look("nodes", nodes, [name for name in vars(Nodes) if not name.startswith("_")])
        return np.ones(len(rows), np.bool_)

    def leaves(fabric: Leaves, request: Request) -> Int64:
        look("leaves", fabric, Leaves._fields)
        return np.zeros(len(fabric.paths), np.int64)

    def seat(here: LeafSeats) -> Int64 | None:
        look("seats", here, LeafSeats._fields)
        return seat_last(here)

    plugin = Plugin(
        "looking",
        filters=[Filter("never", accepts)],
        scores=[Score("none", leaves=leaves)],
        strategies=[Strategy("last", deal_all, seat)],
    )
    d = driven(fabric({"s1/l1": 2}), plugin)
    assert d.run(make_pod("p", gpus=1, annotations={"placement-strategy": "last"})) == {"p": "s1-l1-2"}
    assert writable == []


# ---------------------------------------------------------------- pods alone


def alone(name: str, **scores: int) -> Plugin:
    return Plugin(name, alone=[Score(name, nodes=by_name({k.replace("_", "-"): v for k, v in scores.items()}))])


def test_a_score_for_pods_alone_decides_where_it_is_named() -> None:
    nodes, plugin = fabric({"s1/l1": 2, "s1/l2": 2}), alone("coolest", s1_l2_2=900)
    config = configured("{smallPods: {scoring: coolest}}")
    assert driven(nodes, plugin, config=config).run(make_pod("p", gpus=1)) == {"p": "s1-l2-2"}
    assert driven(nodes, plugin).run(make_pod("p", gpus=1)) == {"p": "s1-l1-1"}, "it is not asked for"
    d = driven(nodes, plugin, config=config)
    assert len(set(d.run(*gang(2)).values())) == 2
    assert d.complaints() == []


def test_a_score_for_single_pods_that_fails_affects_no_gang() -> None:
    def broken(table: Nodes, request: Request, rows: Int64) -> Int64:
        raise RuntimeError("too hot")

    config = configured("{smallPods: {scoring: broken}}")
    d = driven(fabric({"s1/l1": 2}), Plugin("broken", alone=[Score("broken", nodes=broken)]), config=config)
    pod, others = make_pod("p", gpus=1), gang(2)
    d.run(pod, *others)
    assert not pod.spec.node_name
    assert d.told(pod)[0].startswith("Plugin broken failed: score: RuntimeError: too hot")
    assert all(member.spec.node_name for member in others)


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        (Plugin("p", alone=[Score("p", leaves=lambda leaves, request: leaves.used)]), "and must have nodes"),
        (alone("fragmentation"), "called fragmentation is there already"),
        (alone("off"), "called off is there already"),
    ],
)
def test_a_score_for_pods_alone_must_be_of_nodes_and_have_a_name_of_its_own(plugin: Plugin, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Extensions().register(plugin)
