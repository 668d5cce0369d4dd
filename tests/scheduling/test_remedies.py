"""Every reported remedy is true: applied to a real engine, it places the gang. On small clusters none is missed.

The reference tries everything there is: every smaller size, every set of gangs and pods to end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import msgspec
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.helpers import EPOCH, make_node, make_pod, timestamp
from tests.scheduling.driver import Driver
from tests.scheduling.every_way import HOST, LEAF
from topo_scheduler.api.objects import ContainerPort, Node, Pod, Taint, Toleration
from topo_scheduler.api.selectors import Affinity
from topo_scheduler.scheduling.explaining import ending_by_trial
from topo_scheduler.scheduling.explaining.combined import MAX_COMBINATIONS
from topo_scheduler.scheduling.explaining.remedies import EndingPods, Remedy, RemedyCost, RemedyKind
from topo_scheduler.scheduling.explaining.remedy_text import say

AWAY = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True)
class Place:
    """A node."""

    name: str
    path: str
    gpus: int
    cordoned: bool = False
    ready: bool = True
    taint: bool = False
    zone: str = ""
    model: str = ""


@dataclass(frozen=True)
class Held:
    """A pod that runs, by itself or of a gang. ``hours`` until it is expected to end, 0 where nothing tells."""

    name: str
    node: str
    gpus: int
    gang: str = ""
    hours: int = 0
    app: str = ""


@dataclass(frozen=True)
class Case:
    """A cluster, and a gang that may not fit.

    ``others`` so many of its pods, the last, ask for ``other_gpus``. ``apart`` and ``near`` topology keys over which
    its pods keep away from pods of their app, or want to be near such that run.
    """

    places: Sequence[Place]
    held: Sequence[Held]
    size: int
    gpus: int
    annotations: dict[str, str] = field(default_factory=dict)
    zone: str = ""
    others: int = 0
    other_gpus: int = 0
    apart: str = ""
    near: str = ""


def nodes_of(case: Case, back: Sequence[str] = ()) -> list[Node]:
    nodes = []
    for place in case.places:
        came = place.name in back
        cordoned, ready = place.cordoned and not came, place.ready or came
        taints = [Taint("team", "a", "NoSchedule")] if place.taint else []
        node = make_node(
            place.name,
            place.path,
            gpus=place.gpus,
            model=place.model,
            labels={HOST: place.name, **({"zone": place.zone} if place.zone else {})},
            unschedulable=cordoned,
            ready=ready,
            taints=[*taints, AWAY] if cordoned else taints,
        )
        nodes.append(node)
    return nodes


def running(case: Case, but: Sequence[str] = ()) -> list[Pod]:
    pods = []
    for held in case.held:
        if f"default/{held.name}" in but:
            continue
        annotations = {"gang-id": f"default/{held.gang}"} if held.gang else {}
        if held.hours:
            annotations["expected-duration"] = f"{held.hours}h"
        pod = make_pod(held.name, gpus=held.gpus, node=held.node, annotations=annotations, phase="Running")
        pod.metadata.uid = f"uid-{held.name}"
        pod.metadata.labels |= {"app": held.app} if held.app else {}
        pod.status.start_time = timestamp(0)
        pods.append(pod)
    return pods


def members(case: Case, size: int | None = None, **changed: str) -> list[Pod]:
    size = case.size if size is None else size
    annotations = {"gang-name": "new", "gang-size": str(size), **case.annotations, **changed}
    pods = [
        make_pod(f"new-{n}", gpus=gpus, annotations=dict(annotations), created=n, uid=f"uid-new-{n}")
        for n, gpus in enumerate([case.gpus] * (case.size - case.others) + [case.other_gpus] * case.others)
    ][:size]
    for pod in pods:
        if case.apart or case.near:
            term = {"topologyKey": case.apart or case.near, "labelSelector": {"matchLabels": {"app": "x"}}}
            kind = "podAntiAffinity" if case.apart else "podAffinity"
            wanted = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            pod.spec.affinity = msgspec.convert(wanted, Affinity)
        if case.apart:
            pod.metadata.labels["app"] = "x"
        if case.zone:
            pod.spec.node_selector = {"zone": case.zone}
    return pods


def driver(case: Case, back: Sequence[str] = (), but: Sequence[str] = ()) -> Driver:
    d = Driver(nodes_of(case, back))
    d.apply(*running(case, but))
    return d


def placed(case: Case, pods: Sequence[Pod], back: Sequence[str] = (), but: Sequence[str] = ()) -> bool:
    """Whether a real engine places a gang, on the cluster as it is or with nodes back and pods gone."""
    return len(driver(case, back, but).run(*pods)) == len(pods)


def told(case: Case) -> tuple[Remedy, ...]:
    """The remedies, none where the gang is placed."""
    d = driver(case)
    pods = members(case)
    d.apply(*pods)
    d.step()
    entry = d.engine.workloads.of_pod(pods[0].metadata.uid)
    assert entry is not None
    explanation = d.engine.why.explain(entry[0], d.now, EPOCH + 60.0, lambda: 0.0)
    return explanation.ways if explanation is not None else ()


def ended(way: Remedy) -> list[str]:
    return [pod for ending in way.ended for pod in ending.pods]


def true(case: Case, way: Remedy) -> bool:
    """Carry out a remedy, all parts of it, on an engine that knows of nothing else."""
    parts = way.parts or (way,)
    pods = members(case, next((part.size for part in parts if part.kind is RemedyKind.REDUCE), None))
    for part in parts:
        if part.kind is RemedyKind.RELAX:
            relax(pods, part)
        elif part.kind is RemedyKind.DROP:
            drop(pods, part)
    back = [name for part in parts if part.kind is RemedyKind.RETURN for name in part.nodes]
    return placed(case, pods, back=back, but=[name for part in parts for name in ended(part)])


def relax(pods: Sequence[Pod], way: Remedy) -> None:
    level, _, placement = way.value.partition(", ")
    if way.demand == "topology.scheduler/placement":
        level, placement = "", way.value
    for pod in pods:
        if placement:
            pod.metadata.annotations["topology.scheduler/placement"] = placement
        if level == "none":
            del pod.metadata.annotations["topology.scheduler/required-level"]
        elif level:
            assert way.demand.startswith("topology.scheduler/required-level")
            pod.metadata.annotations["topology.scheduler/required-level"] = level


def drop(pods: Sequence[Pod], way: Remedy) -> None:
    for pod in pods:
        match way.demand:
            case "nodeSelector":
                key = way.value.partition("=")[0]
                del pod.spec.node_selector[key]
            case "taint":
                assert way.value == "team=a:NoSchedule"
                pod.spec.tolerations = [Toleration("team", "Equal", "a", "NoSchedule")]
            case "topology.scheduler/gpu-model-mixed":
                pod.metadata.annotations[way.demand] = way.value
            case name:
                del pod.metadata.annotations[name]


# ---------------------------------------------------------------- small clusters, everything tried


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to seven nodes in up to four leaves of two spines, with up to seven pods, some of gangs."""
    paths = draw(st.lists(st.sampled_from(["s/a", "s/b", "t/a", "t/c"]), min_size=1, max_size=4, unique=True))
    models = draw(st.sampled_from([("",), ("",), ("X", "Y")]))
    awkward = draw(st.booleans())
    places = []
    for number in range(draw(st.integers(1, 7))):
        odd = draw(st.integers(0, 9)) if awkward else 9
        places.append(
            Place(
                f"n{number}",
                draw(st.sampled_from(paths)),
                draw(st.sampled_from([1, 2, 2, 4])),
                cordoned=odd in (0, 1),
                ready=odd not in (1, 2),
                taint=odd == 3,
                zone=draw(st.sampled_from(["", "x"])) if awkward else "",
                model=draw(st.sampled_from(models)),
            )
        )
    held: list[Held] = []
    left = {place.name: place.gpus for place in places}
    for number in range(draw(st.integers(0, 7))):
        free = [place.name for place in places if left[place.name]]
        if not free:
            break
        node = draw(st.sampled_from(free))
        gpus = draw(st.integers(1, left[node]))
        left[node] -= gpus
        gang = draw(st.sampled_from(["", "", "old", "elder"]))
        held.append(Held(f"p{number}", node, gpus, gang, draw(st.sampled_from([0, 1, 2, 5]))))
    annotations = {}
    if draw(st.integers(0, 4)) == 0:
        annotations["placement"] = "preferred"
    return Case(
        places,
        held,
        size=draw(st.integers(2, 5)),
        gpus=draw(st.sampled_from([1, 1, 2, 2, 4])),
        annotations=annotations,
        zone="x" if awkward and draw(st.booleans()) else "",
    )


