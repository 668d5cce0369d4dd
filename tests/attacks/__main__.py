"""``python -m tests.attacks``: attacks by one tenant on a real API server, and what another namespace notices.

There are nine, and with ``--devices`` six others by means of devices.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.docs.results import keep

from .measuring import ANOTHER, DEVICE_ATTACKS, NINE_ATTACKS, Plan, measure
from .tenant import DEVICE_SHARES, SHARES
from .verdict import Pair, figures, paired_figures, problems


def main() -> int:
    """Measure as the command line says; print the report as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    plan = Plan()
    parser.add_argument("--nodes", type=int, default=plan.nodes)
    parser.add_argument("--quiet", type=float, default=plan.quiet_seconds, help="seconds without attacks")
    parser.add_argument("--seconds", type=float, default=plan.attack_seconds, help="seconds with attacks")
    parser.add_argument("--rate", type=float, default=plan.rate, help="requests a second of the hostile tenant")
    parser.add_argument("--scale", type=float, default=plan.scale, help="share of the full number of hostile pods")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of attacks; all by default")
    parser.add_argument("--log", type=Path, help="where to keep the daemon's log")
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    parser.add_argument("--devices", action="store_true", help="the six attacks by means of devices, not the nine")
    parser.add_argument("--each", action="store_true", help="each attack alone first, then all at once")
    parser.add_argument(
        "--control", action="store_true", help="before each run one whose hostile pods are another scheduler's"
    )
    options = parser.parse_args()
    every = options.only or list(range(1, 1 + (DEVICE_ATTACKS if options.devices else NINE_ATTACKS)))
    plan = Plan(options.nodes, options.quiet, options.seconds, options.rate, options.scale, every, options.log)
    plan = replace(plan, devices=options.devices)
    plans = [*_alone(plan), plan] if options.each else [plan]
    pairs = [_pair(attack_plan, options.control) for attack_plan in plans]
    report, _ = pairs[-1]
    broken = sum(len(own["problems"]) for own, _ in pairs)
    print(json.dumps([entry for pair in pairs for entry in pair if entry is not None], indent=1))
    if options.write:
        result = f"{broken} problems" if broken else "all promises kept"
        if options.devices:
            keep("attacks_devices", result, paired_figures(pairs))
        elif options.control:
            keep("attacks_beside_control", result, paired_figures(pairs))
        else:
            keep("attacks", result, figures(report))
    return 1 if broken else 0


def _alone(plan: Plan) -> list[Plan]:
    """Return a plan for each attack alone, at the rate that it has among all."""
    weights = DEVICE_SHARES if plan.devices else SHARES
    shares = {number: weights.get(number, 1.0) for number in plan.only}
    total = sum(shares.values())
    return [replace(plan, only=[number], rate=plan.rate * share / total) for number, share in shares.items()]


def _pair(plan: Plan, control: bool) -> Pair:
    """Measure; before it, with ``control``, the same with hostile pods of another scheduler."""
    other = asyncio.run(measure(replace(plan, scheduler=ANOTHER))) if control else None
    own = asyncio.run(measure(plan))
    own["problems"] = problems(own)
    return own, other


if __name__ == "__main__":
    sys.exit(main())
