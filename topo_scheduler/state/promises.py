"""Whether pods end when they say: ``expected-duration`` is a claim, and whoever overruns it delays others.

Pods that say they end in time may use nodes that are held for a large workload. So of each namespace it is counted how
much the pods held that overran what they said, and how much those that did not: pods that hold next to nothing and keep
their word must not pay for GPUs that are held longer. Where too much overruns, its ``expected-duration`` is not
believed until that is forgotten; deadlines that the kubelet or the Job controller enforce still are.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

HALF_LIFE_SECONDS: Final = 6 * 3600.0
"""In which half of a namespace's record is forgotten."""
GRACE_SECONDS: Final = 60.0
"""How much longer than it says a pod may run, beside a tenth of what it says."""
FEWEST_OVERRUNS: Final = 2.5
"""Pods that overran, as far as they are not forgotten, below which a namespace is believed."""
TOLERATED: Final = 0.1
"""GPUs of pods that overran for each GPU of pods that ended in time, up to which a namespace is believed."""
MOST_NAMESPACES: Final = 1024


@dataclass(slots=True)
class _OverrunRecord:
    """What is left of a namespace's record as of ``at`` (seconds): pods that overran, and weights of pods, in GPUs."""

    kept: float = 0.0
    overran: float = 0.0
    overruns: float = 0.0
    at: float = 0.0

    def fade(self, now: float) -> None:
        """Forget what time has passed over."""
        factor = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_SECONDS)
        self.kept, self.overran, self.overruns = self.kept * factor, self.overran * factor, self.overruns * factor
        self.at = now


def weight_of(gpus: int, share: float) -> float:
    """Return what a pod weighs, in GPUs: those it holds, or without any the largest ``share`` of its node, 0 to 1."""
    return float(gpus) if gpus else min(1.0, max(0.0, share))


class Promises:
    """Records by namespace, and which running pods are due when. Times are seconds of the process."""

    def __init__(self) -> None:
        self.changes = 0
        """How often a namespace was believed no longer, or again."""
        self._due: dict[str, tuple[float, str, float]] = {}
        self._heap: list[tuple[float, str]] = []
        self._records: dict[str, _OverrunRecord] = {}
        self._doubted: set[str] = set()
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._due) + len(self._records)

    def began(self, uid: str, namespace: str, start: float, seconds: float, weight: float) -> None:
        """Note a pod that runs and says for how many seconds it will. ``weight`` in GPUs: see `weight_of`."""
        due = start + seconds * 1.1 + GRACE_SECONDS
        known = self._due.get(uid)
        if known is not None and known[0] <= due:
            return  # to say more once it runs changes nothing
        self._due[uid] = due, namespace, weight
        heappush(self._heap, (due, uid))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(at, one) for one, (at, _, _) in self._due.items()]
            heapify(self._heap)

    def ended(self, uid: str) -> None:
        """Note that a pod is gone; it kept its word unless it was overdue."""
        due = self._due.pop(uid, None)
        if due is not None:
            self._note(due[1], kept=due[2])

    def settle(self, now: float) -> None:
        """Take over which pods are overdue by now."""
        self._now = max(self._now, now)
        while self._heap and self._heap[0][0] <= now:
            at, uid = heappop(self._heap)
            due = self._due.get(uid)
            if due is not None and due[0] == at:
                del self._due[uid]
                self._note(due[1], overran=due[2], overruns=1.0)
        for namespace in [one for one in self._doubted if not self._is_doubted(one)]:
            self._doubted.discard(namespace)
            self.changes += 1

    def believed(self, namespace: str) -> bool:
        """Return whether what pods of a namespace say of how long they run is believed."""
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
        if len(self._records) > MOST_NAMESPACES:
            least = min(self._records, key=lambda one: (self._records[one].overran, self._records[one].at, one))
            del self._records[least]

    def _is_doubted(self, namespace: str) -> bool:
        record = self._records.get(namespace)
        if record is None:
            return False
        record.fade(self._now)
        return record.overruns >= FEWEST_OVERRUNS and record.overran > TOLERATED * record.kept
