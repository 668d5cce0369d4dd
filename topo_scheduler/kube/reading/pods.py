"""Reads single pods from the API server."""

from contextlib import nullcontext
from typing import Final

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import NotFound
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.connection.retrying import Slot, retried
from topo_scheduler.kube.reading.slimming import slim_item

READ_SECONDS: Final = 10.0
"""Maximum time of one read with its retries."""
_pod: Final = msgspec.json.Decoder(Pod)


async def read_pod(client: Client, namespace: str, name: str, uid: str, slot: Slot = nullcontext) -> Pod | None:
    """Return a pod; None if it is gone, or another one has its name.

    Raises:
        KubeError: the API server does not give it out within `READ_SECONDS`.
    """
    try:
        path = PODS.path(namespace, name)
    except ValueError:
        return None  # a status that another client wrote: no pod has such a name
    try:
        answer = await retried(
            lambda: client.read(path, name, timeout=READ_SECONDS), seconds=READ_SECONDS, longest=2.0, slot=slot
        )
    except NotFound:
        return None
    pod = decode(_pod, answer)
    slim_item(pod)
    return pod if pod.metadata.uid == uid else None
