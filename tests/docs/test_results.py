"""Measured values are data: pages take them from there, and no page of the reference has tables of others."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from tests.docs import results, templates
from tests.docs.generate import PAGES, REFERENCE
from tests.docs.pages import tables
from tests.docs.quotes import QUOTES
from tests.docs.results import RESULTS, entries, keep, runs
from tests.docs.templates import PLACEHOLDER, SUFFIX, rendered, values

TEMPLATES = sorted(RESULTS.glob(f"*{SUFFIX}"))
HAND_WRITTEN = [path for path in sorted(REFERENCE.glob("*.md")) if path.name not in PAGES]
_MEASURED_HEADER = re.compile(r"\b(?:measured|p50|p99|median|last run|survived|rounds|run \d)\b", re.IGNORECASE)
_LIMIT_HEADER = re.compile(r"\| (cap|at most) \|")
_NUMBER = re.compile(r"\d[\d,.]*(?: ?(?:s|ms|µs|h|%|MiB))?(?:[,;(] ?.*)?")


def is_measured(table: list[str]) -> bool:
    """Return whether a table has measured values: by its header, or because most cells behind the first are numbers.

    Tables of limits have numbers too, and name them so.
    """
    header, *rows = table
    if _LIMIT_HEADER.search(header):
        return False
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:] if cell.strip()]
    return bool(_MEASURED_HEADER.search(header)) or 2 * sum(map(bool, map(_NUMBER.fullmatch, cells))) > len(cells)


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: path.name)
def test_a_page_that_is_written_by_hand_has_no_table_of_measured_values(path: Path) -> None:
    measured_tables = [table[0] for table in tables(path.read_text(encoding="utf-8")) if is_measured(table)]
    assert not measured_tables, "put the values into docs/reference/results, and a template beside them"


@pytest.mark.parametrize("path", sorted(REFERENCE.glob("measurements*.md")), ids=lambda path: path.name)
def test_every_page_of_measurements_is_generated(path: Path) -> None:
    assert path.name in PAGES


@pytest.mark.parametrize("name", templates.PAGES)
def test_each_page_of_results_has_a_table_that_the_rule_finds(name: str) -> None:
    assert any(map(is_measured, tables(templates.PAGES[name]())))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_row_of_a_template_has_a_number_of_its_own(path: Path) -> None:
    for _, *rows in tables(path.read_text(encoding="utf-8").replace("\n{{each ", "\n|{{each ")):
        for row in rows:
            text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", PLACEHOLDER.sub("", row))
            assert not re.search(r"(?<![\w.])\d", text), row


LONG_RUNS = (
    *("attacks", "attacks_devices", "half_gangs", "zombies", "churn", "churn_with_faults", "soak", "starvation"),
    *("fragmentation", "every_way", "gap_together", "mutation", "bench", "differential", "devices", "cel"),
    "claim_writers",
)
"""Runs whose command is the long form of a check in CI."""


def test_the_page_of_long_runs_has_a_row_for_each() -> None:
    template = (RESULTS / f"long-runs.md{SUFFIX}").read_text(encoding="utf-8")
    (rows,) = ([row.strip("| ").split(" | ") for row in table[1:]] for table in tables(template))
    assert [row[0] for row in rows] == [f"`{{{{{name}.command}}}}`" for name in LONG_RUNS]
    for name, (_, checks, *facts, result) in zip(LONG_RUNS, rows, strict=True):
        assert checks and facts == [f"{{{{{name}.takes}}}}", f"{{{{{name}.date}}}}"]
        assert result.startswith(f"[{{{{{name}.result}}}}](")


def test_what_calls_itself_a_long_form_or_keeps_its_result_has_a_row() -> None:
    tests = Path(results.__file__).parents[1]
    commands = " ".join(runs()[name]["command"] for name in LONG_RUNS)
    for path in tests.rglob("__main__.py"):
        module = ".".join(path.parent.relative_to(tests.parent).parts)
        source = path.read_text(encoding="utf-8")
        if ": the long form" in source or re.search(r"\bkeep\(", source):
            assert f"python -m {module}" in commands, module


# ---------------------------------------------------------------- data


def test_each_run_has_one_name_and_says_where_it_comes_from() -> None:
    names = [name for _, name, _ in entries()]
    assert len(names) == len(set(names))
    for path, name, run in entries():
        assert run.keys() >= {"command", "date", "machine", "figures"} or name == "bench", (path, name)
        assert run.get("date") is None or date.fromisoformat(run["date"]), name


def test_each_run_is_on_a_page() -> None:
    quotes = (quote for page in QUOTES.values() for quote in page)
    text = "".join([*(path.read_text(encoding="utf-8") for path in TEMPLATES), *quotes])
    used = {re.sub("^each ", "", name).partition(".")[0] for name in re.findall(r"\{\{([^{}:]+)", text)}
    assert {name for _, name, _ in entries()} <= used


def test_a_result_replaces_the_one_before_and_keeps_what_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"a": {"date": None, "takes": "an hour", "figures": {"x": 1}}, "b": {"figures": {}}}
    (tmp_path / "page.json").write_text(json.dumps(before))
    monkeypatch.setattr("sys.argv", [str(Path(results.__file__).parents[1] / "soak" / "__main__.py"), "--write"])
    after = json.loads(keep("a", "nothing grew", {"x": 2, "y": 3}, tmp_path).read_text())
    assert after["b"] == before["b"] and after["a"]["takes"] == "an hour" and after["a"]["figures"] == {"x": 2}
    assert after["a"]["command"] == "python -m tests.soak" and after["a"]["machine"]["cpus"]
    assert date.fromisoformat(after["a"]["date"])


def test_a_command_names_no_folder_of_this_machine() -> None:
    words = ["/some/where/tests/recovery/gap_together.py", "--data", "/some/where", "--cases", "2", "--write"]
    assert results.command(words) == "python -m tests.recovery.gap_together --data DIR --cases 2"


# ---------------------------------------------------------------- templates


def test_placeholders_are_replaced_by_figures_and_rows_are_repeated() -> None:
    rows = [{"a": "x", "b": [1, 2]}, {"a": "y", "b": [3, 4]}]
    figures = {"n": 12345, "t": 0.5, "few": 3, "kept": False, "rows": rows}
    known = values({"run": {"date": None, "figures": figures}})
    assert rendered("{{run.n}} {{run.t:.2f}} {{run.few:words}} {{run.kept}}", known) == "12,345 0.50 three **no**"
    assert rendered("{{run.date}}", known) == "not recorded"
    assert rendered("{{each run.rows}}| {{a}} | {{b.1}} |\nend\n", known) == "| x | 2 |\n| y | 4 |\nend\n"


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        rendered("{{run.missing}}", values({"run": {"figures": {}}}))
