"""Leader election with fail-stop, by a Lease of coordination.k8s.io.

A lease is not a fence: only the leader itself can stop its own requests after it has lost the lease. The guarantee
here is therefore that a leader stops in time. Its right to lead ends, by its own clock, ``hold_seconds`` after it
*sent* the last successful renewal. At that moment ``fence``, which every write checks right before its bytes leave,
refuses, and the elector cancels the body.

Other candidates count the lease duration from when they *saw* that renewal, which is later. ``hold_seconds`` is
shorter than the lease duration by more than the clocks can drift apart. It is shorter by another ``flight_seconds``,
in which the last write may still travel to the API server. The API server abandons that write at its deadline (see
``fence``). When a candidate has observed a lease until it expired, every write of the last leader is therefore done,
or will never be done. ``quiet_seconds()`` covers the remaining cases: it returns the seconds until this is true.

The elector never compares the clocks of two machines. Another candidate's lease has expired when this process has
seen no change of the record for the lease duration. Our own clock also counts the time for which the machine was
suspended, where the system can report it.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import msgspec

from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import (
    Conflict,
    KubeError,
    NotFound,
    Unauthorized,
    Undecodable,
    lacks_rights,
    passes,
)
from topo_scheduler.kube.connection.fence import CLOCK_DRIFT_SHARE, FLIGHT_SECONDS, UNFENCED, Fence
from topo_scheduler.kube.connection.outage import Outage
from topo_scheduler.kube.connection.resources import segment
from topo_scheduler.kube.connection.retrying import retried
from topo_scheduler.kube.connection.times import micro_time

logger = logging.getLogger(__name__)

FLIGHT_SHARE = 0.2
"""Share of the lease duration for which writes may travel to the API server, up to ``FLIGHT_SECONDS``."""

LOOK_SECONDS = 1.0
"""Longest pause between two reads of the Lease by a standby, in seconds; it bounds the delay of a failover."""

RUSH_SECONDS = 0.2
"""Standbys try to take an expired lease at random moments within this many seconds, to avoid collisions."""

RELEASED_SECONDS = 1
"""Lease duration, in seconds, that a leader writes when it releases the lease, as client-go does.

