"""What commands measured, as data: one JSON file for each page, in `docs/reference/results`.

A file has one entry for each run of a command: the command, its date, the machine, the result in words, and the
figures. Names of figures end with their unit. What is not recorded is null.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "results"
BENCH: Final = RESULTS.parent / "measurements.json"
Run = dict[str, Any]


def files() -> list[Path]:
    """Return the files of all pages."""
    return sorted(RESULTS.glob("*.json"))


def entries() -> Iterator[tuple[Path, str, Run]]:
    """Yield each run with its file and its name."""
    for path in files():
        for name, run in json.loads(path.read_text(encoding="utf-8")).items():
            yield path, name, run


def runs() -> dict[str, Run]:
    """Return all runs by name. That of the benchmark takes its date from its own results."""
    by_name = {name: run for _, name, run in entries()}
    by_name["bench"]["date"] = json.loads(BENCH.read_text(encoding="utf-8"))["made"][:10]
    return by_name


def recorded_figures() -> dict[str, Run]:
    """Return the figures of all runs, by the name of the run."""
    return {name: run["figures"] for _, name, run in entries()}


def keep(name: str, result: str, figures: Run, folder: Path = RESULTS) -> Path:
    """Replace the run of this name in the file that has it; return the file.

    The command is that of this process. Pages change with ``python -m tests.docs.generate``. Only figures that were
    there before are kept, as those are what the page shows. Exits with an error if some of them are lacking, as in a
    short form.
    """
    (path,) = (file for file in sorted(folder.glob("*.json")) if name in json.loads(file.read_text(encoding="utf-8")))
    content = json.loads(path.read_text(encoding="utf-8"))
    if lacking := missing(content[name]["figures"], figures):
        sys.exit(f"{path} is not written: this run of {name} lacks {', '.join(lacking)}")
    content[name] |= {
        "command": command(sys.argv),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(),
        "result": result,
        "figures": shown(content[name]["figures"], figures),
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {path}; now run: python -m tests.docs.generate", file=sys.stderr)
    return path


def shown(before: Run, figures: Run) -> Run:
    """Return those of the figures that there were before."""
    return {
        key: shown(value, figures[key]) if isinstance(value, dict) and isinstance(figures[key], dict) else figures[key]
        for key, value in before.items()
    }


def missing(before: Run, figures: Run) -> list[str]:
    """Return the names of figures that there were before and are not there now."""
    return sorted(_names(before) - _names(figures))


def _names(figures: Run, prefix: str = "") -> set[str]:
    """Return the names of all figures, without those within lists."""
    names: set[str] = set()
    for key, value in figures.items():
        names |= _names(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key}
    return names


def command(arguments: list[str]) -> str:
    """Return the command line of a module of the tests, without paths of this machine."""
    module = Path(arguments[0])
    name = module.parent if module.name == "__main__.py" else module.with_suffix("")
    parts = name.parts[name.parts.index("tests") :]
    words = [word for word in arguments[1:] if word != "--write"]
    for number, word in enumerate(words):
        if words[number - 1 : number] == ["--data"]:
            words[number] = "DIR"
        elif word.startswith("--data="):
            words[number] = "--data=DIR"
    return " ".join(["python -m", ".".join(parts), *words])


def _machine() -> dict[str, Any]:
    from tests.bench.machine import facts  # imports NumPy, which most readers of this file do not need

    return {key: value for key, value in facts().items() if key != "where"}
