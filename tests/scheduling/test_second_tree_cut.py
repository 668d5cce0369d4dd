"""Segments in accelerator domains across the domain of the network that their gang must share, against every way."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.helpers import in_group, make_group, make_node, make_pod
from tests.scheduling.accelerator_domains import CLIQUE, DOMAIN_LEVEL, DomainOfNode, clusters_with_domains
from tests.scheduling.affinity_pods import HOSTNAME, pod_anti_affinity
from tests.scheduling.driver import Driver, configured
from tests.scheduling.gang_pods import annotated_gang, rank_of
from tests.scheduling.reference import Machine
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.objects import Pod

SPINE = "required-level"
RULE = "placement rule"


def driver(machines: Sequence[Machine], home: DomainOfNode, rule: str = "") -> Driver:
    """Return a cluster, with a rule that gangs must share one domain of a level."""
    rules = f", placementRules: [{{name: near, level: {rule}}}]" if rule else ""
    nodes = [
        make_node(
            machine.name,
            "/".join("" if part == UNLABELLED else part for part in machine.place),
            gpus=machine.gpus,
            labels={HOSTNAME: machine.name} | ({CLIQUE: f"x.{home[machine.name]}"} if machine.name in home else {}),
            unschedulable=not machine.usable,
        )
        for machine in machines
    ]
    d = Driver(nodes, configured(f"{{topologyConstraints: {{enforcement: preferred}}{rules}}}"))
    d.apply(
        *(
            make_pod(f"busy-{m.name}", gpus=m.used_gpus, scheduler="other", node=m.name, phase="Running")
            for m in machines
            if m.used_gpus
        )
    )
    return d


def members_of(kind: str, segments: int, size: int, level: str, asked_by: str) -> list[Pod]:
    """Return a gang in segments: all alike, each with a launcher without GPUs, or with one member on a node."""
    annotations: dict[str, Any] = {"segment_size": str(size), "segment_level": DOMAIN_LEVEL}
    if asked_by == SPINE:
        annotations["required_level"] = level
    many = annotated_gang(segments * size, gpus=1, **annotations)
    if kind == "launched":
        few = annotated_gang(segments * size, gpus=0, **annotations)
        return [few[at] if at % size == 0 else many[at] for at in range(segments * size)]
    if kind == "apart":
        for pod in many:
            pod.metadata.labels |= {"app": "web"}
            pod.spec.affinity = pod_anti_affinity(HOSTNAME)
    return many


def holds(kind: str, machines: Sequence[Machine], size: int) -> int:
    """Return how many segments some nodes hold."""
    free = [max(0, machine.gpus - machine.used_gpus) for machine in machines if machine.usable]
    if kind == "apart":
        return sum(1 for gpus in free if gpus) // size
    return sum(free) // (size - 1 if kind == "launched" else size)


@st.composite
def torn(draw: st.DrawFn) -> tuple[list[Machine], DomainOfNode]:
    """Up to ten nodes, all of whose labels are there, in few leaves, and domains that lie across all of them."""
    depth = draw(st.integers(1, 3))
    places = draw(st.lists(st.tuples(*[st.sampled_from("ab")] * depth), min_size=2, max_size=4, unique=True))
    machines, home = [], {}
    for number in range(draw(st.integers(4, 10))):
        gpus = draw(st.integers(1, 4))
        used = draw(st.integers(0, gpus)) if draw(st.booleans()) else 0
        machines.append(Machine(f"n{number}", draw(st.sampled_from(places)), gpus, 4, used_gpus=used))
        home[f"n{number}"] = draw(st.sampled_from("xyz"))
    return machines, home


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    torn() | clusters_with_domains(),
    st.integers(2, 3),
    st.integers(1, 4),
    st.sampled_from(["alike", "alike", "launched", "apart"]),
    st.sampled_from([SPINE, RULE]),
    st.integers(1, 3),
)
def test_a_place_is_found_wherever_parts_inside_one_domain_hold_the_segments(
    cluster: tuple[list[Machine], DomainOfNode], size: int, segments: int, kind: str, asked_by: str, outward: int
) -> None:
    machines, home = cluster
    levels = ("core", "spine", "leaf")[-len(machines[0].place) :]
    level = levels[-min(outward, len(levels))]
    depth = levels.index(level) + 1
    if not home:
        return
    d = driver(machines, home, level if asked_by == RULE else "")
    members = members_of(kind, segments, size, level, asked_by)
    d.run(*members)
    inside: dict[tuple[str, ...], dict[str, list[Machine]]] = {}
    for machine in machines:
        # Nodes that don't tell a level share no domain of it.
        if machine.name in home and (asked_by == RULE or machine.place[depth - 1] != UNLABELLED):
            parts = inside.setdefault(machine.place[:depth], {})
            parts.setdefault(home[machine.name], []).append(machine)
    held = [[holds(kind, part, size) for part in parts.values()] for parts in inside.values()]
    placed = [pod for pod in members if pod.spec.node_name]
    assert len(placed) in (0, len(members))
    assert bool(placed) == any(sum(counts) >= segments for counts in held), d.told(members[0])
    if not placed:
        event("no place")
        return
    by_name = {machine.name: machine for machine in machines}
    nodes = [by_name[pod.spec.node_name] for pod in sorted(members, key=rank_of)]
    assert len({node.place[:depth] for node in nodes}) == 1
    domains = [{home[node.name] for node in nodes[at : at + size]} for at in range(0, len(nodes), size)]
    assert all(len(names) == 1 for names in domains)
    with_gpus = [pod.spec.node_name for at, pod in enumerate(members) if kind != "launched" or at % size]
    assert all(count <= by_name[name].gpus - by_name[name].used_gpus for name, count in Counter(with_gpus).items())
    across = any(
        len({m.place[:depth] for m in machines if home.get(m.name) == domain}) > 1 for domain in set(home.values())
    )
    if across and not any(UNLABELLED in machine.place for machine in machines):
        used = len({name for names in domains for name in names})
        assert used == min(fewest(counts, segments) for counts in held if sum(counts) >= segments)
        event(f"{used} parts")
    event("placed")


def fewest(held: Sequence[int], segments: int) -> int:
    """Return in how few parts there is room for so many segments."""
    return next(
        count
        for count in range(1, len(held) + 1)
        if any(sum(chosen) >= segments for chosen in combinations(held, count))
    )


# ---------------------------------------------------------------- by example


def across(*, leaves: int = 1) -> list[Machine]:
    """Two NVLink domains, each with two nodes in each of two spines: ``s1-a1`` and so on."""
    return [
        Machine(f"s{s}-{domain}{n}", (f"s{s}", f"l{s}{n if leaves > 1 else ''}"), 8, 4)
        for s in (1, 2)
        for domain in "ab"
        for n in (1, 2)
    ]


HOME = {machine.name: machine.name[3] for machine in across()}


def busy(d: Driver, *names: str) -> list[Pod]:
    pods = [make_pod(f"busy-{name}", gpus=8, scheduler="other", node=name, phase="Running") for name in names]
    d.apply(*pods)
    return pods


def in_pairs(size: int, **annotations: Any) -> list[Pod]:
    return annotated_gang(size, segment_size="2", segment_level=DOMAIN_LEVEL, **annotations)


@pytest.mark.parametrize("asked_by", [SPINE, RULE])
def test_a_spine_holds_segments_of_several_domains_that_lie_across_it(asked_by: str) -> None:
    d = driver(across(), HOME, "spine" if asked_by == RULE else "")
    busy(d, "s1-a1")
    members = in_pairs(4, **({"required_level": "spine"} if asked_by == SPINE else {}))
    assert set(d.run(*members).values()) == {"s2-a1", "s2-a2", "s2-b1", "s2-b2"}


@pytest.mark.parametrize("asked_by", [SPINE, RULE])
def test_what_is_lost_of_a_segment_goes_back_to_the_part_of_its_domain_in_the_spine(asked_by: str) -> None:
    d = driver(across(), HOME, "spine" if asked_by == RULE else "")
    members = in_pairs(4, **({"required_level": "spine"} if asked_by == SPINE else {}))
    d.run(*members)
    lost = members[0]
    node = lost.spec.node_name
    d.delete(lost)
    (other,) = busy(d, node)
    again = in_pairs(4, **({"required_level": "spine"} if asked_by == SPINE else {}))[0]
    again.metadata.uid = "again"
    assert d.run(again) == {}, "the rest of its domain is under another spine"
    d.finish(other)
    d.settle(3)
    assert d.where(again) == {again.metadata.name: node}


def test_others_give_way_in_one_spine() -> None:
    d = driver(across(), HOME)
    nodes = [node for node in HOME if node != "s1-a1"]
    d.apply(*(make_pod(f"low-{node}", gpus=8, scheduler="other", node=node, phase="Running") for node in nodes))
    d.engine.budgets_known()
    members = in_pairs(4, required_level="spine")
    for pod in members:
        pod.spec.priority = 10
    d.apply(*members)
    d.step()
    assert d.preempted() == ["low-s1-a2", "low-s1-b1", "low-s1-b2"]


def test_the_spine_may_be_that_of_a_pod_group() -> None:
    d = driver(across(), HOME)
    d.groups(make_group("pg", 4, key="topology.scheduler/spine"))
    busy(d, "s1-a1")
    annotations = {"segment-size": "2", "segment-level": DOMAIN_LEVEL}
    members = [in_group(make_pod(f"p-{n}", gpus=8, annotations=annotations), "pg") for n in range(4)]
    assert set(d.run(*members).values()) == {"s2-a1", "s2-a2", "s2-b1", "s2-b2"}


def test_a_part_may_be_the_preferred_domain() -> None:
    d = driver(across(), HOME)
    assert set(d.run(*in_pairs(2, required_level="spine", preferred_domain="s2/l2/x.b")).values()) == {"s2-b1", "s2-b2"}


def nested() -> Driver:
    """Domains a and b, each of sub-domains 1 and 2, all of which have two nodes in each of two spines."""
    sub = "topology.scheduler/accelerator-sub-domain"
    nodes = [
        make_node(f"s{s}-{domain}{part}{n}", f"s{s}/l{s}", labels={CLIQUE: f"x.{domain}", sub: part})
        for s in (1, 2)
        for domain in "ab"
        for part in "12"
        for n in (1, 2)
    ]
    return Driver(nodes, configured("{topologyConstraints: {enforcement: preferred}}"))


@pytest.mark.parametrize("asked_by", [SPINE, RULE])
def test_all_may_have_to_share_a_spine_and_a_domain_around_those_of_the_segments(asked_by: str) -> None:
    d = nested()
    busy(d, "s1-a11", "s1-b22", "s2-a12")
    annotations = {"segment-size": "2", "segment-level": "accelerator-sub-domain", "required-level": DOMAIN_LEVEL}
    if asked_by == RULE:
        rule = "placementRules: [{name: near, level: spine}]"
        d.engine.configure(configured(f"{{topologyConstraints: {{enforcement: preferred}}, {rule}}}"))
        members = [
            make_pod(f"p-{n}", gpus=8, annotations={**annotations, "gang-name": "g", "gang-size": "4"})
            for n in range(4)
        ]
    else:
        d.groups(make_group("pg", 4, key="topology.scheduler/spine"))
        members = [in_group(make_pod(f"p-{n}", gpus=8, annotations=annotations), "pg") for n in range(4)]
    assert set(d.run(*members).values()) == {"s2-b11", "s2-b12", "s2-b21", "s2-b22"}


def test_the_size_rule_asks_for_the_fewest_parts_in_one_spine() -> None:
    d = driver(across(), HOME)
    d.engine.configure(configured())
    (blocker,) = busy(d, "s1-a1")
    (other,) = busy(d, "s2-b2")
    members = in_pairs(4, required_level="spine")
    assert d.run(*members) == {}
    d.finish(blocker)
    d.settle()
    assert {node[:2] for node in d.where(*members).values()} == {"s1"}
    d.finish(other)


def test_a_preferred_spine_is_taken_where_one_has_room_for_the_parts() -> None:
    d = driver(across(), HOME)
    busy(d, "s1-a1")
    assert set(d.run(*in_pairs(4, preferred_level="spine")).values()) == {"s2-a1", "s2-a2", "s2-b1", "s2-b2"}


def test_domains_are_whole_again_once_no_spine_must_be_shared() -> None:
    d = driver(across(), HOME)
    busy(d, "s1-a1", "s1-b2", "s2-a2", "s2-b2", "s2-b1")
    members = in_pairs(2, required_level="spine", relax_after="10m")
    assert d.run(*members) == {}
    d.settle(601)
    assert set(d.where(*members).values()) == {"s1-a2", "s2-a1"}


def test_what_would_help_is_reported_for_whole_domains_once_no_spine_must_be_shared() -> None:
    d = driver(across(), HOME)
    blockers = busy(d, *(node for node in HOME if node not in ("s1-b1", "s1-a1")))
    members = in_pairs(2, required_level="spine", relax_after="10m")
    assert d.run(*members) == {}
    d.settle(601)
    d.explain(1)
    message = d.told(members[0])[-1]
    assert "level relaxed from spine to cluster after 10m" in message
    assert "end pod default/busy-" in message
    (workload,) = (workload for workload in d.engine.workloads if workload.gang)
    explanation = d.engine.why.explain(workload, d.now, d.now, lambda: 0.0)
    assert explanation is not None
    room = {domain.path: domain.room for domain in explanation.domains if domain.level == DOMAIN_LEVEL}
    assert room == {("x.a",): 0, ("x.b",): 0}
    d.finish(next(pod for pod in blockers if pod.metadata.name == "busy-s2-a1"))
    d.settle()
    assert set(d.where(*members).values()) == {"s1-a1", "s2-a1"}


def test_the_reason_counts_the_parts_in_one_spine() -> None:
    """Domain a has room for two pods, but under two spines."""
    d = driver(across(), HOME)
    busy(d, "s1-a1", "s1-b2", "s2-a2", "s2-b2", "s2-b1")
    members = in_pairs(2, required_level="spine")
    assert d.run(*members) == {}
    message = d.told(members[0])[-1]
    assert f"The gang needs 1 {DOMAIN_LEVEL} inside one spine with room for 2 pods" in message
    larger = annotated_gang(3, name="h", segment_size="3", segment_level=DOMAIN_LEVEL, required_level="spine")
    assert d.run(*larger) == {}
    assert (
        f"no {DOMAIN_LEVEL} inside one spine holds a segment of 3 pods even when empty" in d.told(larger[0])[-1].lower()
    )


@pytest.mark.parametrize("asked_by", [SPINE, RULE])
def test_domains_that_lost_are_those_inside_of_what_must_be_shared(asked_by: str) -> None:
    """Each NVLink domain has room for a segment, but under different spines."""
    d = driver(across(), HOME, "spine" if asked_by == RULE else "")
    busy(d, "s1-a1", "s2-b2")
    assert d.run(*in_pairs(4, **({"required_level": "spine"} if asked_by == SPINE else {}))) == {}
    (decision,) = d.decisions()
    assert {text for _, text in decision.domain_reasons} == {"holds 1 of 2 segments"}
    assert {path[0] for path, _ in decision.domain_reasons} == {"s1", "s2"}


def test_a_rule_that_no_spine_can_keep_is_reported_as_such() -> None:
    d = driver(across(), HOME, "spine")
    members = annotated_gang(3, segment_size="3", segment_level=DOMAIN_LEVEL)
    assert d.run(*members) == {}
    assert "asks for all leaves in 1 spine, and not even the empty cluster holds the gang so" in d.told(members[0])[-1]


def test_a_leaf_may_be_what_the_domains_lie_across() -> None:
    rule = "leaf"
    for annotations, d in (({"required_level": "leaf"}, driver(across(), HOME)), ({}, driver(across(), HOME, rule))):
        assert len({node[:2] for node in d.run(*in_pairs(4, **annotations)).values()}) == 1


def test_a_rule_on_leaves_counts_those_of_the_network_inside_a_required_leaf() -> None:
    d = driver(across(), HOME)
    d.engine.configure(
        configured("{topologyConstraints: {enforcement: preferred}, placementRules: [{name: near, maxLeaves: 1}]}")
    )
    assert len({node[:2] for node in d.run(*in_pairs(4, required_level="leaf")).values()}) == 1
