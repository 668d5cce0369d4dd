"""Write placements: POST pods/<name>/binding with bounded concurrency, and report how each one ended.

A Binding carries the pod's uid, so it can never hit a later pod of the same name. The server refuses a second
Binding, so repeating one is harmless. The binder can therefore resolve every doubt (no answer after sending, a 5xx,
a 404, a 409) by reading the pod. It then retries until the deadline, or until the term ends.

Guarantees: ``BOUND`` and ``TAKEN`` are facts read from the server. ``REJECTED``, ``GONE`` and ``UNBOUND`` mean that
nothing was written and nothing will be. If neither is certain at the deadline, the outcome is ``UNKNOWN``. The
caller must then keep the placement's resources until the watch settles it.
"""

import asyncio
import enum
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import (
    ApiError,
    Conflict,
    Fenced,
    KubeError,
    NotFound,
    ServerError,
    Unreachable,
    Withdrawn,
    exceeds_storage,
    lacks_dry_run,
    lacks_rights,
    pause,
    remedy,
)
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.fence import FLIGHT_SECONDS
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.connection.retrying import RIGHTS_SECONDS, or_until_granted
from topo_scheduler.kube.connection.waiting import set_or_due

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0
"""Bounds of the random backoff before a repeated bind, in seconds."""
URGENT_PAUSE_SECONDS = 1.0
"""Longest pause, in seconds, before an urgent bind is repeated, whatever pause the API server asked for."""
NOT_SETTLED = "not settled within"
"""Start of the message when a bind is abandoned at its deadline."""
ATTEMPT_SHARE = 0.4
"""Share of the time for a bind that one attempt gets, so that one lost packet does not consume all of it."""
LEAST_ATTEMPT_SECONDS = 4.0
"""Time that one attempt gets in any case, as far as the bind has it: a slow API server needs seconds for an answer."""
READS_PER_HANGING_BIND = 3
"""A bind hangs if it is not answered for as long as this many reads take. Otherwise the API server may be slow."""
READS_IN_FLIGHT = 16
"""Concurrent reads, three quarters of them at most for one namespace: each answer may have megabytes."""
TERM_ENDS = "given up, because this term of leadership ends"
"""Start of the message when a bind is abandoned because its term ends."""


class BindStatus(enum.Enum):
    """How a bind ended."""

    BOUND = "bound"
    """The pod is on the node, with these annotations."""
    REJECTED = "rejected"
    """The server refuses and would refuse again: admission, RBAC, a scheduling gate."""
    TAKEN = "taken"
    """Another scheduler placed this pod, or the name now belongs to another pod."""
    GONE = "gone"
    """The pod does not exist any more, or is being deleted."""
    WITHDRAWN = "withdrawn"
    """Nothing was written, because the pod must no longer go to this node."""
    UNBOUND = "unbound"
    """Nothing was written, for a temporary reason: no longer the leader, server busy or unreachable."""
    UNKNOWN = "unknown"
    """The deadline passed before it was certain whether the bind was written."""


@dataclass(frozen=True, slots=True)
class BindRequest:
    """A placement. The same write merges the annotations and labels into the pod."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindResult:
    """The outcome, the server's message, and the latency in seconds."""

    outcome: BindStatus
    message: str = ""
    latency: float = 0.0
    fenced: bool = False
    """Whether it ended because this process may not write any more."""


@dataclass(slots=True)
class _Attempt:
    """Attempts at a bind: since when they reach the API server, and whether the last one did not.

    One that RBAC refuses does not either: the server may have started a moment ago.
    ``fenced``: there is none any more, because this process may not write.
    """

    since: float
    began: float
    """When the attempt on its way began; infinity between two attempts."""
    longest: float = 0.0
    """The longest time, in seconds, for which an attempt that has ended was not answered."""
    answered: bool = False
    """Whether an attempt was answered, with an error."""
    unreachable: bool = False
    fenced: bool = False

    def begin(self, now: float) -> None:
        self.began = now
        if self.unreachable:
            self.since, self.longest, self.answered, self.unreachable = now, 0.0, False, False

    def end(self, error: KubeError, now: float) -> None:
        self.unreachable = lacks_rights(error) or (isinstance(error, Unreachable) and not error.sent)
        overdue = isinstance(error, ServerError) and error.status == HTTPStatus.GATEWAY_TIMEOUT  # beyond ``?timeout=``
        if overdue or isinstance(error, Unreachable):
            self.longest = max(self.longest, now - self.began)
        else:
            self.answered = True
        self.began = math.inf


class _Metadata(Base):
    name: str
    namespace: str
    uid: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]


class _Target(Base, omit_defaults=False):
    name: str
    kind: str = "Node"
    api_version: str = "v1"


