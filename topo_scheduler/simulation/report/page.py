"""The page of the report: tables and charts of a result, in one self-contained file."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from topo_scheduler.simulation.report import pictures
from topo_scheduler.simulation.report.fabric_map import maps_of
from topo_scheduler.simulation.report.markup import Markup, join, tag
from topo_scheduler.simulation.report.sides import Course, Read, course_of
from topo_scheduler.simulation.results.model import Result, Run
from topo_scheduler.simulation.results.table import (
    by_change,
    by_policy,
    columns_of,
    differing,
    mean_of,
    note_on,
    title_of,
)

_HEAD: Final = (
    tag("meta", charset="utf-8"),
    tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
    tag("meta", name_="color-scheme", content="light dark"),
)


def report(result: Result, read: Read) -> bytes:
    """Return ``report.html``. It contains no wall-clock times, so the same result gives the same bytes.

    Args:
        result: the result.
        read: returns the placements of one of its runs.
    """
    title = title_of(result.runs[0]) if result.runs else "No run"
    body = [tag("h1", "Simulated: ", title), _about(result)]
    if result.runs:
        body += _sections(result, course_of(result, read))
    page = tag(
        "html",
        tag("head", *_HEAD, tag("title", f"{title} - topo-scheduler"), tag("style", _asset("report.css"))),
        tag("body", tag("main", *body)),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}\n".encode()


def _asset(name: str) -> Markup:
    return Markup(files(__package__).joinpath("assets", name).read_text(encoding="utf-8"))


def _about(result: Result) -> Markup:
    runs = result.runs
    seeds = sorted({run.seed for run in runs})
    facts = [f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"]
    if seeds:
        span = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        facts.append(f"{'seeds' if len(seeds) > 1 else 'seed'} {span}")
    arrived = [run.arrived for run in runs]
    if arrived:
        count = f"{min(arrived):,}" if min(arrived) == max(arrived) else f"{min(arrived):,} to {max(arrived):,}"
        facts.append(f"{count} {'workload' if count == '1' else 'workloads'} each")
    facts.append(f"topo-scheduler {result.version}")
    elements = [tag("p", " · ".join(facts), class_="about")]
    if result.lost:
        items = [
            tag("li", f"{lost.policy}, seed {lost.seed}{f', {lost.what_if}' if lost.what_if else ''}: {lost.reason}")
            for lost in result.lost
        ]
        elements.append(
            tag("section", tag("p", "Runs that were lost, and are in no figure:"), tag("ul", *items), class_="lost")
        )
    return join(*elements)


def _sections(result: Result, course: Course) -> list[Markup]:
    groups = by_change(result.runs)
    unchanged = groups.pop(None, [])
    sections = []
    if unchanged:
        sections.append(_figures(unchanged))
    sections += [_difference(unchanged, after) for after in groups.values()]
    sections.append(pictures.utilisation(course))
    sections.append(pictures.placed(course) if course.fill else pictures.waits(course))
    sections.append(pictures.spans(course))
    sections += pictures.fragmentation(course)
    sections.append(_map(course))
    return sections


def _figures(runs: Sequence[Run]) -> Markup:
    columns = columns_of(runs)
    rows = [
        [policy, *(pictures.cell(mean_of(policy_runs, value), form) for _, value, form in columns)]
        for policy, policy_runs in by_policy(runs).items()
    ]
    table = pictures.table(["policy", *(name for name, _, _ in columns)], rows)
    note = note_on(runs)
    return tag("section", tag("h2", "Figures"), tag("p", f"{note[0].upper()}{note[1:]}.") if note else None, table)


def _difference(before: Sequence[Run], after: Sequence[Run]) -> Markup:
    columns = columns_of([*before, *after])
    runs_before = by_policy(before)
    rows = []
    for policy, changed_runs in by_policy(after).items():
        cells = differing(runs_before.get(policy, []), changed_runs, columns)
        for name, line in zip((f"{policy}: as it is", "after the change", "difference"), cells, strict=True):
            rows.append([name, *line])
    table = pictures.table(["policy", *(name for name, _, _ in columns)], rows, "differences")
    return tag("section", tag("h2", f"What if: {after[0].what_if}"), table)


def _map(course: Course) -> Markup:
    runs = [(side.name, side.map) for side in course.sides if side.map is not None]
    maps = maps_of(runs, fill=course.fill)
    heading = tag("h2", "The fabric at any moment")
    omitted = None
    if maps.left_out:
        omitted = tag("p", f"Left out, since this page would grow too large: {', '.join(maps.left_out)}.")
    if not maps.data["runs"]:
        return tag("section", heading, omitted)
    seed = course.sides[0].runs[0].seed
    explanation = tag(
        "p",
        "Each row of cells is a node, each cell a GPU, each frame a leaf, and leaves of one spine stand together."
        " A gang has a colour of its own, single pods are pale; what ran before the first arrival is grey; empty is"
        f" free; hatched nodes are cordoned. Seed {seed}. Point at a GPU to see whose it is.",
    )
    # "</" would end the script element, even inside a string.
    text = json.dumps(maps.data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    controls = tag(
        "div",
        tag("button", "Play", type_="button", id_="play"),
        tag("input", type_="range", id_="moment", min_=0, max_=maps.data["frames"] - 1, value="0", aria_label="Moment"),
        tag("output", id_="when"),
        class_="controls",
    )
    return tag(
        "section",
        heading,
        explanation,
        omitted,
        tag("noscript", tag("p", "The map needs JavaScript; the pictures above do not.")),
        controls,
        tag("div", id_="maps"),
        tag("p", "\u00a0", id_="whose", aria_live="polite"),
        tag("script", Markup(text), type_="application/json", id_="map-data"),
        tag("script", _asset("map.js")),
        class_="map",
    )
