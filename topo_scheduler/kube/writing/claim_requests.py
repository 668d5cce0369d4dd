"""The requests that writes of claims consist of, with their limits, retries and time limits."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.kube.connection.client import MERGE_PATCH, Client, decode
from topo_scheduler.kube.connection.errors import ApiError
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.resources import RESOURCE_CLAIMS
from topo_scheduler.kube.connection.retrying import Slot, or_until_granted, retried
from topo_scheduler.kube.writing.protobuf_object import PROTOBUF, ProtobufError, with_finalizers
from topo_scheduler.state.devices.inventory import ClaimKey

CLAIM_WRITES_IN_FLIGHT: Final = 64
"""Concurrent writes. One namespace may have all but the reserve, as with binds, until writes of it hang."""
MAX_CHANGES: Final = 3
"""How often a claim may change while the scheduler writes it."""
RETRY_SECONDS: Final = 20.0
"""How long, in seconds, writes are retried while the server is busy or unreachable."""
TIMEOUT_SECONDS: Final = 10.0
UNPROCESSABLE: Final = 422
MAX_CLAIM_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a claim as JSON: etcd stores 1.5 MiB, and JSON may take several times as much."""

_encode = msgspec.json.Encoder().encode
_claim = msgspec.json.Decoder(ResourceClaim)
T = TypeVar("T")


class TakenError(Exception):
    """A claim has changed such that a write makes no sense any more. The message says how."""


class ClaimRequests:
    """Requests for claims. All but `settle` are sent once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._slots = FairSlots(CLAIM_WRITES_IN_FLIGHT, None)

    async def settle(self, key: ClaimKey, send: Callable[[], Awaitable[T]], slots: FairSlots | None = None) -> T:
        """Send a request until it has an answer. Without ``slots`` it is one of `CLAIM_WRITES_IN_FLIGHT`."""
        slot: Slot = partial((self._slots if slots is None else slots).slot, key[0])
        return await retried(send, seconds=RETRY_SECONDS, longest=5.0, passing=or_until_granted(), slot=slot)

    async def get(self, key: ClaimKey, uid: str = "") -> ResourceClaim:
        """Read a claim. Call it through `settle`, or within what that sends: each request holds a slot.

        Raises:
            TakenError: its uid is not the given one.
        """
        answer = await self.client.request(
            "GET", RESOURCE_CLAIMS.path(*key), timeout=TIMEOUT_SECONDS, most_bytes=MAX_CLAIM_BYTES
        )
        claim = decode(_claim, answer)
        if uid and claim.metadata.uid != uid:
            raise TakenError("it was deleted, and another one has its name")
        return claim

    async def post(self, namespace: str, manifest: object) -> ResourceClaim:
        """Make a claim."""
        path, body = RESOURCE_CLAIMS.collection(namespace), _encode(manifest)
        return decode(_claim, await self.client.request("POST", path, body=body, timeout=TIMEOUT_SECONDS))

    async def patch(
        self, key: ClaimKey, subresource: str, body: object, content_type: str = MERGE_PATCH
    ) -> ResourceClaim:
        """Patch a claim."""
        return decode(_claim, await self.patch_path(RESOURCE_CLAIMS.path(*key, subresource), body, content_type))

    async def patch_path(self, path: str, body: object, content_type: str) -> bytes:
        """Patch any object."""
        return await self.client.request(
            "PATCH", path, body=_encode(body), content_type=content_type, timeout=TIMEOUT_SECONDS
        )

    async def set_finalizers(self, key: ClaimKey, uid: str, version: str, finalizers: Sequence[str]) -> ResourceClaim:
        """Replace the finalizers of a claim."""
        metadata = {"uid": uid, "resourceVersion": version, "finalizers": finalizers}
        try:
            return await self.patch(key, "", {"metadata": metadata})  # a merge patch replaces the list
        except ApiError as error:
            if error.status != UNPROCESSABLE:
                raise
            # Opaque configuration that a client wrote with spaces does not survive a patch, which is refused then.
            path = RESOURCE_CLAIMS.path(*key)
            encoded = await self.client.request(
                "GET", path, accept=PROTOBUF, timeout=TIMEOUT_SECONDS, most_bytes=MAX_CLAIM_BYTES
            )
            try:
                body = with_finalizers(encoded, finalizers, version)
            except ProtobufError:
                raise error from None
        answer = await self.client.request("PUT", path, body=body, content_type=PROTOBUF, timeout=TIMEOUT_SECONDS)
        return decode(_claim, answer)

    async def delete(self, key: ClaimKey, uid: str) -> None:
        """Delete a claim with this uid."""
        body = _encode({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}})
        await self.client.request("DELETE", RESOURCE_CLAIMS.path(*key), body=body, timeout=TIMEOUT_SECONDS)