class _BindingBody(Base, omit_defaults=False):
    metadata: _Metadata
    target: _Target
    kind: str = "Binding"
    api_version: str = "v1"


_encode = msgspec.json.Encoder().encode
_pod = msgspec.json.Decoder(Pod)


class Binder:
    """Binds pods."""

    def __init__(
        self,
        client: Client,
        *,
        concurrency: int = 48,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self._client = client
        self._slots = asyncio.Semaphore(concurrency)
        # It lends none: what a slow answer holds takes memory too.
        self._reads = FairSlots(READS_IN_FLIGHT, None, lendable=0)
        self._clock = clock
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = asyncio.Event()
        self._attempts: dict[str, _Attempt] = {}
        """Attempts at each bind that has not ended, by uid of the pod."""

    @property
    def in_flight(self) -> int:
        """Binds that were requested and have not ended, dry runs excluded."""
        return self._pending

    async def drain(self) -> None:
        """Send nothing from now on; return when every bind has ended, each with the answer to its last attempt."""
        self._ending.set()
        await self._idle.wait()

    async def bind(
        self,
        request: BindRequest,
        *,
        dry_run: bool = False,
        recheck: Callable[[], str] | None = None,
        urgent: Callable[[], bool] = lambda: False,
    ) -> BindResult:
        """Bind a pod; never raises for server failures. The timeout starts when a slot is free.

        The binder calls ``recheck`` right before the bytes of each attempt leave. It returns why the pod must no
        longer go to this node, or an empty string. If an earlier attempt may have been written, that attempt may
        still take effect. ``urgent`` returns whether the bind must not wait for as long as the API server may ask.

        With ``dry_run`` nothing is written. ``BOUND`` then means that the bind would be written. ``UNBOUND`` can
        also mean that a webhook does not support dry runs, so the outcome is unknown.
        """
        self._pending += not dry_run  # a dry run changes nothing, so that no drain waits for it
        if self._pending:
            self._idle.clear()
        try:
            async with self._slots:
                began = self._clock()
                self._attempts[request.uid] = attempts = _Attempt(began, began)
                outcome, message = await self._settle(request, dry_run, began + self.timeout, recheck, urgent)
                return BindResult(outcome, message, self._clock() - began, attempts.fenced)
        finally:
            self._attempts.pop(request.uid, None)
            self._pending -= not dry_run
            if not self._pending:
                self._idle.set()

    async def hangs(self, request: BindRequest, seconds: float) -> bool:
        """Return whether a bind gets no answer although the API server answers, and the pod still has no node.

        Its attempts have reached the API server for ``seconds`` or longer. While a bind pauses because the last one did
        not, it does not hang. Neither does it if the API server is that slow to answer a read as well.
        """
        attempt = self._attempts.get(request.uid)
        if attempt is None or attempt.unreachable or self._clock() - attempt.since < seconds:
            return False
        path = PODS.path(request.namespace, request.name)
        try:
            async with self._reads.slot(request.namespace):
                asked = self._clock()
                answer = await self._client.request("GET", path, timeout=self.timeout)
        except KubeError:
            return False
        now = self._clock()
        waited = max(attempt.longest, now - attempt.began)
        if not attempt.answered and waited < READS_PER_HANGING_BIND * (now - asked):
            return False
        pod = decode(_pod, answer)
        return pod.metadata.uid == request.uid and not pod.spec.node_name

    async def withdraw(self, request: BindRequest) -> BindResult:
        """Return the outcome of a bind that ended in doubt and must not be repeated: `UNBOUND` if nothing was written.

        Waits until no attempt can take effect any more, then for an answer without a time limit.
        """
        await asyncio.sleep(self._longest_attempt + FLIGHT_SECONDS)
        path = PODS.path(request.namespace, request.name)
        for attempt in itertools.count(1):
            try:
                async with self._reads.slot(request.namespace):
                    pod = decode(_pod, await self._client.read(path, request.name, timeout=self.timeout))
                return BindResult(*(self._became(pod, request) or (BindStatus.UNBOUND, "it was withdrawn")))
            except NotFound as error:
                return BindResult(BindStatus.GONE, error.message)
            except KubeError as error:
                await asyncio.sleep(pause(attempt, error, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
        raise AssertionError("unreachable: the loop above ends only by a return")

    async def _settle(
        self,
        request: BindRequest,
        dry_run: bool,
        end: float,
        recheck: Callable[[], str] | None,
        urgent: Callable[[], bool],
    ) -> tuple[BindStatus, str]:
        path = PODS.path(request.namespace, request.name, "binding")
        query = {"dryRun": "All"} if dry_run else None
        body = _body(request)
        doubt = False  # whether a sent request may or may not have been written
        reason = ""
        latest = self._attempts[request.uid]
        is_temporary = or_until_granted(seconds=min(RIGHTS_SECONDS, self.timeout / 2))
        for attempt in itertools.count(1):
            if self._ending.is_set():
                latest.fenced = True
                return _unsettled(doubt), f"{TERM_ENDS}{reason}"
            latest.begin(self._clock())
            try:
                await self._client.request(
                    "POST", path, body=body, query=query, timeout=self._share(end), recheck=recheck
                )
                return BindStatus.BOUND, ""
            except Fenced as failure:
                latest.fenced = True
                return _unsettled(doubt), str(failure)
            except Withdrawn as failure:
                return BindStatus.UNKNOWN if doubt else BindStatus.WITHDRAWN, str(failure)
            except KubeError as failure:
                error = failure
            latest.end(error, self._clock())
            unanswered = isinstance(error, Unreachable) and error.sent
            doubt = doubt or (not dry_run and (unanswered or isinstance(error, ServerError)))
            refusal = error if isinstance(error, ApiError) and not is_temporary(error) else None
            if unanswered or isinstance(error, (Conflict, NotFound)):
                seen = await self._look(request, end)
                if seen is not None and seen[0] is not BindStatus.UNBOUND:
                    return seen
                # A webhook may refuse with 404. A load balancer without a backend may answer both requests so.
                final = isinstance(error, NotFound) or exceeds_storage(error)
                refusal = refusal if final and seen is not None else None
            elif dry_run and isinstance(error, ApiError) and lacks_dry_run(error):
                return BindStatus.UNBOUND, error.message
            if refusal is not None:
                return BindStatus.UNKNOWN if doubt else BindStatus.REJECTED, f"{refusal.message}{remedy(refusal)}"
            seconds = pause(attempt, error, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            until, asked = self._clock() + seconds, isinstance(error, ApiError) and bool(error.retry_after)
            logger.debug("%s; attempt %d in %.2f s", error, attempt + 1, seconds)
            # If the API server asks for a pause beyond the deadline, the caller must not repeat the bind at once.
            hurried = (asked or until < end) and await self._rest(min(until, end), urgent)
            if until >= end and not hurried:
                return _unsettled(doubt), f"{NOT_SETTLED} {self.timeout:g} s: {error}"
            reason = f": {error}"
        raise AssertionError("unreachable: the loop above ends only by a return")

    async def _rest(self, until: float, urgent: Callable[[], bool]) -> bool:
        """Wait until a moment, or until the term ends; return whether the bind was urgent before."""
        while not self._ending.is_set() and (now := self._clock()) < until:
            await set_or_due(self._ending, min(until, now + URGENT_PAUSE_SECONDS), self._clock)
            if self._clock() < until and urgent():
                return True
        return False

    async def _look(self, request: BindRequest, end: float) -> tuple[BindStatus, str] | None:
        """Return the pod's bind status, `UNBOUND` if it can still be bound; None if it cannot be read."""
        path = PODS.path(request.namespace, request.name)
        try:
            async with self._reads.slot(request.namespace):
                pod = decode(_pod, await self._client.read(path, request.name, timeout=self._share(end)))
        except NotFound as error:
            return BindStatus.GONE, error.message
        except KubeError as error:
            logger.debug("%s; it is not known whether the pod is bound", error)
            return None
        return self._became(pod, request) or (BindStatus.UNBOUND, "")

    def _became(self, pod: Pod, request: BindRequest) -> tuple[BindStatus, str] | None:
        if pod.metadata.uid != request.uid:
            return BindStatus.TAKEN, "the name belongs to another pod now"
        if pod.spec.node_name:
            # The same node with other annotations means that another scheduler or an earlier leader bound the pod.
            published = pod.metadata.annotations
            as_requested = all(published.get(key) == value for key, value in request.annotations.items())
            if pod.spec.node_name == request.node and as_requested:
                return BindStatus.BOUND, ""
            return BindStatus.TAKEN, f"already assigned to node {pod.spec.node_name}"
        if pod.metadata.deletion_timestamp:
            return BindStatus.GONE, "the pod is being deleted"
        if pod.spec.scheduling_gates:
            return BindStatus.REJECTED, "the pod has scheduling gates"
        return None

    def _share(self, end: float) -> float:
        """Return the seconds for the next request."""
        return max(0.1, min(end - self._clock(), self._longest_attempt))

    @property
    def _longest_attempt(self) -> float:
        return min(self.timeout, max(self.timeout * ATTEMPT_SHARE, LEAST_ATTEMPT_SECONDS))


def _unsettled(doubt: bool) -> BindStatus:
    return BindStatus.UNKNOWN if doubt else BindStatus.UNBOUND


def _body(request: BindRequest) -> bytes:
    metadata = _Metadata(request.name, request.namespace, request.uid, request.annotations, request.labels)
    return _encode(_BindingBody(metadata, _Target(request.node)))
