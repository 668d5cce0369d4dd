"""Fair between namespaces, as seen from outside the engine: which workload is tried when."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.affinity_pods import spread_constraint
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import Bind, RecordDecision
from topo_scheduler.scheduling.queueing.fair_queue import (
    MISSES_BEFORE_TURNS,
    PLACEMENTS_BY_SHARE,
    FairnessLimits,
)
from topo_scheduler.scheduling.queueing.passed_over import MAX_PASSED_OVER_SECONDS

ATTEMPT_SECONDS = 1 / 16
CAPACITY = {"cpu": 4 * 64, "gpus": 4 * 8, "memory": 4 * 512}


def nodes() -> Driver:
    return Driver(fabric({"s1/l1": 2, "s1/l2": 2}))


def decided(d: Driver) -> list[str]:
    """Return the pods decided on, in order."""
    return [said.decision.name.partition("/")[2] for said in d.said if isinstance(said, RecordDecision)]


def share(held: dict[str, int]) -> Fraction:
    """Return the dominant share, to a millionth."""
    return max(Fraction(1_000_000 * held[name] // whole) for name, whole in CAPACITY.items())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 1),
            st.integers(0, 3),
            st.sampled_from([(1, 0, 1), (4, 0, 1), (1, 1, 1), (1, 0, 64), (2, 2, 4)]),
        ),
        max_size=14,
    ),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=3),
)
def test_the_order_is_that_of_a_list_sorted_again_before_each_decision(
    wanted: list[tuple[str, int, int, tuple[int, int, int]]], theirs: list[tuple[str, int]]
) -> None:
    d = nodes()
    held = {namespace: dict.fromkeys(CAPACITY, 0) for namespace in "abc"}

    def hold(namespace: str, cpu: int, gpus: int, memory: int) -> None:
        for name, amount in (("cpu", cpu), ("gpus", gpus), ("memory", memory)):
            held[namespace][name] += amount

    for number, (namespace, node) in enumerate(theirs):
        where = ("s1-l1-1", "s1-l1-2", "s1-l2-1", "s1-l2-2")[node]
        d.apply(make_pod(f"other-{number}", namespace=namespace, scheduler="other", node=where, cpu="6"))
        hold(namespace, 6, 0, 1)
    line: list[tuple[int, str, float, str, tuple[int, int, int]]] = []
    for number, (namespace, priority, created, (cpu, gpus, memory)) in enumerate(wanted):
        name = f"p{number:02}"
        line.append((-priority, namespace, created, name, (cpu, gpus, memory)))
        d.apply(
            make_pod(
                name,
                namespace=namespace,
                cpu=str(cpu),
                gpus=gpus,
                memory=f"{memory}Gi",
                priority=priority,
                created=created,
                uid=name,
            )
        )
    d.step()
    expected = []
    while line:
        first = min(line, key=lambda entry: (entry[0], share(held[entry[1]]), entry[2], entry[3]))
        line.remove(first)
        expected.append(first[3])
        hold(first[1], *first[4])
    assert decided(d) == expected
    assert len(d.flight) == len(expected)


@pytest.mark.unrecorded
@pytest.mark.parametrize("fits", [True, False], ids=["that fit", "that fit nowhere"])
def test_ten_thousand_pods_of_one_team_do_not_hold_up_the_one_of_another(fits: bool) -> None:
    d = Driver([make_node(f"n{number}", "s1/l1", cpu="4096", memory="8Ti", pods=20_000) for number in range(4)])
    d.apply(make_pod("b-holds", namespace="b", cpu="4000", scheduler="other", node="n0"))
    gpus = 0 if fits else 16
    d.apply(*(make_pod(f"a-{n}", namespace="a", gpus=gpus, cpu="1", created=n) for n in range(10_000)))
    d.apply(make_pod("c", namespace="c", cpu="1", created=99_999))
    if not fits:
        d.apply(make_pod("b", namespace="b", cpu="1", created=99_999))
    # A clock that goes on by one with each look ends the step after some decisions.
    d.said = d.engine.step(0, itertools.count().__next__, 12 * MISSES_BEFORE_TURNS)
    order = decided(d)
    assert len(order) < 100
    if fits:
        assert order.index("c") <= 1
    else:
        assert max(order.index("b"), order.index("c")) <= 2 * (MISSES_BEFORE_TURNS + 1), (
            "though b holds a quarter of the cluster"
        )


@pytest.mark.parametrize("fits", [False, True], ids=["that fit nowhere", "that fit"])
@pytest.mark.parametrize("policy", ["PreemptLowerPriority", "Never"])
def test_pods_that_fit_nowhere_delay_no_other_team_for_long_whatever_their_priority(policy: str, *, fits: bool) -> None:
    """Events make these pods ready again all the time, and each attempt takes a step of the loop."""
    d = Driver(fabric({f"s1/l{leaf}": 4 for leaf in range(6)}))
    for number in range(300 if fits else 60):
        cpu = f"{number + 1}m"
        pod = make_pod(f"a-{number}", namespace="a", cpu=cpu, memory="1Mi", priority=9, created=number)
        pod.spec.preemption_policy = policy
        if not fits:
            pod.spec.topology_spread_constraints = [spread_constraint("no-node-has-this-label")]
        d.apply(pod)
    readings = itertools.count()
    appeared: dict[str, float] = {}
    delays: dict[str, float] = {}
    ending: Pod | None = None
    for number in range(200):
        if ending is not None:
            d.finish(ending)
        ending = make_pod(f"other-{number}", namespace="c", scheduler="other", node="s1-l1-1")
        d.apply(ending)
        if number % 10 == 0:
            probe = make_pod(f"b-{number}", namespace="b", cpu="1m", created=2000 + number)
            appeared[probe.metadata.uid] = d.now
            d.apply(probe)
        said = d.engine.step(d.now, lambda: float(next(readings)), 0)
        d.said += said
        for bind in [said for said in said if isinstance(said, Bind)]:
            d.flight[bind.pod.uid] = bind
            d.answer(bind.pod.uid)
            if bind.pod.uid in appeared:
                delays[bind.pod.uid] = d.now - appeared[bind.pod.uid]
        d.now += ATTEMPT_SECONDS
    assert len(decided(d)) >= 200
    if fits:
        assert not delays, "theirs go first by priority"
    else:
        assert len(delays) >= 19
        assert max(delays.values()) <= MAX_PASSED_OVER_SECONDS + 2 * ATTEMPT_SECONDS


def test_pending_pods_are_woken_in_the_order_of_turns() -> None:
    d = Driver([make_node("n1", "s1/l1"), make_node("n2", "s1/l1")])
    d.apply(make_pod("of-a", namespace="a", gpus=8, scheduler="other", node="n1"))
    holder = make_pod("of-x", namespace="x", gpus=8, scheduler="other", node="n2")
    d.apply(holder)
    waiting = [
        make_pod("a", namespace="a", gpus=8, created=1),
        make_pod("b-late", namespace="b", gpus=8, created=3),
        make_pod("b-early", namespace="b", gpus=8, created=2),
    ]
    assert d.run(*waiting) == {}
    d.finish(holder)
    d.step()
    assert [bind.pod.name for bind in d.flight.values()] == ["b-early"]
    d.settle()
    urgent = make_pod("urgent", namespace="a", gpus=8, created=9, priority=5)
    d.apply(urgent)
    d.step()
    d.delete(waiting[2])
    d.step()
    assert [bind.pod.name for bind in d.flight.values()] == ["urgent"]


def test_a_gang_goes_by_its_lowest_priority_and_by_the_share_of_its_namespace() -> None:
    d = nodes()
    d.apply(make_pod("of-a", namespace="a", gpus=1, scheduler="other", node="s1-l1-1"))
    gang = {
        namespace: [
            make_pod(
                f"{namespace}-{n}",
                namespace=namespace,
                gpus=4,
                priority=priority,
                annotations={"gang-name": namespace, "gang-size": "2"},
            )
            for n, priority in enumerate(priorities)
        ]
        for namespace, priorities in {"a": (1, 1), "b": (1, 1), "c": (9, 0)}.items()
    }
    d.apply(*(pod for pods in gang.values() for pod in pods))
    d.step()
    assert decided(d) == ["b", "a", "c"]


def test_the_share_survives_a_restart() -> None:
    d = nodes()
    d.run(make_pod("a", namespace="a", gpus=4))
    again = nodes()
    again.apply(*d.pods.values())
    again.apply(make_pod("a2", namespace="a", gpus=1), make_pod("b", namespace="b", gpus=1, created=9))
    again.step()
    assert decided(again) == ["b", "a2"]


def test_an_old_workload_is_not_starved_by_those_with_a_smaller_share() -> None:
    """One GPU node; b holds nothing and always has a fresh pod that runs briefly; a holds GPUs elsewhere."""
    d = Driver([make_node("n", "s1/l1", gpus=1), make_node("m", "s1/l1", gpus=1)])
    d.apply(make_pod("holds", namespace="a", gpus=1, scheduler="other", node="m"))
    patient = make_pod("patient", namespace="a", gpus=1, created=0)
    running: Pod | None = None
    for number in range(100):
        d.apply(make_pod(f"b-{number}", namespace="b", gpus=1, created=number), *([] if number else [patient]))
        if running is not None:
            d.finish(running)
        d.settle(30)
        if patient.spec.node_name:
            break
        running = next(
            pod for pod in d.pods.values() if pod.metadata.namespace == "b" and pod.spec.node_name and not pod.finished
        )
    assert patient.spec.node_name
    assert 600 <= d.now <= 600 + 4 * 30


class Busy:
    """Three nodes, always something to run: pods of three namespaces come and end; some fit nowhere."""

    TICK = 30.0

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.d = Driver([make_node(f"n{number}", "s1/l1", gpus=1) for number in range(3)])
        self.came: dict[str, float] = {}
        self.ends: dict[str, int] = {}
        self.ahead: dict[str, int] = {}
        """Of an overdue pod: how many that fit had waited as long or longer when it became overdue."""
        self.overtaken: dict[str, int] = {}
        """How often a place went to another since."""

    def waiting(self) -> list[str]:
        return [uid for uid in self.came if not self.d.pods[uid].spec.node_name]

    def tick(self, number: int) -> None:
        for uid in [uid for uid, end in self.ends.items() if end <= number]:
            del self.ends[uid], self.came[uid]
            self.d.delete(self.d.pods[uid])
        for namespace, gpus in self.data.draw(
            st.lists(st.tuples(st.sampled_from("aabc"), st.sampled_from([1, 1, 1, 2])), max_size=3)
        ):
            uid = f"{namespace}-{number}-{len(self.came)}-{gpus}"
            self.d.apply(make_pod(uid, namespace=namespace, gpus=gpus, created=number, uid=uid))
            if gpus == 1:
                self.came[uid] = self.d.now
        self.d.now += self.TICK
        overdue = {uid for uid in self.waiting() if self.d.now - self.came[uid] >= 600}
        for uid in overdue - self.ahead.keys():
            self.ahead[uid] = sum(self.came[other] <= self.came[uid] for other in overdue)
            self.overtaken[uid] = 0
        before = set(self.waiting())
        self.d.settle()
        for uid in before - set(self.waiting()):
            self.ends[uid] = number + (30 if uid.startswith("a") else 1)
            self.ahead.pop(uid, None)
            for other in self.ahead:
                self.overtaken[other] += 1


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_whoever_fits_is_overtaken_a_bounded_number_of_times_once_overdue(data: st.DataObject) -> None:
    busy = Busy(data)
    for number in range(80):
        busy.tick(number)
        for uid, ahead in busy.ahead.items():
            assert busy.overtaken[uid] <= (PLACEMENTS_BY_SHARE + 1) * (ahead + 1), uid


# ---------------------------------------------------------------- the limit


def test_a_namespace_that_used_up_its_decisions_is_passed_over_until_it_has_more() -> None:
    limit = configured("{fairness: {decisionsPerSecond: 2, decisionBurst: 3}}")
    d = Driver(fabric({"s1/l1": 4}), limit)
    d.apply(*(make_pod(f"a{n}", namespace="a", priority=9, created=n) for n in range(6)))
    d.apply(make_pod("b", namespace="b", created=99))
    d.step()
    assert decided(d) == ["a0", "a1", "a2", "b"]
    assert d.engine.next_due() == 0.5
    assert not d.engine.pending_work
    d.step(0.5)
    assert decided(d)[4:] == ["a3"]
    d.step(1.0)
    assert decided(d)[5:] == ["a4", "a5"]
    assert d.engine.next_due() is None


def test_a_limit_that_is_lifted_delays_no_decision_any_more() -> None:
    d = Driver(fabric({"s1/l1": 4}), configured("{fairness: {decisionsPerSecond: 1, decisionBurst: 1}}"))
    d.apply(*(make_pod(f"a{n}", created=n) for n in range(6)))
    d.step()
    assert len(decided(d)) == 1
    d.engine.configure(configured())
    d.step()
    assert len(decided(d)) == 6


def test_without_a_configuration_there_is_no_limit() -> None:
    d = Driver([make_node("n", "s1/l1", cpu="4096", memory="8Ti", pods=5000)])
    many = 6 * FairnessLimits().burst
    d.apply(*(make_pod(f"a{n}", created=n) for n in range(many)))
    d.step()
    assert len(d.flight) == many
