"""kube-scheduler and this daemon on the same nodes, three quarters full, with kubelets that refuse what does not fit.

How many binds are refused depends on how busy the machine is (docs/explanation/limits.md): it is printed. What must
hold is what follows from a refusal.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.controlplane import ControlPlane

from . import objects
from .admitting import Bound, Gang, Kubelets
from .api import Api, Json
from .objects import SCHEDULER

pytestmark = [pytest.mark.only("real"), pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1500)]

THEIRS = "default-scheduler"
NODES = 100
CPUS, ROOM = 96, 24
"""CPUs of a node, and those that are left of them beside what fills it."""
SINGLES, GANGS, MEMBERS, OTHERS = 4000, 125, 8, 5000
RUN_SECONDS = 2.0


@pytest.fixture(scope="module")
def shared() -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler and without KWOK: the kubelets are this test's."""
    with ControlPlane(with_scheduler=True) as plane:
        yield plane


@pytest.fixture
async def api(shared: ControlPlane) -> AsyncIterator[Api]:
    """Requests as the administrator."""
    async with Api(shared.kubeconfig) as api:
        yield api


def node(number: int) -> Json:
    leaf = number // 10
    item = objects.node(f"n{number}", spine=f"s{leaf // 5}", leaf=f"l{leaf}", gpus=0)
    item["status"]["capacity"] = item["status"]["allocatable"] = {"cpu": str(CPUS), "memory": "1Ti", "pods": "500"}
    return item


def job(name: str) -> Json:
    item = objects.job(name, MEMBERS, 0, {"gang-size": str(MEMBERS)})
    item["spec"]["backoffLimit"] = 100
    return item


async def create(api: Api, items: list[Json], plural: str) -> None:
    for start in range(0, len(items), 32):
        await asyncio.gather(*(api.create(plural, item) for item in items[start : start + 32]))


async def fill(api: Api) -> None:
    """Nodes that are three quarters full of somebody else's pods."""
    await create(api, [node(number) for number in range(NODES)], "nodes")
    fillers = [objects.pod(f"filler-{n}", cpu=str(CPUS - ROOM), scheduler="nobody") for n in range(NODES)]
    await create(api, fillers, "pods")
    await asyncio.gather(*(api.bind(f"filler-{number}", f"n{number}") for number in range(NODES)))


@asynccontextmanager
async def daemon(shared: ControlPlane, log: Path) -> AsyncIterator[None]:
    """The daemon in a process of its own: it must not wait for what this test does."""
    command = (sys.executable, "-m", "topo_scheduler", "run", "--kubeconfig", str(shared.kubeconfig))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, "--leader-elect=false", "--metrics-port=0", "--log-format=text", stdout=out, stderr=out
        )
        try:
            for _ in range(600):
                assert process.returncode is None, text_of(log)
                if "caches filled" in text_of(log):
                    break
                await asyncio.sleep(0.1)
            yield
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def test_two_schedulers_on_the_same_nodes_with_refusing_kubelets(
    shared: ControlPlane, api: Api, tmp_path: Path
) -> None:
    await fill(api)
    started = time.monotonic()
    kubelets = Kubelets(api, {f"n{n}": 1000 * ROOM for n in range(NODES)}, RUN_SECONDS)
    async with kubelets, daemon(shared, tmp_path / "daemon.log"):
        watched = asyncio.create_task(no_half_gangs(api, kubelets))
        ours = [objects.pod(f"ours-{n}", cpu="1") for n in range(SINGLES)]
        theirs = [objects.pod(f"theirs-{n}", cpu="1", scheduler=THEIRS) for n in range(OTHERS)]
        mixed = [item for pair in zip(ours, theirs, strict=False) for item in pair] + theirs[len(ours) :]
        gangs = [job(f"gang-{n}") for n in range(GANGS)]
        await asyncio.gather(create(api, mixed, "pods"), create(api, gangs, "jobs"))
        await kubelets.wait(lambda: all_ended(kubelets), 1200, "all pods ended")
        watched.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watched
    refused = [one for one in kubelets.bound if one.scheduler == SCHEDULER and not one.admitted]
    binds = sum(one.scheduler == SCHEDULER for one in kubelets.bound)
    tell(kubelets.bound, time.monotonic() - started)
    assert len(refused) <= binds / 20, f"{len(refused)} of {binds} binds were refused: not a race now and then"
    first: dict[tuple[str, str], float] = {}
    for one in refused:
        # Members of one gang may be refused together: they were on their way together.
        assert one.at - first.setdefault((one.owner, one.node), one.at) < 1, "refused again by the same node"
    assert "Traceback" not in text_of(tmp_path / "daemon.log")


def text_of(log: Path) -> str:
    return log.read_text()


def all_ended(kubelets: Kubelets) -> bool:
    """Whether every pod ended, and enough pods came in place of refused members of gangs."""
    bound, gangs = kubelets.bound, kubelets.gangs
    singles = sum(one.scheduler == SCHEDULER and one.owner not in gangs for one in bound)
    members = sum(one.owner in gangs and one.admitted for one in bound)
    others = sum(one.scheduler == THEIRS for one in bound)
    return (singles, members, others, kubelets.ended) == (SINGLES, GANGS * MEMBERS, OTHERS, len(bound))


async def no_half_gangs(api: Api, kubelets: Kubelets) -> None:
    """Look for ever for gangs that are bound by half 5 s after the last event of any member."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(1)
        for owner, gang in list(kubelets.gangs.items()):
            if gang.half(MEMBERS) and loop.time() - gang.at > 5:
                # What the watch tells may be late on a busy machine: it counts what the API server says.
                at, listed = gang.at, Gang()
                for item in await api.list("pods", labelSelector=f"batch.kubernetes.io/controller-uid={owner}"):
                    listed.pods[item["metadata"]["uid"]] = bool(item["spec"].get("nodeName"))
                assert gang.at != at or not listed.half(MEMBERS), f"half bound for 5 s: {listed.pods}"


def tell(bound: list[Bound], seconds: float) -> None:
    """Print what was measured, and what was bound to the same node just before each refusal."""
    for scheduler in (SCHEDULER, THEIRS):
        mine = [one for one in bound if one.scheduler == scheduler]
        print(f"{scheduler}: {len(mine)} binds, {sum(not one.admitted for one in mine)} refused")
    print(f"{len(bound)} binds in {seconds:.0f} s")
    for one in bound:
        if not one.admitted:
            before = [
                f"{1000 * (one.at - other.at):.0f} ms {'ours' if other.scheduler == SCHEDULER else 'theirs'}"
                for other in bound
                if other.node == one.node and 0 <= one.at - other.at < 1 and other is not one
            ]
            print(f"refused: {one.scheduler} on {one.node}; bound there before: {', '.join(before[-12:])}")
