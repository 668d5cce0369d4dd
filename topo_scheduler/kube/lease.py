"""Only one may lead: a Lease of coordination.k8s.io, with fail-stop.

A lease is not a fence: nothing stops a leader that has lost it from sending a request, except itself. So what
always holds here is that a leader stops in time. Its right to lead ends, by its own clock, ``hold_seconds``
after it *sent* the last renewal that succeeded. At that moment ``fence``, which every write asks right before its bytes
leave, refuses, and the body is cancelled. Others count the lease duration from when they *saw* that renewal, which is
later. ``hold_seconds`` is shorter than the lease duration by more than clocks drift apart, and by ``flight_seconds`` on
top of that: so long may the last write still be on its way to the API server, which gives it up at its deadline (see
``fence``). Whoever takes a lease that has run out before its eyes therefore finds every write of the last leader done,
or never to be done. ``quiet_seconds()`` says for how long that is not so in the cases that are left.

Nothing here compares the clocks of two machines: another's lease has expired when its record has not changed
before our eyes for as long as it is valid. Our own clock also counts the time a machine was suspended, where
the system can tell.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.errors import Conflict, KubeError, NotFound, Undecodable, passes
from topo_scheduler.kube.fence import CLOCK_DRIFT, FLIGHT_SECONDS, UNFENCED, Fence
from topo_scheduler.kube.resources import segment
from topo_scheduler.kube.retrying import retried
from topo_scheduler.kube.times import micro_time

logger = logging.getLogger(__name__)

FLIGHT_SHARE = 0.2
"""The share of the lease duration that writes may be on their way to the API server, up to ``FLIGHT_SECONDS``."""

LOOK_SECONDS = 1.0
"""Longest pause between two looks of a standby: what it sees late, it takes over late."""

RUSH_SECONDS = 0.2
"""Standbys try to take a lease that has run out within this time, so that they do not act in step."""

RELEASED_SECONDS = 1
"""Lease duration that a leader writes when it releases the lease, as client-go does.

