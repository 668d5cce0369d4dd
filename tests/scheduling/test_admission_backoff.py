"""Pods that the API server refuses to bind: delayed, tried one at a time, without harm to other pods."""

from collections.abc import Sequence

import pytest

from tests.helpers import make_pod, owner
from tests.scheduling.driver import Driver, fabric, fabric_driver, gang, held, stage
from tests.scheduling.running_pods import run_pod, urgent_pod
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.binding.admission_backoff import (
    FIRST_BACKOFF_SECONDS,
    MAX_BACKOFF_SECONDS,
    REMEMBERED_SECONDS,
    AdmissionBackoff,
    kind_of,
)
from topo_scheduler.scheduling.instructions import Bind, BindOutcome, DryRunBind, Evict, Preempt
from topo_scheduler.state.pods.workloads import Member, Stage

WHY = 'admission webhook "w.example.com" denied the request: no'


class Server:
    """An API server of which a webhook refuses some pods; counts what is asked of it."""

    def __init__(self, d: Driver, refuses: Sequence[Pod]) -> None:
        self.d = d
        d.answers_trials = False
        self.refuses = {pod.metadata.uid for pod in refuses}
        self.binds = 0
        self.rehearsals = 0
        self.takes_dry_runs = True

    def work(self, seconds: float = 0.0) -> None:
        """Let time pass, and answer everything until there is nothing to answer."""
        self.d.step(seconds)
        while self.d.flight or self.d.tried:
            for uid in list(self.d.tried):
                self.rehearsals += 1
                refused = uid in self.refuses
                outcome = BindOutcome.REJECTED if refused else BindOutcome.BOUND
                self.d.rehearsed(uid, outcome if self.takes_dry_runs else BindOutcome.UNKNOWN, WHY)
            for uid in list(self.d.flight):
                self.bind(uid)
            self.d.step()

    def bind(self, uid: str) -> None:
        if self.d.refused(uid):
            return
        self.binds += 1
        self.d.answer(uid, BindOutcome.REJECTED if uid in self.refuses else BindOutcome.BOUND, WHY)

    def pass_(self, seconds: int) -> None:
        """Let time pass in steps of a second."""
        for _ in range(seconds):
            self.work(1)

    @property
    def requests(self) -> int:
        return self.binds + self.rehearsals


def singles(count: int, name: str = "p", **options: object) -> list[Pod]:
    return [make_pod(f"{name}{number}", gpus=1, created=number, **options) for number in range(count)]  # type: ignore[arg-type]


def test_pods_that_are_always_refused_cost_a_few_requests() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = singles(300)
    server = Server(d, pods)
    d.apply(*pods)
    server.pass_(60)
    assert d.where(*pods) == {}
    assert server.binds == 1
    # At 1, 3, 7, 15, 31 seconds and so on.
    assert 4 <= server.rehearsals <= 6
    assert held(d, "s1-l1-1") == 0


def test_others_are_bound_meanwhile() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    bad, good = singles(16), [make_pod(f"good-{n}", gpus=2, created=100 + n) for n in range(8)]
    server = Server(d, bad)
    d.apply(*bad, *good)
    server.work()
    assert len(d.where(*good)) == 8, "in the same moment, younger as they are"
    elsewhere = singles(4, "else-", namespace="another")
    d.apply(*elsewhere)
    server.work()
    assert len(d.where(*elsewhere)) == 4, "the same class in another namespace"


def test_the_events_quote_the_message_of_the_server_once() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = singles(3)
    server = Server(d, pods)
    d.apply(*pods)
    server.pass_(100)
    for pod in pods:
        messages = d.told(pod, Reason.FAILED_SCHEDULING)
        assert messages == [
            f"In backoff: the API server rejected the Binding of a pod like this one: {WHY}. The scheduler retries."
        ]
    assert d.told(reason=Reason.BIND_FAILED) == [f"Binding to {d.binds()[0].node} failed: {WHY}"]
    assert d.marked() == set(), "no autoscaler adds nodes for that"


def test_the_pauses_double_up_to_a_limit() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pods = singles(2)
    server = Server(d, pods)
    d.apply(*pods)
    server.work()
    tries: list[float] = []
    for _ in range(1500):
        before = server.rehearsals
        server.work(1)
        tries += [d.now] * (server.rehearsals - before)
    pauses = [later - earlier for earlier, later in zip([0.0, *tries], tries, strict=False)]
    assert pauses[0] == FIRST_BACKOFF_SECONDS
    assert pauses == sorted(pauses)
    assert MAX_BACKOFF_SECONDS <= pauses[-1] <= MAX_BACKOFF_SECONDS + 2


