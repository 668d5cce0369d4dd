"""The numbers of docs/reference/caps.md are constants of the modules that its rows name."""

import importlib
import re
from collections.abc import Iterator
from typing import Final

from tests.docs.generate import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "caps.md"
UNITS: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 0.001, "minutes": 60, "hours": 3600}
NUMBER: Final = re.compile(rf"(?<![\w.^])(\d[\d,]*(?:\.\d+)?)(?: ({'|'.join(UNITS)})\b)?")
COMPUTED: Final = {
    "pending pods of one namespace": "the default of a field of the configuration",
    "memory of all pending pods": "the default of a field of the configuration, and a measured size",
    "pending pods outside": "a measured size",
    "levels of arrays and objects of any object": "what Python's JSON reads",
    "ResourceClaims": "measured sizes",
    "PersistentVolumeClaims": "a measured size",
    "Migrations while recovery is off": "a measured size",
    "problems of ResourceSlices": "the cap of a pool is one of `state`",
    "time for which the nomination of another scheduler's pod counts": "the sum of two constants",
    "events that are not yet posted": "a multiple of the cap of a namespace",
    "binds at once of one namespace": "shares of slots",
    "requests at once of one namespace": "shares of slots",
    "events, conditions of pods and of PodGroups": "shares of slots",
    "writes of resource claims at once": "shares of slots",
    "evictions for others at once": "shares of slots",
    "amount of a resource": "a bound of Kubernetes",
}
"""Rows with numbers that are no constants of their modules, by how they begin, with what they are."""


def _rows(section: str) -> Iterator[list[str]]:
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0] not in ("what", "---"):
            yield cells


def _constants(module: str) -> set[float]:
    """Return the numbers that the constants of a module are, or have as a tuple."""
    path = f"topo_scheduler.{module.removesuffix('.py').replace('/', '.')}"
    values = [value for name, value in vars(importlib.import_module(path)).items() if name.isupper()]
    numbers = [number for value in values for number in (value if isinstance(value, tuple) else (value,))]
    return {number for number in numbers if isinstance(number, int | float)}


def _numbers(cell: str) -> list[float]:
    return [float(number.replace(",", "")) * UNITS.get(unit, 1) for number, unit in NUMBER.findall(cell)]


def _unknown(cells: list[str]) -> list[float]:
    """Return the numbers of a row that no constant of its modules is."""
    modules = re.findall(r"`([\w/]+\.py)`", cells[-1])
    return sorted(set(_numbers(cells[1])).difference(*map(_constants, modules)))


def test_every_row_has_a_cell_for_each_column() -> None:
    rows = list(_rows("Many pods"))
    assert len(rows) > 90
    assert [cells for cells in rows if len(cells) != 4] == []


def test_numbers_are_constants_of_the_modules() -> None:
    wrong = {cells[0]: unknown for cells in _rows("Many pods") if (unknown := _unknown(cells))}
    computed = {what for what in wrong if what.startswith(tuple(COMPUTED))}
    assert {what: unknown for what, unknown in wrong.items() if what not in computed} == {}
    assert [begins for begins in COMPUTED if not any(what.startswith(begins) for what in computed)] == []


def test_a_wrong_number_is_noticed() -> None:
    row = ["classes of one gang", "65", "refused", "`state/pods/workloads.py`"]
    assert _unknown(row) == [65]
    assert _unknown([row[0], "64", *row[2:]]) == []
