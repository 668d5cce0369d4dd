"""Read one owner of any kind from the API server.

"Does not exist" is an answer only if the server gave it. It is one of: 404 that names the object, another uid under
the name, a kind that is not served, or 403, which is also logged. Every other failure is no answer and raises, for
example 503 of an aggregated API, or 404 of a load balancer without a backend.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import msgspec

from topo_scheduler.api.objects import OwnerReference, PartialObject
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import (
    Forbidden,
    Misanswered,
    NotFound,
    TooLarge,
    Undecodable,
    is_missing,
    lacks_rights,
    passes,
)
from topo_scheduler.kube.connection.resources import Object, Resource
from topo_scheduler.kube.connection.retrying import RIGHTS_SECONDS, Slot, retried
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.kube.reading.discovery import Discovery
from topo_scheduler.kube.reading.halting import halted, with_spec
from topo_scheduler.kube.reading.owner_chains import Absent, ChainLink, described, group_kind, owner_of

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
ATTEMPTS = 4
MAX_ANSWER_BYTES = 2 * 1024 * 1024
"""Maximum size of an owner, or of its metadata, as JSON in bytes: etcd stores 1.5 MiB."""

MAX_REPORTED_KINDS = 1_024
"""Most kinds for which the reader logs the missing permission, and for which it retries a refusal."""


class OwnerReader:
    """Reads owners by one GET each.

    ``kinds`` are known without discovery. ``annotations`` are read beside our own.
    """

    def __init__(
        self,
        client: Client,
        kinds: Sequence[Resource[Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
        annotations: Collection[str] = (),
    ) -> None:
        self._annotations = annotations
        self._client = client
        self._clock = clock
        self._discovery = Discovery(client, clock=clock)
        self._kinds = {(kind.group, kind.kind): kind for kind in kinds}
        self._codecs: dict[Resource[Any], Codec[Any]] = {}
        self._reported: set[str] = set()
        self._refused_at: dict[str, float] = {}
        """When RBAC first refused a kind that was not read since."""
        self._refused: dict[tuple[str, str], str] = {}
        """Those kinds as messages show them, by group and kind."""

    def knows(self, reference: OwnerReference) -> bool:
        """Return whether a reference points to one of the kinds that are known without discovery."""
        return group_kind(reference) in self._kinds

    def refusal(self, reference: OwnerReference) -> str:
        """Return why an owner can't be read if RBAC refused the last read of its kind; otherwise an empty string."""
        kind = self._refused.get(group_kind(reference))
        return f"{described(reference)} cannot be read: grant the verb get on {kind}" if kind is not None else ""

    async def read(
        self,
        namespace: str,
        reference: OwnerReference,
        *,
        attempts: int = ATTEMPTS,
        halts: bool = False,
        slot: Slot = nullcontext,
    ) -> ChainLink | Absent:
        """Return the owner that a reference from this namespace leads to, or why there is none.

        With ``halts`` the reader also checks whether the owner is scaled to 0 or suspended. Each attempt at the GET
        holds a ``slot``, and so does the discovery of a kind. An answer from the cache needs none.

        Raises:
            KubeError: no answer after ``attempts`` attempts.
        """
        resource: Resource[Any] | None = self._kinds.get(group_kind(reference))
        try:
            resource = resource or await self._find(reference, slot)
            if resource is None:
                return _unserved(reference)
            if halts:
                resource = with_spec(resource) or resource
            if resource.namespaced and not namespace:
                return Absent(f"{described(reference)} is in a namespace, its dependent is not")
            return await self._allowed(resource, namespace, reference, attempts, slot)
        except NotFound as error:
            return await self._not_found(reference, error, slot)
        except Forbidden as error:
            return self._forbidden(reference, resource, error)
        except ValueError as error:  # the reference does not name anything
            return Absent(f"{described(reference)}: {error}")

    async def _find(self, reference: OwnerReference, slot: Slot) -> Resource[PartialObject] | None:
        """Return the resource of a kind, or None if it is not served."""
        api_version, kind = reference.api_version, reference.kind
        # The slot comes before the locks of discovery, which the owners of all namespaces share.
        async with nullcontext() if self._discovery.knows(api_version, kind) else slot():
            return await self._discovery.find(api_version, kind)

    async def _not_found(self, reference: OwnerReference, error: NotFound, slot: Slot) -> Absent:
        """Distinguish a missing object from a kind that is no longer served: only the former's 404 names the object.

        Raises:
            KubeError: the kind is served, so that the 404 was no answer of the API server.
        """
        if not is_missing(error, reference.name):
            if not self.knows(reference):
                self._discovery.forget(reference.api_version)
                if await self._find(reference, slot) is None:
                    return _unserved(reference)
            raise Misanswered(f"{error} (this answer does not name {described(reference)})") from error
        return Absent(f"{described(reference)} does not exist", gone=True)

    async def _allowed(
        self, resource: Resource[Any], namespace: str, reference: OwnerReference, attempts: int, slot: Slot
    ) -> ChainLink | Absent:
        """Get the owner; retries the first refusal by RBAC of a kind for a while before accepting it."""
        owner = await retried(
            lambda: self._get(resource, namespace, reference, attempts, slot),
            seconds=RIGHTS_SECONDS,
            longest=2.0,
            passing=lambda error: lacks_rights(error) and self._may_be_granted(reference, resource.described),
        )
        self._refused_at.pop(resource.described, None)
        self._refused.pop(group_kind(reference), None)
        return owner

    def _may_be_granted(self, reference: OwnerReference, kind: str) -> bool:
        """Return whether a refusal by RBAC of a kind may pass: it is not accepted yet, and the first was just now."""
        if kind in self._reported or (kind not in self._refused_at and len(self._refused_at) >= MAX_REPORTED_KINDS):
            return False
        self._refused[group_kind(reference)] = kind
        return self._clock() - self._refused_at.setdefault(kind, self._clock()) < RIGHTS_SECONDS

    async def _get(
        self, resource: Resource[Any], namespace: str, reference: OwnerReference, attempts: int, slot: Slot
    ) -> ChainLink | Absent:
        path = resource.path(namespace, reference.name)
        codec = self._codecs.setdefault(resource, Codec(resource))

        async def get() -> Object | NotFound:
            accept = resource.accept(listing=False)
            try:
                answer = await self._client.request(
                    "GET", path, accept=accept, timeout=TIMEOUT_SECONDS, most_bytes=MAX_ANSWER_BYTES
                )
            except NotFound as error:
                if is_missing(error, reference.name):
                    return error  # no failure of the attempt: the API server answered
                raise
            owner: Object = codec.one(answer)
            return owner

        try:
            owner = await retried(get, attempts=attempts, longest=5.0, passing=_passes, slot=slot)
        except Undecodable as error:
            if not isinstance(error.__cause__, msgspec.ValidationError):
                raise
            where = {"namespace": namespace}
            logger.error("%s in namespace %s is left out: %s", described(reference), namespace, error, extra=where)
            return Absent(f"{described(reference)} does not decode: {error}")
        except TooLarge:
            reason = f"{described(reference)} has more than {MAX_ANSWER_BYTES:,} bytes as JSON; create it with fewer"
            logger.warning("%s/%s", namespace, reason, extra={"namespace": namespace})
            return Absent(reason, forbidden=True)
        if isinstance(owner, NotFound):
            raise owner
        if owner.metadata.uid != reference.uid:
            return Absent(f"{described(reference)} was deleted, and another of this name was created", gone=True)
        return replace(owner_of(resource, owner, self._annotations), halted=halted(resource, owner))

    def _forbidden(self, reference: OwnerReference, resource: Resource[Any] | None, error: Forbidden) -> Absent:
        kind = resource.described if resource else reference.api_version
        reason = f"{described(reference)} cannot be read: grant the verb get on {kind} ({error.message})"
        if kind not in self._reported and len(self._reported) < MAX_REPORTED_KINDS:
            self._reported.add(kind)
            logger.warning("%s; its annotations are not seen", reason)
        return Absent(reason, forbidden=True)


def _unserved(reference: OwnerReference) -> Absent:
    return Absent(f"{described(reference)}: {reference.api_version} has no such kind", unserved=True)


def _passes(error: BaseException) -> bool:
    return passes(error) or isinstance(error, Undecodable)
