"""Whether pods end when they claim to: by ``expected-duration``, or by the deadline of their Job.

Both are only claims. Nothing ends a pod by the first. Users may raise the second later, or name a controller that does
not enforce it. Only a pod's own ``activeDeadlineSeconds`` is a fact, because its kubelet enforces it, and it can't be
raised.

Pods that claim to end in time may use nodes that are reserved for a large workload. So the scheduler records GPU-time
for each namespace: that of pods that kept their claim, and that by which pods overran it. Many pods that end at once
can't make up for GPUs that are held for days. If too much overruns, the scheduler ignores the claims of the namespace
until the record has decayed. A pod that still overruns does not decay.

Pods that backfill because earlier runs were short have a record of their own. Users decide how long those runs take,
too, but honest ones do not state when the next one ends. So that record tolerates more.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, log
from typing import Final

HALF_LIFE_SECONDS: Final = 6 * 3600.0
"""Half-life of a namespace's record."""
MAX_COUNTED_SECONDS: Final = HALF_LIFE_SECONDS
"""Seconds of one pod that are added to a record at once; of a longer time, the earlier part would have decayed."""
GRACE_SECONDS: Final = 60.0
"""Seconds by which a pod may exceed its claim, in addition to a tenth of the claim."""
MIN_OVERRUNS: Final = 2.5
"""Decayed number of overruns below which a namespace is believed."""
TOLERATED_RATIO: Final = 0.1
"""Ratio of GPU-time overrun to GPU-time of pods that ended in time, up to which a namespace is believed."""
TOLERATED_RATIO_OF_ESTIMATES: Final = 0.5
"""The same for estimates from earlier runs: the next run is often the longest of all."""
MAX_NAMESPACES: Final = 1024
CHECK_SECONDS: Final = 60.0
"""Interval between checks of namespaces whose pods continue to overrun."""
_MEAN_LIFE_SECONDS: Final = HALF_LIFE_SECONDS / log(2)


@dataclass(slots=True)
class _Claim:
    """What a pod claims: to run for ``seconds`` from its start.

    ``start``, ``seen`` (when the scheduler first saw it running) and ``due`` are infinite until it runs. ``weight`` is
    in GPUs. ``overdue``: it overran, and runs on.
    """

    namespace: str
    seconds: float
    start: float = inf
    seen: float = inf
    due: float = inf
    weight: float = 0.0
    overdue: bool = False


@dataclass(slots=True)
class _OverrunRecord:
    """A namespace's record, decayed to time ``at`` (seconds).

    ``kept`` and ``overran`` are GPU-seconds. ``overruns`` is the number of pods that overran and ended. ``overdue`` is
    the number of those that run on, ``overdue_weight`` their GPUs.
    """

    kept: float = 0.0
    overran: float = 0.0
    overruns: float = 0.0
    at: float = 0.0
    overdue: int = 0
    overdue_weight: float = 0.0

    def fade(self, now: float) -> None:
        """Decay the record to the time ``now``, and add what pods overran since."""
        factor = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_SECONDS)
        self.kept, self.overran, self.overruns = self.kept * factor, self.overran * factor, self.overruns * factor
        self.overran += self.overdue_weight * _MEAN_LIFE_SECONDS * (1.0 - factor)
        self.at = now


def weight_of(gpus: int, share: float) -> float:
    """Return the weight of a pod in GPUs: its GPUs, or without any the largest ``share`` of its node, 0 to 1."""
    return float(gpus) if gpus else min(1.0, max(0.0, share))


