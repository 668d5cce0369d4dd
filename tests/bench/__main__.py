"""Run the measurements named on the command line, all of them by default, and print JSON."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from . import recording
from .core import core
from .gap import gap
from .gap_tied import gap_tied
from .load import load
from .race import gangs, plain
from .recovery import recovery
from .server import facts_of_machine

parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
NAMES = ("core", "gap", "plain", "gangs", "load", "record", "recovery")
parser.add_argument("names", nargs="*", choices=(*NAMES, []), help="what to measure")
parser.add_argument("--out", type=Path, help="also write the JSON here")
arguments = parser.parse_args()

result: dict[str, object] = {"schema": 1, "machine": facts_of_machine()}
for name in arguments.names or NAMES:
    sys.stderr.write(f"measuring {name} …\n")
    match name:
        case "core":
            result[name] = core()
        case "gap":
            result[name] = {**gap(), **gap_tied()}
        case "plain":
            result[name] = asyncio.run(plain())
        case "gangs":
            result[name] = asyncio.run(gangs())
        case "load":
            result[name] = asyncio.run(load())
        case "recovery":
            result[name] = recovery()
        case "record":
            result[name] = {
                "core": recording.core(),
                "checkpoint": recording.pause(),
                "served": asyncio.run(recording.served()),
            }
text = json.dumps(result, indent=2)
sys.stdout.write(text + "\n")
if arguments.out:
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(text + "\n")
