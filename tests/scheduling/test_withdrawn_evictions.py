"""Claims that wait for a pod end at once when its eviction is withdrawn."""

from collections import deque

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, run_pod_until, urgent_pod, with_priority
from topo_scheduler.api.objects import BudgetSpec, BudgetStatus, DisruptionBudget, ObjectMeta, Pod
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.scheduling.instructions import EvictionOutcome, Preempt


def carry_out(d: Driver) -> list[str]:
    """Answer all evictions that were asked for, as the executor does; return the names of the pods that go."""
    evicted = []
    for preempt in [said for said in d.said if isinstance(said, Preempt)]:
        evicted += answer(d, preempt)
    d.forget()
    return evicted


def answer(d: Driver, preempt: Preempt) -> list[str]:
    """Answer an eviction; return the name of the pod if it goes."""
    uid = preempt.pod.uid
    if not d.engine.may_evict(uid):
        d.engine.eviction_finished(uid, EvictionOutcome.WITHDRAWN, "no workload waits", d.now)
    elif uid in d.pods and preempt.preemptor.uid in d.engine.preempting.preemptors(uid):
        d.evict(d.pods[uid])
        return [preempt.pod.name]
    return []


def test_one_of_higher_priority_that_takes_over_a_claim_before_its_evictions_are_sent() -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod("high", 5))
    d.step()
    higher = urgent_pod("higher", 8)
    d.apply(higher)
    d.step()
    carry_out(d)
    d.step(1)
    carry_out(d)
    d.settle(1)
    assert d.where(higher)


def shared(d: Driver) -> tuple[Pod, Pod]:
    """Two pods that wait for the room of one victim."""
    first, other = urgent_pod("one", gpus=4), urgent_pod("other", gpus=4)
    d.apply(first)
    d.step()
    d.apply(other)
    d.step()
    assert set(d.nominated()) == {"one", "other"}
    assert d.preempted() == ["low"]
    return first, other


@pytest.mark.parametrize("deleted", ["one", "other"])
def test_a_workload_that_is_deleted_takes_no_victim_from_another(deleted: str) -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    pods = {pod.metadata.name: pod for pod in shared(d)}
    d.delete(pods.pop(deleted))
    d.step()
    carry_out(d)
    d.step(1)
    carry_out(d)
    d.settle(1)
    (left,) = pods.values()
    assert d.where(left)


@pytest.mark.parametrize("outcome", [EvictionOutcome.UNCONFIRMED, EvictionOutcome.REFUSED])
def test_all_that_wait_for_a_victim_learn_that_it_stays(outcome: EvictionOutcome) -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low = run_pod(d, "low", "s1-l1-1")
    run_pod(d, "more", "s1-l2-1", priority=1)
    first, _ = shared(d)
    d.delete(first)
    d.engine.eviction_finished(low.metadata.uid, outcome, "no", d.now)
    d.forget()
    d.step(1)
    assert d.preempted()


def test_a_gang_whose_pod_is_replaced_before_its_evictions_are_sent() -> None:
    d = fabric_driver({"s1/l1": 2})
    run_pod(d, "low-1", "s1-l1-1")
    run_pod(d, "low-2", "s1-l1-2")
    members = with_priority(gang(2), 10)
    d.apply(*members)
    d.step()
    assert len(d.preempted()) == 2
    members[0].metadata.deletion_timestamp = timestamp(30)
    d.apply(members[0])
    new = make_pod("new", gpus=8, priority=10, annotations=dict(members[0].metadata.annotations))
    d.apply(new)
    carry_out(d)
    d.step()
    d.step(1)
    carry_out(d)
    d.settle(1)
    assert len(d.where(new, members[1])) == 2


@pytest.mark.parametrize("priority", [5, 8])
@pytest.mark.parametrize("size", [2, 8])
def test_evictions_that_are_answered_one_by_one_withdraw_one_another_only_once(size: int, priority: int) -> None:
    d = fabric_driver({"s1/l1": size})
    for number in range(1, size + 1):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    before, after = with_priority(gang(size, name="before"), 5), with_priority(gang(size, name="after"), priority)
    d.apply(*before)
    d.step()
    d.apply(*after)
    if priority == 5:
        d.delete(*before)
    d.step()
    sent = deque(said for said in d.said if isinstance(said, Preempt))
    answers = 0
    while sent:
        d.forget()
        answer(d, sent.popleft())
        d.step(0.005)
        sent += [said for said in d.said if isinstance(said, Preempt)]
        answers += 1
        assert answers <= 2 * size
    d.settle(1)
    assert len(d.where(*after)) == size


