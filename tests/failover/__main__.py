"""`python -m tests.failover zombies|times`: stopped leaders, and takeovers, on a real API server."""

import argparse
import asyncio
import sys
import time
from typing import Any

from tests.controlplane.binaries import Version, kubernetes_version
from tests.docs.results import keep
from topo_scheduler.api.process import LeaderElection

from .scene import scene
from .times import MEASURED
from .work import CONFIG
from .zombies import Found, cycles

DEFAULT = LeaderElection()
KEPT = {"SIGKILL": "failover_sigkill", "SIGTERM": "failover_sigterm", "outage": "failover_outage"}
"""Names of the results of what is measured."""


async def _zombies(count: int, stop_seconds: float, version: Version, *, write: bool) -> bool:
    async with scene(DEFAULT, {"s1": [8, 8]}, version, CONFIG) as it:
        outcome = await cycles(it, count, stop_seconds)
        print(f"{outcome.cycles} cycles of {stop_seconds:g} s, {outcome.takeovers} takeovers, {outcome.binds} binds")
        for problem in (*outcome.zombies, *outcome.overbooked):
            print(f"  {problem}")
        print(f"{len(outcome.zombies)} writes after the lease, {len(outcome.overbooked)} problems of nodes and pods")
        if write:
            result = f"{len(outcome.zombies)} writes after the Lease" if outcome.zombies else "no write after the Lease"
            keep(
                "zombies" if version == "current" else "zombies_oldest", result, figures(outcome, stop_seconds, version)
            )
        return not outcome.zombies and not outcome.overbooked and outcome.takeovers == outcome.cycles


def figures(outcome: Found, stop_seconds: float, version: Version) -> dict[str, Any]:
    """Return what is kept of all cycles."""
    return {
        "rounds": outcome.cycles,
        "failovers": outcome.takeovers,
        "binds": outcome.binds,
        "writes_after_the_lease": len(outcome.zombies),
        "stop_s": round(stop_seconds),
        "kubernetes": kubernetes_version("go" if version == "current" else "go-oldest").removeprefix("v"),
    }


async def _times(repeat: int, nodes: int, which: list[str], *, write: bool) -> bool:
    began = time.monotonic()
    async with scene(DEFAULT, {"s1": [16] * (nodes // 16)}) as it:
        print(f"{nodes} nodes, control plane up after {time.monotonic() - began:.1f} s", flush=True)
        for name in which:
            seconds = []
            for _ in range(repeat):
                seconds.append(await MEASURED[name](it))
                print(f"  {name}: {seconds[-1]:.2f} s", flush=True)
            print(f"{name}: {min(seconds):.1f}-{max(seconds):.1f} s of {repeat}", flush=True)
            if write and name in KEPT:
                rounded = [round(duration, 1) for duration in seconds]
                kept = {"nodes": nodes, "rounds": repeat, "next_bind_s": rounded, "longest_s": max(rounded)}
                keep(KEPT[name], f"{max(rounded)} s at most", kept)
        problems = it.zombies() + it.cluster.recorder.problems
        print("\n".join(problems))
        return not problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    zombies = commands.add_parser("zombies", help="stop the leader and wake it up, again and again")
    zombies.add_argument("--cycles", type=int, default=12)
    zombies.add_argument("--stop", type=float, default=45.0, help="seconds for which the leader is stopped")
    zombies.add_argument("--oldest", action="store_true", help="on the oldest supported kube-apiserver")
    times = commands.add_parser("times", help="measure how long it takes until the next bind")
    times.add_argument("--repeat", type=int, default=5)
    times.add_argument("--nodes", type=int, default=64)
    times.add_argument("--only", nargs="*", default=list(MEASURED), choices=list(MEASURED))
    for command in (zombies, times):
        command.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    options = parser.parse_args()
    if options.command == "zombies":
        version: Version = "oldest" if options.oldest else "current"
        return 0 if asyncio.run(_zombies(options.cycles, options.stop, version, write=options.write)) else 1
    return 0 if asyncio.run(_times(options.repeat, options.nodes, options.only, write=options.write)) else 1


if __name__ == "__main__":
    sys.exit(main())