class Promises:
    """Records by namespace, and the claims of pods that are bound or about to be. Times are seconds of the process."""

    def __init__(self, tolerated_ratio: float = TOLERATED_RATIO) -> None:
        self._tolerated_ratio = tolerated_ratio
        self.changes = 0
        """Number of times that a namespace lost or regained belief."""
        self._claims: dict[str, _Claim] = {}
        self._heap: list[tuple[float, str]] = []
        self._records: dict[str, _OverrunRecord] = {}
        self._doubted: set[str] = set()
        self._now = 0.0
        self._check_at = 0.0

    def __len__(self) -> int:
        return len(self._claims) + len(self._records)

    def __contains__(self, uid: object) -> bool:
        """Return whether a pod was bound with a claim, or claimed something later."""
        return uid in self._claims

    def claimed(self, uid: str, namespace: str, seconds: float) -> None:
        """Record what a pod claims when it is bound, or later; a longer claim has no effect then."""
        claim = self._claims.get(uid)
        if claim is None:
            self._claims[uid] = _Claim(namespace, seconds)
        elif seconds < claim.seconds:
            claim.seconds = seconds
            self._set_due(uid, claim)

    def began(self, uid: str, start: float, weight: float) -> None:
        """Record that a pod with a claim runs. ``weight`` in GPUs: see `weight_of`."""
        claim = self._claims.get(uid)
        start = min(start, self._now)  # the clock of its node may be ahead
        if claim is None or start >= claim.start:
            return
        if claim.seen == inf:
            claim.seen, claim.weight = self._now, weight
        claim.start = start
        self._set_due(uid, claim)

    def withdrawn(self, uid: str) -> None:
        """Forget the claim of a pod that was not bound after all."""
        claim = self._claims.get(uid)
        if claim is not None and claim.seen == inf:
            del self._claims[uid]

    def ended(self, uid: str) -> None:
        """Record that a pod ended; it kept its claim unless it was overdue. Call `settle` before."""
        claim = self._claims.pop(uid, None)
        if claim is None or claim.seen == inf:
            return
        record = self._record(claim.namespace)
        if not claim.overdue:
            record.kept += claim.weight * min(self._now - claim.seen, MAX_COUNTED_SECONDS)
            return
        record.overruns += 1.0
        record.overdue = max(0, record.overdue - 1)  # the record may be newer than the overrun
        record.overdue_weight = max(0.0, record.overdue_weight - claim.weight) if record.overdue else 0.0

    def settle(self, now: float) -> None:
        """Record the pods that are overdue by now."""
        self._now = max(self._now, now)
        while self._heap and self._heap[0][0] <= self._now:
            due, uid = heappop(self._heap)
            claim = self._claims.get(uid)
            if claim is not None and claim.due == due and not claim.overdue:
                self._overran(claim)
        if self._now >= self._check_at:
            self._check_at = self._now + CHECK_SECONDS
            for namespace in [namespace for namespace, record in self._records.items() if record.overdue]:
                self._check(namespace)
        for namespace in [namespace for namespace in self._doubted if not self._is_doubted(namespace)]:
            self._doubted.discard(namespace)
            self.changes += 1

    def believed(self, namespace: str) -> bool:
        """Return whether the scheduler believes the claims of a namespace's pods."""
        return namespace not in self._doubted

    def _set_due(self, uid: str, claim: _Claim) -> None:
        if claim.start == inf or claim.overdue:
            return
        claim.due = claim.start + claim.seconds * 1.1 + GRACE_SECONDS
        heappush(self._heap, (claim.due, uid))
        if len(self._heap) > 2 * len(self._claims) + 64:
            running = ((other.due, other_uid) for other_uid, other in self._claims.items() if not other.overdue)
            self._heap = [(due, other_uid) for due, other_uid in running if due < inf]
            heapify(self._heap)

    def _overran(self, claim: _Claim) -> None:
        claim.overdue = True
        record = self._record(claim.namespace)
        record.overdue += 1
        record.overdue_weight += claim.weight
        record.overran += claim.weight * min(self._now - claim.start - claim.seconds, MAX_COUNTED_SECONDS)
        self._check(claim.namespace)

    def _record(self, namespace: str) -> _OverrunRecord:
        """Return the record of a namespace, decayed; make room for a new one."""
        record = self._records.get(namespace)
        if record is None:
            if len(self._records) >= MAX_NAMESPACES:
                smallest = min(self._records, key=self._importance)
                del self._records[smallest]
                if smallest in self._doubted:
                    self._doubted.discard(smallest)
                    self.changes += 1
            record = self._records[namespace] = _OverrunRecord(at=self._now)
        record.fade(self._now)
        return record

    def _importance(self, namespace: str) -> tuple[bool, float, float, str]:
        record = self._records[namespace]
        return record.overdue > 0, record.overran, record.at, namespace

    def _check(self, namespace: str) -> None:
        if namespace not in self._doubted and self._is_doubted(namespace):
            self._doubted.add(namespace)
            self.changes += 1

    def _is_doubted(self, namespace: str) -> bool:
        record = self._records.get(namespace)
        if record is None:
            return False
        record.fade(self._now)
        return record.overruns + record.overdue >= MIN_OVERRUNS and record.overran > self._tolerated_ratio * record.kept
