"""The page of measurements shows the figures of the run beside it, and which are missing."""

import re
from copy import deepcopy
from typing import Any

import pytest

from tests.bench.check import of_parts
from tests.bench.objects import Json
from tests.bench.parts import PARTS
from tests.bench.promises import EVENTS_SECONDS, PROMISES, SETTLED_ELSEWHERE, Promise
from tests.bench.ratios import RATIOS, ratios_of
from tests.bench.reliability_promises import reliability_promises
from tests.bench.reservation_promises import reservation_promises
from tests.bench.results import failures, read
from tests.bench.table import COPY, REFERENCE, page
from tests.docs.results import recorded_figures


@pytest.fixture
def kept() -> Json:
    """The run that is kept in docs/."""
    return read(COPY)


def test_ratios_and_promises_are_those_of_the_parts_that_were_measured(kept: Json) -> None:
    parts, text = kept["parts"], page(kept)
    assert parts.keys() <= PARTS.keys()
    assert not failures(parts)
    assert kept["ratios"] == ratios_of(parts)
    assert {part_ratio.name for part_ratio in of_parts(parts)} == kept["ratios"].keys()
    for ratio in RATIOS:
        assert (f"| `{ratio.name}` |" in text) == (ratio.name in kept["ratios"])
    for promise in PROMISES:
        (row,) = re.findall(rf"^\| {re.escape(promise.tells)} \|.*$", text, re.MULTILINE)
        assert (promise.measured(parts) is None) == ("| not measured |" in row)
        if any(path.partition(".")[0] not in parts for path in (promise.path, promise.by) if path):
            assert promise.measured(parts) is None


