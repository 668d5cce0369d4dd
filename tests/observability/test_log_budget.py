"""The warnings of the log: a namespace whose attempts or writes fail all the time hides no other one's."""

import logging

import msgspec
import pytest

from tests.evicting.eviction_scenes import eviction_scene
from tests.kube.owner_objects import create_ray_cluster
from tests.kube.virtual import virtual_time
from tests.kube.world import world
from tests.observability.executors import decision, executor
from tests.observability.samples import samples
from topo_scheduler.observability.log_budget import LINES_AT_ONCE, LINES_PER_SECOND, MAX_BUDGETS, NamespaceBudgets
from topo_scheduler.observability.logs import configure
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.scheduling.instructions import LogWarning, RecordDecision
from topo_scheduler.state.decision import Verdict


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def written(budgets: NamespaceBudgets, namespace: str, lines: int, logger: str = "x") -> list[int]:
    """Log lines about a namespace; return for each that is written how many were omitted before it."""
    omitted = []
    for _ in range(lines):
        record = logging.makeLogRecord({"name": logger, "levelno": logging.WARNING, "namespace": namespace})
        if budgets.filter(record):
            omitted.append(getattr(record, "omitted", 0))
    return omitted


def test_a_namespace_has_some_lines_at_once_and_then_a_few_a_second() -> None:
    clock = Clock()
    budgets = NamespaceBudgets(clock)
    assert written(budgets, "a", LINES_AT_ONCE + 3) == [0] * LINES_AT_ONCE
    assert written(budgets, "b", 1) == [0]
    assert written(budgets, "a", 1, "another logger") == [0]
    clock.now = 1.0
    assert written(budgets, "a", LINES_PER_SECOND + 1) == [3] + [0] * (LINES_PER_SECOND - 1)
    clock.now = 1000.0
    assert written(budgets, "a", LINES_AT_ONCE + 1) == [1] + [0] * (LINES_AT_ONCE - 1)


def test_lines_about_no_namespace_and_below_warnings_are_all_written() -> None:
    budgets = NamespaceBudgets(Clock())
    for fields in ({"levelno": logging.WARNING}, {"levelno": logging.INFO, "namespace": "a"}):
        assert all(budgets.filter(logging.makeLogRecord(fields)) for _ in range(2 * LINES_AT_ONCE))


def test_a_bounded_number_of_budgets_is_known() -> None:
    budgets = NamespaceBudgets(Clock())
    for number in range(2 * MAX_BUDGETS):
        written(budgets, str(number), 1)
    assert len(budgets._budgets) == MAX_BUDGETS


@pytest.mark.parametrize("format", ["json", "text"])
def test_failed_attempts_are_counted_where_they_are_not_logged(
    format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)
    configure("info", "json" if format == "json" else "text")
    metrics = Metrics(Snapshot)
    logs = executor(metrics)
    failed = msgspec.structs.replace(decision(Verdict.UNSCHEDULABLE), name="a/p")
    for _ in range(3 * LINES_AT_ONCE):
        logs.carry_out(RecordDecision(failed, 0.25))
        logs.carry_out(RecordDecision(msgspec.structs.replace(failed, verdict=Verdict.PLACED), 0.25))
    logs.carry_out(RecordDecision(msgspec.structs.replace(failed, name="b/p"), 0.25))
    lines = capsys.readouterr().err.splitlines()
    warnings = [line for line in lines if "WARNING" in line]
    assert LINES_AT_ONCE + 1 <= len(warnings) < 2 * LINES_AT_ONCE and "b/p: " in warnings[-1]
    assert len(lines) - len(warnings) == 3 * LINES_AT_ONCE
    counted = samples(metrics)["topology_placement_decisions_total", (("verdict", "unschedulable"),)]
    assert counted == 3 * LINES_AT_ONCE + 1


@virtual_time
async def test_warnings_of_the_engine_carry_the_namespace_of_their_cause(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        for namespace in ("hostile", ""):
            e.executor.carry_out(LogWarning("a pod was resized", namespace))
    records = [record for record in caplog.records if record.message == "a pod was resized"]
    assert [getattr(record, "namespace", None) for record in records] == ["hostile", None]
