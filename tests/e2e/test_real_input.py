"""Real input on a real fabric, through Jobs and their controller, until everything has run to completion."""

import asyncio
import json
import random
import time
from collections import defaultdict
from itertools import chain, zip_longest

import pytest

from . import real_input
from .api import Json
from .cluster import Cluster
from .conftest import StartReplica
from .replica import configured
from .verifier import verify_capacity, verify_gang

GANGS, SINGLES = 150, 300
ARRIVALS_SECONDS = 30.0
"""Weeks of arrivals in so many seconds."""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_lingjun_with_openb_pods_and_muri_gangs(cluster: Cluster, start_replica: StartReplica) -> None:
    """On the embedded server a tenth of it: there the fabric is what counts."""
    share = 10 if cluster.embedded else 1
    gangs, singles = real_input.muri_gangs(GANGS // share), real_input.openb_pods(SINGLES // share)
    await cluster.add_nodes(real_input.lingjun_nodes())
    nodes = await cluster.api.list("nodes", None)
    assert len(nodes) == 847
    await start_replica(configured())
    dice = random.Random(3)
    work = [item for item in chain.from_iterable(zip_longest(gangs, singles[::2], singles[1::2])) if item]
    pods = sum(item.members for item in work)
    seen = Placements(cluster)
    watching = asyncio.create_task(seen.watch())
    began = time.monotonic()
    for number, item in enumerate(work):
        await cluster.apply(item.job(run=dice.uniform(1.0, 6.0)))
        late = began + ARRIVALS_SECONDS / share * number / len(work) - time.monotonic()
        await asyncio.sleep(max(0.0, late))

    async def finished() -> bool:
        jobs = await cluster.api.list("jobs")
        done = [job for job in jobs if job.get("status", {}).get("completionTime")]
        return len(done) == len(work)

    await cluster.wait_until(finished, 200, f"{len(work)} Jobs complete")
    watching.cancel()
    problems = [problem for name in seen.gangs for problem in verify_gang(nodes, list(seen.gangs[name].values()))]
    assert not problems, "\n".join(problems[:20])
    assert not seen.problems, "\n".join(seen.problems[:20])
    assert len(seen.gangs) == len(work)
    sizes = {item.name: item.members for item in work}
    assert {name: len(members) for name, members in seen.gangs.items()} == sizes, "every member was bound, once"
    print(json.dumps({"jobs": len(work), "pods": pods, "seconds": round(time.monotonic() - began, 1)}))


class Placements:
    """What was bound where, from the test's own watch; nodes are checked at every look."""

    def __init__(self, cluster: Cluster) -> None:
        self.gangs: defaultdict[str, dict[str, Json]] = defaultdict(dict)
        self.problems: list[str] = []
        self._cluster = cluster

    async def watch(self) -> None:
        """Look again and again until cancelled."""
        nodes = await self._cluster.api.list("nodes", None)
        while True:
            now = list(self._cluster.recorder.pods.values())
            for pod in now:
                if pod["spec"].get("nodeName"):
                    name = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
                    self.gangs[name][pod["metadata"]["uid"]] = _unfinished(pod)
            self.problems += verify_capacity(nodes, now)
            await asyncio.sleep(0.5)


def _unfinished(pod: Json) -> Json:
    """A pod as it was when it was placed: a finished one would hold nothing."""
    return {"metadata": pod["metadata"], "spec": pod["spec"]}
