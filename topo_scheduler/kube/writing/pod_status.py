"""Writes to the status of pods: nominations, why a victim is preempted, and that a pod of a dead node has failed.

Of several nominations of a pod only the newest is written. Failed writes are logged, and nothing blocks on them.
"""

import logging
from collections import Counter
from functools import partial
from typing import Any, Final

import msgspec

from topo_scheduler.api.annotations import GANG_COMPLETE
from topo_scheduler.api.reasons import ALL_MEMBERS_BOUND
from topo_scheduler.kube.connection.client import STRATEGIC_MERGE_PATCH, Client
from topo_scheduler.kube.connection.errors import ApiError, Conflict, Fenced, KubeError, NotFound, with_remedy
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.connection.retrying import or_until_granted, retried
from topo_scheduler.kube.connection.times import time as timestamp

logger = logging.getLogger(__name__)

INVALID: Final = 422
"""HTTP status with which the API server refuses the nomination of a pod that is bound."""
RETRY_SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 10.0
MARK_SECONDS: Final = 5.0
"""Seconds of immediate retries of a condition GangComplete. After them the caller retries it later."""
CONCURRENT_PATCHES: Final = 16
PATCHES_OF_NAMESPACE: Final = 6
"""Concurrent patches, in all and per namespace, as the webhooks of a namespace may not answer."""
MAX_EXPLAINED_PODS: Final = 256
"""Conditions DisruptionTarget of one namespace that are being written or queued at once."""

_encode = msgspec.json.Encoder().encode


class PodStatusWriter:
    """Patches the status of pods; never raises for server failures."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = FairSlots(CONCURRENT_PATCHES, PATCHES_OF_NAMESPACE)
        self._nodes: dict[str, str] = {}
        self._writing: set[str] = set()
        self._failing: set[str] = set()
        self._explaining: Counter[str] = Counter()
        """Conditions DisruptionTarget that are being written or queued, by namespace."""

    async def nominate(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Set ``nominatedNodeName``; an empty node clears it."""
        self._nodes[uid] = node
        if uid in self._writing:
            return  # the running call writes the new value when its patch is done
        self._writing.add(uid)
        try:
            while uid in self._nodes:
                wanted = self._nodes.pop(uid)
                await self._patch(namespace, name, uid, {"nominatedNodeName": wanted or None}, "nomination")
        finally:
            self._writing.discard(uid)

    async def mark_preempted(self, namespace: str, name: str, uid: str, message: str, now: float) -> None:
        """Set the condition DisruptionTarget of a pod that is preempted. See `_disrupted`."""
        await self._disrupted(namespace, name, uid, "PreemptionByScheduler", message, now)

    async def mark_tainted(self, namespace: str, name: str, uid: str, message: str, now: float) -> None:
        """Set the same of a pod that is evicted from a device with a taint, as Kubernetes does. See `_disrupted`."""
        await self._disrupted(namespace, name, uid, "DeletionByDeviceTaintManager", message, now)

    async def _disrupted(self, namespace: str, name: str, uid: str, reason: str, message: str, now: float) -> None:
        """Set the condition DisruptionTarget; a pod that is gone by now needs none.

        If `MAX_EXPLAINED_PODS` of its namespace are queued already, because webhooks do not answer, the condition is
        skipped. The event contains the same message. ``now`` is in seconds since the epoch.
        """
        if self._explaining[namespace] >= MAX_EXPLAINED_PODS:
            logger.warning(
                "pod %s/%s does not get its condition DisruptionTarget: too many writes are pending",
                namespace,
                name,
                extra={"namespace": namespace},
            )
            return
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp(now),
        }
        self._explaining[namespace] += 1
        try:
            await self._patch(namespace, name, uid, {"conditions": [condition]}, "condition DisruptionTarget")
        finally:
            self._explaining[namespace] -= 1
            if not self._explaining[namespace]:
                del self._explaining[namespace]

    async def mark_complete(self, namespace: str, name: str, uid: str, now: float, *, first: bool = True) -> bool:
        """Record that the gang of a pod ran complete; return whether that is written.

        404 and 409 do not prove that the pod is gone: a webhook may answer so for a running pod. The caller knows
        which pods exist, and retries. Only a failure of the ``first`` attempt is logged as a warning. ``now`` is in
        seconds since the epoch.
        """
        condition = {
            "type": GANG_COMPLETE,
            "status": "True",
            "reason": ALL_MEMBERS_BOUND,
            "message": "all members of its gang were bound at once; the scheduler does not roll the gang back any more",
            "lastTransitionTime": timestamp(now),
        }
        level = logging.WARNING if first else logging.DEBUG
        status = {"conditions": [condition]}
        return await self._patch(namespace, name, uid, status, "condition GangComplete", level, MARK_SECONDS)

    async def mark_failed(self, namespace: str, name: str, uid: str) -> None:
        """Record that a pod has failed, because its kubelet is dead and can't; skips a pod that is gone.

        A Job with a ``podFailurePolicy``, or with ``podReplacementPolicy: Failed``, keeps a deleted pod by a
        finalizer. It creates no replacement until the pod's phase is Failed. The pod garbage collector of Kubernetes
        sets the phase in the same way.
        """
        if uid in self._failing:
            return
        self._failing.add(uid)
        try:
            await self._patch(namespace, name, uid, {"phase": "Failed"}, "phase Failed")
        finally:
            self._failing.discard(uid)

    async def _patch(
        self,
        namespace: str,
        name: str,
        uid: str,
        status: dict[str, Any],
        what: str,
        level: int = logging.WARNING,
        seconds: float = RETRY_SECONDS,
    ) -> bool:
        """Patch a status; return whether that succeeded.

        Args:
            namespace: namespace of the pod.
            name: name of the pod.
            uid: uid of the pod: another pod of that name is not changed.
            status: the fields to set.
            what: what the patch writes, for the log.
            level: log level of a failure.
            seconds: how long failures are retried immediately.
        """
        body = _encode({"metadata": {"uid": uid}, "status": status})
        path = f"{PODS.path(namespace, name)}/status"

        async def send() -> None:
            await self._client.request(
                "PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH, timeout=TIMEOUT_SECONDS
            )

        try:
            slot = partial(self._slots.slot, namespace)
            await retried(send, seconds=seconds, longest=5.0, passing=or_until_granted(), slot=slot)
        except (NotFound, Conflict):
            logger.debug("pod %s/%s is another one by now: no %s", namespace, name, what)
            return False
        except KubeError as error:
            if isinstance(error, Fenced):
                level = logging.DEBUG  # the end of a lease is logged once
            if "nominatedNodeName" in status and isinstance(error, ApiError) and error.status == INVALID:
                level = logging.DEBUG  # the pod was bound while its nomination was queued
            where = {"namespace": namespace}
            logger.log(
                level, "pod %s/%s does not get its %s: %s", namespace, name, what, with_remedy(error), extra=where
            )
            return False
        return True
