"""Pending pods that are about to be deleted: an owner was deleted, suspended or done, or the namespace is deleted.

Such a pod is not scheduled, is no member of a gang, and preempts nothing. The garbage collector deletes it; that takes
minutes where it has much to do. Where the owner was deleted with its dependents orphaned, the pod loses its
ownerReference instead, and is scheduled as the bare pod that it is then. Where a Job was suspended, its controller
deletes the pods; those of a Job that is resumed before that are scheduled.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import EmitEvent, Instruction, PodRef

REPORTED_AFTER_SECONDS: Final = 30.0
"""Most are deleted within seconds: an event for each of them would help nobody."""


@dataclass(slots=True)
class _Left:
    pod: PodRef
    why: str
    due: float


class Leaving:
    """All of them, by uid, and the namespaces that are being deleted."""

    def __init__(self) -> None:
        self._pods: dict[str, _Left] = {}
        self._new: list[str] = []
        self._namespaces: set[str] = set()
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._pods)

    def why(self, namespace: str, gone: str) -> str:
        """Return why a pod is about to be deleted: its namespace is, or ``gone``, what its owners say; or nothing."""
        return f"namespace {namespace} is being deleted" if namespace in self._namespaces else gone

    def put(self, pod: PodRef, why: str, now: float) -> None:
        """Note a pod that is about to be deleted, and why."""
        self._pods[pod.uid] = _Left(pod, why, now + REPORTED_AFTER_SECONDS)
        self._new.append(pod.uid)

    def holds(self, uid: str) -> bool:
        """Return whether a pod is among them."""
        return uid in self._pods

    def drop(self, uid: str) -> None:
        """Forget a pod: it is gone, or stays after all."""
        self._pods.pop(uid, None)

    def take_new(self) -> list[str]:
        """Return the uids of those that came since the last call."""
        new, self._new = self._new, []
        return new

    def namespace_applied(self, name: str, *, deleting: bool) -> None:
        """Take over whether a namespace is being deleted; that is never taken back."""
        if deleting and name not in self._namespaces:
            self._namespaces.add(name)
            self._changed.add(name)

    def namespace_deleted(self, name: str) -> None:
        """Forget a namespace that is gone; one of its name may come again."""
        self._namespaces.discard(name)
        self._changed.discard(name)

    def take_namespaces(self) -> set[str]:
        """Return the namespaces whose deletion began since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def due(self, now: float) -> list[Instruction]:
        """Return the events of those that are still there after a while, each once."""
        out: list[Instruction] = []
        for left in self._pods.values():
            if left.due <= now:
                left.due = inf
                text = (
                    f"not scheduled: {left.why}. So this pod is about to be deleted; to keep it, remove its"
                    " ownerReferences"
                )
                out.append(EmitEvent(left.pod, True, Reason.OWNER_DELETED, text))
        return out

    def next_due(self) -> float | None:
        """Return when `due` must be asked next, in seconds."""
        first = min((left.due for left in self._pods.values()), default=inf)
        return None if first == inf else first
