"""Segments in accelerator domains across leaves: of different pods, of pods that look at each other, on links."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.helpers import in_group, make_group, make_node, make_pod
from tests.scheduling.accelerator_domains import (
    CLIQUE,
    DOMAIN_LEVEL,
    DOMAINS_ACROSS_LEAVES,
    PREFERRED_CONFIG,
    DomainOfNode,
    clusters_with_domains,
    domain_nodes,
    fill_four_gpu_nodes,
    planning_cluster_with_domains,
)
from tests.scheduling.affinity_pods import HOSTNAME, pod_affinity, pod_anti_affinity, web_pod
from tests.scheduling.constraint_reference import satisfies_constraint
from tests.scheduling.driver import Driver, configured
from tests.scheduling.gang_pods import annotated_gang, rank_of
from tests.scheduling.planning import gang_in_segments, pods
from tests.scheduling.reference import Machine, Want
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, Segments
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.topology.topology_merge import crossed

Make = Callable[..., list[Pod]]
IN_DOMAINS = {"segment_size": "3", "segment_level": DOMAIN_LEVEL}


def halves(members: Sequence[Pod]) -> list[bool]:
    """Whether each rank is in the second domain of `ACROSS`."""
    return [int(pod.spec.node_name[-1]) > 2 for pod in sorted(members, key=rank_of)]


def launched(**annotations: Any) -> list[Pod]:
    """Two segments of a launcher without GPUs and two workers."""
    many, few = annotated_gang(6, gpus=4, **annotations), annotated_gang(6, gpus=0, **annotations)
    return [few[at] if at % 3 == 0 else many[at] for at in range(6)]


def apart(**annotations: Any) -> list[Pod]:
    members = annotated_gang(6, gpus=1, **annotations)
    for pod in members:
        pod.metadata.labels |= {"app": "web"}
        pod.spec.affinity = pod_anti_affinity(HOSTNAME)
    return members


@pytest.mark.parametrize("make", [launched, apart])
def test_segments_that_are_not_alike_or_tied_have_a_domain_each(make: Make) -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES, PREFERRED_CONFIG)
    fill_four_gpu_nodes(d, *(("b-1", "b-4") if make is apart else ("a-1", "b-1", "a-3", "b-4")))
    members = make(**IN_DOMAINS)
    assert len(d.run(*members)) == 6
    in_second = halves(members)
    assert len(set(in_second[:3])) == len(set(in_second[3:])) == 1
    assert in_second[0] != in_second[3]


@pytest.mark.parametrize("make", [launched, apart])
def test_what_is_lost_of_such_a_segment_goes_back_to_its_domain(make: Make) -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES, PREFERRED_CONFIG)
    members = make(**IN_DOMAINS)
    d.run(*members)
    before = halves(members)
    lost = next(pod for pod in members if rank_of(pod) == 4)
    d.delete(lost)
    again = next(pod for pod in make(**IN_DOMAINS) if pod.metadata.name == lost.metadata.name)
    again.metadata.uid = "again"
    d.run(again)
    assert rank_of(again) == 4
    assert [int(again.spec.node_name[-1]) > 2] == before[4:5]


def test_segments_that_no_domain_holds_wait_and_say_so() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES, PREFERRED_CONFIG)
    members = launched(segment_size="6", segment_level=DOMAIN_LEVEL)
    for pod in members[1:3]:
        pod.spec = annotated_gang(1, gpus=4)[0].spec
    fill_four_gpu_nodes(d, "a-1", "a-3")
    assert d.run(*members) == {}
    assert "No segments fit, 1 is needed" in d.told(members[0])[-1]
    assert f"1 {DOMAIN_LEVEL} with room for 6 pods in segments" in d.told(members[0])[-1]


def test_subgroups_of_volcano_lie_in_the_required_domain() -> None:
    d = Driver(DOMAINS_ACROSS_LEAVES, PREFERRED_CONFIG)
    policy = {"subGroupPolicy": [{"name": "w", "labelSelector": {}, "matchLabelKeys": ["part"], "subGroupSize": 2}]}
    d.groups(make_group("pg", 4, api=GroupApi.VOLCANO, spec=policy))
    annotations = {"required-level": DOMAIN_LEVEL}
    members = [
        in_group(
            make_pod(f"p-{n}", gpus=4, labels={"part": str(n // 2)}, annotations=annotations), "pg", GroupApi.VOLCANO
        )
        for n in range(4)
    ]
    where = d.run(*members)
    assert len(where) == 4
    assert len({int(node[-1]) > 2 for node in where.values()}) == 1


@pytest.mark.parametrize("make", [launched, apart])
def test_links_of_the_network_are_never_over_their_capacity(make: Make) -> None:
    """Where a segment has two nodes in each leaf the uplinks carry two nodes' flows; they carry one."""
    spec = configured("{links: [{level: leaf, capacity: 100Gb}], topologyConstraints: {enforcement: preferred}}")
    nodes = [*DOMAINS_ACROSS_LEAVES, *domain_nodes("x.3", {"s1/c": 5})]
    for node in nodes:
        node.metadata.labels["topology.scheduler/network-bandwidth"] = "400Gb"
    d = Driver(nodes, spec)
    members = make(**IN_DOMAINS, network_bandwidth="100Gb")
    d.run(*members)
    assert all(pod.spec.node_name for pod in members) or not any(pod.spec.node_name for pod in members)
    layout, links = d.engine.world.layout, d.engine.world.links
    links.settle(layout)
    reserved = links.reserved[links.wiring.uplinks(layout.depth)]
    assert (reserved <= 100_000).all(), reserved
    if make is launched:
        assert all(pod.spec.node_name.startswith("c-") for pod in members)