def test_what_was_not_measured_is_reported(kept: Json) -> None:
    text = page(kept)
    match = re.search(r"\*\*Not measured in this run: (.*)\.\*\*", text)
    assert set(match[1].split(", ") if match else ()) == PARTS.keys() - kept["parts"].keys()
    cells = [cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert not {"None", "nan"} & set(cells)


def test_the_code_that_was_measured_is_named(kept: Json) -> None:
    assert f"commit {kept.get('commit') or 'not recorded'}, digest of `topo_scheduler` {kept['source']}" in page(kept)
    assert "commit 0123456789ab, changed, digest" in page({**kept, "commit": "0123456789ab, changed"})


def test_starts_and_takeovers_have_promises_with_their_verdicts(kept: Json) -> None:
    figures = {
        "nodes": 992,
        "first_bind": {"min_s": 2.0, "max_s": 2.9},
        "after_sigkill": {"min_s": 15.5, "max_s": 17.1},
        "after_sigkill_beyond_lease": {"min_s": 0.5, "max_s": 2.1},
    }
    kept["parts"]["takeover"] = {"seconds": 1.0, "load": {"begin": 0.0, "end": 0.0}, "figures": figures}
    text = page(kept)
    assert re.search(r"first bind from the start of a process.*\| under 3 s \| 2.9 s \| yes \|", text)
    assert re.search(r"after SIGKILL of the leader.*\| under 2 s \| 2.1 s \| \*\*no\*\* \|", text)
    del kept["parts"]["takeover"]
    assert len(re.findall(r"the longest of three \| under . s \| not measured \|", page(kept))) == 2


def _numbers(name: str, *rows: str) -> list[list[float]]:
    """Return the numbers in the cells of the rows of a page that begin so, the first cell excluded."""
    lines = (REFERENCE / name).read_text(encoding="utf-8").splitlines()
    numbers = [
        [float(number) for cell in line.split("|")[2:] for number in re.findall(r"(?<![\w.])\d[\d.]*", cell)]
        for line in lines
        if line.startswith(tuple(f"| {row}" for row in rows))
    ]
    assert len(numbers) >= len(rows), (name, rows)
    return numbers


LISTS = (
    "default",
    "cpu050",
    "cpu100",
    "gpushare40",
    "gpushare60",
    "gpuspec10",
    "gpuspec20",
    "multigpu20",
    "multigpu30",
)


def test_what_other_pages_say_of_promises_is_what_they_say() -> None:
    ((*refused,),) = _numbers("measurements-limits.md", "this scheduler, of 5,000 |")
    reliability = "measurements-reliability.md"
    killed = _numbers(reliability, "the leader is killed |", "the API server is killed |")
    webhooks = _numbers(reliability, "a webhook rejects one member |", "a webhook hangs on one member |")
    simulated = {
        trace: abs(_numbers("measurements-simulation.md", f"`{trace}` |")[0][4] - published)
        for trace in LISTS
        for published in (_numbers("measurements-simulation.md", f"`{trace}` |")[0][5],)
    }
    here = {trace: row[2] - row[3] for trace in LISTS for row in _numbers("measurements-fgd.md", f"{trace} |")}
    far, farther = (max(differences, key=lambda trace: abs(differences[trace])) for differences in (simulated, here))
    gangs = [
        promise
        for promise in reliability_promises(recorded_figures())
        if promise.page.endswith("#partially-bound-gangs")
    ]
    assert [(promise.measured, promise.kept) for promise in gangs] == [
        (f"{max(map(max, killed)):g} s", max(map(max, killed)) <= 5),
        (f"{max(map(max, webhooks)):g} s", max(map(max, webhooks)) <= 5),
    ]
    assert [(promise.measured, promise.kept) for promise in SETTLED_ELSEWHERE] == [
        (f"{max(refused) / 50:g} %", max(refused) / 50 <= 0.1),
        (f"{simulated[far]:.2f} (`{far}`)", simulated[far] <= 0.3),
        (f"{abs(here[farther]):.2f} (`{farther}`)", abs(here[farther]) <= 0.3),
    ]


def test_promises_settled_elsewhere_have_rows_with_their_verdicts(kept: Json) -> None:
    text = page(kept)
    recorded = recorded_figures()
    for promise in (*SETTLED_ELSEWHERE, *reservation_promises(recorded), *reliability_promises(recorded)):
        (row,) = re.findall(rf"^\| {re.escape(promise.tells)} \|.*$", text, re.MULTILINE)
        name, _, anchor = promise.page.partition("#")
        headings = re.findall(r"^#+ (.*)$", (REFERENCE / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(",", "").replace(" ", "-") for heading in headings}
        assert row.endswith(f"| [{promise.measured}]({promise.page}) | {'yes' if promise.kept else '**no**'} |")


@pytest.mark.parametrize(
    ("number", "run", "keys", "kept_at", "missed_at"),
    [
        (0, "attacks", ("attacked", "pods", "p99"), 1.0, 1.2),
        (1, "attacks", ("attacked", "gangs", "p99"), 1.0, 1.2),
        (2, "attacks", ("attacked", "rss_mib"), 512, 513),
        (3, "attacks", ("attacked", "cpus"), 1.0, 1.01),
        (4, "half_gangs", ("longest_s", "SERVER"), 5.0, 5.1),
        (5, "half_gangs", ("longest_s", "HANGS"), 5.0, 5.1),
        (6, "zombies", ("writes_after_the_lease",), 0, 1),
        (7, "failover_outage", ("next_bind_s",), [0.1, 3.0, 0.2], [0.1, 3.1, 0.2]),
    ],
)
def test_verdicts_on_reliability_follow_the_figures(
    number: int, run: str, keys: tuple[str, ...], kept_at: Any, missed_at: Any
) -> None:
    for value, verdict in ((kept_at, True), (missed_at, False)):
        figures = deepcopy(recorded_figures())
        for kind in ("pods", "gangs"):
            figures["attacks"]["quiet"][kind]["p99"] = 0.0
        for name in ("half_gangs_first", "half_gangs"):
            figures[name]["longest_s"] = dict.fromkeys(figures[name]["longest_s"], 1.0)
        at = figures[run]
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value
        assert list(reliability_promises(figures))[number].kept is verdict


def test_verdicts_on_reservations_follow_the_streams() -> None:
    def verdicts(ratio: float, in_use_percent: float) -> list[bool]:
        row = {"ratio": ratio, "in_use_with_percent": in_use_percent, "in_use_without_percent": 95.0}
        figures: dict[str, Json] = {"full_leaves": {"streams": [row]}, "whole_fabric": {"streams": []}}
        return [promise.kept for promise in reservation_promises(figures)]

    assert verdicts(0.5, 94.0) == [True, True]
    assert verdicts(0.51, 94.0) == [False, True]
    assert verdicts(0.5, 93.9) == [True, False]


@pytest.mark.parametrize(
    ("path", "kept_at", "missed_at"),
    [
        ("roomless.preemption.0.max_ms", 999.0, 1001.0),
        ("roomless.preemption.1.max_ms", 999.0, 1001.0),
        *((f"heal.{name}.to_plan_s", 0.9, 1.1) for name in ("eight_nodes", "leaf", "spine")),
        ("heal_full.eight_nodes.to_plan_s", 0.9, 1.1),
        *((f"plain.{nodes}.ours.events_complete_after_s", 29.9, EVENTS_SECONDS) for nodes in (1000, 5000)),
        *((f"gangs.{nodes}.ours.events_complete_after_s", 29.9, EVENTS_SECONDS) for nodes in (1000, 5000)),
        ("memory.5000.20000.first_bind_after_s", 2.9, 3.1),
    ],
)
def test_each_figure_that_was_promised_has_its_verdict(path: str, kept_at: float, missed_at: float, kept: Json) -> None:
    (promise,) = [candidate for candidate in PROMISES if candidate.path == path]
    part, *keys, last = path.split(".")
    at = kept["parts"][part]["figures"]
    for key in keys:
        at = at[int(key) if isinstance(at, list) else key]
    for value, verdict in ((kept_at, "yes"), (missed_at, "**no**")):
        at[last] = value
        (row,) = re.findall(rf"^\| {re.escape(promise.tells)} \|.*$", page(kept), re.MULTILINE)
        assert row.endswith(f"| {verdict} |")


def test_victims_of_other_candidates_are_not_those_promised(kept: Json) -> None:
    (promise,) = [candidate for candidate in PROMISES if candidate.path == "roomless.preemption.1.max_ms"]
    kept["parts"]["roomless"]["figures"]["preemption"].insert(0, {"nodes": 200, "candidates": 70, "max_ms": 1.0})
    kept["parts"]["roomless"]["figures"]["preemption"][1]["candidates"] = 699
    assert promise.measured(kept["parts"]) is None


@pytest.mark.parametrize(
    ("at_least", "measured", "shown"),
    [
        (True, 2.998, "2.998 times"),
        (True, 3.0, "3 times"),
        (True, 3.0004, "3 times"),
        (True, 2.9, "2.9 times"),
        (True, 1234.6, "1235 times"),
        (False, 2.9996, "2.9996 times"),
        (False, 3.0, "3 times"),
    ],
)
def test_no_figure_is_rounded_to_the_other_side_of_what_is_promised(
    at_least: bool, measured: float, shown: str
) -> None:
    promise = Promise("pods", "x", 3, "times", at_least=at_least)
    assert promise.told(measured) == shown
    assert promise.kept(float(shown.removesuffix(" times"))) == promise.kept(measured)


def test_gangs_that_stayed_without_room_are_reported_beside_the_time_of_the_others(kept: Json) -> None:
    figures = kept["parts"]["heal"]["figures"]["spine"]
    figures |= {"gangs_that_wait_for_room": 2, "gangs_hit": 5, "their_pods_on_dead_nodes": 17}
    (row,) = re.findall(r"^\| a spine of 1,000 nodes.*$", page(kept), re.MULTILINE)
    assert " s; 2 of 5 gangs (17 pods) stayed without room | yes |" in row
    figures["gangs_that_wait_for_room"] = 0
    assert "stayed without room" not in page(kept)


@pytest.mark.parametrize(("statuses", "rate", "measured"), [(4000, 99.0, True), (4000, 12.0, False), (0, 99.0, False)])
def test_a_load_that_was_not_reached_is_not_measured(statuses: int, rate: float, measured: bool) -> None:
    at_work = {"cpu_cores": 0.2, "decisions_per_s": rate}
    figures = {"statuses_of_pods_written": statuses, "at_work": at_work}
    (promise,) = [candidate for candidate in PROMISES if candidate.path == "load.at_work.cpu_cores"]
    assert promise.measured({"load": {"figures": figures}}) == (0.2 if measured else None)


def test_a_row_has_as_many_cells_as_its_header(kept: Json) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", page(kept), re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_failed_is_reported_as_failed(kept: Json, name: str) -> None:
    before = page(kept)
    kept["parts"][name] = {"seconds": 1.0, "load": {"begin": 0.0, "end": 0.0}, "failed": "secret words"}
    kept["ratios"] = ratios_of(kept["parts"])
    text = page(kept)
    assert f"**Failed in this run, and missing below: {name}.**" in text
    assert "(**failed**)" in text
    assert "secret words" not in text, "it may name what is only on that machine"
    assert text.count("\n") <= before.count("\n") + 2


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_was_not_measured_is_left_out(kept: Json, name: str) -> None:
    kept["parts"].pop(name, None)
    assert f"| `{name}` |" not in page({**kept, "ratios": {}})
