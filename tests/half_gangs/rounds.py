"""One round: gangs of eight and others that want the same room, a fault while some are partially bound, then the check.

The scheduler is a process of its own, as in a pod, under the ServiceAccount of the manifests.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.controlplane import ControlPlane
from tests.e2e import objects
from tests.e2e.api import ApiError, Json
from tests.e2e.cluster import Cluster

from .checker import Spells, Standing, overbooked, standings
from .webhook import Mood, Webhook

NODES: Final = 64
LEAF: Final = 8
GANG: Final = 8
GANGS: Final = 6
BARE: Final = 2
SINGLES: Final = 24
"""8 gangs want all 64 nodes, and so do 24 pods beside them: not everything has room."""
STARTS_SECONDS: Final = 120.0
HALF_SECONDS: Final = 60.0
SETTLES_SECONDS: Final = 90.0
"""Within which no gang may be partially bound any more, and none be it again."""
CALM_SECONDS: Final = 6.0
ROLLED_BACK_SECONDS: Final = 5.0
BIND_TIMEOUT_SECONDS: Final = 5.0
SLACK_SECONDS: Final = 3.0
"""For the evictions of several gangs, 8 at a time in one namespace, and the looks of the checker. The control plane and
the tests share two cores."""
TAKES_OVER_SECONDS: Final = 2.0
"""For a leader that has lost the lease or is new: it takes the lease, and reads everything before it decides."""
UNBROKEN_SLACK_SECONDS: Final = 5.0
"""As the slack, and for members that are bound one after the other: each restarts the 5 s."""
NOTHING_TRIED: Final = "no gang was partially bound when the fault came, so nothing was tried"
DEFAULT_CONFIG: Final = """apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
metrics: {bindAddress: 127.0.0.1, port: 0}
"""
"""All defaults, but for the port, which others may use here."""
CONFIG: Final = f"""{DEFAULT_CONFIG}
leaderElection: {{leaseDuration: 4, renewDeadline: 3, retryPeriod: 0.5}}
clientConnection: {{bindTimeout: {BIND_TIMEOUT_SECONDS:g}, maxBindsInFlight: 2}}
podInitialBackoffSeconds: 0.2
podMaxBackoffSeconds: 1
"""
"""Short leases, and two binds at a time, so that the fault meets gangs that are partially bound."""


class Kind(StrEnum):
    """What happens in a round."""

    LEADER = "leader killed"
    SERVER = "API server killed"
    REFUSES = "webhook refuses one member"
    HANGS = "webhook hangs on one member"
    REFUSES_DEFAULT = "webhook refuses one member, default configuration"
    HANGS_DEFAULT = "webhook hangs on one member, default configuration"

    @property
    def mood(self) -> Mood:
        """What the webhook does with the Binding of a member."""
        if self in (Kind.REFUSES, Kind.REFUSES_DEFAULT):
            return Mood.REFUSES
        return Mood.HANGS if self in (Kind.HANGS, Kind.HANGS_DEFAULT) else Mood.ALLOWS

    @property
    def config(self) -> str:
        """The scheduler's configuration."""
        return DEFAULT_CONFIG if self in (Kind.REFUSES_DEFAULT, Kind.HANGS_DEFAULT) else CONFIG

    @property
    def limit_seconds(self) -> float:
        """For how long a gang may be partially bound after the last of its members that was bound.

        This counts only while the API server answers, and not before the new leader has the lease.
        """
        takes_over = TAKES_OVER_SECONDS if self in (Kind.LEADER, Kind.SERVER) else 0.0
        return takes_over + ROLLED_BACK_SECONDS + SLACK_SECONDS

    @property
    def unbroken_limit_seconds(self) -> float:
        """For how long a gang may be partially bound without a break, however many members are bound meanwhile.

        With two binds at a time, members are bound one after the other while others hang.
        """
        hangs = BIND_TIMEOUT_SECONDS if self is Kind.HANGS else 0.0
        return hangs + ROLLED_BACK_SECONDS + UNBROKEN_SLACK_SECONDS

    def too_long(self, spells: Spells) -> list[str]:
        """Return which gang was partially bound for longer than it may be."""
        problems = []
        for spell, limit, since in (
            (spells.idle, self.limit_seconds, " after the last member that was bound"),
            (spells.unbroken, self.unbroken_limit_seconds, ""),
        ):
            if spell.seconds > limit:
                problems.append(
                    f"{spell.gang} partially bound for {spell.seconds:.1f} s{since}, which is more than {limit:g} s"
                )
        return problems


