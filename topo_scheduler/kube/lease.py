"""Only one may lead: a Lease of coordination.k8s.io, with fail-stop.

A lease is not a fence: nothing stops a leader that has lost it from sending a request, except itself. So what
always holds here is that a leader stops in time. Its right to lead ends, by its own clock, ``hold_seconds``
after it *sent* the last renewal that succeeded. Others count the lease duration from when they *saw* that
renewal, which is later, and ``hold_seconds`` is shorter by more than clocks drift apart. At that moment
``holds()``, which is asked before every bind, turns False, and the body is cancelled. What is on the wire by
then is waited for by the next leader; ``clean_handover`` says whether it has to.

Nothing here compares the clocks of two machines: another's lease has expired when its record has not changed
before our eyes for as long as it is valid. Our own clock also counts the time a machine was suspended, where
the system can tell.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.errors import Conflict, KubeError, NotFound, Undecodable, passes, retried
from topo_scheduler.kube.resources import segment
from topo_scheduler.kube.times import micro_time

logger = logging.getLogger(__name__)

DRIFT = 0.1
"""The share of the lease duration that is never used: no two clocks run at rates this different."""

JITTER = 1.2
"""Candidates wait one retry period and up to this many more, so that they do not act in step."""

RELEASE_SECONDS = 5.0
"""A lease that cannot be released in this time expires by itself."""

LAST_MOMENT = 0.05
"""Seconds before the end at which no further renewal is tried and the body is told."""

NEVER = float("-inf")


class Lease(msgspec.Struct):
    """A Lease as it is on the server; without a resourceVersion, one that does not exist.

    Kept as it came, since a PUT must not lose what others wrote on it.
    """

    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}

    @property
    def holder(self) -> str:
        """Who holds it; empty if nobody."""
        return self.spec.get("holderIdentity") or ""

    @property
    def version(self) -> str:
        """Its resourceVersion."""
        return self.metadata.get("resourceVersion") or ""


_lease = msgspec.json.Decoder(Lease)
_encode = msgspec.json.Encoder().encode


def boot_time() -> float:
    """A monotonic clock that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class LeaderElector:
    """Contends for one Lease. ``identity`` must be unique to this process, not only to this pod."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        clock: Callable[[], float] = boot_time,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if not lease_duration > renew_deadline > retry_period * JITTER > 0:
            raise ValueError("leader election needs leaseDuration > renewDeadline > 1.2 x retryPeriod > 0")
        self.identity = identity
        self.leader = ""
        """Who leads, as last seen; empty if nobody."""
        self.transitions = 0
        self.clean_handover = False
        """Whether no write of an earlier leader can be under way, since it released the lease.

        If not, wait before the first bind, as long as a bind takes at most and at least ``handover_seconds``.
        That is also so where the lease did not exist: it may have been deleted before who held it could know.
        """
        self.hold_seconds = min(renew_deadline, lease_duration * (1 - DRIFT))
        self.handover_seconds = self.hold_seconds / (1 - DRIFT)
        """How long an earlier leader, cut off and with a slow clock, may go on believing that it leads."""
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"
        self._path = f"{self._collection}/{segment(name)}"
        self._names = {"name": name, "namespace": namespace}
        self._duration = lease_duration
        self._retry_period = retry_period
        self._request_seconds = renew_deadline / 3
        self._clock = clock
        self._wall = wall
        self._until = NEVER
        self._current: Lease | None = None  # as our last write left it; None if what is on the server is not known
        self._observed: Lease | None = None  # another's …
        self._observed_at = NEVER  # … and since when it has not changed

    def holds(self) -> bool:
        """Whether we may act as the leader at this very moment."""
        return self._clock() < self._until

    async def run(self, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``body`` while leading, again each time the lease is won; return when it returns.

        On loss the body is cancelled, and once it has ended we contend again. When the body ends by itself,
        or ``run`` is cancelled, the lease is renewed until the body is through, and then released.
        """
        while True:
            await self._acquire()
            logger.info("leading as %s, transition %d", self.identity, self.transitions)
            if await self._lead(body):
                return
            logger.warning("not leading any more, %s is; contending again", self.leader or "nobody known")

    # ------------------------------------------------------------ leading

    async def _lead(self, body: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Whether the body ended by itself; False if the lease was lost."""
        work = asyncio.create_task(body(), name="leader")
        keeper = asyncio.create_task(self._keep(), name="lease")
        interrupted = await _wait(work, keeper)
        ended = work.done()
        work.cancel()
        interrupted |= await _wait(work)
        held, self._until = self.holds(), NEVER
        keeper.cancel()
        interrupted |= await _wait(keeper)
        if held:
            await self._release()
        for task in (keeper, work):
            if not task.cancelled():
                task.result()
        if interrupted:
            raise asyncio.CancelledError
        return ended

    async def _keep(self) -> None:
        """Renew in time; return when the lease is lost, or may be."""
        while (began := self._clock()) < self._until - LAST_MOMENT:
            try:
                if not await self._renew():
                    self._until = NEVER
                    return
            except KubeError as error:
                logger.warning("lease not renewed, %.1f s left: %s", self._until - self._clock(), error)
            pause = began + self._retry_period - self._clock()
            await asyncio.sleep(max(LAST_MOMENT, min(pause, self._until - LAST_MOMENT - self._clock())))
        self._until = NEVER
        logger.warning("lease not renewed within %g s", self.hold_seconds)

    async def _renew(self) -> bool:
        """False if somebody else leads; raises if that cannot be told."""
        for _ in range(3):
            # A conflict can be the work of our own last renewal, whose answer was lost: look, then repeat.
            current = self._current or await self._read()
            if current.holder != self.identity and current.version:
                self.leader = current.holder
                return False
            try:
                await self._hold(current)
                return True
            except (Conflict, NotFound) as error:
                logger.debug("lease changed meanwhile: %s", error)
        raise Undecodable(f"the lease {self._path} changes faster than it can be renewed")

    async def _release(self) -> None:
        """Let others have it at once. Here nothing may be under way any more."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await retried(self._give_up, seconds=RELEASE_SECONDS, passing=_passes)
            logger.info("lease released")
        except (KubeError, TimeoutError) as error:
            logger.warning("lease not released, it expires in %g s: %s", self._duration, error or "no answer")

    async def _give_up(self) -> None:
        current = self._current or await self._read()
        if current.holder == self.identity:
            await self._write(current, {"holderIdentity": "", "leaseDurationSeconds": 1})
            self.leader = ""

    # ------------------------------------------------------------ contending

    async def _acquire(self) -> None:
        self._current = None
        complaint = ""
        claimed = False
        while True:
            try:
                current = await self._read()
                if self._is_free(current):
                    if current.holder != self.identity or not claimed:
                        self.clean_handover = bool(current.version) and not current.holder
                    claimed = True
                    await self._hold(current)
                    if self.holds():
                        self._observed = None
                        return
            except Conflict:
                logger.debug("another candidate was faster")
            except KubeError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    logger.warning("cannot contend for the lease: %s", error)
            await asyncio.sleep(self._retry_period * random.uniform(1.0, 1.0 + JITTER))

    def _is_free(self, current: Lease) -> bool:
        """Whether the lease may be taken: nobody's, ours, or another's whose time is up before our eyes."""
        now = self._clock()
        if current.holder and current.holder != self.identity:
            # By version, not by renewTime: the holder's clock may stand still.
            if self._observed is None or self._observed.version != current.version:
                self._observed, self._observed_at = current, now
                self.leader = current.holder
        elif current.version:
            self._observed = None  # released, by whoever held it
        # A lease that was deleted says nothing: who held it may not have noticed yet.
        if self._observed is None:
            return True
        duration = self._observed.spec.get("leaseDurationSeconds") or self._duration
        return now >= self._observed_at + float(duration)

    # ------------------------------------------------------------ the record

    async def _read(self) -> Lease:
        try:
            answer = await self._client.request("GET", self._path, timeout=self._patience())
        except NotFound:
            return Lease(metadata=dict(self._names))
        return decode(_lease, answer)

    async def _hold(self, current: Lease) -> None:
        """Claim or renew: ours from the moment the request was sent, so that nobody's clock says longer."""
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
        }
        if current.holder != self.identity:
            spec["acquireTime"] = micro_time(self._wall())
            spec["leaseTransitions"] = (current.spec.get("leaseTransitions") or 0) + bool(current.version)
        sent = self._clock()
        written = await self._write(current, spec)
        self._until = sent + self.hold_seconds
        self.leader = self.identity
        self.transitions = written.spec.get("leaseTransitions") or 0

    async def _write(self, current: Lease, spec: dict[str, Any]) -> Lease:
        """Compare and set; raises ``Conflict`` or ``NotFound`` if the lease is not as ``current`` any more."""
        self._current = None
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {key: value for key, value in current.metadata.items() if key != "managedFields"},
            "spec": {**current.spec, **spec, "renewTime": micro_time(self._wall())},
        }
        method, path = ("PUT", self._path) if current.version else ("POST", self._collection)
        answer = await self._client.request(method, path, body=_encode(lease), timeout=self._patience())
        self._current = decode(_lease, answer)
        return self._current

    def _patience(self) -> float:
        """Seconds for one request: while leading, not beyond the time left to lead."""
        left = self._until - self._clock()
        return min(self._request_seconds, left) if left > 0 else self._request_seconds


async def _wait(*tasks: asyncio.Task[None]) -> bool:
    """Wait until one has ended; whether we were cancelled meanwhile.

    With several that ends the wait. A single one has been told to end, and is waited for all the same:
    nothing may be left running when the lease is given up.
    """
    interrupted = False
    while not any(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            interrupted = True
            if len(tasks) > 1:
                break
    return interrupted


def _passes(error: BaseException) -> bool:
    return passes(error) or isinstance(error, (Conflict, Undecodable))
