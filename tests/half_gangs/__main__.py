"""``python -m tests.half_gangs --rounds 50``: gangs left partially bound on a real API server, and their end."""

import argparse
import asyncio
import shutil
import sys
from typing import Any

from tests.controlplane import ControlPlane
from tests.docs.results import keep
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster

from .rounds import Kind, Result, Scheduler, line, play, prepare
from .webhook import Mood, Webhook

ACCOUNT = ("kube-system", "topology-scheduler")


async def run(rounds: int, kinds: list[Kind]) -> list[Result]:
    """Play so many rounds of each kind in turn; return how they ended."""
    played: list[Result] = []
    plane = ControlPlane(with_kwok=True)
    await asyncio.to_thread(plane.start)
    try:
        async with Api(plane.kubeconfig) as api:
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            await cluster.install()
            account = await asyncio.to_thread(plane.kubeconfig_for_service_account, *ACCOUNT)
            await prepare(cluster)
            webhook, scheduler = Webhook(plane.directory), Scheduler(account, plane.directory)
            url = await webhook.start()
            try:
                for number in range(rounds):
                    for kind in kinds:
                        result = await _play(cluster, plane, scheduler, webhook, kind, url)
                        played.append(result)
                        print(line(number, result), flush=True)
                        if not result.ok:
                            kept = f"half-gangs-{number}-{kind.name}.log"
                            shutil.copyfile(scheduler.log, kept)
                            print(f"the scheduler's log is {kept}", file=sys.stderr)
            finally:
                await webhook.stop()
                await scheduler.kill()
    finally:
        await asyncio.to_thread(plane.stop)
    for kind in kinds:
        ended = [result for result in played if result.kind is kind]
        met, failed = sum(bool(result.met) for result in ended), sum(not result.ok for result in ended)
        print(f"{kind}: {len(ended)} rounds, partially bound at the fault in {met}, {failed} failed")
    return played


def figures(played: list[Result]) -> dict[str, Any]:
    """Return what is kept of all rounds."""
    longest: dict[str, float] = {}
    for result in played:
        longest[result.kind.name] = max(longest.get(result.kind.name, 0.0), round(result.spells.unbroken.seconds, 1))
    return {"rounds": len(played), "longest_s": longest}


async def _play(
    cluster: Cluster, plane: ControlPlane, scheduler: Scheduler, webhook: Webhook, kind: Kind, url: str
) -> Result:
    """Play a round; play it again with slow binds if every gang was bound between two looks, so nothing was tried."""
    for mood in (kind.mood, Mood.DELAYS):
        if mood is not Mood.ALLOWS:
            await webhook.register(cluster.api, url)
        result = await play(cluster, plane, scheduler, webhook, kind, mood)
        await webhook.unregister(cluster.api)
        if not result.untried or kind.mood is not Mood.ALLOWS:
            break
    return result


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.half_gangs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each kind (default: 50)")
    parser.add_argument("--kinds", nargs="*", choices=[kind.name for kind in Kind], help="all, if not given")
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    options = parser.parse_args()
    kinds = [Kind[name] for name in options.kinds] if options.kinds else list(Kind)
    played = asyncio.run(run(options.rounds, kinds))
    passed = sum(result.ok for result in played)
    if options.write:
        keep("half_gangs", f"{passed} of {len(played)} rounds", figures(played))
    return 0 if passed == len(played) else 1


if __name__ == "__main__":
    sys.exit(main())