@pytest.mark.parametrize("count", [2, 3, 8])
def test_workloads_of_rising_priority_do_not_take_the_victims_of_one_another_without_end(count: int) -> None:
    """Each eviction is sent 20 ms after it was asked for, when the next workload may have taken its place."""
    d = fabric_driver({"s1/l1": 8})
    for number in range(1, 9):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    pods = [urgent_pod(f"urgent-{number}", 2 + number) for number in range(count)]
    evicted: list[str] = []
    sent: deque[tuple[float, Preempt]] = deque()

    def step(seconds: float) -> None:
        d.step(seconds)
        sent.extend((d.now + 0.02, said) for said in d.said if isinstance(said, Preempt))
        d.forget()

    for pod in pods:
        d.apply(pod)
        step(0.01)
    while len(d.where(*pods)) < count:
        assert d.now < 60
        if sent:
            at, preempt = sent.popleft()
            d.now = max(d.now, at)
            evicted += answer(d, preempt)
        step(0.0 if sent else max(0.001, (d.engine.next_due() or d.now + 1) - d.now))
        for uid in list(d.flight):
            d.answer(uid)
    assert len(evicted) == count
    assert d.now < 5


def refuse(d: Driver, outcome: EvictionOutcome, but: str = "") -> list[str]:
    """Let half a second pass, and refuse each eviction except that of one pod; return the names of all victims."""
    d.step(0.5)
    asked = [said.pod for said in d.said if isinstance(said, Preempt)]
    d.forget()
    for pod in asked:
        if pod.name != but:
            d.engine.eviction_finished(pod.uid, outcome, "no", d.now)
    return [pod.name for pod in asked]


@pytest.mark.parametrize(
    ("outcome", "known_budget", "tries"),
    [(EvictionOutcome.REFUSED, True, 3), (EvictionOutcome.BLOCKED, True, 5), (EvictionOutcome.BLOCKED, False, 3)],
)
def test_a_namespace_whose_evictions_fail_again_is_left_alone_unless_a_known_budget_is_the_reason(
    outcome: EvictionOutcome, known_budget: bool, tries: int
) -> None:
    d = fabric_driver({"s1/l1": 5})
    if known_budget:
        meta = ObjectMeta(name="budget", namespace="hostile", uid="uid-budget")
        budget = DisruptionBudget(meta, BudgetSpec(LabelSelector({})), BudgetStatus(5, 1))
        d.engine.budgets_applied([budget])
    for number in range(1, 5):
        run_pod_until(d, f"low-{number}", f"s1-l1-{number}", namespace="hostile")
    honest = run_pod(d, "honest", "s1-l1-5", priority=1)
    d.apply(urgent_pod("high", 10))
    tried: list[str] = []
    while honest.metadata.name not in tried:
        assert d.now < 60
        tried += refuse(d, outcome, but=honest.metadata.name)
    assert len(tried) == tries


def test_where_no_other_would_do_a_pod_of_a_spared_namespace_is_chosen() -> None:
    d = fabric_driver({"s1/l1": 3})
    for number in range(1, 4):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    d.apply(urgent_pod("high", 10))
    tried: list[str] = []
    while len(tried) < 3:
        assert d.now < 10
        tried += refuse(d, EvictionOutcome.REFUSED)
    assert sorted(tried) == ["low-1", "low-2", "low-3"]


def test_an_eviction_that_succeeds_ends_the_pause_of_its_namespace() -> None:
    d = fabric_driver({"s1/l1": 3})
    low = [run_pod(d, f"low-{number}", f"s1-l1-{number}") for number in range(1, 4)]
    spared = d.engine.preempting._claims.spared
    occupants = [d.engine.world.ledger.get(pod.metadata.uid) for pod in low]
    for number, entry in enumerate(occupants):
        assert entry is not None
        spared.failed(low[number].metadata.uid, entry.occupant, 1.0)
    assert spared.namespaces(1.0) == set(), "one incident, however many pods"
    assert occupants[0] is not None
    spared.failed(low[0].metadata.uid, occupants[0].occupant, 2.0)
    assert spared.namespaces(2.0) == {"default"}
    spared.succeeded("default")
    assert spared.namespaces(2.0) == set()


def test_a_pod_that_another_client_bound_needs_no_victim_any_more() -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low = run_pod(d, "low", "s1-l1-1")
    run_pod(d, "above", "s1-l2-1", priority=5)
    high = urgent_pod("high", 10)
    d.apply(high)
    d.step()
    assert d.preempted() == ["low"]
    high.spec.node_name = "s1-l2-1"
    d.apply(high)
    d.step(1)
    assert not d.engine.may_evict(low.metadata.uid)
