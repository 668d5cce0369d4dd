"""A thousand nodes with gangs on a real control plane: eight nodes die, then a leaf, then a spine.

`heal`: gangs leave a spine and one node of each leaf free. `heal_full`: eight nodes die where no GPU is free, as all
these nodes are lent to pods of a lower priority; a gang that needs more than the spare of its leaf waits for room.

What is real: etcd, kube-apiserver, kube-controller-manager (Jobs, leases of nodes, garbage), and the daemon as a
process with the manifests' rights; KWOK plays the kubelets. A kubelet that dies renews its lease no more, and its pods
never end by themselves; the node is not ready when the controller manager gives it up, here after 25 s. Times count
from there.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil

from tests.controlplane import ControlPlane
from tests.crds import migration_definition
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import ACCOUNT
from tests.healing import breaking
from tests.healing.figures import begin, figures
from tests.healing.layout import THOUSAND, Layout, described
from tests.healing.timeline import Timeline
from topo_scheduler.api.recovery import RecoverySpec

from .objects import Json
from .race import running

SEED = 1
LONGEST = 300.0
"""Seconds a step may take."""
GIVE_UP = "--node-monitor-grace-period=25s"
"""Kubelets renew the leases of their nodes every 10 s. 50 s, the default, would only make each step longer."""
CONFIG = """\
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec:
  recovery: {enabled: true, forceDelete: true}
"""
FULL_CONFIG = f"""\
{CONFIG.rstrip()}
  spares: {{perLeaf: 1}}
"""


async def heal_full(layout: Layout = THOUSAND, seed: int = SEED) -> dict[str, object]:
    """Break nodes where no GPU is free: each leaf has a spare, and all that gangs leave is lent to others."""
    return await heal(layout, seed, lend=True)


async def heal(layout: Layout = THOUSAND, seed: int = SEED, *, lend: bool = False) -> dict[str, object]:
    """Break it step by step; return what each step cost."""
    async with _cluster() as cluster:
        command = await _daemon(cluster, FULL_CONFIG if lend else CONFIG)
        gangs = layout.gangs()
        patient = {gang.key: not gang.plain for gang in gangs}
        timeline = Timeline(cluster.api, lambda key: patient.get(key, False))
        await timeline.start()
        result: dict[str, object] = {**described(layout), "seed": seed}
        try:
            await breaking.build(cluster, layout)
            async with running(command) as process:
                began = time.monotonic()
                await breaking.fill(cluster, layout, timeline, lend=lend)
                result["free_nodes"] = len(layout.nodes()) - len(timeline.used())
                _say(f"full after {time.monotonic() - began:.0f} s")
                for name, nodes in breaking.steps(layout, seed).items():
                    if lend and name != "eight_nodes":
                        continue  # there is no room for a whole leaf
                    result[name] = await _step(cluster, timeline, layout, nodes, process)
                    _say(f"{name}: {json.dumps(result[name])}")
                result["daemon_rss_mb"] = round(process.memory_info().rss / 2**20, 1)
        finally:
            await timeline.stop()
        return result


async def _step(
    cluster: Cluster, timeline: Timeline, layout: Layout, nodes: list[str], process: psutil.Process
) -> Json:
    gangs = layout.gangs()
    broken = begin(timeline, gangs, nodes)
    cpu = sum(process.cpu_times()[:2])
    await breaking.each(nodes, cluster.kill_kubelet)
    await cluster.wait_for(lambda: timeline.down.keys() >= broken.nodes, 60, "the nodes given up")
    done = await breaking.settled(timeline, broken, LONGEST)
    measured = figures(timeline, broken, RecoverySpec().debounce)
    broken_rules = await breaking.problems(cluster, timeline, gangs)
    return {
        **measured,
        "settled": done,
        "broken_rules": len(broken_rules),
        "first_broken_rules": broken_rules[:3],
        "daemon_cpu_s": round(sum(process.cpu_times()[:2]) - cpu, 2),
    }


@asynccontextmanager
async def _cluster() -> AsyncIterator[Cluster]:
    plane = ControlPlane(with_kwok=True, arguments={"kube-controller-manager": [GIVE_UP]})
    await asyncio.to_thread(plane.start)
    try:
        async with Api(plane.kubeconfig) as api:
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            await cluster.install()
            await cluster.define(migration_definition())
            cluster.scheduler_kubeconfig = await asyncio.to_thread(plane.kubeconfig_for_service_account, *ACCOUNT)
            await cluster.recorder.start()
            try:
                yield cluster
            finally:
                await cluster.recorder.stop()
    finally:
        await asyncio.to_thread(plane.stop)


async def _daemon(cluster: Cluster, text: str) -> list[str]:
    """Our scheduler as it is run in a cluster, with a configuration."""
    config = cluster.plane.directory / "scheduler.yaml"
    await asyncio.to_thread(config.write_text, text)
    return [
        *(sys.executable, "-m", "topo_scheduler", "run", "--config", str(config)),
        *("--kubeconfig", str(cluster.scheduler_kubeconfig), "--leader-elect=false"),
        *("--bind-address", "127.0.0.1", "--metrics-port", "0"),
    ]


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(heal(lend="full" in sys.argv[1:])), indent=2) + "\n")
