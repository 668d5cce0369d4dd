"""The attacks for some seconds on few nodes; the long form is ``python -m tests.attacks``."""

import pytest

from tests.e2e.api import Json

from .api_requests import between, totals
from .measuring import DEVICE_ATTACKS, Plan, measure
from .verdict import problems

SLOWER_SECONDS = 10.0
"""Machines of CI run the API server, the scheduler and both tenants on few cores."""


@pytest.mark.real
@pytest.mark.timeout(600)
async def test_nine_attacks_end_nothing_and_the_other_namespace_is_bound() -> None:
    plan = Plan(nodes=96, quiet_seconds=4, attack_seconds=15, rate=90, scale=0.05)
    assert problems(await measure(plan), SLOWER_SECONDS) == []


@pytest.mark.real
@pytest.mark.timeout(600)
async def test_six_attacks_by_means_of_devices_end_nothing_and_the_other_namespace_is_bound() -> None:
    attacks = list(range(1, 1 + DEVICE_ATTACKS))
    plan = Plan(96, quiet_seconds=4, attack_seconds=15, rate=90, scale=0.05, only=attacks, devices=True)
    assert problems(await measure(plan), SLOWER_SECONDS) == []


def _report() -> Json:
    pending = {"count": 9, "p50": 0.1, "p99": 0.2, "max": 0.2}
    phase = {"pods": pending, "gangs": pending, "never_bound": 0, "rss_mib": 400, "cpus": 1.0, "died": False}
    phase["livez"] = {"unanswered": 0}
    tenant = {"created": {"1": 5, "2": 5}}
    return {
        "attacks": [1, 2],
        "quiet": dict(phase),
        "attacked": dict(phase),
        "alive": True,
        "terms": 1,
        "tenant": tenant,
    }


def test_a_report_without_problems() -> None:
    assert problems(_report()) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (["alive"], False, "the daemon ended"),
        (["attacked", "died"], True, "the daemon ended"),
        (["terms"], 2, "the Lease was taken 2 times"),
        (["attacked", "rss_mib"], 513, "513 MiB resident"),
        (["attacked", "cpus"], 1.01, "1.01 of one core"),
        (["attacked", "never_bound"], 1, "1 pods of the other namespace"),
        (["attacked", "livez"], {"unanswered": 1}, "1 probes"),
        (["attacked", "pods"], {"count": 9, "p99": 1.3}, "p99 of pods 1.3 s with attacks, 0.2 s without"),
        (["attacked", "gangs"], {"count": 9, "p99": 1.3}, "p99 of gangs 1.3 s"),
        (["attacked", "gangs"], {"count": 0}, "no gangs were measured"),
        (["tenant"], {"created": {"1": 5}}, "attack 2 created nothing"),
        (["tenant"], {}, "attack 1 created nothing"),
    ],
)
def test_what_is_not_as_promised_is_a_problem(path: list[str], value: object, problem: str) -> None:
    report = _report()
    within = report
    for key in path[:-1]:
        within = within[key]
    within[path[-1]] = value
    assert any(problem in line for line in problems(report))


def test_requests_between_two_readings_are_counted_by_verb_and_resource() -> None:
    name = "apiserver_request_duration_seconds"
    line = name + '_{what}{{dry_run="",resource="pods",subresource="{of}",verb="{verb}"}} {value}'
    readings = []
    for factor in (1, 3):
        figures = (("PATCH", "status", 10, 2.0), ("POST", "", 100, 1.0), ("WATCH", "", 5, 500.0))
        readings.append(
            "\n".join(
                line.format(what=what, of=of, verb=verb, value=factor * value)
                for verb, of, count, seconds in figures
                for what, value in (("count", count), ("sum", seconds))
            )
        )
    requests = between(*map(totals, readings))
    assert requests == {"PATCH pods/status": {"count": 20, "mean": 0.2}, "POST pods": {"count": 200, "mean": 0.01}}
