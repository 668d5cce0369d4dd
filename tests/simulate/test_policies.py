"""Each policy on an example small enough to be worked out by hand."""

from collections import Counter
from pathlib import Path

import pytest

from tests.helpers import make_node, make_pod
from tests.simulate.cases import EVERY, cluster, job, of, run, share, where
from topo_scheduler.api.config import Configuration, TopologySchedulerConfig, TopologySpec
from topo_scheduler.api.process import FabricSettings, Level, SchedulerConfig
from topo_scheduler.api.recovery import LinkLabels, RecoverySpec
from topo_scheduler.api.waiting import ReservationSpec
from topo_scheduler.simulation.cases.model import Arrival, CaseError
from topo_scheduler.simulation.policies.names import configuration_of, read_policies, seeds_of


def test_best_fit_takes_the_node_that_has_least_left_over() -> None:
    # Of the largest node's 64 cores and 8 GPUs the pod leaves, in halves: 56/64 and 6/8, 24/64 and 2/8, 28/64 and 6/8.
    nodes = [
        make_node("large", gpus=8, cpu="64"),
        make_node("small", gpus=4, cpu="32"),
        make_node("lean", gpus=8, cpu="36"),
    ]
    assert where(run("best-fit", of(nodes), [job("a", gpus=2, cpu="8")])) == {"a": ["small"]}


@pytest.mark.parametrize("policy", ["best-fit", "dot-product", "fgd"])
def test_equals_are_taken_in_one_order_that_the_seed_draws(policy: str) -> None:
    nodes = [make_node(f"n-{number}", gpus=1) for number in range(6)]
    arrivals = [job(f"j{number}", at=number, gpus=1) for number in range(6)]
    orders = [list(where(run(policy, of(nodes), arrivals, seed=seed)).values()) for seed in range(40)]
    again = [list(where(run(policy, of(list(reversed(nodes))), arrivals, seed=seed)).values()) for seed in range(40)]
    assert orders == again, "the order of the nodes in the source has no say"
    assert len({tuple(order[0]) for order in orders}) == 6


def test_the_dot_product_takes_the_node_whose_free_room_is_least_like_the_pod() -> None:
    # CPU is hardly asked for: many free GPUs count against a node, many free cores do not.
    nodes = [make_node("gpus", gpus=8, cpu="16"), make_node("cores", gpus=4, cpu="64")]
    assert where(run("dot-product", of(nodes), [job("a", gpus=2, cpu="1")])) == {"a": ["cores"]}
    assert where(run("dot-product", of(nodes), [job("a", cpu="16")])) == {"a": ["gpus"]}


def test_least_allocated_spreads_by_cpu_and_memory_and_keeps_both_even() -> None:
    nodes = [make_node(name, cpu="10", memory="10Gi") for name in ("a", "b")]
    spread = where(run("least-allocated", of(nodes), [job(f"j{n}", at=n, cpu="2", memory="2Gi") for n in range(4)]))
    assert sorted(Counter(node for pod_nodes in spread.values() for node in pod_nodes).values()) == [2, 2]
    # With the pod: 50 % of a's CPU and 90 % of its memory, 60 % and 60 % of b's. LeastAllocated (50 + 10) / 2 = 30 and
    # (40 + 40) / 2 = 40; BalancedAllocation 100 - 20 = 80 and 100.
    nodes = [make_node("a", cpu="10", memory="10Gi"), make_node("b", cpu="10", memory="15Gi")]
    filled = [job("first", cpu="9", memory="1Gi"), job("then", at=1, cpu="1", memory="9Gi")]
    assert where(run("least-allocated", of(nodes), filled))["then"] == [
        "b" if where(run("least-allocated", of(nodes), filled))["first"] == ["a"] else "a"
    ]


def test_most_allocated_fills_up_what_is_in_use() -> None:
    nodes = [make_node(name) for name in ("a", "b", "c")]
    placements = where(run("most-allocated", of(nodes), [job(f"j{n}", at=n, gpus=2) for n in range(4)]))
    assert len({node for pod_nodes in placements.values() for node in pod_nodes}) == 1


def test_fgd_takes_the_node_where_the_fewest_gpus_are_lost_to_typical_pods() -> None:
    # One of every two pods asks for 2 GPUs. A pod of 1 GPU strands half a GPU more where 2 are free, and none where
    # 1 is: there only pods of 1 GPU could have gone.
    nodes = [make_node("pair", gpus=2), make_node("three", gpus=3)]
    arrivals = [job("one", gpus=1), job("two", at=1, gpus=2), job("more", at=2, gpus=2), job("last", at=3, gpus=1)]
    placements = where(run("fgd", of(nodes), arrivals))
    assert placements["one"] == ["three"]
    assert {placements["two"][0], placements["more"][0]} == {"pair", "three"}


def test_fgd_gives_a_share_the_gpu_that_loses_least() -> None:
    nodes = [make_node("a", gpus=2, labels={"topology.scheduler/gpu-sharing": "true"})]
    history = run("fgd", of(nodes), [share("x", "0.5"), share("y", "0.5", at=1), job("whole", at=2, gpus=1)])
    assert [stay.devices for stay in history.stays] == [(0,), (0,), (1,)]


def test_random_takes_every_node_with_room_as_often() -> None:
    case = of([make_node(f"n{number}", gpus=8 if number < 4 else 1) for number in range(6)])
    counts = Counter(where(run("random", case, [job("a", gpus=2)], seed=seed))["a"][0] for seed in range(200))
    assert set(counts) == {"n0", "n1", "n2", "n3"}
    assert min(counts.values()) > 25