@pytest.mark.parametrize("dry_runs", [True, False])
def test_a_gang_of_a_refused_class_is_never_partially_bound_and_bound_when_it_is_welcome(dry_runs: bool) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    server = Server(d, pods)
    server.takes_dry_runs = dry_runs
    d.apply(*pods)
    server.pass_(20)
    assert d.where(*pods) == {}
    assert d.evicted() == []
    assert all(held(d, f"s1-l1-{n}") == 0 for n in range(1, 5))
    assert server.requests <= 10
    server.refuses.clear()
    server.pass_(40)
    assert len(d.where(*pods)) == 4
    assert len(d.engine.outcomes.admission_backoff) == 0
    assert d.engine.outcomes.in_flight == 0


def test_one_member_for_each_class_is_tried_and_nothing_is_written_when_one_is_refused() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    for pod in pods[:2]:
        pod.spec.containers[0].resources.requests["cpu"] = "2"
    server = Server(d, pods)
    d.apply(*pods)
    d.step()
    for uid in [pods[0].metadata.uid, pods[2].metadata.uid]:
        d.answer(uid, BindOutcome.REJECTED, WHY)
    for uid in list(d.flight):
        assert d.refused(uid), "what was not sent yet is not sent"
    d.step(1)
    assert set(d.tried) == {pods[0].metadata.uid, pods[2].metadata.uid}
    assert all(stage(d, pod) is Stage.ASSUMED for pod in pods)
    server.refuses = {pods[2].metadata.uid}
    server.work()
    assert server.binds == 0
    assert {stage(d, pod) for pod in pods} == {Stage.PENDING}
    server.refuses.clear()
    server.pass_(10)
    assert len(d.where(*pods)) == 4


def test_nothing_more_is_evicted_for_a_pod_whose_bind_is_refused_although_its_dry_run_is_not() -> None:
    """As of a pod so large that etcd can't store it with its node: no dry run reaches etcd."""
    d = fabric_driver({"s1/l1": 4})
    d.answers_trials = False
    for number in range(1, 5):
        run_pod(d, f"low{number}", f"s1-l1-{number}")
    large, evictions, refused, texts = urgent_pod(), 0, True, set[str]()
    d.apply(large)

    def pass_(seconds: int) -> None:
        nonlocal evictions
        for _ in range(seconds):
            d.forget()
            d.step(1)
            texts.update(d.told(large))
            for victim in [instruction for instruction in d.said if isinstance(instruction, Preempt)]:
                evictions += 1
                d.evict(*(pod for pod in d.pods.values() if pod.metadata.uid == victim.pod.uid))
            for uid in list(d.tried):
                d.rehearsed(uid)
            for uid in list(d.flight):
                node = d.flight[uid].node
                d.answer(uid, BindOutcome.REJECTED if refused else BindOutcome.BOUND, WHY)
                if refused:
                    run_pod(d, f"after{d.now}", node)

    pass_(400)
    assert evictions == 2
    (text,) = {text for text in texts if "evicts no pod" in text}
    assert text.endswith(f"although a dry run was not refused: {WHY}.")
    refused = False
    d.delete(next(pod for pod in d.pods.values() if pod.spec.node_name))
    pass_(10)
    assert d.where(large)
    assert evictions == 2


def test_a_pod_for_which_no_room_is_made_is_tried_again_when_its_refusals_are_forgotten() -> None:
    """Nothing else happens in the cluster."""
    d = fabric_driver({"s1/l1": 1})
    large = urgent_pod()
    d.apply(large)
    for _ in range(4):
        d.step(1)
        for uid in list(d.flight):
            d.answer(uid, BindOutcome.REJECTED, WHY)
    run_pod(d, "low", "s1-l1-1")
    d.step(MAX_BACKOFF_SECONDS)
    assert "evicts no pod" in d.told(large)[-1]
    assert d.preempted() == []
    steps = 0
    while (due := d.engine.next_due()) is not None and not d.preempted() and steps < 20:
        d.now, steps = max(d.now, due), steps + 1
        d.step()
    assert d.preempted() == ["low"]
    assert d.now >= REMEMBERED_SECONDS
    assert steps <= 3, "it is not polled"


def test_deleted_workloads_wait_for_no_kind_and_do_not_go_first() -> None:
    admission_backoff, member = AdmissionBackoff(), pending_member()
    kind = kind_of(member)
    admission_backoff.refused(kind, "a", WHY, 0)
    for id_ in ("b", "c"):
        assert admission_backoff.must_wait(id_, [member], 0) is not None
    (entry,) = admission_backoff._held.values()
    assert (list(entry.waiting), entry.first) == (["b", "c"], "b")
    admission_backoff.forget("b")
    assert (list(entry.waiting), entry.first) == (["c"], "")
    admission_backoff.refused(kind, "a", WHY, 1)
    assert admission_backoff.must_wait("d", [member], 1) is not None
    admission_backoff.forget("d")
    admission_backoff.pardon()
    assert admission_backoff.take_freed() == ["c"], "it waited before the second refusal"
    assert admission_backoff._waits == {}


