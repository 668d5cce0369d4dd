"""Ask the API server again, right before pods are evicted for others, whether those others are still wanted.

What is known of owners may be seconds old, and a watch may be late. A pod that is bound for an owner that was just
deleted only goes with it; a pod that is evicted for it is lost. So nothing is evicted for pods of which an owner or the
namespace was deleted, does not answer, or was never seen.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from math import inf
from typing import Final

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.client import Client
from topo_scheduler.kube.decoding import Codec
from topo_scheduler.kube.errors import KubeError, NotFound, retried
from topo_scheduler.kube.owner_chains import described
from topo_scheduler.kube.owners import OwnerDirectory
from topo_scheduler.kube.resources import NAMESPACES
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.state.workloads import Stage

CONFIRMED_SECONDS: Final = 1.0
"""Age up to which an answer about an owner counts: many pods are evicted for one gang."""
ANSWER_SECONDS: Final = 5.0
"""Longest wait for the answers about all owners of a workload."""
MOST_CONTROLLERS: Final = 32
"""Controllers of one gang of which the owners are asked for; the others are known from watches and refreshes."""

MOST_NAMESPACES: Final = 1_000
"""Answers about namespaces that are kept for `CONFIRMED_SECONDS`; then all are forgotten."""

log = logging.getLogger(__name__)

Confirm = Callable[[PodRef], Awaitable[str]]
"""Returns why no pod may be evicted for the workload of a pending pod, or an empty string."""


class NamespaceDirectory:
    """Asks whether namespaces exist and are not being deleted."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._codec = Codec(NAMESPACES)
        self._confirmed: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[str]] = {}

    async def why_not(self, name: str) -> str:
        """Return why nothing may be evicted for pods of a namespace, or an empty string.

        Many that ask at once share one request, which ends with its own timeout.

        Raises:
            KubeError: The API server refused to answer.
        """
        if self._clock() - self._confirmed.get(name, -inf) <= CONFIRMED_SECONDS:
            return ""
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.create_task(self._ask(name), name=f"namespace {name}")
            asking.add_done_callback(partial(self._answered, name))
        return await asyncio.shield(asking)

    def _answered(self, name: str, asking: asyncio.Task[str]) -> None:
        self._asking.pop(name, None)
        if not asking.cancelled():
            asking.exception()  # those who asked may have given up by now

    async def _ask(self, name: str) -> str:
        asked = self._clock()
        try:
            found = await retried(lambda: self._get(name), attempts=3, longest=ANSWER_SECONDS)
        except NotFound:
            return f"namespace {name} was deleted"
        if found is not None:
            return f"namespace {name} is being deleted"
        if len(self._confirmed) >= MOST_NAMESPACES:
            self._confirmed.clear()
        self._confirmed[name] = asked
        return ""

    async def _get(self, name: str) -> str | None:
        accept = NAMESPACES.accept(listing=False)
        body = await self._client.request("GET", NAMESPACES.path("", name), accept=accept, timeout=ANSWER_SECONDS)
        return self._codec.one(body).metadata.deletion_timestamp


class OwnerConfirmation:
    """Asks about owners and namespaces of pending pods."""

    def __init__(self, engine: Engine, owners: OwnerDirectory, namespaces: NamespaceDirectory) -> None:
        self._engine = engine
        self._owners = owners
        self._namespaces = namespaces

    async def of_pending(self, pod: PodRef) -> str:
        """Return why no pod may be evicted for the workload of a pending pod, or an empty string."""
        found = self._engine.workloads.of_pod(pod.uid)
        if found is None:
            return ""  # its claim has ended with it
        members = (self._engine.arrivals.pending(member.uid) for member in found[0].at(Stage.PENDING))
        owners = self.of(member.metadata for member in members if member is not None)
        return next(filter(None, await asyncio.gather(owners, self._of_namespace(pod.namespace))), "")

    async def _of_namespace(self, name: str) -> str:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                why = await self._namespaces.why_not(name)
        except (TimeoutError, KubeError) as error:
            log.warning("namespace %s is not confirmed: %r", name, error)
            return f"the API server did not answer within {ANSWER_SECONDS:g} s whether namespace {name} exists"
        if why:
            self._engine.arrivals.leaving.namespace_applied(name, deleting=True)
        return why

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
