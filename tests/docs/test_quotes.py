"""Measured figures on pages that are written by hand are those of the data."""

import re
from pathlib import Path

import pytest

from tests.docs.generate import PAGES as GENERATED
from tests.docs.generate import REFERENCE, ROOT
from tests.docs.pages import PAGES, prose, tables
from tests.docs.quotes import QUOTES
from tests.docs.results import runs
from tests.docs.templates import rendered, values
from tests.prose.extract import of_markdown

_FIGURE = re.compile(r"(?<![\w.])\d[\d,.]* ?(?:s|ms|µs|h|%|MiB|seconds|hours|times)(?!\w)")


def _text(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("name", "quote"), [(name, quote) for name in QUOTES for quote in QUOTES[name]])
def test_a_figure_is_that_of_the_data(name: str, quote: str) -> None:
    assert rendered(quote, values(runs())) in _text(ROOT / name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_calls_measured_has_no_figure_of_its_own(page: Path) -> None:
    """A paragraph with the word and a figure needs an entry in `tests/docs/quotes.py`."""
    if page.parent == REFERENCE and page.name in GENERATED:
        return
    quoted = [rendered(quote, values(runs())) for quote in QUOTES.get(str(page.relative_to(ROOT)), ())]
    for passage in of_markdown(prose(page)):
        text = " ".join(passage.text.split())
        if re.search(r"\bmeasure(?:d|ments)\b", text, re.IGNORECASE) and _FIGURE.search(text):
            assert any(" ".join(_plain(quote).split()) in text for quote in quoted), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_table_of_percentiles_is_made_of_data(page: Path) -> None:
    if page.parent == REFERENCE and page.name in GENERATED:
        return
    quoted = [rendered(quote, values(runs())) for quote in QUOTES.get(str(page.relative_to(ROOT)), ())]
    for header, *rows in tables(page.read_text(encoding="utf-8")):
        if re.search(r"\b(?:p50|p95|p99|median|percentile)\b", header):
            assert set(rows) <= set(quoted), header


def _plain(text: str) -> str:
    return next((passage.text for passage in of_markdown(text)), "")


def test_ratios_of_the_readme_follow_from_its_table() -> None:
    high = values(runs())["gains_100"]
    assert round(high["topo"]["p99_s"] / high["rack"]["p99_s"], 1) == high["p99_over_rack"]
    less = 100 * (1 - high["topo"]["slow_down"] / high["rack"]["slow_down"])
    assert round(less) == high["less_training_time_percent"]