# ---------------------------------------------------------------- different pods, against every way


@st.composite
def gangs(draw: st.DrawFn) -> tuple[list[tuple[PodClass, int]], list[list[int]]]:
    """Two classes, each member in one of up to three segments."""
    part = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(sorted)
    first, second = draw(st.sampled_from([(pods(2), pods(1)), (pods(1), pods(0, cpu=2)), (pods(2), pods(0, cpu=1))]))
    of_first, of_second = draw(part), draw(part)
    return [(first, len(of_first)), (second, len(of_second))], [of_first, of_second]


def _holds(nodes: Sequence[tuple[int, int]], members: Sequence[tuple[int, int]]) -> bool:
    """Whether nodes with so many (GPUs, milli-CPU) hold members that ask for so many, by trying."""

    @cache
    def seat(left: tuple[tuple[int, int], ...], at: int) -> bool:
        if at == len(members):
            return True
        gpus, cpu = members[at]
        for number, (has_gpus, has_cpu) in enumerate(left):
            if has_gpus >= gpus and has_cpu >= cpu:
                after = (*left[:number], (has_gpus - gpus, has_cpu - cpu), *left[number + 1 :])
                if seat(tuple(sorted(after)), at + 1):
                    return True
        return False

    return seat(tuple(sorted(nodes)), 0)