def units(case: Case) -> list[tuple[int, int, list[str]]]:
    """What ends together: pods, GPUs, names."""
    by_name: dict[str, list[Held]] = {}
    for held in case.held:
        by_name.setdefault(held.gang or f" {held.name}", []).append(held)
    return [(len(unit), sum(h.gpus for h in unit), [f"default/{h.name}" for h in unit]) for unit in by_name.values()]


def cheapest(case: Case) -> tuple[int, int] | None:
    """The least pods, and then GPUs, without which a real engine places the gang."""
    all_units = units(case)
    best: tuple[int, int] | None = None
    for count in range(1, len(all_units) + 1):
        for chosen in combinations(all_units, count):
            cost = (sum(pods for pods, _, _ in chosen), sum(gpus for _, gpus, _ in chosen))
            if best is not None and cost >= best:
                continue
            if placed(case, members(case), but=[name for _, _, names in chosen for name in names]):
                best = cost
    return best


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_every_remedy_that_is_reported_is_true(case: Case) -> None:
    ways = told(case)
    for way in ways:
        event(f"told: {way.kind}")
        assert true(case, way), way
    costs = [way.cost for way in ways]
    assert costs == sorted(costs), "the cheapest first"
    kinds = [way.kind for way in ways if way.kind not in (RemedyKind.DROP, RemedyKind.COMBINE)]
    assert len(kinds) == len(set(kinds))


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_the_size_that_is_reported_is_the_largest_that_fits(case: Case) -> None:
    assume(not placed(case, members(case)))
    fitting = [size for size in range(1, case.size) if placed(case, members(case, size))]
    sizes = [way.size for way in told(case) if way.kind is RemedyKind.REDUCE]
    event(f"fits: {bool(fitting)}")
    assert sizes == ([max(fitting)] if fitting else [])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_no_fewer_pods_would_do_than_a_remedy_ends(case: Case) -> None:
    assume(not placed(case, members(case)))
    assume(len(units(case)) <= 5)
    expected = cheapest(case)
    event(f"can be freed: {expected is not None}")
    costs = [(way.cost.pods, way.cost.gpus) for way in told(case) if way.kind is RemedyKind.FREE]
    assert costs == ([expected] if expected is not None else [])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_the_time_that_is_reported_is_the_first_at_which_there_is_room(case: Case) -> None:
    assume(not placed(case, members(case)))
    ends: dict[str, int] = {}
    for held in case.held:
        key = held.gang or f" {held.name}"
        ends[key] = max(ends.get(key, 0), held.hours) if held.hours and ends.get(key, 1) else 0
        if not held.hours:
            ends[key] = 0
    hours = sorted({hour for hour in ends.values() if hour})

    def gone(hour: int) -> list[str]:
        return [f"default/{h.name}" for h in case.held if 0 < ends[h.gang or f" {h.name}"] <= hour]

    first = next((hour for hour in hours if placed(case, members(case), but=gone(hour))), None)
    times = [way.until for way in told(case) if way.kind is RemedyKind.WAIT]
    event(f"has an end: {first is not None}")
    assert times == ([EPOCH + 3600.0 * first] if first is not None else [])


