"""Ask the API server again, right before pods are evicted for others, whether those others are still wanted.

What is known of owners may be seconds old, and a watch may be late. A pod that is bound for an owner that was just
deleted only goes with it; a pod that is evicted for it is lost. So nothing is evicted for pods of which an owner was
deleted, does not answer, or was never seen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.owner_chains import described
from topo_scheduler.kube.owners import OwnerDirectory
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.state.workloads import Stage

CONFIRMED_SECONDS: Final = 1.0
"""Age up to which an answer about an owner counts: many pods are evicted for one gang."""
ANSWER_SECONDS: Final = 5.0
"""Longest wait for the answers about all owners of a workload."""
MOST_CONTROLLERS: Final = 32
"""Controllers of one gang of which the owners are asked for; the others are known from watches and refreshes."""

Confirm = Callable[[PodRef], Awaitable[str]]
"""Returns why no pod may be evicted for the workload of a pending pod, or an empty string."""


class OwnerConfirmation:
    """Asks about owners of pending pods."""

    def __init__(self, engine: Engine, owners: OwnerDirectory) -> None:
        self._engine = engine
        self._owners = owners

    async def of_pending(self, pod: PodRef) -> str:
        """Return why no pod may be evicted for the workload of a pending pod, or an empty string."""
        found = self._engine.workloads.of_pod(pod.uid)
        if found is None:
            return ""  # its claim has ended with it
        members = (self._engine.arrivals.pending(member.uid) for member in found[0].at(Stage.PENDING))
        return await self.of(member.metadata for member in members if member is not None)

    async def of(self, pods: Iterable[ObjectMeta]) -> str:
        """Return why no pod may be evicted for any of these pods, or an empty string; one question a controller."""
        controllers = {
            (
                pod.namespace,
                pod.controller.api_version,
                pod.controller.kind,
                pod.controller.name,
                pod.controller.uid,
            ): pod
            for pod in pods
            if pod.controller is not None
        }
        some = list(controllers.values())[:MOST_CONTROLLERS]
        return next(filter(None, await asyncio.gather(*map(self._ask, some))), "")

    async def _ask(self, pod: ObjectMeta) -> str:
        chain = await self._owners.confirm(pod, age=CONFIRMED_SECONDS, within=ANSWER_SECONDS)
        if chain is None:
            assert pod.controller is not None
            owner = described(pod.controller)
            return f"the API server did not answer within {ANSWER_SECONDS:g} s whether {owner} and its owners exist"
        return chain.gone or (chain.broken if chain.unconfirmed else "")