@settings(deadline=None, max_examples=250)
@given(clusters_with_domains(), gangs())
def test_segments_of_different_pods_are_placed_wherever_domains_hold_them(
    cluster: tuple[list[Machine], DomainOfNode], gang: tuple[list[tuple[PodClass, int]], list[list[int]]]
) -> None:
    machines, home = cluster
    groups, parts = gang
    small = planning_cluster_with_domains(machines, home, Want(members=1, gpus=1))
    layout = crossed(small.world.layout, (DOMAIN_LEVEL,))
    if DOMAIN_LEVEL not in layout.levels:
        return
    depth = layout.levels.index(DOMAIN_LEVEL) + 1
    ask = gang_in_segments(groups, parts, required=False)
    asked_segments = Segments(1, depth if depth < layout.depth else 0, DOMAIN_LEVEL, parts=ask.segments.parts)
    ask = replace(ask, segments=asked_segments, woven=layout.woven)
    planned = small.planner.plan(ask, layout, 0)
    domains = sorted(set(home.values()))
    cpu = 64_000
    inside = {
        domain: [(max(0, m.gpus - m.used_gpus), cpu) for m in machines if m.usable and home.get(m.name) == domain]
        for domain in domains
    }
    numbers = sorted({number for part in parts for number in part})
    asked = {
        number: [
            (cls.gpus, cls.amount(0)) for (cls, _), part in zip(groups, parts, strict=True) for n in part if n == number
        ]
        for number in numbers
    }
    possible_at_all = any(
        all(
            _holds(
                inside[domain],
                [request for n, at in zip(numbers, given_to, strict=True) if at == domain for request in asked[n]],
            )
            for domain in set(given_to)
        )
        for given_to in product(domains, repeat=len(numbers))
    )
    if not possible_at_all:
        assert isinstance(planned, PlacementFailure)
        event("no place")
        return
    assert isinstance(planned, Placement), inside
    where: dict[int, set[str]] = {}
    used: Counter[str] = Counter()
    for (cls, _), rows, part in zip(groups, planned.rows, parts, strict=True):
        for row, number in zip(rows, part, strict=True):
            name = small.world.nodes.names[row]
            where.setdefault(number, set()).add(home.get(name, ""))
            used[name] += cls.gpus
    assert all(len(names) == 1 and "" not in names for names in where.values())
    by_name = {machine.name: machine for machine in machines}
    assert all(count <= by_name[name].gpus - by_name[name].used_gpus for name, count in used.items())
    event(f"{len({next(iter(names)) for names in where.values()})} domains")


# ---------------------------------------------------------------- pods that look at each other, against every way


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(["s1/a", "s1/b"]), st.sampled_from("xy"), st.sampled_from("pq"), st.integers(0, 3)),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from([(1, 2), (2, 1), (2, 2), (1, 3)]),
    st.sampled_from(["apart", "together"]),
)
def test_tied_segments_are_placed_wherever_domains_hold_them(
    machines: list[tuple[str, str, str, int]], shape: tuple[int, int], tie: str
) -> None:
    segments, size = shape
    d = Driver(
        [
            make_node(f"n{at}", leaf, gpus=gpus, labels={HOSTNAME: f"n{at}", "rack": rack_, CLIQUE: f"c.{domain}"})
            for at, (leaf, domain, rack_, gpus) in enumerate(machines)
        ],
        PREFERRED_CONFIG,
    )
    members = [
        web_pod(f"g-{n}", annotations={"gang-name": "g", "gang-size": str(segments * size), "segment-size": str(size)})
        for n in range(segments * size)
    ]
    for pod in members:
        pod.spec.affinity = pod_anti_affinity("rack") if tie == "apart" else pod_affinity("rack")
        pod.metadata.annotations["topology.scheduler/segment-level"] = DOMAIN_LEVEL
    d.run(*members)
    simple = [(domain, rack_, gpus) for _, domain, rack_, gpus in machines]

    def torn(chosen: Sequence[int]) -> bool:
        return any(len({simple[at][0] for at in chosen[n * size : (n + 1) * size]}) > 1 for n in range(segments))

    ways = [
        way
        for way in product(range(len(machines)), repeat=segments * size)
        if satisfies_constraint(simple, way, tie, 1) and (size == 1 or not torn(way))
    ]
    placed = [pod for pod in members if pod.spec.node_name]
    assert bool(placed) == bool(ways)
    if not placed:
        event("no place")
        return
    chosen = [int(pod.spec.node_name[1:]) for pod in sorted(members, key=rank_of)]
    assert size == 1 or not torn(chosen)
    assert any(satisfies_constraint(simple, order, tie, 1) for order in permutations(chosen))
    event(f"{tie}, {len({simple[at][0] for at in chosen})} domains")
