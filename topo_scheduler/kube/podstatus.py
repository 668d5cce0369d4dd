"""What is written in the status of pods: nominations, why a victim goes, and that a pod of a dead node has failed.

Of several nominations of a pod only the newest is written. What can't be written is logged, and nothing waits for it.
"""

import logging
from typing import Any, Final

import msgspec

from topo_scheduler.api.annotations import GANG_COMPLETE
from topo_scheduler.kube.client import STRATEGIC_MERGE_PATCH, Client
from topo_scheduler.kube.errors import Conflict, KubeError, NotFound
from topo_scheduler.kube.fair_slots import FairSlots
from topo_scheduler.kube.resources import PODS
from topo_scheduler.kube.retrying import retried
from topo_scheduler.kube.times import time as timestamp

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 10.0
CONCURRENCY: Final = 16
OF_NAMESPACE: Final = 6
"""Patches at once, in all and of one namespace, whose webhooks may not answer."""

_encode = msgspec.json.Encoder().encode


class PodStatusWriter:
    """Patches the status of pods; never raises for what the server does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = FairSlots(CONCURRENCY, OF_NAMESPACE)
        self._nodes: dict[str, str] = {}
        self._writing: set[str] = set()

    async def nominate(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Set ``nominatedNodeName``; an empty node clears it."""
        self._nodes[uid] = node
        if uid in self._writing:
            return  # whoever is writing looks again when he is done
        self._writing.add(uid)
        try:
            while uid in self._nodes:
                wanted = self._nodes.pop(uid)
                await self._patch(namespace, name, uid, {"nominatedNodeName": wanted or None}, "nomination")
        finally:
            self._writing.discard(uid)

    async def mark_preempted(self, namespace: str, name: str, uid: str, message: str, now: float) -> None:
        """Set the condition DisruptionTarget; a pod that is gone by now needs none."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": message,
            "lastTransitionTime": timestamp(now),
        }
        await self._patch(namespace, name, uid, {"conditions": [condition]}, "condition DisruptionTarget")

    async def mark_complete(self, namespace: str, name: str, uid: str, now: float) -> None:
        """Say that the gang of a pod ran complete; a pod that is gone by now needs it not."""
        condition = {
            "type": GANG_COMPLETE,
            "status": "True",
            "reason": "AllMembersBound",
            "message": "all members of its gang were bound at once; the scheduler does not roll the gang back any more",
            "lastTransitionTime": timestamp(now),
        }
        await self._patch(namespace, name, uid, {"conditions": [condition]}, "condition GangComplete")

    async def mark_failed(self, namespace: str, name: str, uid: str) -> None:
        """Say that a pod has failed, as the kubelet that would say so is dead; one that is gone by now needs it not.

        A Job with a ``podFailurePolicy``, or with ``podReplacementPolicy: Failed``, keeps a deleted pod by a finalizer
        and makes no other until somebody says so. The pod garbage collector of Kubernetes does the same.
        """
        await self._patch(namespace, name, uid, {"phase": "Failed"}, "phase Failed")

    async def _patch(self, namespace: str, name: str, uid: str, status: dict[str, Any], what: str) -> None:
        body = _encode({"metadata": {"uid": uid}, "status": status})
        path = f"{PODS.path(namespace, name)}/status"

        async def send() -> None:
            await self._client.request(
                "PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH, timeout=TIMEOUT_SECONDS
            )

        async with self._slots.slot(namespace):
            try:
                await retried(send, seconds=RETRY_SECONDS, longest=5.0)
            except (NotFound, Conflict):
                logger.debug("pod %s/%s is another one by now: no %s", namespace, name, what)
            except KubeError as error:
                logger.warning("pod %s/%s does not get its %s: %s", namespace, name, what, error)
