"""The evictions of one term: rollbacks of partially bound gangs, and victims of workloads of higher priority."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.kube.connection.errors import KubeError, Unreachable, lacks_rights
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS, loop_time
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.kube.writing.evictions import EvictionResult, EvictionStatus, Evictor
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.observability.metrics import Metrics
from topo_scheduler.runtime.owner_confirmation import CONFIRMED_SECONDS, Confirm
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import EvictionOutcome, PodRef, Preempt

log = logging.getLogger(__name__)

EVICTIONS_IN_FLIGHT: Final = 16
EVICTIONS_OF_NAMESPACE: Final = 4
"""Maximum concurrent evictions of pods of one namespace, whose webhooks may not answer."""
ROLLBACKS_IN_FLIGHT: Final = 16
ROLLBACKS_OF_NAMESPACE: Final = 8
"""Maximum concurrent evictions of partially bound gangs, in all and of one namespace, whose webhooks may hang."""

ASKED_AFTER_SECONDS: Final = HANGS_AFTER_SECONDS - 0.1
"""Seconds after which an eviction or a bind hangs: a little less than when `repeatedly` asks."""

_OUTCOMES: Final = {
    EvictionStatus.EVICTED: EvictionOutcome.GOING,
    EvictionStatus.GONE: EvictionOutcome.GOING,
    EvictionStatus.WITHDRAWN: EvictionOutcome.WITHDRAWN,
    EvictionStatus.BLOCKED: EvictionOutcome.BLOCKED,
    EvictionStatus.FAILED: EvictionOutcome.REFUSED,
}

NOT_GRANTED: Final = "the API server answers other requests, but does not grant this one"
ANOTHER_STAYS: Final = "another victim stays"
_NOT_SENT: Final = (EvictionOutcome.WITHDRAWN, EvictionOutcome.UNCONFIRMED)
_STAYS: Final = (EvictionOutcome.BLOCKED, EvictionOutcome.REFUSED)
"""Outcomes after which the pod stays. One that is withdrawn says nothing about the other victims."""

Ended = tuple[EvictionOutcome, str]
"""How an eviction ended, and why."""
Start = Callable[[Coroutine[Any, Any, None], str], None]
"""Starts a task of the term that ends by itself."""


class _UnconfirmedError(Exception):
    """The owners of the pods to place are not confirmed, so no pod may be evicted for them."""


@dataclass(slots=True)
class _EvictionAttempts:
    """Attempts at an eviction or its dry run: since when, in seconds, they reach the API server; infinity if not.

    One that RBAC refuses does not either: the server may have started a moment ago.
    """

    since: float = inf

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Follow an attempt."""
        self.since = min(self.since, loop_time())
        try:
            yield
        except KubeError as error:
            if lacks_rights(error) or (isinstance(error, Unreachable) and not error.sent):
                self.since = inf
            raise

    def hang(self) -> bool:
        """Return whether they have reached the API server for long without success. Without a slot, none has."""
        return loop_time() - self.since >= ASKED_AFTER_SECONDS


@dataclass(slots=True)
class _Confirmation:
    """Why the pods to place are not confirmed, empty if they are; and when that was asked, in seconds."""

    refusal: str
    at: float
    attempts: _EvictionAttempts = field(default_factory=_EvictionAttempts)
    sent_at: float = inf
    """When the first attempt was sent: it may have evicted the pod, so the next ones must settle that."""


@dataclass(slots=True, eq=False)
class _EvictionRehearsal:
    """Dry runs of the evictions for one workload: none of its victims is evicted before all of them could be.

    A dry run does not reach etcd, which may refuse the eviction itself. So doubted victims are evicted first, and the
    others once all of these go.
    """

    victims: dict[str, Preempt] = field(default_factory=dict)
    """Requested evictions, by uid of the victim."""
    refused: bool = False
    """Whether a victim stays, so that none of the others is evicted any more."""
    _dry_runs: int = 0
    """Dry runs that have not ended."""
    _doubted: set[str] = field(default_factory=set)
    """Uids of doubted victims whose evictions have not ended."""
    _tried: asyncio.Event = field(default_factory=asyncio.Event)
    _doubted_go: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, preempt: Preempt, *, doubted: bool) -> None:
        """Add a victim, whose dry run follows."""
        self.victims[preempt.pod.uid] = preempt
        self._dry_runs += 1
        if doubted:
            self._doubted.add(preempt.pod.uid)

    def tried(self) -> None:
        """Record that a dry run ended."""
        self._dry_runs -= 1
        self._advance()

    async def turn_of(self, uid: str) -> bool:
        """Wait until a victim may be evicted; return whether it may."""
        await self._tried.wait()
        if uid not in self._doubted:
            await self._doubted_go.wait()
        return not self.refused

    def waits_for(self, uid: str) -> bool:
        """Return whether the other victims wait for the eviction of this one."""
        return not self.refused and uid in self._doubted

    def ended(self, uid: str) -> None:
        """Record that the eviction of a victim ended."""
        self._doubted.discard(uid)
        self._advance()

    def refuse(self) -> None:
        """Record that a victim stays."""
        self.refused = True
        self._advance()

    def _advance(self) -> None:
        if self.refused or not self._dry_runs:
            self._tried.set()
            if self.refused or not self._doubted:
                self._doubted_go.set()


