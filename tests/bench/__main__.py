"""Measure, and keep what was measured as one JSON; from it the table in docs/ and the baseline are made.

All parts are measured by default, one after the other, each in a process of its own. The JSON reports what failed,
the others are kept, and the exit code is 1; so it is where a placement was wrong.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from . import machine, results, table
from .check import write_baseline
from .correct import wrong
from .objects import Json
from .parts import PARTS
from .ratios import ratios_of

OUT: Final = Path("bench-results/bench.json")


def _parser() -> argparse.ArgumentParser:
    parts = "\n".join(f"  {name:10} {part.tells}{_needs(part.needs)}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        epilog="parts:\n" + parts,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), metavar="PART", help="what to measure, else all")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help=f"the JSON, {OUT} by default")
    parser.add_argument("--add", action="store_true", help="keep the other parts of FILE; same machine and code only")
    parser.add_argument("--from", dest="file", type=Path, metavar="FILE", help="measure nothing: use this run")
    parser.add_argument("--docs", action="store_true", help="write the table in docs/ from the run")
    parser.add_argument("--accept", action="store_true", help="take the ratios of the run's parts as the new baseline")
    return parser


def _needs(needs: frozenset[str]) -> str:
    return f" (needs {', '.join(sorted(needs))})" if needs else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.file and (options.parts or options.add):
        parser.error("--from measures nothing: name no parts, and leave out --add")
    try:
        if options.file:
            run = results.read(options.file)
            run["ratios"] = ratios_of(run["parts"])
        else:
            run = _measured(options.parts or list(PARTS), options.out, add=options.add)
        if options.docs:
            table.publish(run)
            _say(f"written: {table.PAGE}, {table.COPY}")
        failed = results.failures(run["parts"])
        if failed:
            _say(f"failed: {', '.join(failed)}")
        failed += wrong(run["parts"])
        for error in wrong(run["parts"]):
            _say(f"wrong: {error}")
        if options.accept:
            write_baseline(run)
    except results.Unusable as error:
        _say(str(error))
        return 1
    return 1 if failed else 0


def _measured(parts: list[str], out: Path, *, add: bool) -> Json:
    run = results.to_add_to(out) if add and out.exists() else results.begun()
    began = time.monotonic()
    results.measure(run, [name for name in PARTS if name in parts], lambda so_far: results.write(out, so_far), _say)
    _say(f"all in {time.monotonic() - began:.0f} s, load average {machine.load()}; written: {out}")
    return run


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what runs is ended with it
    sys.exit(main())
