"""`python -m tests.failover zombies|times`: stopped leaders, and takeovers, on a real API server."""

import argparse
import asyncio
import sys
import time

from tests.controlplane.binaries import Version
from topo_scheduler.api.process import LeaderElection

from .scene import scene
from .times import MEASURED
from .work import CONFIG
from .zombies import cycles

DEFAULT = LeaderElection()


async def _zombies(count: int, stop_seconds: float, version: Version) -> bool:
    async with scene(DEFAULT, {"s1": [8, 8]}, version, CONFIG) as it:
        found = await cycles(it, count, stop_seconds)
        print(f"{found.cycles} cycles of {stop_seconds:g} s, {found.takeovers} takeovers, {found.binds} binds")
        for problem in (*found.zombies, *found.overbooked):
            print(f"  {problem}")
        print(f"{len(found.zombies)} writes after the lease, {len(found.overbooked)} problems of nodes and pods")
        return not found.zombies and not found.overbooked and found.takeovers == found.cycles


async def _times(repeat: int, nodes: int, which: list[str]) -> bool:
    began = time.monotonic()
    async with scene(DEFAULT, {"s1": [16] * (nodes // 16)}) as it:
        print(f"{nodes} nodes, control plane up after {time.monotonic() - began:.1f} s", flush=True)
        for name in which:
            seconds = []
            for _ in range(repeat):
                seconds.append(await MEASURED[name](it))
                print(f"  {name}: {seconds[-1]:.2f} s", flush=True)
            print(f"{name}: {min(seconds):.1f}-{max(seconds):.1f} s of {repeat}", flush=True)
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
    options = parser.parse_args()
    if options.command == "zombies":
        return (
            0 if asyncio.run(_zombies(options.cycles, options.stop, "oldest" if options.oldest else "current")) else 1
        )
    return 0 if asyncio.run(_times(options.repeat, options.nodes, options.only)) else 1


if __name__ == "__main__":
    sys.exit(main())