An empty holder with another duration was written by hand: the leader may not have noticed yet.
"""

LONGEST_SECONDS = 3600.0
"""Cap, in seconds, on the lease duration that another candidate wrote."""

REMINDER_SECONDS = 60.0
"""Seconds between log lines about a lease that its holder does not renew, and that has not expired."""

RELEASE_SECONDS = 5.0
"""Seconds allowed for a release; a lease that is not released in time expires by itself."""

LAST_MOMENT_SECONDS = 0.05
"""Seconds before the end at which renewals stop and the elector cancels the body."""

NEVER = float("-inf")


class Lease(msgspec.Struct):
    """A Lease as the server has it; one without a resourceVersion does not exist.

    All fields are kept as received, since a PUT must not lose what other clients wrote.
    """

    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}

    @property
    def holder(self) -> str:
        """The identity of the holder; empty if there is none."""
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


def _read_answer(answer: bytes) -> Lease:
    """Return the Lease in an answer; raises ``Undecodable`` for other JSON, as a load balancer may answer with 200."""
    lease = decode(_lease, answer)
    if not lease.version:
        raise Undecodable(f"an answer of {len(answer)} bytes is no Lease")
    return lease


def boot_time() -> float:
    """Return the seconds of a monotonic clock that also counts machine suspension, where the system has one."""
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
        renewed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Set up a candidate.

        Args:
            client: the client of the API server.
            namespace: of the Lease.
            name: of the Lease.
            identity: of this process.
            lease_duration: seconds for which a renewal holds.
            renew_deadline: seconds after which the leader gives up.
            retry_period: seconds between two renewals.
            clock: monotonic seconds.
            wall: seconds since the epoch.
            renewed: called with the seconds that each renewal took.

        Raises:
            ValueError: the three times do not fit together.
        """
        if not lease_duration > renew_deadline > retry_period * 1.2 > 0:
            raise ValueError("leader election needs leaseDuration > renewDeadline > 1.2 x retryPeriod > 0")
        self.identity = identity
        self.leader = ""
        """The leader as last seen; empty if there is none."""
        self.transitions = 0
        self.found_none = False
        """Whether there was no Lease when it was taken: this is the first leader, or the Lease was deleted."""
        flight_seconds = min(FLIGHT_SECONDS, lease_duration * FLIGHT_SHARE)
        self.hold_seconds = min(renew_deadline, (lease_duration - flight_seconds) * (1 - CLOCK_DRIFT_SHARE))
        self.fence = Fence(
            lambda: min(self._until, self._writes_end) - self._clock(),
            reserve=min(retry_period, self.hold_seconds / 4),
            flight_seconds=flight_seconds,
            clock=clock,
        )
        """Checks this lease before each write."""
        self._client = client.fenced(UNFENCED)  # the Lease protects other writes, and itself by its resourceVersion
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"
        self._path = f"{self._collection}/{segment(name)}"
        self._names = {"name": name, "namespace": namespace}
        self._described = f"{namespace}/{name}"
        self._duration = lease_duration
        self._retry_period = retry_period
        self._patience = renew_deadline / 3  # so that a renewal that is lost leaves time for two more
        self._clock = clock
        self._wall = wall
        self._renewed = renewed
        self._until = NEVER
        self._writes_end = math.inf  # while we end in order: from when on nothing is written
        self._ended = NEVER  # when our last right to lead ended, at the latest
        self._quiet_at = NEVER
        self._current: Lease | None = None  # as our last write left it; None if the server's state is unknown
        self._slowness = Outage()
        self._notes: dict[str, str] = {}  # annotations that each renewal writes
        self._observed: Lease | None = None  # another candidate's lease …
        self._observed_at = NEVER  # … and since when it has not changed
        self._awaited = ""  # the holder that a log line last named
        self._reminded_at = NEVER  # when a log line last said how long we still wait for it …
        self._reminded_deleted = False  # … and whether the Lease was deleted by then

    def left(self) -> float:
        """Seconds for which this process may still act as the leader; 0 or less if it may not."""
        return self._until - self._clock()

    def holds(self) -> bool:
        """Return whether this process may act as the leader at this moment."""
        return self.left() > 0

    def note(self, name: str, text: str) -> None:
        """Write an annotation on the Lease with each renewal, so that the next leader finds it."""
        self._notes[name] = text

    def noted(self, name: str) -> str:
        """Return an annotation of the Lease that we hold, as an earlier leader may have left it; empty for none."""
        text = self._current.annotations.get(name, "") if self._current is not None else ""
        return text if isinstance(text, str) else ""

    def quiet_seconds(self) -> float:
        """Return the seconds until no write of an earlier leader can take effect any more; 0 or less if none can now.

        The result is also 0 or less if the earlier leader released the lease, or this process observed it until it
        expired. If this process was the leader, the time ends ``flight_seconds`` after its last right to lead. If
        there was no Lease, the time is one lease duration. Such a Lease may have been deleted under a leader, which
        notices only at its next renewal.
        """
        return self._quiet_at - self._clock()

    async def run(self, body: Callable[[], Coroutine[Any, Any, None]], lost: Callable[[], None] = lambda: None) -> None:
        """Run ``body`` while leading, again each time the lease is won; return when it returns.

        On loss of the lease, the elector cancels the body. Once the body has ended, the elector calls ``lost`` and
        contends again. If the body ends by itself, or ``run`` is cancelled, the elector renews the lease until the body
        has ended. Then it releases the lease.
        """
        while True:
            await self._acquire()
            logger.info("leading as %s, transition %d", self.identity, self.transitions)
            if await self._lead(body):
                return
            # If renewals failed, the last leader that this process has seen is itself.
            other = self.leader if self.leader != self.identity else ""
            logger.warning("not leading any more, %s is; contending again", other or "no known replica")
            lost()

    # ------------------------------------------------------------ leading

    async def _lead(self, body: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Return whether the body ended by itself; False if the lease was lost."""
        self._writes_end = math.inf
        work = asyncio.create_task(body(), name="leader")
        keeper = asyncio.create_task(self._keep(), name="lease")
        interrupted = await _wait(work, keeper)
        ended = work.done()
        # Renewals go on. Without an end of its own, each write could be sent with a full deadline as long as they do.
        self._writes_end = self._clock() + self.hold_seconds
        work.cancel()
        interrupted |= await _wait(work)
        interrupted |= await self._settle(keeper)
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

    async def _settle(self, keeper: asyncio.Task[None]) -> bool:
        """Hold the lease until no write of ours can take effect any more; return whether we were cancelled meanwhile.

        If cancelled, the elector does not release the lease: other candidates wait until it expires.
        """
        settling = asyncio.create_task(self.fence.settled(), name="unsettled writes")
        interrupted = await _wait(settling, keeper)
        settling.cancel()
        if interrupted:
            self._until = NEVER
        return interrupted

    async def _keep(self) -> None:
        """Renew in time; return when the lease is lost, or may be.

        A renewal whose answer is late is not given up, because the API server may only be slow. After a while another
        attempt runs beside it, because it may also be lost.
        """
        attempts: dict[asyncio.Task[bool], float] = {}  # with the time when each began
        due = NEVER
        refusal: KubeError | None = None
        try:
            while (end := self._until - LAST_MOMENT_SECONDS) > (now := self._clock()):
                if now >= due:
                    if attempts and self._slowness.failed(now):
                        logger.warning("no answer to a renewal of the lease yet, %.1f s left", self._until - now)
                    attempts[asyncio.create_task(self._renew(), name="renewal")] = now
                    due = now + self._patience
                done = await _ended(attempts, max(LAST_MOMENT_SECONDS, min(due, end) - now))
                for attempt, began in [(attempt, attempts.pop(attempt)) for attempt in done]:
                    try:
                        if not attempt.result():
                            return
                        await _cancel(attempts)
                        refusal, took = None, self._clock() - began
                        self._renewed(took)
                        if took < self._patience:
                            self._slowness.over(self._clock())
                    except KubeError as error:
                        refusal, left = error, self._until - self._clock()
                        logger.warning("lease not renewed, %.1f s left: %s%s", left, error, self._advice(error))
                    due = max([began, *attempts.values()]) + self._retry_period
            text = "lease not renewed within %g s, so this replica stops leading; %s"
            logger.warning(text, self.hold_seconds, self._cause(refusal))
        finally:
            self._until = NEVER
            await _cancel(attempts)
            self._until = NEVER  # an answer may have come meanwhile

    async def _renew(self) -> bool:
        """Return False if another candidate leads.

        Raises:
            KubeError: it is unknown who holds the lease.
        """
        for _ in range(3):
            # A conflict can result from our own last renewal, whose answer was lost: read the Lease, then repeat.
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
        """Release the lease at once. No write may be in progress any more."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await retried(self._give_up, seconds=RELEASE_SECONDS, passing=_passes)
            logger.info("lease released")
        except (KubeError, TimeoutError) as error:
            logger.warning("lease not released, it expires in %g s: %s", self._duration, str(error) or "no answer")

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
                    logger.warning("cannot contend for the lease: %s%s", error, self._advice(error))
            await asyncio.sleep(self._pause())

    def _cause(self, refusal: KubeError | None) -> str:
        """Return what to check after the lease was not renewed, by what the last renewal failed with."""
        if isinstance(refusal, Unauthorized) or (refusal is not None and lacks_rights(refusal)):
            return f"the API server refused{self._advice(refusal)}"
        return f"check the API server, and whether this process gets its CPU time{self._advice_on_webhooks()}"

    def _advice(self, error: KubeError) -> str:
        if isinstance(error, Unauthorized):
            return " (it does not accept the credentials of this process: check its token, or the kubeconfig)"
        if not lacks_rights(error):
            text = str(error)
            # The API server, which has the same deadline, may be the first to answer.
            is_late = isinstance(error.__cause__, TimeoutError) or "Timeout" in text or "deadline exceeded" in text
            return self._advice_on_webhooks() if is_late and not text.startswith("GET ") else ""
        return (
            f" (grant create on leases.coordination.k8s.io in namespace {self._names['namespace']}, and get and update"
            f" on the one called {self._names['name']}: the Role lists it under resourceNames)"
        )

    def _advice_on_webhooks(self) -> str:
        namespace, seconds = self._names["namespace"], self.hold_seconds / 2
        return (
            f" (each write of the lease must be answered within {seconds:g} s: if an admission webhook for"
            f" leases.coordination.k8s.io takes longer, exclude namespace {namespace} from it by its namespaceSelector,"
            " or lower its timeoutSeconds)"
        )

    def _look_back(self, current: Lease) -> None:
        """Compute until when writes of an earlier leader may take effect, for a lease that we are about to take."""
        now = self._clock()
        self.found_none = not current.version
        self._quiet_at = self._ended + self.fence.flight_seconds
        if self.found_none:
            self._quiet_at = max(self._quiet_at, now + self._duration)

    def _pause(self) -> float:
        """Return the seconds until the next read of the lease: often, and right at its expiry."""
        pause = min(LOOK_SECONDS, self._retry_period) * random.uniform(0.5, 1.0)
        runs_out = self._runs_out() - self._clock()
        return runs_out + random.uniform(0.0, RUSH_SECONDS) if 0 < runs_out < pause else pause

    def _runs_out(self) -> float:
        """Return when another candidate's lease expires, by our clock; in the past where there is none."""
        if self._observed is None:
            return NEVER
        written = float(self._observed.spec.get("leaseDurationSeconds") or 0)
        return self._observed_at + max(self._duration, min(written, LONGEST_SECONDS))

    def _may_be_held(self, current: Lease) -> bool:
        """Return whether another candidate may hold the lease.

        It may if the lease names it, or if the name was removed without a release.
        """
        if current.holder:
            return current.holder != self.identity
        return bool(current.version) and current.spec.get("leaseDurationSeconds") != RELEASED_SECONDS

    def _is_free(self, current: Lease) -> bool:
        """Return whether the lease can be taken: it is free, ours, or another's that we observed until it expired."""
        now = self._clock()
        if self._may_be_held(current):
            # By version, not by renewTime: the holder's clock may stand still.
            if self._observed is None or self._observed.version != current.version:
                self._observed, self._observed_at, self._reminded_deleted = current, now, False
                self.leader = current.holder
                if current.holder and current.holder != self._awaited:
                    self._awaited = current.holder
                    logger.info(
                        "waiting for the lease %s, which %s has%s", self._described, current.holder, self._how_long(now)
                    )
                if not current.holder:
                    logger.warning(
                        "the lease %s names no holder, but was not released, as another client edited it: taking it"
                        " when it expires, in up to %.0f s",
                        self._described,
                        self._runs_out() - now,
                    )
        elif current.version:
            self._observed = None  # released by its holder
        # A deleted lease proves nothing: its holder may not have noticed yet.
        self._remind(now, deleted=not current.version)
        return now >= self._runs_out()

    def _remind(self, now: float, *, deleted: bool) -> None:
        """Log how long we still wait for a holder that does not renew, if its lease is longer than ours.

        That is each minute, and at once if the Lease was deleted meanwhile.
        """
        if self._observed is None or self._runs_out() - now <= self._duration:
            return
        silent_since = max(self._observed_at, self._reminded_at)
        if (deleted and not self._reminded_deleted) or now - silent_since >= REMINDER_SECONDS:
            self._reminded_at, self._reminded_deleted = now, deleted
            logger.warning(
                "still waiting for the lease %s, which %s %s%s",
                self._described,
                self._observed.holder or "an unknown replica",
                "had when it was deleted, and may not have noticed" if deleted else "has and does not renew",
                self._how_long(now),
            )

    def _how_long(self, now: float) -> str:
        """Return in which time another's lease is taken, for one that lasts longer than ours; empty for others."""
        left = self._runs_out() - now
        if left <= self._duration:
            return ""
        return (
            f": taking it {left:.0f} s from now, unless it is renewed. If no such replica runs any more, delete the"
            " Lease and restart this replica"
        )

    # ------------------------------------------------------------ the record

    async def _read(self) -> Lease:
        try:
            answer = await self._request("GET", self._path)
        except NotFound:
            return Lease(metadata=dict(self._names))
        return _read_answer(answer)

    async def _hold(self, current: Lease) -> None:
        """Claim or renew the lease.

        It is ours from the moment the request was sent, so that no other clock measures a longer tenure.
        """
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._duration),
        }
        if current.holder != self.identity:
            spec["acquireTime"] = micro_time(self._wall())
            spec["leaseTransitions"] = (current.spec.get("leaseTransitions") or 0) + bool(current.version)
        sent = self._clock()
        written = await self._write(current, spec)
        self._until = max(self._until, sent + self.hold_seconds)
        self._ended = max(self._ended, sent + self.hold_seconds)
        self.leader = self.identity
        self.transitions = written.spec.get("leaseTransitions") or 0

    async def _write(self, current: Lease, spec: dict[str, Any]) -> Lease:
        """Compare and set; raises ``Conflict`` or ``NotFound`` if the lease no longer equals ``current``."""
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
        answer = await self._request(method, path, _encode(lease))
        self._current = _read_answer(answer)
        return self._current

    async def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send one request. An answer counts as long as it leaves time to lead.

        Half of that time is the most that works: in the other half the next renewal is answered.
        """
        left = self._until - self._clock()
        return await self._client.request(method, path, body=body, timeout=left if left > 0 else self.hold_seconds / 2)


async def _ended(tasks: Collection[asyncio.Task[bool]], seconds: float) -> set[asyncio.Task[bool]]:
    """Wait until some tasks have ended, for some seconds at most, and return those."""
    if tasks:
        return (await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED))[0]
    await asyncio.sleep(seconds)
    return set()


async def _cancel(tasks: dict[asyncio.Task[bool], float]) -> None:
    """Cancel tasks, and forget them once they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


async def _wait(*tasks: asyncio.Task[None]) -> bool:
    """Wait until one task has ended; return whether we were cancelled meanwhile.

    With several tasks, a cancellation ends the wait. A single task is already cancelled, so the elector waits for
    its end in any case. No task may be running when the lease is released.
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
