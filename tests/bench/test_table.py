"""The page of measurements tells what the run beside it measured, and what it did not."""

import re

import pytest

from tests.bench.check import of_parts
from tests.bench.objects import Json
from tests.bench.parts import PARTS
from tests.bench.promises import PROMISES, Promise
from tests.bench.ratios import RATIOS, ratios_of
from tests.bench.results import failures, read
from tests.bench.table import COPY, page


@pytest.fixture
def kept() -> Json:
    """The run that is kept in docs/."""
    return read(COPY)


def test_ratios_and_promises_are_those_of_the_parts_that_were_measured(kept: Json) -> None:
    parts, text = kept["parts"], page(kept)
    assert parts.keys() <= PARTS.keys()
    assert not failures(parts)
    assert kept["ratios"] == ratios_of(parts)
    assert {one.name for one in of_parts(parts)} == kept["ratios"].keys()
    for one in RATIOS:
        assert (f"| `{one.name}` |" in text) == (one.name in kept["ratios"])
    for promise in PROMISES:
        (row,) = re.findall(rf"^\| {re.escape(promise.tells)} \|.*$", text, re.MULTILINE)
        assert (promise.measured(parts) is None) == ("| not measured |" in row)
        if any(path.partition(".")[0] not in parts for path in (promise.path, promise.by) if path):
            assert promise.measured(parts) is None


def test_what_was_not_measured_is_told(kept: Json) -> None:
    text = page(kept)
    told = re.search(r"\*\*Not measured in this run: (.*)\.\*\*", text)
    assert set(told[1].split(", ") if told else ()) == PARTS.keys() - kept["parts"].keys()
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


@pytest.mark.parametrize(
    ("at_least", "measured", "told"),
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
def test_no_figure_is_rounded_to_the_other_side_of_what_is_promised(at_least: bool, measured: float, told: str) -> None:
    promise = Promise("pods", "x", 3, "times", at_least=at_least)
    assert promise.told(measured) == told
    assert promise.kept(float(told.removesuffix(" times"))) == promise.kept(measured)


def test_gangs_that_stayed_without_room_are_told_beside_the_time_of_the_others(kept: Json) -> None:
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
    (promise,) = [one for one in PROMISES if one.path == "load.at_work.cpu_cores"]
    assert promise.measured({"load": {"figures": figures}}) == (0.2 if measured else None)


def test_a_row_has_as_many_cells_as_its_header(kept: Json) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", page(kept), re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_failed_is_told_as_failed(kept: Json, name: str) -> None:
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
