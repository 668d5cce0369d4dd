"""Who answers which verb. Watches are not among them: they are streams, and the server's own business."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from . import reading, writing
from .call import Call, ServerResponse
from .errors import method_not_allowed

_VERBS: Final[Mapping[str, Callable[[Call], ServerResponse]]] = {
    "get": reading.get,
    "list": reading.list_objects,
    "create": writing.create,
    "update": writing.update,
    "patch": writing.patch,
    "delete": writing.delete,
    "deletecollection": writing.delete_collection,
}


def answer(call: Call) -> ServerResponse:
    """Answer anything but a watch."""
    verb = _VERBS.get(call.info.verb)
    if verb is None:
        raise method_not_allowed(call.info.verb, call.info.resource)
    return verb(call)
