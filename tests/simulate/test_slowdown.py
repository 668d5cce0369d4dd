"""The communication model on examples that are worked out by hand."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.simulate.cases import cluster, job, run
from topo_scheduler.api.links import Link
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.simulation.results import figures
from topo_scheduler.simulation.slowdown import Assumed, Network, network_of, slowdowns
from topo_scheduler.simulation.virtual.history import RunHistory, Stay, WorkloadOutcome

HALF = Assumed(communication=0.5, network=100, oversubscription=2.0)
PATHS = {"s1/l1": 2, "s1/l2": 2, "s2/l3": 2}
"""Nodes 0 and 1, 2 and 3, 4 and 5."""


def network(assumed: Assumed = HALF, *links: Link) -> Network:
    return network_of(cluster(PATHS).nodes, SchedulerConfig(), links, assumed)


def ran(*gangs: tuple[float, float, tuple[int, ...]]) -> RunHistory:
    """Return a run of gangs, each with a beginning, an end and a node for each of its pods of 8 GPUs."""
    run_history = RunHistory(
        ("",) * 6, (("", ""),) * 6, ("spine", "leaf"), (8000,) * 6, end=max(end for _, end, _ in gangs)
    )
    for number, (begin, end, nodes) in enumerate(gangs):
        run_history.outcomes.append(WorkloadOutcome(f"g{number}", len(nodes), begin, 8000 * len(nodes), begin, end))
        run_history.stays += [
            Stay(number, f"g{number}-{at}", node, 8000, (), begin, end) for at, node in enumerate(nodes)
        ]
    return run_history


def factors(
    *gangs: tuple[float, float, tuple[int, ...]], assumed: Assumed = HALF, over: Network | None = None
) -> list[float]:
    return [slowdown.factor for slowdown in slowdowns(ran(*gangs), over or network(assumed), assumed)]


def slowed(rate: float, gpus: int, communication: float = 0.5) -> float:
    """The formula: a step at so much of the rate of the nodes, by one at the whole of it."""
    moved = communication * (gpus - 1) / gpus
    return (1 - communication + moved / rate) / (1 - communication + moved)


def test_capacities_are_given_by_labels_and_configuration_and_else_assumed() -> None:
    assumed_network = network()
    own, spine, leaf = (list(links) for links in zip(*assumed_network.above, strict=True))
    assert len(set(own)) == 6 and len(set(leaf)) == 3 and len(set(spine)) == 2
    assert [assumed_network.capacity[link] for link in own] == [100.0] * 6
    assert [assumed_network.capacity[link] for link in leaf] == [100.0] * 6, "two nodes of 100, two to one"
    assert [assumed_network.capacity[link] for link in spine] == [100.0] * 4 + [50.0] * 2
    configured = network(HALF, Link(level="leaf", capacity="1Gb"), Link(level="node", capacity="800Mb"))
    assert [configured.capacity[configured.above[0][at]] for at in (0, 1, 2)] == [800.0, 1000.0, 1000.0]
    nodes = [make_node("a", "s/l", labels={"topology.scheduler/network-bandwidth": "10Gb"}), make_node("b")]
    odd = network_of(nodes, SchedulerConfig(), (), HALF)
    assert odd.capacity[odd.above[0][0]] == 10_000 and odd.capacity[odd.above[1][0]] == 100
    assert {odd.capacity[link] for link in odd.above[1][1:]} == {inf}, "where no switch is known there is none"


def test_a_gang_alone_in_its_leaf_or_on_one_node_is_not_slowed_down() -> None:
    assert factors((0, 10, (0, 1)), (0, 10, (2, 2))) == [1.0, 1.0]


def test_a_ring_that_crosses_spines_has_the_least_of_its_links() -> None:
    # The uplink of spine s2 carries half of what a node does; 16 GPUs.
    assert factors((0, 10, (0, 4))) == [pytest.approx(slowed(0.5, 16))]
    # By hand: (0.5 + 0.5 * 15/16 * 2) / (0.5 + 0.5 * 15/16) = 1.4375 / 0.96875.
    assert slowed(0.5, 16) == pytest.approx(1.4375 / 0.96875)


def test_rings_share_an_uplink_evenly_for_as_long_as_both_are_there() -> None:
    # Both cross the uplinks of l1 and l2, which carry as much as one node: half each from 4 to 10.
    first, second = factors((0, 10, (0, 2)), (4, 14, (1, 3)))
    assert first == pytest.approx((4 * 1 + 6 * slowed(0.5, 16)) / 10)
    assert second == pytest.approx((6 * slowed(0.5, 16) + 4 * 1) / 10)


def test_a_ring_leaves_a_leaf_once_however_many_nodes_it_has_there() -> None:
    assert factors((0, 10, (0, 1, 2, 3))) == [pytest.approx(1.0)]


def test_two_gangs_on_one_node_share_its_network() -> None:
    small = ran((0, 10, (0, 1)), (0, 10, (0, 1)))
    for stay in small.stays:
        stay.milli = 4000
    assert [slowdown.factor for slowdown in slowdowns(small, network(), HALF)] == [pytest.approx(slowed(0.5, 8))] * 2


def test_gangs_that_have_no_two_gpus_slow_no_other_gang() -> None:
    mixed = ran((0, 10, (0, 2)), (0, 10, (1, 3)), (0, 10, (1, 3)))
    for stay in mixed.stays:
        stay.milli = (8000, 0, 500)[stay.job]
    assert [slowdown.factor for slowdown in slowdowns(mixed, network(), HALF)] == [1.0, 1.0, 1.0]


def test_nothing_is_communicated_before_all_pods_run_or_once_one_is_gone() -> None:
    late = ran((0, 10, (0, 2)), (0, 10, (1, 3)))
    late.stays[1].start = 6.0
    late.stays[2].end = 8.0
    late.stays.append(Stay(1, "g1-0", 1, 8000, (), 9.0, 10.0))
    first, second = slowdowns(late, network(), HALF)
    # The first runs whole from 6 to 10, the second from 0 to 8 and, after an eviction, from 9 to 10.
    assert (first.seconds, second.seconds) == (4.0, 9.0)
    assert first.factor == pytest.approx((2 * slowed(0.5, 16) + 1 + slowed(0.5, 16)) / 4)
    assert second.factor == pytest.approx((6 + 3 * slowed(0.5, 16)) / 9)


def test_without_communication_there_is_no_slow_down() -> None:
    assert factors((0, 9, (0, 4)), (0, 9, (1, 5)), assumed=Assumed(0.0, 100, 8.0)) == [1.0, 1.0]


def test_figures_of_all_gangs_and_by_size() -> None:
    history = ran((0, 10, (0, 2)), (0, 10, (1, 3)), (0, 30, (4, 4)))
    summary = figures.slowdown(history, slowdowns(history, network(), HALF))
    assert list(summary) == ["all", "9-16"]
    whole, much = summary["all"], round(slowed(0.5, 16), 6)
    assert (whole.gangs, whole.p95, whole.max) == (3, much, much)
    assert whole.mean == pytest.approx((1 + 2 * much) / 3, abs=1e-5)
    assert whole.by_gpu_seconds == pytest.approx((20 * much + 30) / 50, abs=1e-5)
    assert whole.job_seconds == pytest.approx((20 * much + 30) / 3, abs=1e-3)


def test_a_run_reports_slowdowns_and_a_gang_in_one_leaf_is_better_off() -> None:
    case = cluster({"s1/l1": 4, "s1/l2": 4})
    gangs = [job(f"g{number}", at=number, seconds=100, pods=2, gpus=8) for number in range(4)]
    over = network_of(case.nodes, SchedulerConfig(), (), Assumed(0.5, 100, 4.0))
    ours, theirs = (slowdowns(run(policy, case, gangs), over, Assumed(0.5, 100, 4.0)) for policy in ("topo", "random"))
    assert [slowdown.factor for slowdown in ours] == [1.0] * 4
    assert sum(slowdown.factor for slowdown in theirs) > 4.0


@settings(max_examples=200, deadline=None)
@given(
    gangs=st.lists(
        st.tuples(
            st.integers(0, 20), st.integers(1, 20), st.lists(st.integers(0, 5), min_size=2, max_size=5).map(tuple)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_same_as_working_out_every_second_by_itself(gangs: list[tuple[int, int, tuple[int, ...]]]) -> None:
    runs = [(float(begin), float(begin + length), nodes) for begin, length, nodes in gangs]
    over = network()
    expected = [0.0] * len(runs)
    for second in range(40):
        running = [number for number, (begin, end, _) in enumerate(runs) if begin <= second < end]
        crossing: dict[int, int] = {}
        links = {
            number: [
                link
                for link in {link for node in runs[number][2] for link in over.above[node]}
                if any(link not in over.above[node] for node in runs[number][2])
            ]
            for number in running
        }
        for path in links.values():
            for link in path:
                crossing[link] = crossing.get(link, 0) + 1
        for number in running:
            rate = min((over.capacity[link] / crossing[link] for link in links[number]), default=100.0)
            expected[number] += slowed(rate / 100, 8 * len(runs[number][2]))
    measured = slowdowns(ran(*runs), over, HALF)
    assert [slowdown.factor * slowdown.seconds for slowdown in measured] == pytest.approx(expected)