@dataclass(slots=True)
class Result:
    """How a round ended. ``met`` gangs that were partially bound when the fault came; ``left`` those that stayed it."""

    kind: Kind
    met: int = 0
    left: list[Standing] = field(default_factory=list)
    settled_seconds: float = 0.0
    spells: Spells = field(default_factory=Spells)
    whole: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every gang has none or all of its members bound."""
        return not self.left and not self.problems

    @property
    def untried(self) -> bool:
        """Whether nothing else is wrong than that no gang was partially bound when the fault came."""
        return not self.left and self.problems == [NOTHING_TRIED]


class Scheduler:
    """The scheduler as a process."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        self._kubeconfig = kubeconfig
        self._config = directory / "scheduler.yaml"
        self.log = directory / "scheduler.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, config: str) -> None:
        """Start it with a configuration."""
        self._config.write_text(config)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "topo_scheduler", "run"),
                *("--kubeconfig", str(self._kubeconfig), "--config", str(self._config)),
                stdout=log,
                stderr=log,
                env=dict(os.environ),
            )

    async def kill(self) -> None:
        """End it by SIGKILL."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None


async def prepare(cluster: Cluster) -> None:
    """Make the nodes, where they are not there yet."""
    if len(await cluster.api.list("nodes", None)) != NODES:
        await cluster.add_fabric({"s1": [LEAF] * (NODES // LEAF // 2), "s2": [LEAF] * (NODES // LEAF // 2)})


async def play(
    cluster: Cluster, plane: ControlPlane, scheduler: Scheduler, webhook: Webhook, kind: Kind, mood: Mood
) -> Result:
    """Play a round on an empty cluster, and leave it empty."""
    result = Result(kind)
    webhook.mood = mood
    try:
        await scheduler.start(kind.config)
        await _leads(cluster)
        await _submit(cluster)
        result.met = await _partially_bound(cluster)
        term = await _term(cluster)
        if kind is Kind.LEADER:
            await scheduler.kill()
            await scheduler.start(kind.config)
        elif kind is Kind.SERVER:
            await asyncio.to_thread(plane.restart, "kube-apiserver", grace=0)
        began = time.monotonic()
        result.left = await _settle(cluster, result.spells, term + 1 if kind is Kind.LEADER else term)
        result.settled_seconds = time.monotonic() - began - CALM_SECONDS
        result.whole = sum(gang.bound == gang.size for gang in await standings(cluster.api))
        result.problems += await overbooked(cluster.api, objects.NVIDIA)
        if not result.met:
            result.problems.append(NOTHING_TRIED)
        result.problems += kind.too_long(result.spells)
        if not scheduler.alive:
            result.problems.append("the scheduler ended by itself")
    except TimeoutError as error:
        result.problems.append(str(error))
    finally:
        webhook.mood = Mood.ALLOWS
        await scheduler.kill()
        await _clear(cluster)
    return result


async def _leads(cluster: Cluster) -> None:
    """Wait until the scheduler binds anything at all."""
    await cluster.api.create("pods", objects.pod("first", 0))

    async def bound() -> bool:
        return bool((await cluster.api.get("pods", "first", "default"))["spec"].get("nodeName"))

    await _until(bound, STARTS_SECONDS, "the scheduler binds")


async def _submit(cluster: Cluster) -> None:
    """Create gangs, bare gangs and single pods, all at once."""
    items: list[Json] = []
    for number in range(GANGS):
        job = objects.gang(f"gang{number}", GANG)
        job["spec"]["backoffLimit"] = 10_000
        items.append(job)
    for number in range(BARE):
        said = {"gang-name": f"bare{number}", "gang-size": str(GANG)}
        items += [objects.pod(f"bare{number}-{member}-m", 8, said) for member in range(GANG)]
    singles = [objects.pod(f"single{number}", 8) for number in range(SINGLES)]
    await asyncio.gather(*(cluster.apply(item) for item in items))
    # These come while gangs are being bound: younger, without owners, and they want the same nodes.
    await asyncio.gather(*(cluster.apply(item) for item in singles))


async def _partially_bound(cluster: Cluster) -> int:
    """Wait for the first moment at which a gang is partially bound; return how many are.

    None are if nothing was bound any more for some seconds after the first gang.
    """
    deadline = time.monotonic() + HALF_SECONDS
    bound, changed = 0, time.monotonic()
    while time.monotonic() < deadline:
        gangs = await standings(cluster.api)
        if half := sum(gang.half for gang in gangs):
            return half
        if (now := sum(gang.bound for gang in gangs)) != bound:
            bound, changed = now, time.monotonic()
        if bound and time.monotonic() - changed > CALM_SECONDS:
            return 0
        await asyncio.sleep(0.005)
    return 0


async def _term(cluster: Cluster) -> int:
    """Return how often the lease went from one scheduler to another."""
    lease = await cluster.api.get("leases", "topology-scheduler", "kube-system")
    return int(lease["spec"].get("leaseTransitions", 0))


async def _settle(cluster: Cluster, spells: Spells, term: int) -> list[Standing]:
    """Return the gangs that are still partially bound when they should not be any more.

    ``spells`` counts from the term on, and only while the API server answers.
    """
    deadline = time.monotonic() + SETTLES_SECONDS
    calm = time.monotonic()
    half: list[Standing] = []
    while time.monotonic() < deadline:
        try:
            gangs = await standings(cluster.api)
            half = [gang for gang in gangs if gang.half]
            led = await _term(cluster) >= term
            spells.look(time.monotonic(), gangs if led else [])
        except (ApiError, OSError):
            calm = time.monotonic()
            spells.look(calm, [])
        if half:
            calm = time.monotonic()
        elif time.monotonic() - calm >= CALM_SECONDS:
            return []
        await asyncio.sleep(0.2)
    return half


async def _clear(cluster: Cluster) -> None:
    for plural in ("jobs", "pods"):
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        options |= {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        root = "/apis/batch/v1" if plural == "jobs" else "/api/v1"
        await cluster.api.request("DELETE", f"{root}/namespaces/default/{plural}", options)

    async def empty() -> bool:
        return not await cluster.api.list("pods", "default")

    await _until(empty, 60.0, "the cluster empty")


async def _until(look: Callable[[], Awaitable[bool]], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(0.1)


def line(number: int, result: Result) -> str:
    """One line of the report, as JSON."""
    left = [f"{gang.name} {gang.bound}/{gang.size}" for gang in result.left]
    report: Json = {"round": number, "kind": result.kind.value, "ok": result.ok, "half_at_fault": result.met}
    report |= {"settled_seconds": round(result.settled_seconds, 1), "whole": result.whole}
    report |= {"longest_half_seconds": round(result.spells.unbroken.seconds, 1)}
    report |= {"longest_half_after_a_bind_seconds": round(result.spells.idle.seconds, 1)}
    return json.dumps(report | {"left_half": left, "problems": result.problems})
