"""What a command writes with ``--write`` has every figure that its page shows."""

import json
from typing import Any

import pytest

from tests.attacks import verdict
from tests.churn import day
from tests.docs.results import RESULTS, keep, missing, runs, shown
from tests.failover import __main__ as failover
from tests.failover.zombies import Found
from tests.half_gangs import __main__ as half_gangs
from tests.half_gangs.rounds import Kind, Result
from tests.recovery import gap_together
from tests.soak import soak
from tests.starvation import __main__ as starvation
from tests.starvation.proof import Outcome

_SPREAD = {"count": 4, "p50": 0.1, "p99": 0.2, "max": 0.3}
_PHASE = {"pods": _SPREAD, "gangs": _SPREAD, "never_bound": 0, "rss_mib": 400, "died": False, "cpus": 0.5}
_PHASE |= {"livez": {**_SPREAD, "unanswered": 1}, "api_server": _SPREAD, "seconds": 240.2}
_REPORT: dict[str, Any] = {"nodes": 1000, "quiet": _PHASE, "attacked": _PHASE, "alive": True, "terms": 1}
_REPORT |= {"tenant": {"created": {"1": 100, "8": 700}}}
_PAIRED = {**_REPORT, "attacks": [3], "problems": []}
_SAMPLES = [soak.Sample(10 * number, number << 20, {}) for number in range(1, 11)]
_CASES = [gap_together.Case(1, 30, 5, (2, 100), (2, 100)), gap_together.Case(2, 40, 7, (3, 150), (2, 100))]
_ENDED = [
    (starvation.Case("a", 0.95, 8, "exact", job_limit=250), Outcome(250, waited=9, longest_wait=7200.0), 847, 1.0),
    (starvation.Case("b", 0.95, 8, "exact", job_limit=250), Outcome(200, waited=5, longest_wait=3600.0), 39, 1.0),
]
WRITTEN = {
    "attacks": verdict.figures(_REPORT),
    "attacks_beside_control": verdict.paired_figures([(_PAIRED, _PAIRED)]),
    "attacks_devices": verdict.paired_figures([(_PAIRED, _PAIRED), (_PAIRED, None)]),
    "churn": day.figures(day.Day(24.0, 0.01, 1)),
    "gap_together": gap_together.figures(_CASES, 8),
    "half_gangs": half_gangs.figures([Result(kind) for kind in Kind]),
    "soak": soak.figures(soak.Soak(_SAMPLES)),
    "starvation": starvation.figures(_ENDED),
    "zombies": failover.figures(Found(3, 3, 90), 45.0, "current"),
    "zombies_oldest": failover.figures(Found(3, 3, 90), 45.0, "oldest"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_command_writes_every_figure_of_its_page(name: str) -> None:
    assert missing(runs()[name]["figures"], WRITTEN[name]) == []
    json.dumps(WRITTEN[name])


def test_only_figures_that_a_page_shows_are_kept() -> None:
    assert shown({"a": {"b": 1}, "c": 2}, {"a": {"b": 3, "x": 4}, "c": 5, "y": 6}) == {"a": {"b": 3}, "c": 5}


def test_a_run_that_lacks_a_figure_of_the_page_is_not_written() -> None:
    before = {path: path.read_bytes() for path in RESULTS.iterdir()}
    with pytest.raises(SystemExit, match=r"lacks longest_s\.HANGS"):
        keep("half_gangs", "1 of 1 rounds", {"rounds": 1, "longest_s": {"LEADER": 0, "SERVER": 0, "REFUSES": 0}})
    assert before == {path: path.read_bytes() for path in RESULTS.iterdir()}


def test_cases_are_added_up_by_what_jobs_state_and_by_size() -> None:
    (row,) = WRITTEN["starvation"]["groups"]
    assert row["told"] == "correct, 250 jobs" and row["gpus"] == "times 8" and row["nodes"] == "847 nodes, or fewer"
    assert (row["cases"], row["jobs"], row["waited"], row["longest_h"]) == (2, 450, 14, 2)


def test_a_broken_promise_is_written_as_broken() -> None:
    attacked = {**_PHASE, "rss_mib": 600, "cpus": 1.2, "pods": {**_SPREAD, "p99": 1.3}, "never_bound": 2}
    kept = verdict.figures({**_REPORT, "attacked": attacked})["kept"]
    broken = {name for name, value in kept.items() if not value}
    assert broken == {"memory", "core", "bound", "pods", "livez"}


def test_clusters_that_need_more_pods_are_counted_apart() -> None:
    figures = WRITTEN["gap_together"]
    assert (figures["fewest_pods_without_node"], figures["one_pod_more"], figures["two_pods_more"]) == (1, 1, 0)
    assert figures["nodes"] == [30, 40] and figures["worst_times_lowest"] == 1.0


def test_memory_is_shown_early_late_and_where_it_stays() -> None:
    assert WRITTEN["soak"]["memory"] == [
        {"mib": 3, "after_percent": 30},
        {"mib": 7, "after_percent": 70},
        {"mib": 10, "after_percent": 100},
    ]