An empty holder with another duration was written by hand: the leader may not have noticed yet.
"""

LONGEST_SECONDS = 3600.0
"""Longest lease duration of another that is believed."""

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
    def annotations(self) -> dict[str, Any]:
        """Its annotations."""
        return self.metadata.get("annotations") or {}

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
        if not lease_duration > renew_deadline > retry_period * 1.2 > 0:
            raise ValueError("leader election needs leaseDuration > renewDeadline > 1.2 x retryPeriod > 0")
        self.identity = identity
        self.leader = ""
        """Who leads, as last seen; empty if nobody."""
        self.transitions = 0
        self.found_none = False
        """Whether there was no Lease when it was taken: this is the first leader, or the Lease was deleted."""
        flight_seconds = min(FLIGHT_SECONDS, lease_duration * FLIGHT_SHARE)
        self.hold_seconds = min(renew_deadline, (lease_duration - flight_seconds) * (1 - CLOCK_DRIFT))
        self.fence = Fence(
            self.left,
            reserve=min(retry_period, self.hold_seconds / 4),
            flight_seconds=flight_seconds,
            clock=clock,
        )
        """Asks this lease before each write."""
        self._client = client.fenced(UNFENCED)  # the Lease protects others, and itself by its resourceVersion
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"
        self._path = f"{self._collection}/{segment(name)}"
        self._names = {"name": name, "namespace": namespace}
        self._duration = lease_duration
        self._retry_period = retry_period
        self._request_seconds = renew_deadline / 3
        self._clock = clock
        self._wall = wall
        self._until = NEVER
        self._ended = NEVER  # when the last right to lead that we had ended, at the latest
        self._quiet_at = NEVER
        self._current: Lease | None = None  # as our last write left it; None if what is on the server is not known
        self._notes: dict[str, str] = {}  # annotations that are written with each renewal
        self._observed: Lease | None = None  # another's …
        self._observed_at = NEVER  # … and since when it has not changed

    def left(self) -> float:
        """Seconds for which we may still act as the leader; 0 or less if we may not."""
        return self._until - self._clock()

    def holds(self) -> bool:
        """Whether we may act as the leader at this very moment."""
        return self.left() > 0

    def note(self, name: str, text: str) -> None:
        """Write an annotation on the Lease with each renewal, so that the next leader finds it."""
        self._notes[name] = text

    def noted(self, name: str) -> str:
        """Return an annotation of the Lease that we hold, as an earlier leader may have left it; empty for none."""
        text = self._current.annotations.get(name, "") if self._current is not None else ""
        return text if isinstance(text, str) else ""

    def quiet_seconds(self) -> float:
        """Seconds from now until no write of an earlier leader can take effect any more; 0 or less if none can now.

        None if the earlier leader released the lease, or the lease ran out before our eyes. If it was ours, until the
        last right to lead has ended. A lease duration from when we found no Lease: it may have been deleted under a
        leader, which can't know before its next renewal.
        """
        return self._quiet_at - self._clock()

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
        interrupted |= await self._settle()
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

    async def _settle(self) -> bool:
        """Hold the lease until no write of ours can take effect any more; whether we were cancelled meanwhile.

        Cancelled, it is not released: others wait until it runs out.
        """
        try:
            await asyncio.sleep(max(0.0, min(self.fence.unsettled_seconds(), self.left())))
        except asyncio.CancelledError:
            self._until = NEVER
            return True
        return False

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
            await self._write(current, {"holderIdentity": "", "leaseDurationSeconds": RELEASED_SECONDS})
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
                        self._look_back(current)
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
            await asyncio.sleep(self._pause())

    def _look_back(self, current: Lease) -> None:
        """Find out until when writes of an earlier leader may take effect, of a lease that we are about to take."""
        now = self._clock()
        self.found_none = not current.version
        self._quiet_at = self._ended + self.fence.flight_seconds
        if self.found_none:
            self._quiet_at = max(self._quiet_at, now + self._duration)

    def _pause(self) -> float:
        """Seconds until the next look at the lease: often, and right when it runs out."""
        pause = min(LOOK_SECONDS, self._retry_period) * random.uniform(0.5, 1.0)
        runs_out = self._runs_out() - self._clock()
        return runs_out + random.uniform(0.0, RUSH_SECONDS) if 0 < runs_out < pause else pause

    def _runs_out(self) -> float:
        """When another's lease has run out, by our clock; in the past where there is none."""
        if self._observed is None:
            return NEVER
        written = float(self._observed.spec.get("leaseDurationSeconds") or 0)
        return self._observed_at + max(self._duration, min(written, LONGEST_SECONDS))

    def _may_be_held(self, current: Lease) -> bool:
        """Whether another may hold the lease: it names one, or whoever emptied the name did not release it."""
        if current.holder:
            return current.holder != self.identity
        return bool(current.version) and current.spec.get("leaseDurationSeconds") != RELEASED_SECONDS

    def _is_free(self, current: Lease) -> bool:
        """Whether the lease may be taken: nobody's, ours, or another's whose time is up before our eyes."""
        now = self._clock()
        if self._may_be_held(current):
            # By version, not by renewTime: the holder's clock may stand still.
            if self._observed is None or self._observed.version != current.version:
                self._observed, self._observed_at = current, now
                self.leader = current.holder
                if not current.holder:
                    logger.warning("the lease names no holder, but was not released: waiting until it runs out")
        elif current.version:
            self._observed = None  # released, by whoever held it
        # A lease that was deleted says nothing: who held it may not have noticed yet.
        return now >= self._runs_out()

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
            "leaseDurationSeconds": math.ceil(self._duration),
        }
        if current.holder != self.identity:
            spec["acquireTime"] = micro_time(self._wall())
            spec["leaseTransitions"] = (current.spec.get("leaseTransitions") or 0) + bool(current.version)
        sent = self._clock()
        written = await self._write(current, spec)
        self._until = self._ended = sent + self.hold_seconds
        self.leader = self.identity
        self.transitions = written.spec.get("leaseTransitions") or 0

    async def _write(self, current: Lease, spec: dict[str, Any]) -> Lease:
        """Compare and set; raises ``Conflict`` or ``NotFound`` if the lease is not as ``current`` any more."""
        self._current = None
        metadata = {key: value for key, value in current.metadata.items() if key != "managedFields"}
        if self._notes:
            metadata["annotations"] = {**current.annotations, **self._notes}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
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
