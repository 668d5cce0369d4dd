"""Why a workload has no pods, or fewer than its gang needs: by its own object, and by the events of its controller."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topo_scheduler.api.objects import Job, OwnerReference
from topo_scheduler.api.text import clipped
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import Forbidden, NotFound
from topo_scheduler.kube.connection.resources import OWNER_KINDS, segment
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.kube.reading.halting import halted, with_spec
from topo_scheduler.kube.reading.listing import TIMEOUT_SECONDS

Json = dict[str, Any]

MAX_CONTROLLERS: Final = 4
"""Maximum controllers of one gang whose events are read."""
MAX_MESSAGE_CHARACTERS: Final = 1_024
_KINDS: Final = {resource.kind.lower(): resource for resource in OWNER_KINDS}
_PLAIN_UID: Final = re.compile("[A-Za-z0-9._-]+")
_object: Final = msgspec.json.Decoder(dict[str, Any])


async def events_of(client: Client, namespace: str, uid: str, reason: str = "") -> list[Json]:
    """Return the events of an object, of one reason if given; none if they may not be read."""
    if _PLAIN_UID.fullmatch(uid) is None:  # a tenant chooses the uid of an owner, which must not change the selector
        return []
    path = f"/api/v1/namespaces/{segment(namespace)}/events"
    selector = f"involvedObject.uid={uid}" + (f",reason={reason}" if reason else "")
    try:
        answer = await client.request("GET", path, query={"fieldSelector": selector}, timeout=TIMEOUT_SECONDS)
    except Forbidden:
        return []
    items: list[Json] = decode(_object, answer)["items"]
    return items


async def failed_creation(client: Client, namespace: str, uid: str) -> str:
    """Return the newest message on a pod that a controller failed to create; empty without one."""
    events = await events_of(client, namespace, uid, "FailedCreate")
    message = str(max(events, key=_last_seen).get("message", "")) if events else ""
    return clipped(message, MAX_MESSAGE_CHARACTERS)


async def failed_creations(client: Client, namespace: str, controllers: Mapping[str, OwnerReference]) -> list[Json]:
    """Return the newest failure of each of some controllers, which are given by uid."""
    failures = []
    for uid, controller in list(controllers.items())[:MAX_CONTROLLERS]:
        if message := await failed_creation(client, namespace, uid):
            failures.append({"controller": f"{controller.kind} {controller.name}", "message": message})
    return failures


async def why_no_pods(client: Client, kind: str, namespace: str, name: str) -> str:
    """Return why a workload has no pods; empty if there is none of this name, or nothing says why.

    Args:
        client: the connection.
        kind: its kind in lower case.
        namespace: its namespace; empty if it is not known.
        name: its name.
    """
    from topo_scheduler.kube.reading.owner_chains import owner_of

    resource = _KINDS.get(kind)
    if resource is None or not namespace:
        return ""
    resource = with_spec(resource) or resource
    try:
        path = resource.path(namespace, name)
        accept = resource.accept(listing=False)
        item = Codec(resource).one(await client.request("GET", path, accept=accept, timeout=TIMEOUT_SECONDS))
    except (ValueError, NotFound, Forbidden):
        return ""
    stopped = owner_of(resource, item).stopped or halted(resource, item)
    if isinstance(item, Job) and item.spec.suspend:
        return f"{stopped}; set it to false, or wait until the queue that suspended the Job, such as Kueue, starts it"
    if stopped:
        return stopped
    message = await failed_creation(client, namespace, item.metadata.uid)
    return f"{resource.kind} {name} failed to create pods: {message}" if message else ""


def _last_seen(event: Json) -> str:
    series = event.get("series") or {}
    seen = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(seen or event.get("metadata", {}).get("creationTimestamp") or "")
