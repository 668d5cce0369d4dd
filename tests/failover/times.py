"""How long it takes until the next pod is bound: after a first start, a crash, a graceful shutdown, and an outage.

Begins are taken here, binds from the API server's audit log: all by one machine's clock.
"""

import asyncio
import random
import sys
import time
from typing import Final

from .scene import LEASE, Scene

OUTAGE_SECONDS: Final = 60.0
STANDBY_SECONDS: Final = 4.0
"""What a replica takes from its start until it looks at the Lease, and more."""


async def first_start(scene: Scene) -> float:
    """Return the seconds from the start of a process to the first bind in a cluster without a Lease."""
    await _forget(scene)
    (name,) = await scene.submit(1)
    replica = await scene.start()
    seconds = await scene.bound(name) - replica.started
    sys.stderr.write(f"  first bind after {replica.cpu_seconds():.2f} s of CPU time\n")
    await asyncio.to_thread(replica.end)
    return seconds


async def _forget(scene: Scene) -> None:
    """Have the cluster as if there never had been a replica."""
    api = scene.cluster.api
    await api.delete_all("pods", grace=0)

    async def gone() -> bool:
        return not await api.list("pods")

    await scene.cluster.wait_until(gone, 30, "no pod left")
    if await api.find("leases", LEASE, "kube-system") is not None:
        await api.delete("leases", LEASE, "kube-system")


async def _ready(scene: Scene) -> None:
    """Have a leader that binds, and a standby that looks at its Lease."""
    while sum(replica.running for replica in scene.replicas) < 2:
        await scene.start()
    await scene.next_bind()
    await asyncio.sleep(STANDBY_SECONDS + random.uniform(0.0, 2.0))


async def crash(scene: Scene) -> float:
    """Return the seconds from SIGKILL of the leader to the next bind."""
    await _ready(scene)
    leader = scene.leader()
    began = time.time()
    leader.kill()
    return await scene.next_bind() - began


async def orderly_end(scene: Scene) -> float:
    """Return the seconds from SIGTERM of the leader to the next bind by the other."""
    await _ready(scene)
    leader = scene.leader()
    began = time.time()
    ending = asyncio.create_task(asyncio.to_thread(leader.end))
    await asyncio.sleep(0.3)
    seconds = await scene.next_bind() - began
    await ending
    return seconds


async def outage(scene: Scene) -> float:
    """Return the seconds from when the API server reports ready again to the next bind."""
    await _ready(scene)
    await asyncio.to_thread(scene.plane.halt, "kube-apiserver")
    await asyncio.sleep(OUTAGE_SECONDS)
    await asyncio.to_thread(scene.plane.resume, "kube-apiserver")
    began = time.time()
    return await scene.next_bind() - began


MEASURED: Final = {"first start": first_start, "SIGKILL": crash, "SIGTERM": orderly_end, "outage": outage}
