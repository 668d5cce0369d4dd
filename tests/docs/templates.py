"""Pages of results: each is a template beside its data, in which the figures have names.

``{{run.figure}}`` is a figure of a run, with a comma in thousands; ``{{run.figure:.2f}}`` has a format, and
``{{run.figure:words}}`` is a number in words. A list is shown with commas, and "and" before the last. A line that
begins with ``{{each run.rows}}`` stands for as many lines as there are rows, and ``{{name}}`` is a value of the row.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.docs.results import RESULTS, runs

SUFFIX: Final = ".template"
NOTICE: Final = (
    "<!-- Written by `python -m tests.docs.generate` from results/{name}.json and results/{name}.md.template;"
    " change those, not this file. -->\n"
)
PLACEHOLDER: Final = re.compile(r"\{\{([^{}:]+)(?::([^{}]+))?\}\}")
EACH: Final = re.compile(r"^\{\{each ([\w.]+)\}\}")
WORDS: Final = (
    "none",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_OF_A_RUN: Final = ("command", "date", "takes", "result")


def page(path: Path) -> str:
    """Return the page of a template."""
    text = path.read_text(encoding="utf-8")
    return NOTICE.format(name=path.name.partition(".")[0]) + rendered(text, values(runs()))


def values(recorded: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of each run, with its date, its command and its result among them."""
    return {
        name: {**run.get("figures", {}), **{key: run.get(key) for key in _OF_A_RUN}} for name, run in recorded.items()
    }


def rendered(text: str, known: Mapping[str, Any]) -> str:
    """Return a text in which all placeholders are replaced. Raises KeyError for a name that has no value."""
    return "".join(part for line in text.splitlines(keepends=True) for part in _lines(line, known))


def _lines(line: str, known: Mapping[str, Any]) -> Iterator[str]:
    each = EACH.match(line)
    if each is None:
        yield _filled(line, known)
        return
    for row in _found(each[1], known):
        yield _filled(line[each.end() :], {**known, **row})


def _filled(line: str, known: Mapping[str, Any]) -> str:
    return PLACEHOLDER.sub(lambda match: _told(_found(match[1], known), match[2] or ""), line)


def _found(name: str, known: Mapping[str, Any]) -> Any:
    value: Any = known
    for key in name.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _told(value: Any, form: str) -> str:
    match value:
        case None:
            return "not recorded"
        case bool():
            return "yes" if value else "**no**"
        case list():
            *first, last = map(str, value)
            return f"{', '.join(first)} and {last}" if first else last
        case int() if form == "words" and value < len(WORDS):
            return WORDS[value]
        case int() | float() if form and form != "words":
            return format(value, form)
        case int():
            return f"{value:,}"
        case _:
            return str(value)


PAGES: Final[dict[str, Callable[[], str]]] = {
    path.name.removesuffix(SUFFIX): partial(page, path) for path in sorted(RESULTS.glob(f"*.md{SUFFIX}"))
}
"""The pages that are made of results, by file name."""
