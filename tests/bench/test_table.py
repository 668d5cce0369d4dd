"""The page of measurements tells what the run beside it measured, and what it did not."""

import re

import pytest

from tests.bench.objects import Json
from tests.bench.parts import PARTS
from tests.bench.promises import PROMISES
from tests.bench.ratios import RATIOS, ratios_of
from tests.bench.results import read
from tests.bench.table import COPY, page


@pytest.fixture
def kept() -> Json:
    """The run that is kept in docs/."""
    return read(COPY)


def test_a_whole_run_is_kept(kept: Json) -> None:
    assert set(kept["parts"]) == set(PARTS)
    assert kept["ratios"] == ratios_of(kept["parts"])
    assert set(kept["ratios"]) == {one.name for one in RATIOS}
    assert all(one.measured(kept["parts"]) is not None for one in PROMISES)


def test_every_section_of_a_whole_run_has_figures(kept: Json) -> None:
    text = page(kept)
    assert "Not measured" not in text
    assert "failed" not in text.replace("failed placement", "")
    for one in RATIOS:
        assert f"| `{one.name}` |" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert "None" not in line
            assert "nan" not in line.split()


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
    assert text.count("\n") <= before.count("\n") + 1


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_was_not_measured_is_left_out(kept: Json, name: str) -> None:
    del kept["parts"][name]
    assert f"| `{name}` |" not in page({**kept, "ratios": {}})
