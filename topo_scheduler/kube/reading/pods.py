"""Reads single pods from the API server.

Tenants decide how large a pod is. So a caller holds a slot for each attempt, and an answer has a limit in bytes.
"""

from typing import Final

import msgspec

from topo_scheduler.api.objects import ObjectMeta, PartialObject, Pod
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import NotFound, TooLarge
from topo_scheduler.kube.connection.resources import MAX_POD_BYTES, POD_METADATA, PODS, Resource
from topo_scheduler.kube.connection.retrying import Slot, retried
from topo_scheduler.kube.reading.slimming import slim_item, slim_reference

READ_SECONDS: Final = 10.0
"""Maximum time of one read with its retries."""
_pod: Final = msgspec.json.Decoder(Pod)
_metadata: Final = msgspec.json.Decoder(PartialObject)


async def read_pod(client: Client, namespace: str, name: str, uid: str, slot: Slot) -> Pod | None:
    """Return a pod; None if it is gone, or another one has its name.

    The caller uses the pod before it awaits anything else. So only one pod is in memory at a time, however many are
    being read.

    Raises:
        KubeError: the API server does not give it out within `READ_SECONDS`, or it has more than `MAX_POD_BYTES`.
    """
    answer = await _read(client, PODS, namespace, name, slot)
    if answer is None:
        return None
    pod = decode(_pod, answer)
    slim_item(pod)
    return pod if pod.metadata.uid == uid else None


async def read_controller(client: Client, namespace: str, name: str, slot: Slot) -> ObjectMeta | None:
    """Return the identity of the pod that has a name, with its controller only; None if there is no such pod.

    Raises:
        KubeError: as `read_pod`.
    """
    answer = await _read(client, POD_METADATA, namespace, name, slot)
    return None if answer is None else identity_of(decode(_metadata, answer).metadata)


def identity_of(metadata: ObjectMeta) -> ObjectMeta:
    """Return name, namespace, uid and controller of an object, without what tenants can make large."""
    controller = metadata.controller
    references = [] if controller is None else [controller]
    identity = ObjectMeta(
        name=metadata.name, namespace=metadata.namespace, uid=metadata.uid, owner_references=references
    )
    slim_reference(identity)
    return identity


async def _read(
    client: Client, resource: Resource[Pod] | Resource[PartialObject], namespace: str, name: str, slot: Slot
) -> bytes | None:
    try:
        path = resource.path(namespace, name)
    except ValueError:
        return None  # a status that another client wrote: no pod has such a name

    async def get() -> bytes:
        accept = resource.accept(listing=False)
        return await client.read(path, name, accept=accept, timeout=READ_SECONDS, most_bytes=MAX_POD_BYTES)

    try:
        return await retried(get, seconds=READ_SECONDS, longest=2.0, slot=slot)
    except NotFound:
        return None
    except TooLarge as error:
        raise TooLarge(f"it has more than {MAX_POD_BYTES:,} bytes as JSON; create it with fewer") from error
