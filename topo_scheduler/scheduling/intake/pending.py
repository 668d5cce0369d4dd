"""Book-keeping of pods on their way: the pending ones by owner, and the bound ones of each controller."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

from topo_scheduler.api.objects import Pod
from topo_scheduler.api.process import PendingPodsSettings as Limits
from topo_scheduler.api.reasons import Reason
from topo_scheduler.state.trimming import memory_bytes

_NUMBER: Final = re.compile(r"\d+")


OVERHEAD_BYTES: Final = 7_000
"""Memory that the scheduler needs for a pending pod beside the pod.

Measured: 7 KiB for one of many alike, itself included, and up to 13 KiB for one that no other is like.
"""
LARGE_BYTES: Final = 8 * 1024
"""Memory of a pod beyond which it counts as large: several times that of an ordinary one."""
MOST_WARNINGS: Final = 64
"""Maximum warnings per pod that are remembered as emitted."""
FULL: Final = 1.5
"""Times the memory for pending pods that there is for namespaces which have less than their share."""


class PendingPods:
    """Pods to be placed, found again by the owners that say what they want."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pods: dict[str, Pod] = {}
        self._owners: dict[str, tuple[str, ...]] = {}
        self._below: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()
        self._bytes: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()
        """Memory of the pods of each namespace, roughly."""
        self._all_bytes = 0
        self.large_bytes = 0
        """Memory of the large pods that were read since it was last set to 0."""

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> Pod | None:
        """Return a pending pod."""
        return self._pods.get(uid)

    def put(self, pod: Pod, owners: Iterable[str]) -> None:
        """Remember a pod and the uids of the owners known so far."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if self._pods.get(uid) is pod:
            size = self._bytes[uid]
        else:
            size = (memory := memory_bytes(pod)) + OVERHEAD_BYTES
            self.large_bytes += memory if memory > LARGE_BYTES else 0
        self.drop(uid)
        self._pods[uid] = pod
        self._counts[namespace] += 1
        self._bytes[uid] = size
        self._bytes_of[namespace] += size
        self._all_bytes += size
        self._owners[uid] = tuple(owners)
        for owner in self._owners[uid]:
            self._below.setdefault(owner, set()).add(uid)

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
            below.discard(uid)
            if not below:
                del self._below[owner]

    def count(self, namespace: str) -> int:
        """Return how many pending pods a namespace has."""
        return self._counts[namespace]

    def has_room(self, namespace: str, factor: float = 1.0) -> bool:
        """Return whether one more pod of a namespace may be read.

        Args:
            namespace: its namespace.
            factor: times the usual limits.
        """
        memory = factor * self.limits.memory
        if self._counts[namespace] >= factor * self.limits.most_per_namespace:
            return False
        if self._all_bytes < memory:
            return True
        namespaces = len(self._counts) + (namespace not in self._counts)
        return self._all_bytes < FULL * memory and self._bytes_of[namespace] < memory / namespaces

    def all(self) -> list[Pod]:
        """Return all pending pods, in order of uid."""
        return [self._pods[uid] for uid in sorted(self._pods)]

    def of_namespaces(self, namespaces: Collection[str]) -> list[Pod]:
        """Return the pending pods of some namespaces, in order of uid."""
        return [pod for _, pod in sorted(self._pods.items()) if pod.metadata.namespace in namespaces]

    def has_below(self, owner: str) -> bool:
        """Return whether a pending pod stands below an owner."""
        return owner in self._below

    def above(self, uid: str) -> tuple[str, ...]:
        """Return the uids of the owners of a pending pod that are known."""
        return self._owners.get(uid, ())

    def below(self, owner: str) -> list[Pod]:
        """Return the pending pods below an owner, in order of uid."""
        return [self._pods[uid] for uid in sorted(self._below.get(owner, ()))]


class Siblings:
    """Which nodes the bound pods of each controller run on."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, str]] = {}
        self._controller: dict[str, str] = {}

    def put(self, controller: str, uid: str, node: str) -> None:
        """Note where a pod of a controller runs; another may have adopted it."""
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
        """Return the node of each pod of a controller, one entry a pod."""
        return list(self._nodes.get(controller, {}).values())


class Told:
    """What was told about each pod, so that it is told once: one event per pod and changed reason.

    Of each text its hash is kept: thousands of pending pods have as many different ones. Of one pod the newest
    `MOST_WARNINGS` are kept: its tenant may edit it without end.
    """

    def __init__(self) -> None:
        self._warned: dict[str, dict[int, None]] = {}
        self._failed: dict[str, int] = {}

    def is_new(self, uid: str, reason: Reason, message: str) -> bool:
        """Return whether a warning was not told of this pod yet, and note that it is now."""
        told, warning = self._warned.setdefault(uid, {}), hash((reason, message))
        if warning in told:
            return False
        told[warning] = None
        if len(told) > MOST_WARNINGS:
            del told[next(iter(told))]
        return True

    def changed(self, uid: str, message: str, *, exact: bool = False) -> bool:
        """Return whether the reason why a pod waits changed, and note the new one.

        Unless ``exact``, numbers do not count: on a busy cluster they differ with every attempt, and the reason is the
        same.
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
    """Return a message without its numbers. All pods of a gang are told the same."""
    return _NUMBER.sub("#", message)
