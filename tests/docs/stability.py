"""The page of stable names: written from the public names, and read back to see what it lists."""

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.docs.public_names import public_names
from tests.docs.tables import NOTICE, code_list, table

REFERENCE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"

_TOP: Final = "top level"
_HEADERS: Final = {
    "names": ("names",),
    "fields": ("below", "fields"),
    "values": ("name", "values"),
    "labels": ("metric", "labels"),
    "options": ("command", "options"),
}
"""The header of a table of each form of names."""

_NAMES: Final = """\
# Stable names

This page lists every name that you may write into manifests, scripts, alerts and dashboards. Names in JSON output
follow on [a page of their own](stability-output.md). For example:

```text
annotation     topology.scheduler/gpu-count
metric         topology_gpu_allocation_ratio{level="leaf"}
```

| what | before 1.0 | from 1.0 on |
|---|---|---|
| a listed name disappears, moves or changes its meaning | only in a minor release, named in the CHANGELOG | only in a major release, after one minor release with a warning |
| a name is added | any release | any minor release |
| a default changes | any minor release, named in the CHANGELOG | any minor release, named in the CHANGELOG |
| messages, log lines, scores | any release | any release |

A test compares this page with the code, so no name appears, moves or disappears unnoticed.

Fields are listed by the object that contains them. `[]` stands for each entry of a list, `*` for each key of a map.
"""  # noqa: E501
_OUTPUT: Final = """\
# Stable names in JSON output

This page lists the fields of every JSON document that commands and the scheduler write. For example:

```text
explain -o json     pending.remedies
audit log           by.serviceAccount
```

They change as other [stable names](stability.md) do. The output of `explain` and `replay`, the files of `simulate` and
the audit log carry the version of their schema. YAML output has the same fields as JSON.

Fields are listed by the object that contains them. `[]` stands for each entry of a list, `*` for each key of a map.
"""
SECTIONS: Final = {
    "Annotations": "All carry the prefix `topology.scheduler/`. Their meaning: [annotations](annotations.md).",
    "Values of annotations": (
        "Of annotations with fixed values; for `device-score`, its parts. Levels are those of the fabric. Plugins add"
        " placement strategies of their own."
    ),
    "Node labels": "Those that only this scheduler reads. All that it reads: [node labels](labels.md).",
    "SchedulerConfig": "How the process runs: [SchedulerConfig](config-process.md).",
    "TopologySchedulerConfig": "How it decides: [configuration](config.md#topologyschedulerconfig).",
    "Migration": "The fields of the resource: [Migrations](migrations.md).",
    "Values of Migrations": "Fixed values of these fields.",
    "Conditions and events of Migrations": (
        "The messages may change. Their meaning: [when a Migration is"
        " stuck](../how-to/recover.md#when-a-migration-is-stuck), [events](migrations.md#events)."
    ),
    "Events and conditions of other objects": "The messages may change. Their meaning: [events](events.md).",
    "explain -o json": "Types: [schema](explain.schema.json).",
    "topology -o json": (
        "The document is the domain of the whole cluster. If no node has labels of a level, it has `nodes` at the top"
        " level. Only `--watch` prints `at`."
    ),
    "filter -o json": (
        "Both fields are maps from pods. `feasible` lists nodes; `reasons` maps the other nodes to the reason."
    ),
    "drain -o json": "The plan, before anything is written: [drain](cli.md#drain).",
    "replay -o json": "The report: [replay](../how-to/record-and-replay.md#replay).",
    "result.json of simulate": "Types: [schema](result.schema.json).",
    "Placements of simulate": "The file of each run: [simulation](simulation.md).",
    "Audit log": "One object a line: [audit log](../how-to/record-and-replay.md#audit-log).",
    "Metrics": "With their labels. Units and values of labels: [metrics](metrics.md).",
    "Commands": (
        "With their options: [command line](cli.md), [offline commands](cli-offline.md). The text that commands print"
        " is not stable, except [JSON](stability-output.md)."
    ),
    "Plugins": "What `topo_scheduler.plugins` exports: [plugins](plugins.md). Other modules may change in any release.",
}
"""What stands above the names of each section."""


