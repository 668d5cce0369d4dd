"""Dispatch requests to handlers by verb. The server itself handles watches, which are streams."""

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
    """Return the response to a request other than a watch."""
    verb = _VERBS.get(call.info.verb)
    if verb is None:
        raise method_not_allowed(call.info.verb, call.info.resource)
    return verb(call)