def test_random_takes_any_gpu_for_a_share() -> None:
    case = of([make_node("a", gpus=4, labels={"topology.scheduler/gpu-sharing": "true"})])
    devices = {run("random", case, [share("x", "0.5")], seed=seed).stays[0].devices for seed in range(40)}
    assert devices == {(0,), (1,), (2,), (3,)}


def test_rack_takes_the_first_leaf_that_holds_the_gang_and_else_any_nodes() -> None:
    case = cluster({"s1/l1": 1, "s1/l2": 2, "s2/l3": 3})
    assert set(where(run("rack", case, [job("g", pods=2, gpus=8)]))["g"]) == {"s1-l2-1", "s1-l2-2"}
    wide = where(run("rack", case, [job("g", pods=5, gpus=8)]))["g"]
    assert len(set(wide)) == 5


def test_rack_takes_one_leaf_for_members_that_differ_too() -> None:
    case = cluster({"s1/l1": 1, "s1/l2": 3, "s2/l3": 2})
    annotations = {"gang-name": "g", "gang-size": "3"}
    members = tuple(
        make_pod(f"g-{number}", uid=f"g-{number}", gpus=gpus, annotations=annotations)
        for number, gpus in enumerate((0, 8, 8))
    )
    for seed in range(6):
        (nodes,) = where(run("rack", case, [Arrival("g", 0.0, None, members)], seed=seed)).values()
        assert {node[:5] for node in nodes} == {"s1-l2"}
    (spread,) = where(run("rack", cluster({"s1/l1": 1, "s1/l2": 1}), [Arrival("g", 0.0, None, members)])).values()
    assert {node[:5] for node in spread} == {"s1-l1", "s1-l2"}, "where no leaf has room, anywhere"


def test_blind_gangs_lie_anywhere_and_ours_in_a_leaf() -> None:
    case = cluster({"s1/l1": 2, "s1/l2": 4})
    arrivals = [job("small", gpus=8), job("gang", at=1, pods=4, gpus=8)]
    assert {node[:5] for node in where(run("topo", case, arrivals))["gang"]} == {"s1-l2"}
    history = run("blind-gang", case, arrivals)
    assert len(where(history)["gang"]) == 4
    assert history.paths[0] == ("s1", "l1"), "the history reports what the policy does not know"


@pytest.mark.parametrize("policy", EVERY.split(","))
def test_no_policy_warns_of_labels_that_only_the_common_configuration_reads(policy: str) -> None:
    own = Level(name="rack", labels=("topology.scheduler/rack",))
    scheduler = SchedulerConfig(topology=FabricSettings(levels=(own,)))
    links = LinkLabels(current="topology.scheduler/links", expected="topology.scheduler/links-wanted")
    spec = TopologySpec(recovery=RecoverySpec(link_labels=(links,)))
    keys = ("topology.scheduler/rack", links.current, links.expected)
    uplink = {"topology.scheduler/rack-uplink-bandwidth": "400Gb"}
    racked = make_node("a", labels={**dict.fromkeys(keys, "1"), **uplink})
    for nodes, base in (
        ([make_node("a", "s1/l1")], Configuration()),
        ([racked], Configuration(scheduler, TopologySchedulerConfig(spec=spec))),
    ):
        assert run(policy, of(nodes), [job("j")], base=base).complaints == []
    misspelt = make_node("a", "s1/l1", labels={"topology.scheduler/laef": "l1"})
    (warning,) = run(policy, of([misspelt]), [job("j")]).complaints
    assert "label topology.scheduler/laef is not known to this scheduler" in warning
    assert "mean topology.scheduler/leaf" in warning


@pytest.mark.parametrize("policy", [name for name in EVERY.split(",") if name != "topo"])
def test_others_do_not_understand_what_is_asked_of_topology(policy: str) -> None:
    case = cluster({"s1/l1": 2, "s2/l2": 2})
    asked = job("g", pods=4, gpus=8, annotations={"required-level": "leaf"})
    assert len(where(run(policy, case, [asked]))["g"]) == 4
    assert where(run("topo", case, [asked])) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tpo", "'tpo' is unknown; the policies are topo, .* and topo:FILE$"),
        ("first-fit", "Choosers of devices are named by --device-policy and --mig-policy"),
        ("packed", "Choosers of devices are named by --device-policy and --mig-policy"),
        ("", "none is named"),
        ("fgd,fgd", "fgd is named twice"),
        ("fgd:x.yaml", "fgd has no configuration"),
        ("topo:", "names no file"),
        ("topo:/no/such/file", "can't read /no/such/file"),
    ],
)
def test_a_policy_that_is_none(given: str, message: str) -> None:
    with pytest.raises(CaseError, match=message):
        read_policies(given)


def test_a_file_with_nothing_in_it_is_the_default_configuration(tmp_path: Path) -> None:
    base = configuration_of(read_policies("topo")[0], None, Configuration())
    other = TopologySchedulerConfig(spec=TopologySpec(reservation=ReservationSpec(enabled=False)))
    for text in ("", "# defaults\n"):
        (tmp_path / "a.yaml").write_text(text)
        (policy,) = read_policies(f"topo:{tmp_path / 'a.yaml'}")
        assert configuration_of(policy, None, Configuration(topology=other)).topology == base.topology


def test_seeds() -> None:
    assert seeds_of("42") == [42]
    assert seeds_of("42..44,7") == [42, 43, 44, 7]
    for wrong in ("", "x", "5..4", "-1", "1,1"):
        with pytest.raises(CaseError, match="--seeds"):
            seeds_of(wrong)