_SECTIONS_OF_OUTPUT: Final = (
    "explain -o json",
    "topology -o json",
    "filter -o json",
    "drain -o json",
    "replay -o json",
    "result.json of simulate",
    "Placements of simulate",
    "Audit log",
)


def _names_page() -> str:
    return _page("stability.md", _NAMES, [section for section in SECTIONS if section not in _SECTIONS_OF_OUTPUT])


def _output_page() -> str:
    return _page("stability-output.md", _OUTPUT, _SECTIONS_OF_OUTPUT)


PAGES: Final = {"stability.md": _names_page, "stability-output.md": _output_page}


def _page(name: str, introduction: str, sections: Iterable[str]) -> str:
    """Return a page. Names that it would lose are reported: users may rely on them."""
    names = public_names()
    for section, listed in listed_names([name]).items():
        if removed := sorted(listed - names.get(section, frozenset())):
            print(f"{name}, section {section}: name in the CHANGELOG what was removed: {removed}", file=sys.stderr)
    return NOTICE + introduction + "".join(_section(title, names[title]) for title in sections)


def _section(title: str, names: Iterable[str]) -> str:
    tables = "".join(f"\n{text}" for text in _tables(names))
    return f"\n## {title}\n\n{textwrap.fill(SECTIONS[title], 120, break_on_hyphens=False)}\n{tables}"


def _tables(names: Iterable[str]) -> Iterator[str]:
    """Yield a table of each form of names."""
    by_form: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        form, group, rest = _parts(name)
        by_form.setdefault(form, {}).setdefault(group, []).append(rest)
    for form in ("labels", "options"):
        if of_form := by_form.pop(form, {}):
            names_alone = by_form.pop("names")[""]
            yield table(_HEADERS[form], [(f"`{name}`", code_list(of_form.get(name, ()))) for name in names_alone])
    if "fields" in by_form:
        by_form["fields"] = {"": by_form.pop("names", {}).get("", []), **by_form["fields"]}
    for form in ("names", "fields", "values"):
        rows = [
            (*([f"`{group}`" if group else _TOP] if form != "names" else []), code_list(of_group))
            for group, of_group in by_form.get(form, {}).items()
            if of_group
        ]
        if rows:
            yield table(_HEADERS[form], rows)


def _parts(name: str) -> tuple[str, str, str]:
    """Return the form of a name, the group below which it is listed, and the rest."""
    if name.endswith("}"):
        return ("labels", *name[:-1].split("{"))  # type: ignore[return-value]
    if " " in name:
        group, _, option = name.partition(" ")
        return "options", group, option
    if "=" in name:
        group, _, value = name.partition("=")
        return "values", group, value
    if "." in name and "/" not in name:
        group, _, rest = name.rpartition(".")
        return "fields", group, rest
    return "names", "", name


def listed_names(pages: Iterable[str] = PAGES) -> dict[str, set[str]]:
    """Return the names that pages list, by section."""
    listed: dict[str, set[str]] = {}
    for page in pages:
        parts = re.split(r"^## (.+)$", (REFERENCE / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        listed |= {title: set(_listed(section)) for title, section in zip(parts[1::2], parts[2::2], strict=True)}
    return listed


def _listed(section: str) -> Iterator[str]:
    form = ""
    for line in section.splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split("|")) if line.startswith("|") else ()
        if header := next((name for name, header in _HEADERS.items() if header == cells), ""):
            form = header
        elif cells and not cells[0].startswith("---"):
            yield from _of_row(form, cells)


def _of_row(form: str, cells: tuple[str, ...]) -> Iterator[str]:
    group = cells[0].strip("`")
    names = re.findall(r"`([^`]+)`", cells[-1])
    match form:
        case "names":
            yield from names
        case "fields":
            yield from (name if group == _TOP else f"{group}.{name}" for name in names)
        case "values":
            yield from (f"{group}={name}" for name in names)
        case "labels":
            yield from (group, *(f"{group}{{{name}}}" for name in names))
        case "options":
            yield from (group, *(f"{group} {name}" for name in names))
