"""The JSON of a run: one machine since it was last started, one source, and of each part its figures or its error.

    {"schema": 2, "made": "2026-01-01T00:00:00Z", "machine": {...}, "source": "...", "commit": "...",
     "parts": {NAME: {...}}, "ratios": {NAME: 1.23}}

``source`` is a digest of the scheduler's files as they were, ``commit`` what was checked out, with ``, changed`` where
files were not as committed; empty where there is no repository.

A part has ``seconds``, and the ``load`` average at its begin and its end. If it succeeded, it has ``reference``
(nanoseconds of a step of the loops, see `machine`) and ``figures``; otherwise ``failed`` with the reason.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.controlplane import ControlPlaneUnavailable

from . import machine
from .objects import Json
from .parts import PARTS, Part
from .ratios import ratios_of

SCHEMA: Final = 2
_TAIL: Final = 1500
"""Characters of what a part said before it failed."""


class Unusable(Exception):
    """A file of results that can't be read, or can't be added to; says which and why."""


def begun() -> Json:
    """Return results without a part."""
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    header = {"schema": SCHEMA, "made": made, "machine": machine.facts()}
    return {**header, "source": machine.source(), "commit": machine.commit(), "parts": {}, "ratios": {}}


def read(path: Path) -> Json:
    """Return the results of a file.

    Raises:
        Unusable: there is none, or it is not of this schema.
    """
    try:
        results = json.loads(path.read_text())
    except OSError as error:
        raise Unusable(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise Unusable(f"{path} is not JSON: {error}") from error
    if not isinstance(results, dict) or results.get("schema") != SCHEMA:
        raise Unusable(f"{path} is not of schema {SCHEMA}; measure again: tox -e bench -- --out {path}")
    return results


def write(path: Path, results: Json) -> None:
    """Write results; a process that reads meanwhile sees the old ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(results, indent=2) + "\n")
    fresh.replace(path)


def to_add_to(path: Path) -> Json:
    """Return the results of a file that more parts may be added to.

    Raises:
        Unusable: they are of another machine, of an earlier start of this one, or of other code.
    """
    results, now = read(path), begun()
    for what, then, here in (
        ("another machine, or before this one was last started", results["machine"], now["machine"]),
        ("other code of the scheduler", results["source"], now["source"]),
    ):
        if then != here:
            raise Unusable(
                f"{path} was measured on {what}: its figures and new ones don't go together. Leave out --add"
            )
    return results


def measure(results: Json, names: Iterable[str], kept: Callable[[Json], None], say: Callable[[str], None]) -> None:
    """Measure parts, each in a process of its own; ``kept`` is called after each, so that what there is stays."""
    for name in names:
        say(f"{name}: {PARTS[name].tells} …")
        part = results["parts"][name] = measured(PARTS[name])
        say(f"{name}: " + (f"failed: {part['failed']}" if "failed" in part else f"{part['seconds']} s"))
        results["ratios"] = ratios_of(results["parts"])
        kept(results)


def measured(part: Part) -> Json:
    """Measure one part in a process of its own."""
    before, began = machine.load(), time.monotonic()
    try:
        part.prepare()
    except ControlPlaneUnavailable as error:
        outcome: Json = {"failed": str(error)}
    else:
        before, began = machine.load(), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            outcome = _figures(part, Path(folder))
    return {"seconds": round(time.monotonic() - began, 1), "load": {"begin": before, "end": machine.load()}, **outcome}


def _figures(part: Part, folder: Path) -> Json:
    file, said = folder / "part.json", folder / "said"
    command = [sys.executable, "-m", "tests.bench.parts", part.name, str(file)]
    with said.open("w") as stderr:
        # In a session of its own, so that what it started can be ended with it.
        process = subprocess.Popen(command, stderr=stderr, start_new_session=True)
        try:
            code = process.wait(part.limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {part.limit} s"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        return {"failed": said.read_text()[-_TAIL:].strip() or f"ended with code {code}"}
    result: Json = json.loads(file.read_text())
    return result


def failures(parts: Mapping[str, Json]) -> list[str]:
    """Return the names of the parts that failed."""
    return [name for name, part in parts.items() if "failed" in part]