# ---------------------------------------------------------------- gangs that only the planner can judge

GANGS = ("segments", "different", "segments of different pods", "apart", "near")


@st.composite
def harder_gangs(draw: st.DrawFn, kind: str) -> Case:
    """The same clusters, for gangs in segments, of different pods, and of pods that look at others."""
    case = draw(cases())
    annotations = dict(case.annotations)
    if level := draw(st.sampled_from(["", "", "leaf", "spine"])):
        annotations["required-level"] = level
    size = draw(st.integers(2, 6))
    if kind.startswith("segments"):
        size, annotations["segment-size"] = draw(st.sampled_from([2, 4, 6])), "2"
    others = draw(st.integers(1, size - 1)) if "different" in kind else 0
    other_gpus = draw(st.sampled_from([gpus for gpus in (1, 2, 4) if gpus != case.gpus]))
    held = [replace(pod, app=draw(st.sampled_from(["", "x"]))) for pod in case.held]
    key = draw(st.sampled_from([HOST, LEAF]))
    return replace(
        case,
        size=size,
        annotations=annotations,
        others=others,
        other_gpus=other_gpus,
        held=held,
        apart=key if kind == "apart" else "",
        near=LEAF if kind == "near" else "",
    )


def test_of_gangs_of_different_pods_the_cheapest_pod_ends_wherever_the_gang_would_go() -> None:
    paths = ["t/c", "s/a", "t/c", "s/b", "s/a", "s/b", "s/b", "s/b"]
    gpus, models = [4, 2, 4, 4, 2, 4, 2, 2], "YXXXXYYX"
    places = [Place(f"n{n}", paths[n], gpus[n], model=models[n]) for n in range(8)]
    nodes, sizes = ["n7", "n2", "n4", "n6", "n4", "n5", "n1"], [2, 2, 1, 1, 1, 1, 1]
    gangs = ["", "", "elder", "", "", "old", "old"]
    held = [Held(f"p{n}", nodes[n], sizes[n], gangs[n]) for n in range(7)]
    case = Case(places, held, size=3, gpus=2, annotations={"placement": "preferred"}, others=1, other_gpus=4)
    assert cheapest(case) == (1, 1)
    (way,) = [way for way in told(case) if way.kind is RemedyKind.FREE]
    assert (way.cost.pods, way.cost.gpus) == (1, 1)
    assert way.least


