"""Bookkeeping: pending pods by owner, bound pods by controller, and the events emitted for each pod."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import PendingPodsSettings as Limits
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.intake.pod_memory import pod_bytes

_NUMBER: Final = re.compile(r"\d+")


OVERHEAD_BYTES: Final = 5_000
"""Bytes of memory that the scheduler needs for a pending pod in addition to `pod_bytes`.

Measured: 6 KiB for a plain pod and 9 KiB for a typical one, including the pod itself; the rest is for its events and
conditions.
"""
LARGE_BYTES: Final = 16 * 1024
"""Bytes of memory above which a pod counts as large: several times those of an ordinary one."""
MAX_WARNINGS: Final = 64
"""Maximum warnings per pod that are remembered as emitted."""
OVERCOMMIT_FACTOR: Final = 1.5
"""Factor on the memory limit for pending pods, for namespaces that use less than their share."""


class PendingPods:
    """Pending pods, indexed by the owners that determine their requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pods: dict[str, Pod] = {}
        self._owners: dict[str, tuple[str, ...]] = {}
        self._below: dict[str, dict[str, set[str]]] = {}
        """Uids of the pods below each owner, by namespace of the pods: a tenant chooses the uid of an owner."""
        self._counts: Counter[str] = Counter()
        self._bytes: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()
        """Approximate memory of the pods of each namespace, in bytes."""
        self._all_bytes = 0
        self.large_bytes = 0
        """Memory in bytes of the large pods that were read since it was last set to 0."""

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> Pod | None:
        """Return a pending pod."""
        return self._pods.get(uid)

    def with_known_parts(self, pod: Pod) -> Pod:
        """Return a pod with the equal parts of its known version, so that both are not kept.

        Classes and caches keep the affinity of the version from which they were made. Each condition that the scheduler
        writes brings a new version.
        """
        known = self._pods.get(pod.metadata.uid)
        if known is None or known is pod:
            return pod
        if known.spec == pod.spec:
            pod = msgspec.structs.replace(pod, spec=known.spec)
        elif known.spec.affinity == pod.spec.affinity:
            pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=known.spec.affinity))
        if known.metadata.labels == pod.metadata.labels:
            pod = msgspec.structs.replace(
                pod, metadata=msgspec.structs.replace(pod.metadata, labels=known.metadata.labels)
            )
        return pod

    def put(self, pod: Pod, owners: Iterable[str]) -> None:
        """Record a pod and the uids of its owners that are known so far.

        Further names that it follows are among them. A tenant chooses the uid of an owner, so one may occur twice.
        """
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if self._pods.get(uid) is pod:
            size = self._bytes[uid]
        else:
            size = (memory := pod_bytes(pod)) + OVERHEAD_BYTES
            self.large_bytes += memory if memory > LARGE_BYTES else 0
        self.drop(uid)
        self._pods[uid] = pod
        self._counts[namespace] += 1
        self._bytes[uid] = size
        self._bytes_of[namespace] += size
        self._all_bytes += size
        self._owners[uid] = tuple(dict.fromkeys(owners))
        for owner in self._owners[uid]:
            self._below.setdefault(owner, {}).setdefault(namespace, set()).add(uid)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        namespace = pod.metadata.namespace
        size = self._bytes.pop(uid)
        self._all_bytes -= size
        self._counts[namespace] -= 1
        self._bytes_of[namespace] -= size
        if not self._counts[namespace]:
            del self._counts[namespace], self._bytes_of[namespace]
        for owner in self._owners.pop(uid):
            below = self._below[owner]
            below[namespace].discard(uid)
            if not below[namespace]:
                del below[namespace]
            if not below:
                del self._below[owner]

    def count(self, namespace: str) -> int:
        """Return how many pending pods a namespace has."""
        return self._counts[namespace]

    def has_room(self, namespace: str, factor: float = 1.0) -> bool:
        """Return whether one more pod of a namespace may be read.

        Args:
            namespace: its namespace.
            factor: multiplies the usual limits.
        """
        memory = factor * self.limits.memory
        if self._counts[namespace] >= factor * self.limits.max_per_namespace:
            return False
        if self._all_bytes < memory:
            return True
        namespaces = len(self._counts) + (namespace not in self._counts)
        return self._all_bytes < OVERCOMMIT_FACTOR * memory and self._bytes_of[namespace] < memory / namespaces

    def all(self) -> list[Pod]:
        """Return all pending pods, in order of uid."""
        return [self._pods[uid] for uid in sorted(self._pods)]

    def of_namespaces(self, namespaces: Collection[str]) -> list[Pod]:
        """Return the pending pods of some namespaces, in order of uid."""
        return [pod for _, pod in sorted(self._pods.items()) if pod.metadata.namespace in namespaces]

    def has_below(self, owner: str) -> bool:
        """Return whether an owner has a pending pod below it."""
        return owner in self._below

    def above(self, uid: str) -> tuple[str, ...]:
        """Return the uids of the known owners of a pending pod."""
        return self._owners.get(uid, ())

    def namespaces_below(self, owner: str) -> list[str]:
        """Return the namespaces that have pending pods below an owner."""
        return list(self._below.get(owner, ()))

    def below(self, owner: str, namespace: str) -> list[Pod]:
        """Return the pending pods of a namespace below an owner, in order of uid."""
        return [self._pods[uid] for uid in sorted(self._below.get(owner, {}).get(namespace, ()))]