def pending_member() -> Member:
    """Return the member of a pending workload."""
    d = Driver(fabric({"s1/l1": 1}))
    d.apply(pod := make_pod("p", gpus=9))
    d.step()
    membership = d.engine.workloads.of_pod(pod.metadata.uid)
    assert membership is not None
    return membership[1]


def test_all_others_are_freed_by_the_first_that_is_bound() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = singles(32)
    server = Server(d, pods)
    d.apply(*pods)
    server.pass_(2)
    server.refuses.clear()
    server.pass_(4)
    assert len(d.where(*pods)) == 32
    assert server.rehearsals <= 3


def test_one_pod_that_is_refused_does_not_go_first_again_and_again() -> None:
    # A webhook tells pods of one class apart, by their labels for one.
    d = Driver(fabric({"s1/l1": 4}))
    pods = singles(24)
    server = Server(d, pods[:1])
    d.apply(*pods)
    server.pass_(6)
    assert len(d.where(*pods)) == 23


@pytest.mark.parametrize("outcome", [BindOutcome.UNKNOWN, BindOutcome.GONE, BindOutcome.TAKEN])
def test_a_dry_run_bind_without_a_clear_answer_is_followed_by_the_binds(outcome: BindOutcome) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.answers_trials = False
    pods = gang(2)
    d.apply(*pods)
    d.step()
    for uid in list(d.flight):
        d.answer(uid, BindOutcome.REJECTED, WHY)
    d.step(1)
    (uid,) = d.tried
    d.rehearsed(uid, outcome)
    d.settle()
    assert len(d.where(*pods)) == 2


def test_a_pod_deleted_while_it_is_tried_leaves_nothing_behind() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = singles(3)
    server = Server(d, pods)
    d.apply(*pods)
    server.work()
    d.step(1)
    (uid,) = d.tried
    d.delete(next(pod for pod in pods if pod.metadata.uid == uid))
    d.rehearsed(uid)
    server.refuses.clear()
    server.pass_(10)
    assert len(d.where(*pods)) == 2
    admission_backoff = d.engine.outcomes.admission_backoff
    assert (
        len(admission_backoff),
        admission_backoff._trial,
        admission_backoff._rehearsals,
        admission_backoff._ended,
    ) == (0, {}, {}, [])


def test_a_node_that_vanishes_meanwhile_is_not_bound_to() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    (pod,) = singles(1)
    server = Server(d, [pod])
    d.apply(pod)
    server.work()
    d.step(1)
    (uid,) = d.tried
    d.drop_node(d.tried[uid].node)
    server.refuses.clear()
    server.pass_(5)
    assert d.where(pod)


def test_a_gang_that_is_partially_bound_is_repaired_or_rolled_back_in_time() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.own(owner("ReplicaSet", "g", {"gang-size": "4"}))
    pods = gang(4, controlled=True)
    server = Server(d, pods[3:])
    d.apply(*pods)
    server.work()
    assert len(d.where(*pods)) == 3
    server.pass_(5)
    assert len([said for said in d.said if isinstance(said, Evict)]) == 3


def test_a_new_configuration_ends_every_backoff() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = singles(4)
    server = Server(d, pods)
    d.apply(*pods)
    server.pass_(20)
    server.refuses.clear()
    d.engine.configure(d.engine.config)
    server.work()
    assert len(d.where(*pods)) == 4


def test_nothing_is_tried_where_nothing_was_refused() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.run(*gang(4))
    assert not any(isinstance(said, DryRunBind) for said in d.said)
    assert sum(isinstance(said, Bind) for said in d.said) == 4


def test_refused_kinds_are_forgotten_with_their_pods_and_long_words_are_cut() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    admission_backoff = d.engine.outcomes.admission_backoff
    for number in range(300):
        pod = make_pod(f"p{number}", gpus=1, cpu=f"{number + 1}m")
        d.apply(pod)
        d.step()
        d.answer(pod.metadata.uid, BindOutcome.REJECTED, "\x1b[2J" * 100_000)
        d.step(0.5)
        d.delete(pod)
        d.forget()
        assert len(admission_backoff) <= 65
    assert sum(len(refusal.why) for refusal in admission_backoff._held.values()) < 65 * 1_100
    d.step(1_000)
    assert not len(admission_backoff)


def test_kinds_that_pods_wait_for_are_not_forgotten_however_many_there_are() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = [make_pod(f"p{number}", gpus=1, cpu=f"{number + 1}m") for number in range(200)]
    server = Server(d, pods)
    d.apply(*pods)
    server.pass_(60)
    assert len(d.engine.outcomes.admission_backoff) == 200
    assert server.binds == 200
    assert server.rehearsals <= 6 * 200
