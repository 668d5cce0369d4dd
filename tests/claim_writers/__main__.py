"""``python -m tests.claim_writers --claims 10000``: many writers of claims on a real control plane, with faults.

Requests of this scheduler go through a proxy that answers some writes of claims with 409, and loses some answers;
a client annotates claims all the time; and the scheduler is killed several times. Beside it runs kube-scheduler, on
nodes of its own or (``--same-nodes``) on the same devices. A checker reads claims and pods, and nothing else.

Nothing in the API keeps two schedulers from giving the same device at the same moment. So on the same nodes a device
may have two claims for a moment; what must hold there is that none is left so, and that no two pods run with it.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tests.bench.device_objects import claim_template, device_class, resource_slice
from tests.bench.race import ours, running
from tests.controlplane import ControlPlane
from tests.docs.results import keep
from tests.e2e import objects
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster
from tests.e2e.proxy import FaultProxy
from topo_scheduler.simulation.apiserver import Disconnect, Refuse
from topo_scheduler.simulation.apiserver.requests import RequestInfo

from .checker import Checker
from .writers import THEIR_TEMPLATE, THEIRS, Work, Writer, meddle

LEAF_NODES: Final = 8
OUR_LEAVES: Final = 4
OUR_WRITERS: Final = 64
THEIR_WRITERS: Final = 6
CONFLICTS: Final = 0.1
LOST: Final = 0.01
"""The part of the writes of claims that are refused with 409, and of those whose answer is lost."""
MEDDLES_PER_SECOND: Final = 5.0
KILLS: Final = 3
CALM_SECONDS: Final = 120.0
ACCOUNT: Final = ("kube-system", "topology-scheduler")
OUR_CLASS, THEIR_CLASS = "ours", "theirs"


class _Plane:
    """What `ours` needs of a control plane: the kubeconfig that leads through the proxy."""

    def __init__(self, plane: ControlPlane, kubeconfig: Any) -> None:
        self.url, self.token, self.ca_file, self.kubeconfig = plane.url, plane.token, plane.ca_file, kubeconfig


async def run(claims: int, *, same_nodes: bool) -> dict[str, Any]:
    """Let the writers make so many claims; return what the checker found."""
    plane = ControlPlane(with_kwok=True, with_scheduler=True)
    await asyncio.to_thread(plane.start)
    checker, work = Checker(), Work(claims)
    began = time.monotonic()
    try:
        async with Api(plane.kubeconfig) as api:
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            await cluster.install()
            await _prepare(cluster, same_nodes=same_nodes)
            account = await asyncio.to_thread(plane.kubeconfig_for_service_account, *ACCOUNT)
            async with FaultProxy(account) as proxy:
                _add_faults(proxy)
                command = ours(_Plane(plane, proxy.write_kubeconfig(plane.directory / "through-proxy.yaml")))
                side = [
                    asyncio.create_task(_follow(api, "resourceclaims", checker.claim)),
                    asyncio.create_task(_follow(api, "pods", checker.pod)),
                    asyncio.create_task(meddle(api, checker, MEDDLES_PER_SECOND)),
                    asyncio.create_task(_schedule(command, checker, claims)),
                ]
                try:
                    await _write(api, checker, work, side)
                    calm = await _calm(checker)
                finally:
                    for task in side:
                        task.cancel()
                    ended = await asyncio.gather(*side, return_exceptions=True)
        problems = [repr(error) for error in ended if isinstance(error, Exception)]
    finally:
        await asyncio.to_thread(plane.stop)
    return _result(checker, work, problems, calm=calm, seconds=time.monotonic() - began)


async def _prepare(cluster: Cluster, *, same_nodes: bool) -> None:
    leaves = [LEAF_NODES] * OUR_LEAVES
    names = await cluster.add_fabric({"s1": leaves} if same_nodes else {"s1": leaves, "s2": [LEAF_NODES]})
    drivers = {"s1": "ours.example.com", "s2": "ours.example.com" if same_nodes else "theirs.example.com"}
    their_driver = drivers["s1"] if same_nodes else drivers["s2"]
    await cluster.apply(
        device_class(f"device.driver == '{drivers['s1']}'", OUR_CLASS),
        device_class(f"device.driver == '{their_driver}'", THEIR_CLASS),
        *(resource_slice(name, drivers[name.partition("-")[0]]) for name in names),
        claim_template("default", OUR_CLASS),
        {**claim_template("default", THEIR_CLASS), "metadata": {"name": THEIR_TEMPLATE, "namespace": "default"}},
    )


def _add_faults(proxy: FaultProxy) -> None:
    chance = random.Random("faults")

    def some(part: float) -> Callable[[RequestInfo], bool]:
        return lambda info: info.resource == "resourceclaims" and chance.random() < part

    proxy.faults.add(Refuse(409), verb="patch", where=some(CONFLICTS))
    proxy.faults.add(Disconnect(applied=True), verb="patch", where=some(LOST))
    proxy.faults.add(Disconnect(applied=False), verb="patch", where=some(LOST))


async def _follow(api: Api, plural: str, take: Callable[[str, Any], None]) -> None:
    """Hand over every event of a resource, in order; a watch that ends goes on from where it was."""
    version = (await api.request("GET", f"{_root(plural)}?limit=1"))["metadata"]["resourceVersion"]
    while True:
        async for kind, item in api.watch(plural, version, "default"):
            if kind == "ERROR":
                raise RuntimeError(f"events of {plural} were missed: {item.get('message')}")
            version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                take(kind, item)


def _root(plural: str) -> str:
    root = "/api/v1" if plural == "pods" else "/apis/resource.k8s.io/v1"
    return f"{root}/namespaces/default/{plural}"


async def _schedule(command: list[str], checker: Checker, claims: int) -> None:
    """Run the scheduler; kill it whenever another part of all claims was made."""
    for number in range(1, KILLS + 2):
        async with running(command) as process:
            while number > KILLS or len(checker.claims_seen) < claims * number / (KILLS + 1):
                await asyncio.sleep(0.5)
                if not process.is_running():
                    raise RuntimeError("the scheduler ended by itself")
            process.kill()


async def _write(api: Api, checker: Checker, work: Work, side: list[asyncio.Task[None]]) -> None:
    """Let all writers work, and show how far they are."""
    writers = [Writer(api, checker, f"ours{number}", objects.SCHEDULER, OUR_CLASS) for number in range(OUR_WRITERS)]
    writers += [Writer(api, checker, f"theirs{number}", THEIRS, THEIR_CLASS) for number in range(THEIR_WRITERS)]
    tasks = [asyncio.create_task(writer.run(work)) for writer in writers]
    reported = time.monotonic()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.5)
        for task in (*tasks, *side):
            if task.done() and (error := task.exception()) is not None:
                raise error
        if time.monotonic() - reported > 30:
            reported = time.monotonic()
            seen = f"{len(checker.claims_seen)} claims, {checker.allocations} allocations"
            print(f"{seen}, {len(checker.doubles)} devices twice", file=sys.stderr)


async def _calm(checker: Checker) -> float | None:
    """Wait until all pods are gone and no claim is allocated; return the seconds, None if that takes too long."""
    began = time.monotonic()
    while time.monotonic() - began < CALM_SECONDS:
        if not checker.pods and not checker.leaked():
            return round(time.monotonic() - began, 1)
        await asyncio.sleep(0.5)
    return None


def _result(checker: Checker, work: Work, problems: list[str], *, calm: float | None, seconds: float) -> dict[str, Any]:
    lasted = sorted(double.ended - double.began for double in checker.doubles if double.ended)
    by_scheduler = Counter(scheduler for _, _, scheduler, _ in checker.bound.values())
    return {
        "claims": len(checker.claims_seen),
        "allocations": checker.allocations,
        "pods_bound": by_scheduler[objects.SCHEDULER],
        "pods_bound_by_kube_scheduler": by_scheduler[THEIRS],
        "devices_twice": len(checker.doubles),
        "devices_twice_with_both_pods_bound": sum(double.run for double in checker.doubles),
        "devices_twice_still": sum(not double.ended for double in checker.doubles),
        "longest_twice_ms": round(1000 * lasted[-1]) if lasted else 0,
        "leaked": len(checker.leaked()),
        "bound_without_devices": len(checker.without_devices()),
        "not_done_in_time": len(work.slow),
        "calm_after_s": calm,
        "problems": problems + checker.without_devices()[:5],
        "takes_s": round(seconds),
    }


def passed(result: dict[str, Any], *, same_nodes: bool) -> bool:
    """Return whether nothing happened that must not."""
    twice = result["devices_twice_with_both_pods_bound" if same_nodes else "devices_twice"]
    wrong = ("devices_twice_still", "leaked", "bound_without_devices", "not_done_in_time")
    return not twice and not any(result[name] for name in wrong) and not result["problems"]


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.claim_writers", description=__doc__)
    parser.add_argument("--claims", type=int, default=10_000, help="claims to make")
    parser.add_argument("--same-nodes", action="store_true", help="kube-scheduler gives the same devices")
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    options = parser.parse_args()
    if options.write and options.same_nodes:
        parser.error("no page has the result on the same nodes: leave out --write")
    result = asyncio.run(run(options.claims, same_nodes=options.same_nodes))
    print(json.dumps(result, indent=1))
    ok = passed(result, same_nodes=options.same_nodes)
    if options.write:
        twice, leaked = result["devices_twice"], result["leaked"]
        keep("claim_writers", f"{result['claims']:,} claims, {twice} devices given twice, {leaked} leaked", result)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
