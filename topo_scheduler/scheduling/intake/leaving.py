"""Pending pods about to be deleted: an owner was deleted, suspended or done, or the namespace is being deleted.

The scheduler does not place such a pod, does not count it as a member of a gang, and preempts nothing for it. The
garbage collector deletes it, which takes minutes under load. If the owner was deleted with its dependents orphaned, the
pod loses its ownerReference instead. The scheduler then places it as a bare pod. If a Job was suspended, its controller
deletes the pods. If the Job is resumed before that, the scheduler places them.
"""

import heapq
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import EmitEvent, Instruction, PodRef

REPORTED_AFTER_SECONDS: Final = 30.0
"""Seconds before the event for such a pod. Most are deleted sooner: an event for each would be useless."""
MIN_UNREPORTED: Final = 64
"""Entries of the heap up to which those of dropped pods are not removed."""


@dataclass(slots=True)
class _Left:
    """A pod that is about to be deleted, why, and when its event is due, in seconds; infinite once it was emitted."""

    pod: PodRef
    why: str
    due: float


class Leaving:
    """All pods about to be deleted, by uid, and the namespaces that are being deleted."""

    def __init__(self) -> None:
        self._pods: dict[str, _Left] = {}
        self._unreported: list[tuple[float, str]] = []
        """A heap of the pods without an event, and of some that were dropped, by when it is due."""
        self._new: list[str] = []
        self._namespace_uids: dict[str, str] = {}
        """Uids of the namespaces that exist by the watch, by their names."""
        self._namespaces: set[str] = set()
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._pods)

    def why(self, namespace: str, owner_reason: str) -> str:
        """Return why a pod is about to be deleted: its namespace is, or else ``owner_reason``, from its owners."""
        return f"namespace {namespace} is being deleted" if namespace in self._namespaces else owner_reason

    def put(self, pod: PodRef, why: str, now: float) -> None:
        """Record a pod that is about to be deleted, and why."""
        self._pods[pod.uid] = _Left(pod, why, now + REPORTED_AFTER_SECONDS)
        self._new.append(pod.uid)
        heapq.heappush(self._unreported, (now + REPORTED_AFTER_SECONDS, pod.uid))
        if len(self._unreported) > 2 * len(self._pods) + MIN_UNREPORTED:  # mostly pods that were dropped
            self._unreported = [(left.due, uid) for uid, left in self._pods.items() if left.due < inf]
            heapq.heapify(self._unreported)

    def _is_current(self, due: float, uid: str) -> bool:
        left = self._pods.get(uid)
        return left is not None and left.due == due

    def holds(self, uid: str) -> bool:
        """Return whether a pod is among them."""
        return uid in self._pods

    def drop(self, uid: str) -> None:
        """Forget a pod: it was deleted, or stays after all."""
        self._pods.pop(uid, None)

    def take_new(self) -> list[str]:
        """Return the uids of the pods that were added since the last call."""
        new, self._new = self._new, []
        return new

    def namespace_applied(self, name: str, uid: str, *, deleting: bool) -> None:
        """Record a namespace that the watch reports, and whether it is being deleted."""
        self._namespace_uids[name] = uid
        if deleting:
            self._namespace_leaves(name)
        else:
            self._namespace_stays(name)

    def namespace_deleted(self, name: str) -> None:
        """Forget a deleted namespace; a new one may have the same name, and pods already."""
        self._namespace_uids.pop(name, None)
        self._namespace_stays(name)

    def namespace_uid(self, name: str) -> str:
        """Return the uid of a namespace that exists by the watch; empty for an unknown one."""
        return self._namespace_uids.get(name, "")

    def namespace_leaves(self, name: str, uid: str) -> None:
        """Record that the namespace with a uid is being deleted, or is gone, before the watch reports that.

        If the watch reported meanwhile that it is gone, a new namespace may have its name already.
        """
        if uid and self._namespace_uids.get(name) == uid:
            self._namespace_leaves(name)

    def _namespace_leaves(self, name: str) -> None:
        if name not in self._namespaces:
            self._namespaces.add(name)
            self._changed.add(name)

    def _namespace_stays(self, name: str) -> None:
        if name in self._namespaces:
            self._namespaces.discard(name)
            self._changed.add(name)

    def take_namespaces(self) -> set[str]:
        """Return the namespaces whose deletion began since the last call, and those whose name is free or in use again.

        Their pods are read again.
        """
        changed, self._changed = self._changed, set()
        return changed

    def due(self, now: float) -> list[Instruction]:
        """Return the events for pods that still exist after `REPORTED_AFTER_SECONDS`, once for each."""
        out: list[Instruction] = []
        while self._unreported and self._unreported[0][0] <= now:
            due, uid = heapq.heappop(self._unreported)
            if not self._is_current(due, uid):
                continue
            left = self._pods[uid]
            left.due = inf
            out.append(EmitEvent(left.pod, True, Reason.OWNER_DELETED, self.text(uid)))
        return out

    def text(self, uid: str) -> str:
        """Return why a pod is not scheduled and how to keep it; empty if it is not about to be deleted."""
        left = self._pods.get(uid)
        if left is None:
            return ""
        remedy = "resume an owner that is suspended or scaled to 0, or remove the pod's ownerReferences"
        if left.pod.namespace in self._namespaces:
            remedy = "create it again in another namespace"
        return f"not scheduled: {left.why}. So this pod is about to be deleted; to keep it, {remedy}"

    def next_due(self) -> float | None:
        """Return when to call `due` next, in seconds."""
        while self._unreported and not self._is_current(*self._unreported[0]):
            heapq.heappop(self._unreported)
        return self._unreported[0][0] if self._unreported else None