def test_of_gangs_in_segments_the_cheapest_pod_ends_wherever_the_gang_would_go() -> None:
    places = [Place("n0", "t/d", 2), Place("n1", "t/d", 2), Place("n2", "t/c", 4)]
    held = [Held("p0", "n2", 4, "old"), Held("p1", "n1", 2), Held("p2", "n0", 1, "old"), Held("p3", "n0", 1)]
    case = Case(places, held, size=2, gpus=1, annotations={"segment-size": "2"})
    assert cheapest(case) == (1, 2)
    (way,) = [way for way in told(case) if way.kind is RemedyKind.FREE]
    assert (way.cost.pods, way.cost.gpus) == (1, 2)
    assert way.least


def test_the_fewest_nodes_come_back_though_the_gang_would_use_more() -> None:
    places = [
        Place("n0", "s/b", 4, ready=False),
        Place("n1", "s/b", 8, ready=False),
        Place("n2", "s/b", 8, cordoned=True),
        Place("n3", "s/b", 2, cordoned=True),
        Place("n4", "s/b", 8),
        Place("n5", "s/b", 4, ready=False),
    ]
    case = Case(places, [], size=6, gpus=2, annotations={"placement": "preferred"}, others=5, other_gpus=4)
    (way,) = [way for way in told(case) if way.kind is RemedyKind.RETURN]
    assert way.nodes == ("n1", "n2")


def fewest(case: Case) -> int | None:
    """How many nodes have to come back: cordoned ones, or where these are not enough, others too."""
    cordoned = [place.name for place in case.places if place.cordoned and place.ready]
    away = [place.name for place in case.places if not place.ready]
    for names in (cordoned, cordoned + away if away else []):
        for count in range(1, len(names) + 1):
            if any(placed(case, members(case), back=chosen) for chosen in combinations(names, count)):
                return count
    return None


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_no_fewer_nodes_would_do_than_a_remedy_brings_back(data: st.DataObject) -> None:
    case = data.draw(harder_gangs(data.draw(st.sampled_from(GANGS))))
    states = data.draw(st.lists(st.integers(0, 5), min_size=len(case.places), max_size=len(case.places)))
    places = [
        replace(place, cordoned=state in (0, 1), ready=state != 2)
        for place, state in zip(case.places, states, strict=True)
    ]
    case = replace(case, places=places)
    assume(not placed(case, members(case)))
    expected = fewest(case)
    event(f"nodes would help: {expected is not None}")
    counts = [len(way.nodes) for way in told(case) if way.kind is RemedyKind.RETURN]
    assert counts == ([expected] if expected is not None else [])


