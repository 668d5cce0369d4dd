"""Write the volume of a claim: on the volume, or as the node for which the provisioner creates one.

Each write carries the resourceVersion that the decision used, so it can never undo another client's change. The
server refuses it instead, and the scheduler decides again. Repeating a write is harmless: an object that already has
the value counts as written.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import msgspec

from topo_scheduler.api.storage import PersistentVolume, PersistentVolumeClaim
from topo_scheduler.kube.connection.client import MERGE_PATCH, Client, decode
from topo_scheduler.kube.connection.errors import (
    Altered,
    Conflict,
    Forbidden,
    KubeError,
    lacks_rights,
)
from topo_scheduler.kube.connection.errors import passes as _passes
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.resources import CLAIMS, VOLUMES
from topo_scheduler.kube.connection.retrying import Slot, or_until_granted, retried
from topo_scheduler.kube.writing.ordered_writes import OrderedWriteResult, failure_of, message_of, write_in_order
from topo_scheduler.state.storage.claim_annotations import SELECTED_NODE
from topo_scheduler.state.storage.storage_objects import BOUND_BY_CONTROLLER, ReserveVolume, SelectNode, VolumeWrite

VOLUME_WRITES_IN_FLIGHT = 16
VOLUME_WRITES_OF_NAMESPACE = 6
"""Concurrent writes, in all and for the pods of one namespace, as webhooks may not answer."""
RETRY_SECONDS = 20.0
"""How long, in seconds, writes are retried while the server is busy or unreachable."""
TIMEOUT_SECONDS = 10.0
MAX_VOLUME_BYTES = 8 * 1024 * 1024
"""Maximum size of a claim or volume as JSON: etcd stores 1.5 MiB, and JSON may take several times as much."""

_encode = msgspec.json.Encoder().encode
_volume = msgspec.json.Decoder(PersistentVolume)
_claim = msgspec.json.Decoder(PersistentVolumeClaim)


class VolumeWriter:
    """Writes volumes and claims; never raises for server failures."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = FairSlots(VOLUME_WRITES_IN_FLIGHT, VOLUME_WRITES_OF_NAMESPACE)

    async def write(self, writes: Sequence[VolumeWrite]) -> OrderedWriteResult[VolumeWrite, str]:
        """Write in order, up to the first that fails; return the new resourceVersions."""

        def send(write: VolumeWrite) -> Awaitable[str]:
            return self._settle(write, partial(self._slots.slot, write.claim[0]))

        return await write_in_order(writes, send, _describe, lambda write: write.claim, (KubeError,))

    async def _settle(self, write: VolumeWrite, slot: Slot) -> str:
        """Write once; return the resulting resourceVersion."""

        async def send() -> str:
            try:
                return await self._patch(write)
            except Conflict:
                outcome = await self._look(write)
                if outcome is None:
                    raise
                return outcome

        return await retried(send, seconds=RETRY_SECONDS, longest=5.0, passing=or_until_granted(_passes), slot=slot)

    async def _patch(self, write: VolumeWrite) -> str:
        path, body = _request(write)
        answer = await self._client.request(
            "PATCH", path, body=_encode(body), content_type=MERGE_PATCH, timeout=TIMEOUT_SECONDS
        )
        version = _version_with(write, answer)
        if version is None:
            raise Altered
        return version

    async def _look(self, write: VolumeWrite) -> str | None:
        """Return the object's resourceVersion if it already has the value to write: an earlier attempt wrote it."""
        path, _ = _request(write)
        answer = await self._client.request("GET", path, timeout=TIMEOUT_SECONDS, most_bytes=MAX_VOLUME_BYTES)
        return _version_with(write, answer)


def _version_with(write: VolumeWrite, answer: bytes) -> str | None:
    """Return the resourceVersion of an object that has the value to write; None if it has another value or none."""
    if isinstance(write, ReserveVolume):
        volume = decode(_volume, answer)
        reference = volume.spec.claim_ref
        same = reference is not None and reference.uid == write.claim_uid
        return volume.metadata.resource_version if same else None
    claim = decode(_claim, answer)
    same = claim.metadata.uid == write.uid and claim.metadata.annotations.get(SELECTED_NODE) == write.node
    return claim.metadata.resource_version if same else None


def _request(write: VolumeWrite) -> tuple[str, dict[str, Any]]:
    """Return the path and the merge patch of a write."""
    if isinstance(write, SelectNode):
        metadata = {"uid": write.uid, "resourceVersion": write.version, "annotations": {SELECTED_NODE: write.node}}
        return CLAIMS.path(*write.claim), {"metadata": metadata}
    namespace, name = write.claim
    reference = {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "namespace": namespace,
        "name": name,
        "uid": write.claim_uid,
        "resourceVersion": write.claim_version,
    }
    metadata = {"uid": write.uid, "resourceVersion": write.version}
    marks = {"annotations": {BOUND_BY_CONTROLLER: "yes"}} if write.marked else {}
    return VOLUMES.path("", write.volume), {"metadata": {**metadata, **marks}, "spec": {"claimRef": reference}}


def _describe(write: VolumeWrite, error: Exception) -> str:
    described = (
        f'pv "{write.volume}"' if isinstance(write, ReserveVolume) else f'persistentvolumeclaim "{write.claim[1]}"'
    )
    if isinstance(error, Forbidden) and lacks_rights(error):
        kind = VOLUMES if isinstance(write, ReserveVolume) else CLAIMS
        return f"{described} can't be written: {message_of(error)} (grant patch on {kind.described})"
    return failure_of(described, error)
