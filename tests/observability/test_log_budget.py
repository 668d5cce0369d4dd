"""The lines of the log about failed attempts: a namespace whose attempts fail all the time hides no other one's."""

import logging

import msgspec
import pytest

from tests.observability.executors import decision, executor
from tests.observability.samples import samples
from topo_scheduler.observability.log_budget import LINES_AT_ONCE, LINES_PER_SECOND, MAX_NAMESPACES, LogBudget
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.scheduling.instructions import RecordDecision
from topo_scheduler.state.decision import Verdict


def test_a_namespace_has_some_lines_at_once_and_then_a_few_a_second() -> None:
    budget = LogBudget()
    assert [budget.take("a", 0.0) for _ in range(LINES_AT_ONCE)] == [0] * LINES_AT_ONCE
    assert [budget.take("a", 0.0) for _ in range(3)] == [None] * 3
    assert budget.take("b", 0.0) == 0
    assert budget.take("a", 1.0) == 3
    assert [budget.take("a", 1.0) for _ in range(LINES_PER_SECOND - 1)] == [0] * (LINES_PER_SECOND - 1)
    assert budget.take("a", 1.0) is None
    assert [budget.take("a", 1000.0) for _ in range(LINES_AT_ONCE + 1)] == [1] + [0] * (LINES_AT_ONCE - 1) + [None]


def test_budgets_of_a_bounded_number_of_namespaces_are_known() -> None:
    budget = LogBudget()
    for number in range(2 * MAX_NAMESPACES):
        budget.take(str(number), 0.0)
    assert len(budget._budgets) == MAX_NAMESPACES


def test_failed_attempts_are_counted_where_they_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "topo_scheduler.decisions")
    metrics = Metrics(Snapshot)
    logs = executor(metrics)
    failed = msgspec.structs.replace(decision(Verdict.UNSCHEDULABLE), name="a/p")
    for _ in range(3 * LINES_AT_ONCE):
        logs.carry_out(RecordDecision(failed, 0.25))
        logs.carry_out(RecordDecision(msgspec.structs.replace(failed, verdict=Verdict.PLACED), 0.25))
    logs.carry_out(RecordDecision(msgspec.structs.replace(failed, name="b/p"), 0.25))
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == LINES_AT_ONCE + 1 and lines[-1].startswith("b/p: ")
    assert sum(record.levelno == logging.INFO for record in caplog.records) == 3 * LINES_AT_ONCE
    counted = samples(metrics)["topology_placement_decisions_total", (("verdict", "unschedulable"),)]
    assert counted == 3 * LINES_AT_ONCE + 1
