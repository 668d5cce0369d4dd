"""Pods placed alone: the node that strands the fewest GPUs, kept scores as good as fresh ones, shares of GPUs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, configured, fabric, gang, held
from topo_scheduler.api.config import ConfigError
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.scheduling.placing.context.gpu_choice import choose_gpus
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.model.policy import Policy
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.small_pods import scores
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE, PODS, as_amounts
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.statistics.typical_pods import PodKind, kind_of

SHARING = {"topology.scheduler/gpu-sharing": "true"}
INDEX = "topology.scheduler/gpu-index"


def sharing(name: str, path: str = "s/l", *, gpus: int = 4, **options: object) -> Node:
    return make_node(name, path, gpus=gpus, labels=SHARING, **options)  # type: ignore[arg-type]


def share(name: str, fraction: str = "0.5", **options: object) -> Pod:
    return make_pod(name, annotations={"gpu-fraction": fraction}, **options)  # type: ignore[arg-type]


def indexes(*pods: Pod) -> list[str]:
    return [pod.metadata.annotations.get(INDEX, "") for pod in pods]


# ---------------------------------------------------------------- kept scores


def cls(cpu: int, gpus: int = 0, milli: int = 0, models: tuple[str, ...] = ()) -> PodClass:
    amounts = {CPU: cpu * 1000, PODS: 1, GPU: gpus, GPU_SHARE: milli}
    return PodClass(as_amounts(amounts), models=models)


CLASSES = [
    cls(1),
    cls(2, 1),
    cls(4, 2),
    cls(8, 4),
    cls(1, 0, 500),
    cls(3, 0, 250),
    cls(1, 1, 0, ("A",)),
    cls(6, 0, 900),
]

steps = st.lists(
    st.tuples(
        st.sampled_from(["place"] * 6 + ["release"] * 2 + ["node", "drop", "cordon", "other"]),
        st.integers(0, 7),
        st.integers(0, 5),
    ),
    max_size=30,
)


class Cluster:
    """A small world that changes, and two planners of it: one that keeps what it knows, and a new one each time."""

    def __init__(self, typical: tuple[tuple[PodKind, int], ...] = ()) -> None:
        self.world = World(SchedulerConfig())
        self.policy = Policy(
            np.array((400, 300, 200, 100), np.int64), SizeRuleLimits(), alone="fragmentation", typical=typical
        )
        self.keeps = Planner(self.world.around, self.world.history, self.policy)
        self.placed: list[str] = []
        self.number = 0
        for number in range(4):
            self.node(number, number)

    def node(self, number: int, kind: int, *, cordoned: bool = False) -> None:
        """Put a node, or change one."""
        node = make_node(
            f"n{number}",
            f"s/l{number % 3}",
            gpus=(0, 1, 2, 4, 4, 8)[kind],
            cpu=8 + 4 * kind,
            model="AB"[kind % 2],
            labels={"topology.scheduler/gpu-sharing": "true" if kind % 3 else "false"},
            unschedulable=cordoned,
        )
        self.world.put_node(node, 0.0)

    def planned(self, wanted: PodClass) -> tuple[int, tuple[int, ...]] | None:
        """Return the row and the GPUs of a pod; both planners come to the same."""
        ask, layout = PlacementQuery([(wanted, 1)], gang=False), self.world.layout
        anew = Planner(self.world.around, self.world.history, self.policy)
        kept, fresh = self.keeps.plan(ask, layout, 0.0), anew.plan(ask, layout, 0.0)
        assert kept == fresh
        if not isinstance(kept, Placement):
            return None
        row = kept.rows[0][0]
        (devices,) = choose_gpus(self.keeps, [(wanted, row)])
        assert [devices] == choose_gpus(anew, [(wanted, row)])
        return row, devices

    def place(self, wanted: PodClass) -> bool:
        """Place a pod."""
        choice = self.planned(wanted)
        if choice is None:
            return False
        row, devices = choice
        uid = f"p{self.number}"
        self.number += 1
        self.world.ledger.assume(uid, self.world.nodes.names[row], wanted.amounts, devices=devices)
        self.world.around.kinds.put(uid, kind_of(dict(wanted.amounts), wanted.models))
        self.placed.append(uid)
        return True

    def do(self, what: str, number: int, kind: int) -> None:
        """Carry out one step."""
        if what == "place":
            self.place(CLASSES[number])
        elif what == "release" and self.placed:
            self.world.release(self.placed.pop(number % len(self.placed)))
        elif what in ("node", "cordon"):
            self.node(number, kind, cordoned=what == "cordon")
        elif what == "drop":
            self.world.remove_node(f"n{number}")
        elif what == "other":
            self.world.ledger.confirm(f"o{number}", f"n{kind}", ((CPU, 1000), (GPU, 1)))
        for wanted in CLASSES[::2] if number % 2 else CLASSES[1::2]:
            self.planned(wanted)


@settings(deadline=None, max_examples=80)
@given(steps)
def test_kept_scores_place_as_fresh_ones_do(changes: list[tuple[str, int, int]]) -> None:
    cluster = Cluster(
        ((PodKind(1000, 0, 500), 600_000), (PodKind(4000, 2, 0, ("B",)), 300_000), (PodKind(2000), 100_000))
    )
    for step in changes:
        cluster.do(*step)


def test_kept_scores_place_as_fresh_ones_do_while_typical_pods_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MIN_CHANGED_PODS", 1)
    monkeypatch.setattr(scores, "MOVED", 0)
    monkeypatch.setattr(scores, "RECOUNT_DIVISOR", 1_000_000)  # counted again whenever a pod came or went

    @settings(deadline=None, max_examples=60)
    @given(steps)
    def check(changes: list[tuple[str, int, int]]) -> None:
        cluster = Cluster()
        for step in changes:
            cluster.do(*step)

    check()


def test_few_kept_classes_are_as_good_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MAX_CLASSES", 1)
    cluster = Cluster(((PodKind(1000, 1), 1_000_000),))
    assert sum(cluster.place(CLASSES[number % 5]) for number in range(20)) > 5


def test_a_score_is_asked_for_the_rows_that_changed_and_no_others() -> None:
    d = Driver(fabric({"s/l": 8}), configured("{smallPods: {typicalPods: [{gpus: 2}]}}"))
    asked: list[int] = []
    real = d.engine.extensions.alone["fragmentation"]

    def counting(nodes: object, request: object, rows: np.ndarray) -> object:
        asked.append(len(rows))
        assert real.nodes is not None
        return real.nodes(nodes, request, rows)  # type: ignore[arg-type]

    d.engine.extensions.alone["fragmentation"] = type(real)(real.name, nodes=counting)  # type: ignore[arg-type]
    for number in range(4):
        d.run(make_pod(f"p{number}", gpus=1))
    assert asked == [d.engine.world.nodes.rows, 1, 1, 1]


# ---------------------------------------------------------------- where pods go


def test_a_pod_goes_where_it_strands_least_in_the_whole_fabric() -> None:
    nodes = [make_node("four", "s/l1", gpus=4), make_node("odd", "s/l2", gpus=3)]
    spec = "{smallPods: {typicalPods: [{gpus: 2}]}}"
    d = Driver(nodes, configured(spec))
    assert d.run(make_pod("a", gpus=1)) == {"a": "odd"}, "pods of two GPUs fit on what is left everywhere"
    assert [d.run(make_pod(name, gpus=2))[name] for name in "bcd"] == ["odd", "four", "four"]


def test_among_nodes_that_score_alike_the_fullest_is_filled() -> None:
    d = Driver(fabric({"s/l1": 2, "s/l2": 2}))
    d.apply(make_pod("other", gpus=5, scheduler="o", node="s-l2-1"))
    assert d.run(make_pod("a", gpus=1)) == {"a": "s-l2-1"}


def test_among_equal_nodes_leaves_that_are_broken_are_filled_so_that_whole_ones_stay_for_gangs() -> None:
    d = Driver(fabric({"s/l1": 3, "s/l2": 3, "s/l3": 2}))
    d.apply(make_pod("other", gpus=8, scheduler="o", node="s-l2-2"))
    alone = [make_pod(name, gpus=8, created=number) for number, name in enumerate("abc")]
    assert [d.run(pod)[pod.metadata.name] for pod in alone] == ["s-l2-1", "s-l2-3", "s-l3-1"]
    assert len(d.run(*gang(3, gpus=8))) == 3, "the leaf of three is still whole"


def test_what_is_typical_is_learned_from_the_pods_there_are() -> None:
    nodes = [make_node("four", "s/l1", gpus=4), make_node("three", "s/l1", gpus=3)]
    d = Driver(nodes)
    waiting = [make_pod(f"w{n}", gpus=4, created=n, labels={"a": "b"}) for n in range(3)]
    d.apply(make_pod("x", gpus=4, scheduler="o", node="four"), *waiting)
    d.step()
    assert set(d.engine.world.around.kinds.counts) == {PodKind(1000, 4)}
    assert d.engine.world.around.kinds.counts[PodKind(1000, 4)] == 4


def test_typical_pods_become_others_when_enough_of_them_have() -> None:
    d = Driver(fabric({"s/l": 40}))

    def come(number: int, gpus: int, name: str) -> None:
        d.apply(*(make_pod(f"{name}{n}", gpus=gpus, scheduler="o", node="s-l-1") for n in range(number)))

    typical = d.engine.planner.typical_pods
    come(200, 1, "a")
    first = typical.now(())
    assert first.pods.tolist() == [[1000, 1, 0, 1_000_000]]
    come(99, 2, "b")
    assert typical.now(()) is first, "it is too soon to count again"
    come(1, 2, "c")
    second = typical.now(())
    assert second.pods[:, 3].tolist() == [666_666, 333_333]
    come(60, 2, "d")
    come(60, 1, "e")
    assert typical.now(()) is second, "counted again, and little moved"


def test_a_score_is_published_on_the_pod_and_in_the_decision() -> None:
    d = Driver(fabric({"s/l": 1}))
    pod = make_pod("p", gpus=1)
    d.run(pod)
    (decision,) = d.decisions()
    assert decision.score is not None
    assert decision.score.added == (("fragmentation", decision.score.total),)
    assert pod.metadata.annotations["topology.scheduler/score"] == f"{decision.score.total / 1000:.3f}"


@pytest.mark.parametrize(
    ("annotations", "scored"),
    [
        ({}, True),
        ({"placement-strategy": "balanced"}, True),
        ({"placement-strategy": "consolidated"}, False),
        ({"placement-strategy": "distributed"}, False),
    ],
)
def test_a_strategy_that_a_pod_names_is_kept(annotations: dict[str, str], scored: bool) -> None:
    d = Driver(fabric({"s/l": 2}))
    d.run(make_pod("p", gpus=1, annotations=annotations))
    score = d.decisions()[0].score
    assert score is not None
    assert bool(score.added) is scored


def test_what_a_pod_likes_and_its_preferred_domain_come_first() -> None:
    nodes = fabric({"s/l1": 1, "s/l2": 1, "": 0})
    d = Driver(nodes)
    d.apply(make_pod("other", gpus=5, scheduler="o", node="s-l1-1"))
    pod = make_pod("p", gpus=1, annotations={"preferred-domain": "s/l2"})
    assert d.run(pod) == {"p": "s-l2-1"}
    assert d.run(make_pod("q", gpus=1)) == {"q": "s-l1-1"}


def test_pods_without_gpus_are_scored_only_where_nodes_with_gpus_are_all_that_is_left() -> None:
    plain, gpus = make_node("plain", "s/l", gpus=0, cpu=2), make_node("gpus", "s/l", gpus=8)
    d = Driver([plain, gpus])
    assert d.run(make_pod("a"), make_pod("b"), make_pod("c"))["c"] == "gpus"
    scores = [decision.score for decision in d.decisions() if decision.score is not None]
    assert [bool(score.added) for score in scores] == [False, False, True]


@pytest.mark.parametrize(("scoring", "node"), [("fragmentation", "s-l-2"), ("fgd", "s-l-1")])
def test_among_equals_ours_takes_the_fullest_node_and_fgd_the_first(scoring: str, node: str) -> None:
    d = Driver(fabric({"s/l": 2}), configured(f"{{smallPods: {{scoring: {scoring}}}}}"))
    d.apply(make_pod("other", gpus=2, scheduler="o", node="s-l-2"))
    assert d.run(make_pod("p", gpus=1)) == {"p": node}
    assert d.complaints() == []


def test_scoring_can_be_off_and_a_name_that_no_plugin_has_is_complained_of() -> None:
    d = Driver(fabric({"s/l": 1}), configured("{smallPods: {scoring: 'off'}}"))
    d.run(make_pod("p", gpus=1))
    assert d.decisions()[0].score.added == ()  # type: ignore[union-attr]
    assert d.complaints() == []
    d.engine.configure(configured("{smallPods: {scoring: fragmentatoin}}"))
    d.step()
    assert "spec.smallPods.scoring: no plugin that is loaded has a score called fragmentatoin" in d.complaints()[0]
    assert "there are off, fgd, fragmentation" in d.complaints()[0]
    assert d.run(make_pod("q", gpus=1)) == {"q": "s-l-1"}, "it is placed all the same"


@pytest.mark.parametrize(
    ("typical", "problem"),
    [
        ("{gpus: 1, gpuFraction: '0.5'}", "give gpus or gpuFraction, not both"),
        ("{gpuFraction: '1.5'}", "above 0 and below 1"),
        ("{cpu: four}", "is not a quantity"),
        ("{gpus: -1}", "must be at least 0"),
        ("{gpu: 1}", "did you mean gpus?"),
    ],
)
def test_typical_pods_that_make_no_sense_are_refused(typical: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"smallPods\.typicalPods\.0") as caught:
        configured(f"{{smallPods: {{typicalPods: [{typical}]}}}}")
    assert problem in str(caught.value)


def test_gangs_are_placed_as_ever() -> None:
    nodes = fabric({"s/l1": 3, "s/l2": 2})
    on, off = Driver(nodes), Driver(nodes, configured("{smallPods: {scoring: 'off'}}"))
    assert on.run(*gang(2)) == off.run(*gang(2))
    assert on.decisions()[0].score == off.decisions()[0].score


# ---------------------------------------------------------------- shares


def test_two_halves_share_a_gpu_and_say_which() -> None:
    d = Driver([sharing("a"), sharing("b"), make_node("c", "s/l", gpus=4)])
    pods = [share(f"p{n}") for n in range(4)]
    assert len(set(d.run(*pods).values())) == 1
    assert indexes(*pods) == ["0", "0", "1", "1"]
    assert all(pod.metadata.annotations["topology.scheduler/charged-gpu-fraction"] == "0.5" for pod in pods)
    assert held(d, pods[0].spec.node_name, GPU_SHARE) == 2000
    assert held(d, pods[0].spec.node_name) == 2, "two GPUs are used up for whole ones"


def test_whole_gpus_are_never_those_in_shares() -> None:
    d = Driver([sharing("a", gpus=2)])
    small, first, second = share("small", "0.1"), make_pod("one", gpus=1), make_pod("two", gpus=1)
    d.run(small)
    d.run(first)
    assert indexes(small, first) == ["0", "1"]
    assert d.run(second) == {}
    assert d.told(second)[0].startswith("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    d.delete(small)
    assert d.settle() and indexes(second) == ["0"]


def test_a_gang_on_sharing_nodes_has_indexes_too() -> None:
    d = Driver([sharing("a"), sharing("b")])
    small = share("small")
    d.run(small)
    pods = gang(3, gpus=2)
    where = d.run(*pods)
    assert sorted(zip(where.values(), indexes(*pods), strict=True)) == [("a", "1,2"), ("b", "0,1"), ("b", "2,3")]


def test_a_gang_of_shares_is_placed_whole_or_not() -> None:
    d = Driver([sharing("a", gpus=2)])
    annotations = {"gpu-fraction": "0.4", "gang-name": "g", "gang-size": "4"}
    pods = [make_pod(f"g{n}", annotations=annotations, created=n) for n in range(4)]
    d.run(*pods)
    assert indexes(*pods) == ["0", "0", "1", "1"]
    more = [make_pod(f"h{n}", annotations={**annotations, "gang-name": "h"}, created=n) for n in range(4)]
    assert d.run(*more) == {}


def test_a_gang_of_different_pods_with_shares_gets_an_event_with_the_reason() -> None:
    d = Driver([sharing("a")])
    annotations = {"gang-name": "g", "gang-size": "2"}
    pods = [
        make_pod("a", annotations={**annotations, "gpu-fraction": "0.5"}),
        make_pod("b", gpus=1, annotations=annotations),
    ]
    assert d.run(*pods) == {}
    assert "a gang with different requests" in d.told(pods[0])[0]


def test_shares_are_refused_where_nodes_do_not_share() -> None:
    d = Driver([make_node("a", "s/l"), sharing("full", gpus=1), make_node("b", "s/l", gpus=0)])
    first, second = share("first", "0.9"), share("second", "0.2")
    assert d.run(first) == {"first": "full"}
    assert d.run(second) == {}
    assert d.told(second)[0].startswith(
        "0/3 nodes are available: 1 Insufficient GPU shares, 2 node(s) didn't share their GPUs."
    )
    d.nodes(sharing("b", gpus=1))
    assert d.settle() and second.spec.node_name == "b"


def test_a_label_that_says_neither_is_complained_of() -> None:
    d = Driver()
    d.nodes(make_node("a", "s/l", labels={"topology.scheduler/gpu-sharing": "yes"}))
    d.step()
    assert d.complaints() == [
        'node a: label topology.scheduler/gpu-sharing: \'yes\' is neither "true" nor "false"; its GPUs are not shared'
    ]


@pytest.mark.parametrize(
    ("gpus", "annotations", "problem"),
    [
        (1, {"gpu-fraction": "0.5"}, "and its limits for 1 whole GPU: the"),
        (0, {"gpu-fraction": "0.5", "gpu-count": "2"}, "and topology.scheduler/gpu-count for 2 GPUs per pod"),
        (0, {"gpu-fraction": "2"}, "above 0 and below 1"),
        (0, {"gpu-fraction": "0.5", "gpu-index": "1"}, "gpu-index is written by the scheduler itself"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(gpus: int, annotations: dict[str, str], problem: str) -> None:
    d = Driver([sharing("a")])
    pod = make_pod("p", gpus=gpus, annotations=annotations)
    assert d.run(pod) == {}
    assert problem in d.told(pod)[0]
    assert "remove" in d.told(pod)[0] or "write" in d.told(pod)[0]


def test_a_share_with_a_count_of_one_is_a_share() -> None:
    d = Driver([sharing("a")])
    pod = make_pod("p", annotations={"gpu-fraction": "0.25", "gpu-count": "1"})
    d.run(pod)
    assert (indexes(pod), held(d, "a"), held(d, "a", GPU_SHARE)) == (["0"], 1, 250)


def test_shares_count_in_quotas() -> None:
    d = Driver([sharing("a")], configured("{quotas: [{namespaces: [default], hard: {gpus: 1}}]}"))
    pods = [share(f"p{n}", "0.4") for n in range(3)]
    assert len(d.run(*pods)) == 2
    (waiting,) = (pod for pod in pods if not pod.spec.node_name)
    assert "Quota of namespace default: 0.8 of 1 gpus in use, 0.4 more asked." in d.told(waiting)[0]


@pytest.mark.unrecorded
def test_a_share_does_not_take_the_gpu_that_is_kept_for_a_nominated_pod() -> None:
    d = Driver([sharing("a", gpus=2)])
    d.run(share("first", "0.4"))
    world = d.engine.world
    cls = make_pod("x", annotations={"gpu-fraction": "0.7"})
    world.count(world.nodes.row_of["a"], ((GPU, 1),), None, 1)
    assert d.run(cls) == {}
    assert "1 Insufficient GPU shares" in d.told(cls)[0]
    assert d.run(share("second", "0.6")) == {"second": "a"}, "what is left of the first GPU stays unused"


def test_pods_that_are_refused_are_not_typical() -> None:
    d = Driver([sharing("a", gpus=2)])
    d.run(share("p", "7"), share("q", "0.7"))
    assert dict(d.engine.world.around.kinds.counts) == {PodKind(1000, 0, 700): 1}


def test_no_pod_is_evicted_for_a_share() -> None:
    d = Driver([sharing("a", gpus=1)])
    d.run(make_pod("low", gpus=1))
    assert d.run(share("high", priority=10)) == {}
    assert d.preempted() == []


@pytest.mark.unrecorded
def test_the_last_look_catches_a_share_that_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver([sharing("a", gpus=2), sharing("b", gpus=1)])
    d.apply(make_pod("other", gpus=2, scheduler="o", node="a"))
    real = d.engine.planner.plan

    def wrong(*args: object) -> object:
        placement = real(*args)  # type: ignore[arg-type]
        assert isinstance(placement, Placement)
        row = d.engine.world.nodes.row_of["a"]
        return Placement([[row]], placement.leaves, placement.rule, placement.score, placement.candidates)

    monkeypatch.setattr(d.engine.planner, "plan", wrong)
    pod = share("p")
    d.apply(pod)
    d.step()
    assert d.flight == {}
    assert "no GPU has room for a share that was placed on it" in d.told(pod)[0]


# ---------------------------------------------------------------- the account


def account(d: Driver) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    nodes = d.engine.world.nodes
    width = nodes.devices.free.shape[1]
    free = {name: [*nodes.devices.free[row].tolist(), *[0] * (8 - width)] for name, row in nodes.row_of.items()}
    return free, {name: nodes.requested[row, :6].tolist() for name, row in nodes.row_of.items()}


def cluster() -> list[Node]:
    return [sharing("a", gpus=2), sharing("b", gpus=4), make_node("c", "s/l", gpus=4)]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["0.5", "0.25", "0.9", "1", "2", "other"]), st.booleans(), st.integers(0, 9)),
        max_size=16,
    ),
    st.randoms(),
)
def test_a_restart_finds_the_account_as_it_was(actions: list[tuple[str, bool, int]], random: object) -> None:
    d = Driver(cluster())
    pods: list[Pod] = []
    for number, (what, delete, which) in enumerate(actions):
        if what == "other":
            pod = make_pod(f"o{number}", gpus=1, scheduler="o", node="abc"[which % 3])
        elif what in ("1", "2"):
            pod = make_pod(f"p{number}", gpus=int(what))
        else:
            pod = share(f"p{number}", what)
        pods.append(pod)
        d.run(pod)
        if delete:
            deleted = pods.pop(which % len(pods))
            d.delete(deleted)
    # Pods that wait may be placed by the last deletion, and the new one gets the reason that holds now.
    d.settle()
    again = Driver(reversed(cluster()))
    random.shuffle(pods)  # type: ignore[attr-defined]
    again.apply(*(pod for pod in pods if pod.spec.node_name))
    assert account(again) == account(d)
    again.apply(*(pod for pod in pods if not pod.spec.node_name))
    assert again.engine.world.around.kinds.counts == d.engine.world.around.kinds.counts
    for row in range(3):
        free = d.engine.world.nodes.devices.free[row]
        assert ((free >= 0) & (free <= 1000)).all()
    for node in "ab":
        ours = [pod for pod in pods if pod.spec.node_name == node and INDEX in pod.metadata.annotations]
        whole = [
            at for pod in ours if "," in indexes(pod)[0] or not _is_share(pod) for at in indexes(pod)[0].split(",")
        ]
        assert len(whole) == len(set(whole)), "no GPU is held whole by two pods of ours"
        assert not set(whole) & {indexes(pod)[0] for pod in ours if _is_share(pod)}


def _is_share(pod: Pod) -> bool:
    return "topology.scheduler/gpu-fraction" in pod.metadata.annotations


def test_a_node_that_no_longer_shares_keeps_what_it_has() -> None:
    d = Driver([sharing("a", gpus=2)])
    small = share("small")
    d.run(small)
    d.nodes(make_node("a", "s/l", gpus=2))
    assert d.run(share("next")) == {}
    assert d.run(make_pod("two", gpus=2)) == {}
    assert d.run(make_pod("one", gpus=1)) == {"one": "a"}
    d.delete(small)
    assert held(d, "a") == 1
    assert d.engine.world.nodes.devices.count[d.engine.world.nodes.row_of["a"]] == 0


def test_another_scheduler_that_takes_the_last_gpus_stops_a_share_before_it_is_bound() -> None:
    d = Driver([sharing("a", gpus=1)])
    pod = share("p")
    d.apply(pod)
    d.step()
    d.apply(make_pod("thief", gpus=1, scheduler="o", node="a"))
    assert "another scheduler took" in d.refused(pod.metadata.uid)
