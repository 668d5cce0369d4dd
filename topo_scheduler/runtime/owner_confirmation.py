"""Confirms with the API server, right before a preemption, that the preempting pods and their owners still exist.

The scheduler's view of owners may be seconds old, and a watch may be late. Binding a pod of a just deleted owner does
little harm, but an evicted pod is lost. So the scheduler evicts no pod if a preempting pod was deleted. The same holds
if an owner or the namespace was deleted, can't be read or was never seen. No answer also means no eviction.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from math import inf
from typing import Final

from topo_scheduler.api.objects import ObjectMeta, PartialObject
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Forbidden, KubeError, NotFound, remedy
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.resources import MAX_POD_BYTES, NAMESPACES, POD_METADATA, Resource
from topo_scheduler.kube.connection.retrying import or_until_granted, retried
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.kube.reading.owner_chains import Unconfirmed
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef, reference
from topo_scheduler.state.pods.workloads import Stage

CONFIRMED_SECONDS: Final = 1.0
"""Maximum age of an answer about an owner. One answer serves many evictions for one gang."""
ANSWER_SECONDS: Final = 5.0
"""Maximum wait for the answers about all owners of a workload."""
REPEATED_SECONDS: Final = ANSWER_SECONDS - 0.5
"""Seconds for which such requests are repeated, so that the last refusal is reported and not a missing answer."""
MAX_CONTROLLERS: Final = 32
"""Maximum controllers of one gang whose owners are confirmed. The others are known from watches and refreshes."""

MAX_PODS: Final = 8
"""Maximum pending pods of one gang that are confirmed, because the watch of pods may be late, too."""

CONCURRENT_READS: Final = 16
"""Concurrent requests for pods or for namespaces, three quarters of them at most for one namespace."""

MAX_CACHED_ANSWERS: Final = 1_000
"""Maximum cached answers about namespaces, and about pods. Beyond it, the cache is cleared."""

_Named = tuple[str, str, str]
"""Namespace, name and uid of an object."""

log = logging.getLogger(__name__)

Confirm = Callable[[PodRef], Awaitable[str]]
"""Returns why no pod may be evicted for the workload of a pending pod, or an empty string."""


class Existence:
    """Confirms that objects of one kind exist and are not being deleted. Reads the metadata of each."""

    def __init__(self, client: Client, resource: Resource[PartialObject], clock: Callable[[], float]) -> None:
        self._client = client
        self._resource = resource
        self._clock = clock
        self._codec = Codec(resource)
        # It lends none: what a slow answer holds takes memory too.
        self._slots = FairSlots(CONCURRENT_READS, None, lendable=0)
        self._confirmed: dict[_Named, float] = {}
        self._asking: dict[_Named, asyncio.Task[str]] = {}

    async def refusal(self, namespace: str, name: str, uid: str = "") -> str:
        """Return why no pod may be evicted for an object or for what it contains, or an empty string.

        Concurrent callers share one request, which ends with its own timeout.

        Args:
            namespace: namespace of the object; empty for a cluster-scoped kind.
            name: name of the object.
            uid: uid of the object; empty if any object of that name counts.

        Raises:
            KubeError: the API server refused to answer.
        """
        key = (namespace, name, uid)
        if self._clock() - self._confirmed.get(key, -inf) <= CONFIRMED_SECONDS:
            return ""
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key), name=f"{self._resource.kind} {name}")
            asking.add_done_callback(partial(self._answered, key))
        return await asyncio.shield(asking)

    def _answered(self, key: _Named, asking: asyncio.Task[str]) -> None:
        self._asking.pop(key, None)
        if not asking.cancelled():
            asking.exception()  # retrieve it: all callers may have timed out by now

    async def _ask(self, key: _Named) -> str:
        requested_at, (namespace, name, uid) = self._clock(), key
        described = f"{self._resource.kind.lower()} {namespace + '/' if namespace else ''}{name}"
        try:
            slot = partial(self._slots.slot, namespace or name)
            answer = await retried(
                lambda: self._get(namespace, name),
                seconds=REPEATED_SECONDS,
                longest=1.0,
                passing=or_until_granted(),
                slot=slot,
            )
        except NotFound:
            return f"{described} was deleted"
        if uid and answer.uid != uid:
            return f"{described} was deleted, and another of this name was created"
        if answer.deletion_timestamp is not None:
            return f"{described} is being deleted"
        if len(self._confirmed) >= MAX_CACHED_ANSWERS:
            self._confirmed.clear()
        self._confirmed[key] = requested_at
        return ""

    async def _get(self, namespace: str, name: str) -> ObjectMeta:
        accept, path = self._resource.accept(listing=False), self._resource.path(namespace, name)
        body = await self._client.read(path, name, accept=accept, timeout=ANSWER_SECONDS, most_bytes=MAX_POD_BYTES)
        return self._codec.one(body).metadata


class OwnerConfirmation:
    """Confirms pending pods, their owners and their namespaces."""

    def __init__(
        self, engine: Engine, owners: OwnerDirectory, client: Client, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._owners = owners
        self._namespaces = Existence(client, NAMESPACES, clock)
        self._pods = Existence(client, POD_METADATA, clock)

    async def of_pending(self, pod: PodRef) -> str:
        """Return why no pod may be evicted for the workload of a pending pod, or an empty string."""
        membership = self._engine.workloads.of_pod(pod.uid)
        if membership is None:
            return f"pod {pod.namespace}/{pod.name} was deleted"
        members = membership[0].at(Stage.PENDING)
        known = (self._engine.arrivals.pending(member.uid) for member in members)
        owners = self.of(member.metadata for member in known if member is not None)
        confirmed = [pod, *(reference(member) for member in members if member.uid != pod.uid)][:MAX_PODS]
        pods = [
            self._answer(self._pods, "pod", pod_reference.namespace, pod_reference.name, pod_reference.uid)
            for pod_reference in confirmed
        ]
        return next(filter(None, await asyncio.gather(owners, self._of_namespace(pod.namespace), *pods)), "")

    async def _of_namespace(self, name: str) -> str:
        # An answer about one namespace says nothing about a later one of the same name.
        uid = self._engine.arrivals.leaving.namespace_uid(name)
        why = await self._answer(self._namespaces, "namespace", "", name, uid)
        if why.startswith(f"namespace {name} "):
            self._engine.namespace_leaves(name, uid)
        return why

    async def _answer(self, existing: Existence, kind: str, namespace: str, name: str, uid: str = "") -> str:
        """Return why no pod may be evicted for an object, or an empty string. A missing answer is a reason, too."""
        described = f"{kind} {namespace + '/' if namespace else ''}{name}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await existing.refusal(namespace, name, uid)
        except Forbidden as error:
            reason = f"the scheduler may not read {described}: {error.message}{remedy(error)}"
            log.warning("%s", reason, extra={"namespace": namespace})
            return reason
        except (TimeoutError, KubeError) as error:
            reason = f"the API server did not answer within {ANSWER_SECONDS:g} s whether {described} exists"
            cause = f": {error}" if isinstance(error, KubeError) else ""
            log.warning("%s%s", reason, cause, extra={"namespace": namespace})
            return reason

    async def of(self, pods: Iterable[ObjectMeta]) -> str:
        """Return why no pod may be evicted for any of these pods, or an empty string. Asks once per controller."""
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
        checked = list(controllers.values())[:MAX_CONTROLLERS]
        return next(filter(None, await asyncio.gather(*map(self._ask, checked))), "")

    async def _ask(self, pod: ObjectMeta) -> str:
        chain = await self._owners.confirm(pod, age=CONFIRMED_SECONDS, within=ANSWER_SECONDS)
        if isinstance(chain, Unconfirmed):
            return chain.reason
        return chain.gone or chain.doubt
