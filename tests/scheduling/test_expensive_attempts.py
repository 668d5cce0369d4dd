"""Attempts that take many operations are spaced out, and others are tried in between."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import make_pod
from tests.scheduling.device_driver import DRIVER, asking, driver
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.scheduling.barrier import ATTEMPT_OPERATIONS
from topo_scheduler.scheduling.engine import SLOWED
from topo_scheduler.scheduling.instructions import LogWarning, RecordDecision
from topo_scheduler.scheduling.queueing.expensive_attempts import (
    ALLOWED_OPERATIONS,
    OPERATIONS_PER_SECOND,
    ORDINARY_OPERATIONS,
    ExpensiveAttempts,
)
from topo_scheduler.scheduling.queueing.fair_queue import FairWorkloadQueue, Order
from topo_scheduler.state.operation_budget import charge


def test_ordinary_attempts_never_wait() -> None:
    attempts = ExpensiveAttempts()
    assert all(attempts.spend("a", ORDINARY_OPERATIONS, 0.0) == 0.0 for _ in range(1000))


def test_a_namespace_is_forgotten_once_it_owes_nothing() -> None:
    attempts = ExpensiveAttempts()
    attempts.spend("a", ALLOWED_OPERATIONS, 0.0)
    attempts.spend("b", 30_000, ALLOWED_OPERATIONS / OPERATIONS_PER_SECOND + 1)
    assert list(attempts._debts) == ["b"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3_000_000)), min_size=1, max_size=60))
def test_all_namespaces_together_use_no_more_than_the_rate(asked: list[tuple[str, int]]) -> None:
    """Each namespace tries as soon as it may. Beside what is allowed at once, one attempt of each may exceed it."""
    attempts, may, now, spent = ExpensiveAttempts(), {"a": 0.0, "b": 0.0, "c": 0.0}, 0.0, 0
    for namespace, operations in asked:
        now = max(now, may[namespace])
        may[namespace] = attempts.spend(namespace, operations, now)
        spent += operations if operations > ORDINARY_OPERATIONS else 0
        assert spent <= ALLOWED_OPERATIONS + 3 * 3_000_000 + OPERATIONS_PER_SECOND * now + 1


def test_the_first_wait_of_a_namespace_is_as_long_as_if_it_was_alone() -> None:
    attempts = ExpensiveAttempts()
    for number in range(12):
        attempts.spend(f"other-{number}", 3_000_000, 0.0)
    first = attempts.spend("team", 3_000_000, 0.0)
    assert first <= 3_000_000 / OPERATIONS_PER_SECOND
    waits = [first, *(attempts.spend("team", 3_000_000, 0.0) for _ in range(11))]
    assert waits == sorted(waits) and waits[-1] > 12 * first, "in the long run it waits for its debt, and for theirs"


def test_others_are_tried_while_expensive_attempts_wait() -> None:
    queue = FairWorkloadQueue()
    for number in range(3):
        queue.put(Order(0, 0.0, f"costly-{number}", "costly"))
        queue.put(Order(0, 1.0, f"plain-{number}", "plain"))
    order = []
    for _ in range(6):
        id_ = queue.take(0.0)
        if id_ is None:
            break
        order.append(id_)
        queue.tried(placed=False, charged=2 * ALLOWED_OPERATIONS if id_.startswith("costly") else 0)
    assert order == ["costly-0", "plain-0", "plain-1", "plain-2"]
    assert not queue.any_ready
    due = queue.next_due()
    assert due == ALLOWED_OPERATIONS / OPERATIONS_PER_SECOND
    assert queue.take(due) == "costly-1"


@pytest.mark.unrecorded
def test_an_attempt_that_is_stopped_counts_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    decide = d.engine.attempts.decide

    def expensive(workload: Any, *arguments: Any) -> Any:
        if workload.name == "costly":
            charge(10**9)
        return decide(workload, *arguments)

    monkeypatch.setattr(d.engine.attempts, "decide", expensive)
    d.run(make_pod("costly", gpus=8))
    late = make_pod("late", gpus=8)
    d.apply(late)
    d.step(ATTEMPT_OPERATIONS / OPERATIONS_PER_SECOND)
    d.settle()
    assert d.where(late)


def test_selectors_that_cost_much_are_evaluated_a_few_at_a_time() -> None:
    d = driver({f"s1/l{leaf}": 8 for leaf in range(8)})
    numbers, gpu = "[0, 1, 2, 3, 4]", f"device.attributes['{DRIVER}'].numa"
    nested = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, {numbers}.all(d, a + b + c + d >= {gpu} - {{}}))))"
    costly = [
        d.pod(f"costly-{number}", asking(selectors=[{"cel": {"expression": nested.format(number + 1)}}]))
        for number in range(80)
    ]
    d.apply(*costly)
    d.step()
    plain = make_pod("plain", namespace="others", gpus=0, cpu="1")
    d.apply(plain)
    d.step()
    decided = [said.decision.workload for said in d.said if isinstance(said, RecordDecision)]
    assert plain.metadata.uid in decided
    assert 1 < len(decided) < 80
    assert [said.message for said in d.said if isinstance(said, LogWarning)] == [f"{SLOWED} default"]
    for _ in range(20):
        d.step(1)
    all_decided = {said.decision.workload for said in d.said if isinstance(said, RecordDecision)}
    assert all_decided >= {pod.metadata.uid for pod in costly}
