"""Handover from an earlier leader: waits until its writes can no longer take effect, and keeps which APIs it saw.

An API of PodGroups may have been served once and be gone now. Pods that name such a PodGroup are gangs of unknown
size. So leaders record the APIs that were served in an annotation of the Lease, which only leaders write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Pod

log = logging.getLogger(__name__)

SERVED_APIS: Final = f"{PREFIX}served-pod-groups"
"""Annotation of the Lease: API groups whose PodGroups a leader has listed, separated by commas."""


class Handover:
    """The start of one term.

    Args:
        scheduler: the ``schedulerName`` whose pods show whether there was an earlier leader.
        quiet_seconds: seconds from now for which writes of an earlier leader may still take effect.
        may_be_first: whether there may never have been an earlier leader. Then this leader waits only if pods show
            traces of one.
        served: value of the annotation `SERVED_APIS` of the Lease.
        note: writes that annotation.
    """

    def __init__(
        self,
        scheduler: str,
        quiet_seconds: Callable[[], float] = lambda: 0.0,
        *,
        may_be_first: bool = False,
        served: str = "",
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._scheduler = scheduler
        self._quiet_seconds = quiet_seconds
        self._looks = may_be_first
        self._waits = not may_be_first
        words = served.split(",")
        self.served: Sequence[GroupApi] = tuple(api for api in GroupApi if str(api) in words)
        """APIs whose PodGroups this leader or an earlier one has listed."""
        self._note = note

    def pod_groups_listed(self, api: GroupApi) -> None:
        """Record for later leaders that an API of PodGroups is served."""
        if api not in self.served:
            self.served = (*self.served, api)
            self._note(",".join(sorted(map(str, self.served))))

    def pods_listed(self, pods: Iterable[Pod]) -> None:
        """Check pods for traces of an earlier leader.

        Only a scheduler writes a node, a nominated node, or the reason Unschedulable.
        """
        if self._looks and not self._waits:
            self._waits = any(pod.spec.scheduler_name == self._scheduler and _touched(pod) for pod in pods)

    async def settle(self, relist_pods: Callable[[], Awaitable[None]]) -> None:
        """Wait until writes of an earlier leader can no longer take effect, then list pods again."""
        self._looks = False
        seconds = self._quiet_seconds()
        if seconds > 0 and self._waits:
            log.info("waiting %.1f s: until then writes of an earlier leader may take effect", seconds)
            await asyncio.sleep(seconds)
            await relist_pods()


def _touched(pod: Pod) -> bool:
    explained = any(
        condition.type == "PodScheduled" and condition.reason == "Unschedulable" for condition in pod.status.conditions
    )
    return explained or bool(pod.spec.node_name or pod.status.nominated_node_name)
