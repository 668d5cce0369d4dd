"""``python -m tests.attacks``: nine attacks by one tenant on a real API server, and what another namespace notices."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from tests.docs.results import keep

from .measuring import Plan, measure
from .verdict import figures, problems


def main() -> int:
    """Measure as the command line says; print the report as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    plan = Plan()
    parser.add_argument("--nodes", type=int, default=plan.nodes)
    parser.add_argument("--quiet", type=float, default=plan.quiet_seconds, help="seconds without attacks")
    parser.add_argument("--seconds", type=float, default=plan.attack_seconds, help="seconds with attacks")
    parser.add_argument("--rate", type=float, default=plan.rate, help="requests a second of the hostile tenant")
    parser.add_argument("--scale", type=float, default=plan.scale, help="share of the full number of hostile pods")
    parser.add_argument("--only", type=int, nargs="*", default=plan.only, help="numbers of attacks")
    parser.add_argument("--log", type=Path, help="where to keep the daemon's log")
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    options = parser.parse_args()
    plan = Plan(options.nodes, options.quiet, options.seconds, options.rate, options.scale, options.only, options.log)
    report = asyncio.run(measure(plan))
    report["problems"] = problems(report)
    print(json.dumps(report, indent=1))
    if options.write:
        broken = len(report["problems"])
        keep("attacks", f"{broken} problems" if broken else "all promises kept", figures(report))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
