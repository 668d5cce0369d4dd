"""kube-scheduler and this daemon on the same nearly full nodes, with kubelets that refuse what does not fit.

Nine of ten places that are left on them are wanted at any moment, by pods that come and go.
"""

import asyncio
import os
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

THEIRS, FILLER = "default-scheduler", "nobody"
NODES = 100
CPUS, ROOM = 96, 8
"""CPUs of a node, and those that are left of them beside what fills it."""
TURNS = int(os.environ.get("TOPO_TURNS", "50"))
SINGLES, MEMBERS, OTHERS = 32, 8, 40
"""How often so many single pods and a gang of ours and so many pods of theirs are created at once; 125 for the docs."""
A_TURN = SINGLES + MEMBERS + OTHERS
MOST = NODES * ROOM * 9 // 10
"""Pods that wait or run at any moment: nine tenths of all there is room for, of a CPU each."""
RUN_SECONDS = 4.0


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


async def one_turn(api: Api, turn: int) -> None:
    """Create some pods of either scheduler and a gang, at the same moment."""
    first, others = turn * SINGLES, turn * OTHERS
    ours = [objects.pod(f"ours-{n}", cpu="1") for n in range(first, first + SINGLES)]
    theirs = [objects.pod(f"theirs-{n}", cpu="1", scheduler=THEIRS) for n in range(others, others + OTHERS)]
    pods = asyncio.gather(*(api.create("pods", item) for item in [*ours, *theirs]))
    await asyncio.gather(pods, api.create("jobs", job(f"gang-{turn}")))


async def fill(api: Api) -> None:
    """Nodes that are nearly full of other users' pods."""
    await asyncio.gather(*(api.create("nodes", node(number)) for number in range(NODES)))
    for number in range(NODES):
        await api.create("pods", objects.pod(f"filler-{number}", cpu=str(CPUS - ROOM), scheduler=FILLER))
        await api.bind(f"filler-{number}", f"n{number}")


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


async def test_two_schedulers_on_nearly_full_nodes(shared: ControlPlane, api: Api, tmp_path: Path) -> None:
    await fill(api)
    started = time.monotonic()
    kubelets = Kubelets(api, {f"n{n}": 1000 * ROOM for n in range(NODES)}, RUN_SECONDS, FILLER)
    async with kubelets, daemon(shared, tmp_path / "daemon.log"):
        watched = asyncio.create_task(no_partially_bound_gangs(api, kubelets))
        for turn in range(TURNS):
            await wait_for_room(kubelets, watched, turn * A_TURN)
            await one_turn(api, turn)
        await kubelets.wait(lambda: watched.done() or all_ended(kubelets), 300, "all pods ended")
        watched.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watched
    refused = [bind for bind in kubelets.bound if bind.scheduler == SCHEDULER and not bind.admitted]
    binds = sum(bind.scheduler == SCHEDULER for bind in kubelets.bound)
    tell(kubelets.bound, time.monotonic() - started)
    assert len(refused) <= binds / 1000, f"{len(refused)} of {binds} binds were refused"
    first: dict[tuple[str, str], float] = {}
    for refusal in refused:
        # Members of one gang may be refused together: they were on their way together.
        assert refusal.at - first.setdefault((refusal.owner, refusal.node), refusal.at) < 1, (
            "refused again by the same node"
        )
    assert "Traceback" not in text_of(tmp_path / "daemon.log")


def text_of(log: Path) -> str:
    return log.read_text()


async def wait_for_room(kubelets: Kubelets, watched: asyncio.Task[None], created: int) -> None:
    """Wait until a turn's pods find room, so that the nodes are always nearly full and nothing waits for long."""
    await kubelets.wait(lambda: watched.done() or created - kubelets.ended <= MOST - A_TURN, 300, "room")
    if watched.done():
        watched.result()


def all_ended(kubelets: Kubelets) -> bool:
    """Whether every pod ended, and enough pods came in place of refused members of gangs."""
    bound, gangs = kubelets.bound, kubelets.gangs
    singles = sum(bind.scheduler == SCHEDULER and bind.owner not in gangs for bind in bound)
    members = sum(bind.owner in gangs and bind.admitted for bind in bound)
    others = sum(bind.scheduler == THEIRS for bind in bound)
    # A gang that is rolled back has more members admitted than it has in the end.
    wanted = (TURNS * SINGLES, TURNS * MEMBERS, TURNS * OTHERS, len(bound))
    counts = (singles, members, others, kubelets.ended)
    return all(is_ >= should for is_, should in zip(counts, wanted, strict=True))


async def no_partially_bound_gangs(api: Api, kubelets: Kubelets) -> None:
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
                assert gang.at != at or not listed.half(MEMBERS), f"partially bound for 5 s: {listed.pods}"


def tell(bound: list[Bound], seconds: float) -> None:
    """Print what was measured, and what was bound to the same node just before each refusal."""
    for scheduler in (SCHEDULER, THEIRS):
        mine = [bind for bind in bound if bind.scheduler == scheduler]
        print(f"{scheduler}: {len(mine)} binds, {sum(not bind.admitted for bind in mine)} refused")
    print(f"{len(bound)} binds in {seconds:.0f} s")
    for attempt in bound:
        if not attempt.admitted:
            before = [
                f"{1000 * (attempt.at - other.at):.0f} ms {'ours' if other.scheduler == SCHEDULER else 'theirs'}"
                for other in bound
                if other.node == attempt.node and 0 <= attempt.at - other.at < 1 and other is not attempt
            ]
            print(f"refused: {attempt.scheduler} on {attempt.node}; bound there before: {', '.join(before[-12:])}")