class Siblings:
    """The nodes that run the bound pods of each controller."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, str]] = {}
        self._controller: dict[str, str] = {}

    def put(self, controller: str, uid: str, node: str) -> None:
        """Record where a pod of a controller runs; another controller may have adopted it."""
        if self._controller.get(uid, controller) != controller:
            self.drop(uid)
        self._nodes.setdefault(controller, {})[uid] = node
        self._controller[uid] = controller

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        controller = self._controller.pop(uid, None)
        if controller is not None:
            pods = self._nodes[controller]
            pods.pop(uid, None)
            if not pods:
                del self._nodes[controller]

    def __contains__(self, controller: str) -> bool:
        return controller in self._nodes

    def nodes(self, controller: str) -> list[str]:
        """Return the node of each pod of a controller, one entry for each pod."""
        return list(self._nodes.get(controller, {}).values())


class EmittedEvents:
    """The reports emitted for each pod, so that each is emitted once: one event per pod and changed reason.

    It keeps only a hash of each text, because thousands of pending pods have as many different ones. It keeps the
    newest `MAX_WARNINGS` of each pod, because a tenant may edit its pod without end.
    """

    def __init__(self) -> None:
        self._warned: dict[str, dict[int, None]] = {}
        self._failed: dict[str, int] = {}

    def is_new(self, uid: str, reason: Reason, message: str) -> bool:
        """Return whether a warning is new for this pod, and record it."""
        warned, warning = self._warned.setdefault(uid, {}), hash((reason, message))
        if warning in warned:
            return False
        warned[warning] = None
        if len(warned) > MAX_WARNINGS:
            del warned[next(iter(warned))]
        return True

    def changed(self, uid: str, message: str, *, exact: bool = False) -> bool:
        """Return whether the reason why a pod is pending changed, and record the new one.

        Unless ``exact``, numbers do not count: on a busy cluster they differ with every attempt although the reason is
        the same.
        """
        reason = hash(message if exact else worded(message))
        if self._failed.get(uid) == reason:
            return False
        self._failed[uid] = reason
        return True

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        self._warned.pop(uid, None)
        self._failed.pop(uid, None)


@lru_cache(maxsize=1024)
def worded(message: str) -> str:
    """Return a message without its numbers. The cache helps because all pods of a gang get the same message."""
    return _NUMBER.sub("#", message)
