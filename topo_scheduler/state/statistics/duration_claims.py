"""Whether pods end within their ``expected-duration``: it is only a claim, and pods that overrun it delay others.

Pods that claim to end in time may use nodes that are reserved for a large workload. So the scheduler records, for each
namespace, the GPUs of pods that overran their claim and of pods that kept it. Pods are weighted by GPUs, so that many
tiny pods that end in time can't make up for GPUs that are held longer. If too much overruns, the scheduler ignores the
namespace's ``expected-duration`` until the record has decayed. Deadlines that the kubelet or the Job controller enforce
still count.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

HALF_LIFE_SECONDS: Final = 6 * 3600.0
"""Half-life of a namespace's record."""
GRACE_SECONDS: Final = 60.0
"""Seconds by which a pod may exceed its claim, in addition to a tenth of the claim."""
MIN_OVERRUNS: Final = 2.5
"""Decayed number of overruns below which a namespace is believed."""
TOLERATED_RATIO: Final = 0.1
"""Ratio of GPUs of overrunning pods to GPUs of pods that ended in time, up to which a namespace is believed."""
MAX_NAMESPACES: Final = 1024


@dataclass(slots=True)
class _OverrunRecord:
    """A namespace's record, decayed to time ``at`` (seconds): number of overruns, and weights of pods in GPUs."""

    kept: float = 0.0
    overran: float = 0.0
    overruns: float = 0.0
    at: float = 0.0

    def fade(self, now: float) -> None:
        """Decay the record to the time ``now``."""
        factor = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_SECONDS)
        self.kept, self.overran, self.overruns = self.kept * factor, self.overran * factor, self.overruns * factor
        self.at = now


def weight_of(gpus: int, share: float) -> float:
    """Return the weight of a pod in GPUs: its GPUs, or without any the largest ``share`` of its node, 0 to 1."""
    return float(gpus) if gpus else min(1.0, max(0.0, share))


class Promises:
    """Records by namespace, and due times of running pods. Times are seconds of the process."""

    def __init__(self) -> None:
        self.changes = 0
        """Number of times that a namespace lost or regained belief."""
        self._due: dict[str, tuple[float, str, float]] = {}
        self._heap: list[tuple[float, str]] = []
        self._records: dict[str, _OverrunRecord] = {}
        self._doubted: set[str] = set()
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._due) + len(self._records)

    def began(self, uid: str, namespace: str, start: float, seconds: float, weight: float) -> None:
        """Record a running pod that claims to run for ``seconds``. ``weight`` in GPUs: see `weight_of`."""
        due = start + seconds * 1.1 + GRACE_SECONDS
        previous = self._due.get(uid)
        if previous is not None and previous[0] <= due:
            return  # a longer claim has no effect once the pod runs
        self._due[uid] = due, namespace, weight
        heappush(self._heap, (due, uid))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(due_time, other_uid) for other_uid, (due_time, _, _) in self._due.items()]
            heapify(self._heap)

    def ended(self, uid: str) -> None:
        """Record that a pod ended; it kept its claim unless it was overdue."""
        due = self._due.pop(uid, None)
        if due is not None:
            self._note(due[1], kept=due[2])

    def settle(self, now: float) -> None:
        """Record the pods that are overdue by now."""
        self._now = max(self._now, now)
        while self._heap and self._heap[0][0] <= now:
            due_time, uid = heappop(self._heap)
            due = self._due.get(uid)
            if due is not None and due[0] == due_time:
                del self._due[uid]
                self._note(due[1], overran=due[2], overruns=1.0)
        for namespace in [namespace for namespace in self._doubted if not self._is_doubted(namespace)]:
            self._doubted.discard(namespace)
            self.changes += 1

    def believed(self, namespace: str) -> bool:
        """Return whether the scheduler believes ``expected-duration`` of a namespace's pods."""
        return namespace not in self._doubted

    def _note(self, namespace: str, *, kept: float = 0.0, overran: float = 0.0, overruns: float = 0.0) -> None:
        record = self._records.setdefault(namespace, _OverrunRecord(at=self._now))
        record.fade(self._now)
        record.kept += kept
        record.overran += overran
        record.overruns += overruns
        if overruns and namespace not in self._doubted and self._is_doubted(namespace):
            self._doubted.add(namespace)
            self.changes += 1
        if len(self._records) > MAX_NAMESPACES:
            smallest = min(self._records, key=lambda name: (self._records[name].overran, self._records[name].at, name))
            del self._records[smallest]

    def _is_doubted(self, namespace: str) -> bool:
        record = self._records.get(namespace)
        if record is None:
            return False
        record.fade(self._now)
        return record.overruns >= MIN_OVERRUNS and record.overran > TOLERATED_RATIO * record.kept