@contextmanager
def repeatedly(ask: Callable[[], Coroutine[Any, Any, None]], start: Start, name: str) -> Iterator[None]:
    """Start ``ask`` each time that a request was not answered for `HANGS_AFTER_SECONDS`."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def wait() -> None:
        timers[:] = [loop.call_later(HANGS_AFTER_SECONDS, unanswered)]

    def unanswered() -> None:
        start(ask(), name)
        wait()

    wait()
    try:
        yield
    finally:
        timers[0].cancel()


def _log_refusal(request: str, pod: PodRef, result: EvictionResult) -> None:
    """Log why a pod stays. A budget that allows no eviction now is no failure."""
    level = logging.INFO if result.outcome is EvictionStatus.BLOCKED else logging.WARNING
    log.log(
        level,
        "pod %s/%s is not preempted: the API server refused %s: %s",
        pod.namespace,
        pod.name,
        request,
        result.message,
        extra={"namespace": pod.namespace},
    )


class Evictions:
    """Evictions of one term. Arguments are as for `Executor`."""

    def __init__(
        self,
        engine: Engine,
        evictor: Evictor,
        statuses: PodStatusWriter,
        events: EventRecorder,
        metrics: Metrics,
        *,
        name: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        start: Start,
        changed: Callable[[], None],
        confirm: Confirm,
    ) -> None:
        self._engine = engine
        self._evictor = evictor
        self._statuses = statuses
        self._events = events
        self._metrics = metrics
        self._name = name
        self._clock = clock
        self._wall = wall
        self._start = start
        self._changed = changed
        self._confirm = confirm
        self._for_others = FairSlots(EVICTIONS_IN_FLIGHT, EVICTIONS_OF_NAMESPACE)
        self._rollbacks = FairSlots(ROLLBACKS_IN_FLIGHT, ROLLBACKS_OF_NAMESPACE)
        self._tainted = FairSlots(EVICTIONS_IN_FLIGHT, EVICTIONS_OF_NAMESPACE)
        self._under_way: dict[str, asyncio.Future[Ended]] = {}
        """How evictions for others end, by uid of the victim, while they are being requested."""
        self._rehearsals: dict[str, _EvictionRehearsal] = {}
        """Dry runs that have not begun, by uid of the pod to place."""

    async def roll_back(self, pod: PodRef, message: str) -> None:
        """Evict a member of a partially bound gang."""
        slot = partial(self._rollbacks.slot, pod.namespace)
        result = await self._evictor.evict(pod.namespace, pod.name, pod.uid, slot=slot)
        log.warning("evicting %s/%s: %s: %s", pod.namespace, pod.name, message, result.outcome.value)
        if result.outcome in (EvictionStatus.BLOCKED, EvictionStatus.FAILED):
            log.error("pod %s/%s stays bound without its gang: %s", pod.namespace, pod.name, result.message)
            self._engine.rollback_refused(pod.uid, result.message, self._clock())
            self._changed()

    async def off_device(self, pod: PodRef, message: str) -> None:
        """Evict a pod from a device with a taint; the engine requests it again if the pod stays."""
        slot = partial(self._tainted.slot, pod.namespace)
        result = await self._evictor.evict(pod.namespace, pod.name, pod.uid, slot=slot)
        log.warning("evicting %s/%s: %s: %s", pod.namespace, pod.name, message, result.outcome.value)
        if result.outcome is EvictionStatus.EVICTED:
            await self._statuses.mark_tainted(pod.namespace, pod.name, pod.uid, message, self._wall())
        elif result.outcome in (EvictionStatus.BLOCKED, EvictionStatus.FAILED):
            log.error("pod %s/%s stays on a device with a taint: %s", pod.namespace, pod.name, result.message)

    def preempt(self, preempt: Preempt) -> Coroutine[Any, Any, None]:
        """Return what evicts a victim, unless no workload needs its room any more.

        If an eviction for the workload was refused before, a dry run of each eviction comes first. Otherwise a gang
        that needs a whole domain might evict most pods of one domain after the other, and get none of them.
        """
        if not self._engine.preempting.needs_dry_run(preempt.pod.uid):
            return self._preempt(preempt)
        rehearsal = self._rehearsals.setdefault(preempt.preemptor.uid, _EvictionRehearsal())
        rehearsal.add(preempt, doubted=self._engine.preempting.is_doubted(preempt.pod.uid))
        return self._rehearse(preempt, rehearsal)

    async def _rehearse(self, preempt: Preempt, rehearsal: _EvictionRehearsal) -> None:
        """Try an eviction with a dry run. Once all victims of the workload could be evicted, evict this one.

        Doubted victims come first. If one of them stays, none of the others is evicted.
        """
        pod, attempts = preempt.pod, _EvictionAttempts()
        if self._rehearsals.get(preempt.preemptor.uid) is rehearsal:
            del self._rehearsals[preempt.preemptor.uid]  # what the workload requests later has dry runs of its own

        def recheck() -> str:
            return ANOTHER_STAYS if rehearsal.refused else self._reason_not_to_evict(preempt)

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            async with self._for_others.slot(pod.namespace):
                with attempts.attempt():
                    yield

        async def ask() -> None:
            if attempts.hang() and await self._evictor.is_there(pod.namespace, pod.name, pod.uid) and attempts.hang():
                self._refuse(rehearsal, pod, (EvictionOutcome.REFUSED, NOT_GRANTED))

        try:
            with repeatedly(ask, self._start, f"unanswered dry run {pod.uid}"):
                result = await self._evictor.evict(
                    pod.namespace, pod.name, pod.uid, dry_run=True, recheck=recheck, slot=slot
                )
            attempts.since = inf
            if (outcome := _OUTCOMES[result.outcome]) in _STAYS:
                _log_refusal("a dry run of its eviction", pod, result)
                self._refuse(rehearsal, pod, (outcome, result.message))
        finally:
            rehearsal.tried()
        if await rehearsal.turn_of(pod.uid):
            try:
                await self._preempt(preempt, rehearsal)
            finally:
                rehearsal.ended(pod.uid)

    def _refuse(self, rehearsal: _EvictionRehearsal, pod: PodRef, ended: Ended) -> None:
        """End all evictions of a rehearsal, because a victim stays.

        All at once: the workload may choose some of the same victims in its next step.
        """
        if rehearsal.refused:
            return
        rehearsal.refuse()
        for uid, preempt in {pod.uid: rehearsal.victims[pod.uid], **rehearsal.victims}.items():
            if self._is_wanted(preempt):
                self._report(preempt.pod, ended if uid == pod.uid else (EvictionOutcome.WITHDRAWN, ANOTHER_STAYS))

    async def _preempt(self, preempt: Preempt, rehearsal: _EvictionRehearsal | None = None) -> None:
        if why := self._reason_not_to_evict(preempt):
            ended = await self._of_earlier(preempt.pod.uid) or self._withdraw(preempt, why)
        else:
            # Confirm outside of the slot: owners that do not answer must not delay evictions for other workloads.
            confirmation = _Confirmation(await self._confirm(preempt.preemptor), self._clock())
            ended = await self._of_earlier(preempt.pod.uid) or await self._request(preempt, confirmation, rehearsal)
        if ended[0] is EvictionOutcome.GOING or self._is_wanted(preempt):
            self._report(preempt.pod, ended, rehearsal)

    def _withdraw(self, preempt: Preempt, why: str) -> Ended:
        """Return that an eviction is not sent, as nothing waits for it any more."""
        self._metrics.preempted.labels(EvictionStatus.WITHDRAWN.value).inc()
        log.info("pod %s/%s is not preempted: %s", preempt.pod.namespace, preempt.pod.name, why)
        return EvictionOutcome.WITHDRAWN, why

    async def _of_earlier(self, uid: str) -> Ended | None:
        """Return how the eviction ends that another workload requested, whose place this one takes; None if not so.

        An eviction that was not sent for reasons of the other workload says nothing about this one.
        """
        while (earlier := self._under_way.get(uid)) is not None:
            ended = await asyncio.shield(earlier)
            if ended[0] not in _NOT_SENT:
                return ended
        return None

    async def _request(
        self, preempt: Preempt, confirmation: _Confirmation, rehearsal: _EvictionRehearsal | None
    ) -> Ended:
        uid = preempt.pod.uid
        ended = EvictionOutcome.WITHDRAWN, "the term ends"
        answer = self._under_way[uid] = asyncio.get_running_loop().create_future()
        try:
            ended = await self._evict(preempt, confirmation, rehearsal)
            return ended
        finally:
            del self._under_way[uid]
            answer.set_result(ended)

    async def _evict(
        self, preempt: Preempt, confirmation: _Confirmation, rehearsal: _EvictionRehearsal | None
    ) -> Ended:
        pod = preempt.pod
        recheck, slot = partial(self._reason_not_to_evict, preempt), partial(self._slot, preempt, confirmation)
        ask = partial(self._ask_about, pod, confirmation, rehearsal)
        try:
            with repeatedly(ask, self._start, f"unanswered eviction {pod.uid}"):
                result = await self._evictor.evict(pod.namespace, pod.name, pod.uid, recheck=recheck, slot=slot)
        except _UnconfirmedError as error:
            log.warning("pod %s/%s is not preempted: %s", pod.namespace, pod.name, error)
            return EvictionOutcome.UNCONFIRMED, str(error)
        self._metrics.preempted.labels(result.outcome.value).inc()
        if _OUTCOMES[result.outcome] in _STAYS:
            _log_refusal("its eviction", pod, result)
        else:
            log.info("preempting %s/%s: %s: %s", pod.namespace, pod.name, preempt.note, result.outcome.value)
        if result.outcome is EvictionStatus.EVICTED:
            # Only after the eviction: a pod that stays must not have the condition, and the Eviction API would
            # overwrite it with its own.
            regarding = ObjectReference("v1", "Pod", pod.namespace, pod.name, pod.uid)
            self._events.record(regarding, "Normal", Reason.PREEMPTED, preempt.note, "Preempting")
            # In a task of its own: a webhook on statuses may not answer.
            text = f"{self._name}: preempting to accommodate a higher priority pod"
            mark = self._statuses.mark_preempted(pod.namespace, pod.name, pod.uid, text, self._wall())
            self._start(mark, f"preempted {pod.uid}")
        return _OUTCOMES[result.outcome], result.message

    @asynccontextmanager
    async def _slot(self, preempt: Preempt, confirmation: _Confirmation) -> AsyncIterator[None]:
        """Hold a slot for one attempt. Before the first one, confirm again what was confirmed too long ago.

        Owners of the preemptor that do not answer say nothing about the namespace of the victim.
        """
        pod = preempt.pod
        async with self._for_others.held(pod.namespace) as attempt:
            if confirmation.sent_at == inf:
                if not confirmation.refusal and self._clock() - confirmation.at > CONFIRMED_SECONDS:
                    confirmation.refusal = await self._confirm(preempt.preemptor)
                if confirmation.refusal:
                    raise _UnconfirmedError(confirmation.refusal)
                confirmation.sent_at = self._clock()
            async with attempt():
                with confirmation.attempts.attempt():
                    yield

    async def _ask_about(self, pod: PodRef, confirmation: _Confirmation, rehearsal: _EvictionRehearsal | None) -> None:
        """Count an eviction as refused that does not succeed in time, if the API server answers other requests.

        It may still take effect.
        """
        if not confirmation.attempts.hang():
            return
        exists = await self._evictor.is_there(pod.namespace, pod.name, pod.uid)
        if exists and confirmation.attempts.hang() and self._engine.preempting.is_unanswered(pod.uid):
            self._report(pod, (EvictionOutcome.REFUSED, NOT_GRANTED), rehearsal)

    def _is_wanted(self, preempt: Preempt) -> bool:
        """Return whether the engine waits for the outcome, and not for that of a later request for the same pod."""
        preempting, uid = self._engine.preempting, preempt.pod.uid
        others = preempting.preemptors(uid)
        return preempting.is_unanswered(uid) and (not others or preempt.preemptor.uid in others)

    def _reason_not_to_evict(self, preempt: Preempt) -> str:
        """Return why a pod need not be evicted, or an empty string."""
        if not self._engine.may_evict(preempt.pod.uid):
            return "no workload waits for its room any more"
        return "" if self._is_wanted(preempt) else "it is evicted already, or for another workload"

    def _report(self, pod: PodRef, ended: Ended, rehearsal: _EvictionRehearsal | None = None) -> None:
        if rehearsal is not None and rehearsal.waits_for(pod.uid) and ended[0] in _STAYS:
            self._refuse(rehearsal, pod, ended)
            return
        self._engine.eviction_finished(pod.uid, *ended, self._clock())
        self._changed()
