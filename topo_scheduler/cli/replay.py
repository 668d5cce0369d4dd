"""``topo-scheduler replay``: repeats recorded decisions and compares them bit for bit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topo_scheduler.cli.common import USAGE, CommandFailure, say

if TYPE_CHECKING:
    from topo_scheduler.recording.replay import Report

SCHEMA = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Format of the report.")
def command(directory: Path, output: str) -> None:
    """Repeat the decisions that `run --record DIR` recorded.

    A new engine gets the recorded inputs again, and must answer the same, bit for bit. Exit code 0 if it does, 1 with
    the first difference if not, 2 if the record can't be read. The command does not change the directory. The scheduler
    that writes it may still run.
    """
    from topo_scheduler.observability.segments import RecordError
    from topo_scheduler.recording.replay import replay

    try:
        report = replay(directory)
    except RecordError as error:
        raise CommandFailure(str(error), USAGE) from error
    if output == "json":
        click.echo(as_json(report))
    else:
        for line in _as_text(report):
            say(line)
    if report.first is not None:
        raise SystemExit(1)
    if not report.files:
        raise SystemExit(USAGE)


def as_json(report: "Report") -> str:
    """Return the report for JSON output."""
    import json
    from dataclasses import asdict

    from topo_scheduler import __version__

    fields: dict[str, Any] = asdict(report)
    fields["seconds"] = round(report.seconds, 3)
    return json.dumps(
        {"schema": SCHEMA, "version": __version__, "differences": int(report.first is not None), **fields}
    )


def _as_text(report: "Report") -> list[str]:
    from topo_scheduler import __version__

    lines = list(report.notes)
    if other_versions := [version for version in report.versions if version != __version__]:
        lines.append(f"recorded by {', '.join(other_versions)}, replayed by {__version__}: differences may be intended")
    rate = f"{report.decisions / report.seconds:,.0f}/s" if report.seconds else "in no time"
    files = f"{report.files:,} {'file' if report.files == 1 else 'files'}"
    decisions = f"{report.decisions:,} {'decision' if report.decisions == 1 else 'decisions'} in {files}"
    if report.first is None:
        result = "0 differences" if report.files else "nothing could be repeated"
        return [*lines, f"{decisions} repeated, {result}, {rate}"]
    first = report.first
    lines += [
        f"{decisions} repeated, then the first difference:",
        f"  where     {first.segment}, call {first.call}: {first.name}",
        f"  time      {first.time or 'unknown'}",
        f"  workload  {first.workload or 'none'}",
        f"  field     {first.field}",
        f"  recorded  {first.recorded}",
        f"  replayed  {first.replayed}",
    ]
    return lines
