"""Remove pods by the Eviction API, which respects disruption budgets.

An eviction carries the pod's uid, so it cannot hit a later pod of the same name. Repeating one is harmless: evicting
a pod that is already terminating has no effect. A 404 or 409 proves nothing, as a webhook or a load balancer may answer
so for a running pod: the evictor then reads the pod.
"""

import enum
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from topo_scheduler.api.objects import PartialObject
from topo_scheduler.api.printable import printable
from topo_scheduler.api.text import clipped
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import (
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    TooManyRequests,
    Withdrawn,
    lacks_dry_run,
    passes,
    remedy,
)
from topo_scheduler.kube.connection.resources import MAX_POD_BYTES, POD_METADATA, PODS
from topo_scheduler.kube.connection.retrying import Slot, or_until_granted, retried

RETRY_SECONDS = 30.0
TIMEOUT_SECONDS = 10.0
MAX_MESSAGE_CHARACTERS = 1_024

_encode = msgspec.json.Encoder().encode
_metadata = msgspec.json.Decoder(PartialObject)


class EvictionStatus(enum.Enum):
    """How an eviction ended."""

    EVICTED = "evicted"
    """The pod is being deleted."""
    BLOCKED = "blocked"
    """A disruption budget does not allow it now."""
    GONE = "gone"
    """The pod no longer exists, or is being deleted anyway."""
    WITHDRAWN = "withdrawn"
    """Not sent: the caller no longer wants the eviction."""
    FAILED = "failed"
    """Refused, or not answered in time; the message says which."""


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """The outcome, and the server's message."""

    outcome: EvictionStatus
    message: str = ""


class Evictor:
    """Evicts pods; never raises for server failures."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def evict(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        grace: int | None = None,
        dry_run: bool = False,
        recheck: Callable[[], str] | None = None,
        slot: Slot = nullcontext,
    ) -> EvictionResult:
        """Evict the pod with this uid, with ``grace`` seconds instead of its own grace period if given.

        Retries for half a minute if the server is busy or unreachable, and for `RIGHTS_SECONDS` if RBAC refuses. A
        disruption budget causes no retry, since the caller may prefer another pod. The evictor calls ``recheck`` right
        before the bytes of each attempt leave. It returns why the pod must stay after all, or an empty string. Each
        attempt holds a ``slot``; what that raises passes through, except errors of requests. With ``dry_run`` nothing
        is written: ``EVICTED`` then means that the pod would be evicted, or that a webhook does not support dry runs.
        """
        path = PODS.path(namespace, name, "eviction")
        query = {"dryRun": "All"} if dry_run else None
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if dry_run:
            options["dryRun"] = ["All"]
        body = _encode(
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": options,
            }
        )

        async def send() -> None:
            try:
                await self._client.request(
                    "POST", path, body=body, query=query, timeout=TIMEOUT_SECONDS, recheck=recheck
                )
            except (Conflict, NotFound):
                if why := await self._why_gone(namespace, name, uid, forced=grace is not None):
                    raise _PodGone(why) from None
                raise

        try:
            await retried(send, seconds=RETRY_SECONDS, longest=5.0, passing=or_until_granted(_passes), slot=slot)
        except _PodGone as error:
            return EvictionResult(EvictionStatus.GONE, str(error))
        except TooManyRequests as error:
            if not (causes := _budget_causes(error)):
                return EvictionResult(EvictionStatus.FAILED, error.message)
            named = [printable(cause["message"]) for cause in causes if isinstance(cause.get("message"), str)]
            text = ". ".join(part.rstrip(".") for part in [error.message, *named] if part)
            return EvictionResult(EvictionStatus.BLOCKED, clipped(text, MAX_MESSAGE_CHARACTERS))
        except Withdrawn as error:
            return EvictionResult(EvictionStatus.WITHDRAWN, str(error))
        except KubeError as error:
            if dry_run and lacks_dry_run(error):
                return EvictionResult(EvictionStatus.EVICTED)
            message = error.message if isinstance(error, ApiError) else str(error)
            return EvictionResult(EvictionStatus.FAILED, f"{message}{remedy(error)}")
        return EvictionResult(EvictionStatus.EVICTED)

    async def is_there(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether the API server answers and reports that the pod exists and is not being deleted."""
        try:
            return not await self._why_gone(namespace, name, uid, forced=False)
        except KubeError:
            return False

    async def _why_gone(self, namespace: str, name: str, uid: str, *, forced: bool) -> str:
        """Return why the pod needs no eviction any more, or an empty string.

        A ``forced`` eviction shortens the grace period of a pod that is being deleted.

        Raises:
            KubeError: the pod cannot be read.
        """
        try:
            answer = await self._client.read(
                POD_METADATA.path(namespace, name),
                name,
                accept=POD_METADATA.accept(listing=False),
                timeout=TIMEOUT_SECONDS,
                most_bytes=MAX_POD_BYTES,
            )
        except NotFound as error:
            return error.message
        metadata = decode(_metadata, answer).metadata
        if metadata.uid != uid:
            return "the name belongs to another pod now"
        return "the pod is being deleted" if metadata.deletion_timestamp and not forced else ""


class _PodGone(KubeError):
    """The pod is not there any more; the message says why."""


def _budget_causes(error: ApiError) -> list[dict[str, Any]]:
    """Return the causes of a refusal that are disruption budgets; the message of each names one, with its numbers."""
    causes = error.details.get("causes") or []
    return [cause for cause in causes if isinstance(cause, dict) and cause.get("reason") == "DisruptionBudget"]


def _passes(error: BaseException) -> bool:
    if isinstance(error, TooManyRequests):
        return not _budget_causes(error)
    return passes(error) or isinstance(error, Conflict)
