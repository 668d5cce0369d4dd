"""A page begins with an example or a picture, and is short; exceptions are listed with their reasons."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.generate import ROOT
from tests.docs.pages import PAGES
from tests.prose.__main__ import findings
from tests.prose.extract import words_of_page
from tests.prose.page_length import LOOK_UP_PAGES
from tests.prose.rules import MOST_WORDS_OF_PAGE

MOST_WORDS_BEFORE_EXAMPLE: Final = 90
WITHOUT_EXAMPLE: Final = {
    "CHANGELOG.md": "a list of changes",
    ".github/SECURITY.md": "how to report a vulnerability, without a command",
    "docs/decisions/*.md": "short records of decisions and their reasons",
    "docs/reference/measurements.md": "generated tables of one run",
}
_EXAMPLE: Final = re.compile(r"^ *```|!\[", re.MULTILINE)
_SECTION: Final = re.compile(r"^## ", re.MULTILINE)


def _excused(page: Path) -> bool:
    return any(page.relative_to(ROOT).match(pattern) for pattern in WITHOUT_EXAMPLE)


def problem(text: str) -> str:
    """Return why a page does not begin with an example or a picture, or nothing."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    example = _EXAMPLE.search(text)
    if example is None:
        return "no code block and no picture"
    before = text[: example.start()]
    if (words := words_of_page(before)) > MOST_WORDS_BEFORE_EXAMPLE:
        return f"{words} words before the first code block or picture, at most {MOST_WORDS_BEFORE_EXAMPLE}"
    return "a second section before the first code block or picture" if len(_SECTION.findall(before)) > 1 else ""


@pytest.mark.parametrize("page", [page for page in PAGES if not _excused(page)], ids=lambda page: page.name)
def test_an_example_or_a_picture_comes_first(page: Path) -> None:
    assert problem(page.read_text(encoding="utf-8")) == ""


def test_the_check_finds_pages_without_an_example_and_those_with_a_late_one() -> None:
    block = "```sh\nls\n```\n"
    assert problem(f"# Title\n\nOne sentence.\n\n## First\n\n{block}") == ""
    assert "no code block" in problem("# Title\n\nOne sentence.\n")
    assert problem(f"# Title\n\n{'word ' * 91}\n\n{block}").startswith("92 words")
    assert "second section" in problem(f"# Title\n\n## First\n\nA.\n\n## Second\n\n{block}")


@pytest.mark.parametrize("pattern", WITHOUT_EXAMPLE)
def test_each_page_without_an_example_is_excused_for_a_reason(pattern: str) -> None:
    pages = [page for page in PAGES if page.relative_to(ROOT).match(pattern)]
    assert any(problem(page.read_text(encoding="utf-8")) for page in pages), "remove the exception"


def test_words_of_tables_count_and_their_lines_do_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| a | b |\n|---|---|\n" + "| one | two three |\n" * 499)
    assert words_of_page(page.read_text()) == 1499 and list(findings(page)) == []
    page.write_text(page.read_text() + "| one | two |\n")
    assert [finding.partition(",")[0] for finding in findings(page)] == ["1: a page of 1501 words"]


@pytest.mark.parametrize("name", LOOK_UP_PAGES)
def test_each_long_page_is_long_and_listed_for_contributors(name: str) -> None:
    words = words_of_page((ROOT / name).read_text(encoding="utf-8"))
    assert words > MOST_WORDS_OF_PAGE or name == "CHANGELOG.md", "remove the exception"
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"(../{name}) | {LOOK_UP_PAGES[name]} |" in guide