@pytest.mark.parametrize(("bound", "value"), [("MAX_QUERIES", 5), ("MAX_SETS", 1)])
def test_where_the_search_for_the_least_ends_at_a_bound_that_is_said(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    # What making room costs at least is one pod of each of two nodes; that the small one is not enough must be tried.
    places = [Place(f"n{n}", "s/a", 4) for n in range(9)]
    held = [Held(f"p{n}", f"n{n}", 3) for n in range(9)] + [Held("small", "n8", 1)]
    case = Case(places, held, size=2, gpus=4, others=1, other_gpus=2)
    (way,) = [way for way in told(case) if way.kind is RemedyKind.FREE]
    assert way.least and "smaller" not in say(way, EPOCH)
    monkeypatch.setattr(ending_by_trial, bound, value)
    (way,) = [way for way in told(case) if way.kind is RemedyKind.FREE]
    assert not way.least and say(way, EPOCH).endswith(" GPUs (a smaller set may be enough)")
    assert true(case, way)


def test_a_pod_that_keeps_a_gang_away_from_another_node_of_its_leaf_is_found() -> None:
    places = [Place("n0", "s/a", 8), Place("n1", "s/a", 1, cordoned=True), Place("n2", "s/b", 8)]
    held = [Held("p0", "n1", 1, app="x")]
    case = Case(places, held, size=2, gpus=4, apart=LEAF)
    assert cheapest(case) == (1, 1)
    (way,) = [way for way in told(case) if way.kind is RemedyKind.FREE]
    assert ended(way) == ["default/p0"]


def test_a_pod_ends_though_the_gang_wants_to_be_near_others_that_might_end() -> None:
    places = [Place("n0", "s/a", 2), Place("n1", "s/a", 2)]
    held = [Held("p0", "n0", 1, app="x"), Held("p1", "n1", 2)]
    case = Case(places, held, size=2, gpus=1, near=LEAF)
    assert cheapest(case) == (1, 2)
    (way,) = [way for way in told(case) if way.kind is RemedyKind.FREE]
    assert ended(way) == ["default/p1"]


@pytest.mark.parametrize("kind", GANGS)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_of_gangs_that_only_the_planner_can_judge_no_fewer_pods_would_do(kind: str, data: st.DataObject) -> None:
    case = data.draw(harder_gangs(kind))
    assume(len(units(case)) <= 5)
    assume(not placed(case, members(case)))
    expected = cheapest(case)
    event(f"can be freed: {expected is not None}")
    ways = [way for way in told(case) if way.kind is RemedyKind.FREE]
    assert [(way.cost.pods, way.cost.gpus) for way in ways] == ([expected] if expected is not None else [])
    assert all(way.least for way in ways)


@pytest.mark.parametrize("kind", GANGS)
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_of_gangs_that_only_the_planner_can_judge_every_way_out_is_true(kind: str, data: st.DataObject) -> None:
    case = data.draw(harder_gangs(kind))
    ways = told(case)
    for way in ways:
        event(f"told: {way.kind}")
        assert true(case, way), way


# ---------------------------------------------------------------- gangs that are seated one by one


@st.composite
def hard_cases(draw: st.DrawFn) -> Case:
    """Clusters in which often no single change helps: gangs that are large, keep to a level, or find much away."""
    case = draw(cases())
    annotations = dict(case.annotations)
    if level := draw(st.sampled_from(["", "leaf", "leaf", "spine"])):
        annotations["required-level"] = level
    return replace(case, size=draw(st.integers(2, 9)), annotations=annotations)


def singles(case: Case) -> list[Remedy]:
    """Every change there is of one kind, by itself: of those that end others the largest."""
    away = [place.name for place in case.places if not place.ready]
    cordoned = [place.name for place in case.places if place.cordoned and place.ready]
    remedies = [
        Remedy(RemedyKind.RETURN, RemedyCost(), nodes=tuple(names))
        for names in (cordoned, cordoned + away if away else [])
        if names
    ]
    level = case.annotations.get("required-level")
    strict = case.annotations.get("placement") != "preferred"
    if strict:
        remedies.append(
            Remedy(RemedyKind.RELAX, RemedyCost(), demand="topology.scheduler/placement", value="preferred")
        )
    for value in {"leaf": ["spine", "none"], "spine": ["none"]}.get(level or "", []):
        remedies.append(Remedy(RemedyKind.RELAX, RemedyCost(), demand="topology.scheduler/required-level", value=value))
        if strict:
            both = f"{value}, preferred"
            remedies.append(
                Remedy(
                    RemedyKind.RELAX, RemedyCost(), demand="topology.scheduler/required-level and placement", value=both
                )
            )
    if case.zone:
        remedies.append(Remedy(RemedyKind.DROP, RemedyCost(), demand="nodeSelector", value="zone=x"))
    if any(place.taint for place in case.places):
        remedies.append(Remedy(RemedyKind.DROP, RemedyCost(), demand="taint", value="team=a:NoSchedule"))
    if len({place.model for place in case.places}) > 1:
        remedies.append(
            Remedy(RemedyKind.DROP, RemedyCost(), demand="topology.scheduler/gpu-model-mixed", value="true")
        )
    remedies += [Remedy(RemedyKind.REDUCE, RemedyCost(), size=size) for size in range(case.size - 1, 0, -1)]
    if case.held:
        everybody = tuple(f"default/{held.name}" for held in case.held)
        remedies.append(Remedy(RemedyKind.FREE, RemedyCost(), ended=(EndingPods("all", False, everybody, 0, 0.0),)))
    return remedies


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(hard_cases())
def test_combinations_are_reported_only_where_nothing_helps_by_itself_and_then_if_there_is_one(case: Case) -> None:
    assume(not placed(case, members(case)))
    ways = told(case)
    combined = [way for way in ways if way.kind is RemedyKind.COMBINE]
    for way in ways:
        assert true(case, way), way
    alone = singles(case)
    if any(true(case, way) for way in alone):
        event("one change helps")
        assert ways
        assert not combined
        return
    assert len(combined) == len(ways) <= MAX_COMBINATIONS
    assert ways == tuple(sorted(ways, key=lambda way: way.cost))
    pairs = [
        Remedy(RemedyKind.COMBINE, RemedyCost(), parts=pair)
        for pair in combinations(alone, 2)
        if pair[0].kind is not pair[1].kind
    ]
    if any(true(case, pair) for pair in pairs):
        event("two changes help")
        assert combined
    else:
        event("nothing helps")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(hard_cases())
def test_level_and_placement_are_given_up_together_only_where_neither_is_enough(case: Case) -> None:
    assume("required-level" in case.annotations and not placed(case, members(case)))
    less = [way for way in singles(case) if way.kind is RemedyKind.RELAX and "," not in way.value]
    for way in told(case):
        parts = way.parts or (way,)
        for number, part in enumerate(parts):
            if part.kind is not RemedyKind.RELAX or "," not in part.value:
                continue
            event(f"both of {len(parts)}")
            for lesser in less:
                other = (*parts[:number], lesser, *parts[number + 1 :])
                assert not true(case, Remedy(RemedyKind.COMBINE, RemedyCost(), parts=other)), (way, lesser)


def test_level_and_placement_are_not_both_given_up_with_nodes_where_the_level_is_enough() -> None:
    # With all nodes back the size rule asks for more than with the two that are needed: then the level alone will do.
    places = [
        Place("n0", "d/v/e", 1, cordoned=True, ready=False),
        Place("n1", "c/t/b", 2, cordoned=True),
        Place("n2", "c/t/b", 2, cordoned=True),
        Place("n3", "d/v/e", 1),
        Place("n4", "d/v/e", 4, cordoned=True, model="X"),
        Place("n5", "c/t/b", 2),
        Place("n6", "d/v/e", 1, model="Y"),
        Place("n7", "d/v/e", 4, ready=False),
    ]
    held = [Held("p0", "n1", 1), Held("p1", "n4", 2), Held("p2", "n5", 2, "elder"), Held("p3", "n1", 1)]
    case = Case(places, held, size=3, gpus=2, annotations={"required-level": "leaf"})
    ways = told(case)
    relaxed = [part for way in ways for part in way.parts or (way,) if part.kind is RemedyKind.RELAX]
    assert relaxed and all("," not in part.value for part in relaxed), [say(way, 0.0) for way in ways]
    assert all(true(case, way) for way in ways)


def test_a_gang_that_is_too_large_for_its_leaf_and_finds_the_spine_full() -> None:
    places = [Place(f"n{n}", f"s/{'ab'[n // 2]}", 8) for n in range(4)]
    held = [Held(f"p{n}", f"n{n}", 8) for n in range(4)]
    case = Case(places, held, size=4, gpus=8, annotations={"required-level": "leaf"})
    smaller, looser = told(case)
    assert say(smaller, EPOCH) == (
        "reduce it to 2 pods and end pod default/p0, pod default/p1 on nodes n0, n1: 2 pods, 16 GPUs"
    )
    assert say(looser, EPOCH) == (
        "set topology.scheduler/required-level to spine and end pod default/p0, pod default/p1, pod default/p2 and 1"
        " more on nodes n0, n1, n2 and 1 more: 4 pods, 32 GPUs"
    )
    assert looser.cost == RemedyCost(pods=4, gpus=32, levels=1)


def test_of_nodes_that_come_back_in_a_combination_no_more_than_are_needed() -> None:
    cordoned = [Place(f"n{n}", "s/a", 8, cordoned=True) for n in (1, 2, 3, 4)]
    case = Case([Place("n0", "s/a", 8), *cordoned], [Held("small", "n0", 8, hours=1)], size=5, gpus=8)
    wait, _, _ = told(case)
    assert [(part.kind, len(part.nodes)) for part in wait.parts] == [(RemedyKind.RETURN, 4), (RemedyKind.WAIT, 0)]
    held = [*case.held, *(Held(f"other-{n}", f"n{n}", 8) for n in (1, 2, 3))]
    wait, _, _ = told(replace(case, held=held, size=2))
    assert [part.nodes for part in wait.parts] == [("n4",), ()]


def test_remedies_of_gangs_of_different_pods_are_true() -> None:
    places = [Place(f"n{n}", f"s/{leaf}", 4) for n, leaf in enumerate("aabb")]
    held = [Held("p0", "n0", 4, hours=1), Held("p1", "n1", 2), Held("p2", "n2", 4, "old"), Held("p3", "n3", 4, "old")]
    case = Case(places, held, 2, 4)

    def mixed() -> list[Pod]:
        big, small = members(case)
        small.spec.containers = make_pod("like", gpus=2).spec.containers
        return [big, small]

    d = driver(case)
    pods = mixed()
    d.apply(*pods)
    d.step()
    entry = d.engine.workloads.of_pod("uid-new-0")
    assert entry is not None
    explanation = d.engine.why.explain(entry[0], d.now, EPOCH + 60.0, lambda: 0.0)
    assert explanation is not None
    by_kind = {way.kind: way for way in explanation.ways}
    assert ended(by_kind[RemedyKind.WAIT]) == ["default/p0"]
    assert ended(by_kind[RemedyKind.FREE]) == ["default/p0"]
    assert by_kind[RemedyKind.FREE].cost.pods == 1
    for kind in (RemedyKind.WAIT, RemedyKind.FREE):
        assert len(driver(case, but=ended(by_kind[kind])).run(*mixed())) == 2


def test_lost_members_are_given_room_beside_those_that_run() -> None:
    d = Driver([make_node(f"n{n}", "s/a", gpus=4) for n in range(3)] + [make_node("m", "s/b", gpus=4)])
    pods = [
        make_pod(f"g-{n}", gpus=4, annotations={"gang-name": "g", "gang-size": "2"}, created=n, uid=f"uid-g-{n}")
        for n in range(2)
    ]
    d.run(*pods)
    used = {pod.spec.node_name for pod in pods}
    (left,) = {"n0", "n1", "n2"} - used
    d.apply(make_pod("x", gpus=4, node=left, scheduler="other", uid="uid-x"))
    lost = pods[0].spec.node_name
    d.delete(pods[0])
    d.apply(make_pod("y", gpus=4, node=lost, scheduler="other", uid="uid-y"))
    again = make_pod("g-2", gpus=4, annotations={"gang-name": "g", "gang-size": "2"}, created=9, uid="uid-g-2")
    d.apply(again)
    d.step()
    entry = d.engine.workloads.of_pod("uid-g-2")
    assert entry is not None
    explanation = d.engine.why.explain(entry[0], d.now, EPOCH + 60.0, lambda: 0.0)
    assert explanation is not None
    ways = {way.kind: way for way in explanation.ways}
    assert ways[RemedyKind.RELAX].demand == "topology.scheduler/placement"
    assert ways[RemedyKind.FREE].cost.pods == 1
    (name,) = ended(ways[RemedyKind.FREE])
    d.delete(next(pod for pod in d.pods.values() if pod.metadata.name == name.partition("/")[2]))
    d.settle()
    assert again.spec.node_name


def test_the_pods_that_hold_the_host_port_are_named() -> None:
    def wanting(name: str, **more: str) -> Pod:
        pod = make_pod(name, gpus=1, annotations=more)
        pod.spec.containers[0].ports = [ContainerPort(host_port=80)]
        return pod

    d = Driver([make_node(f"n{n}", "s/a", gpus=8) for n in range(2)])
    for n in range(2):
        holder = wanting(f"holds-{n}")
        holder.spec.node_name, holder.spec.scheduler_name = f"n{n}", "other"
        d.apply(holder)
    gang = [wanting(f"g-{n}", **{"gang-name": "g", "gang-size": "2"}) for n in range(2)]
    d.apply(*gang)
    d.step()
    entry = d.engine.workloads.of_pod(gang[0].metadata.uid)
    assert entry is not None
    explanation = d.engine.why.explain(entry[0], d.now, EPOCH + 60.0, lambda: 0.0)
    assert explanation is not None
    endings = [ended(way) for way in explanation.ways if way.kind is RemedyKind.FREE]
    assert endings == [["default/holds-0", "default/holds-1"]]


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.lists(st.integers(0, 6), max_size=4))
def test_explaining_never_changes_a_decision(case: Case, deleted: list[int]) -> None:
    def story(*, explaining: bool) -> list[object]:
        d = driver(case)
        d.apply(*members(case))
        d.settle()
        for number in deleted:
            if explaining:
                d.explain(11)
            else:
                d.now += 11
            pods = [pod for pod in d.pods.values() if pod.metadata.name == f"p{number}"]
            d.delete(*pods)
            d.settle()
        return [
            (decision.id, decision.generation, decision.verdict, decision.seats, decision.sentence, decision.score)
            for decision in d.decisions()
        ]

    assert story(explaining=True) == story(explaining=False)


@pytest.mark.parametrize("first", [5, 3])
def test_of_many_pods_whose_end_would_do_those_with_the_fewest_gpus_are_reported(first: int) -> None:
    """More than can be tried in every combination: on each node a pod of 5 GPUs and one of 3."""
    places = [Place(f"n{n}", "s1/l1", 8) for n in range(20)]
    held = [Held(f"p{n}-{at}-{gpus}", f"n{n}", gpus) for n in range(20) for at, gpus in enumerate((first, 8 - first))]
    (way,) = [way for way in told(Case(places, held, 2, 3)) if way.ended]
    assert len(ended(way)) == 2 and all(name.endswith("-3") for name in ended(way))
