"""Attributes of requests, from method, path and query.

The attributes are those of ``k8s.io/apiserver/pkg/endpoints/request``. RBAC rules refer to them, so a log of
requests shows which permissions a client needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "GET": ("get", "list"),
    "HEAD": ("get", "list"),
    "POST": ("create", "create"),
    "PUT": ("update", "update"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("delete", "deletecollection"),
}
"""Verb by HTTP method, with a name in the path and without one."""
LONGEST_SECONDS: Final = 60.0
"""Longest duration of a request other than a watch."""
_OF_NAMESPACES: Final = frozenset({"status", "finalize"})
_TRUE: Final = frozenset({"1", "true", "t"})


def is_true(value: str | None) -> bool:
    """Return a boolean of a query, in any spelling that Go accepts."""
    return value is not None and value.lower() in _TRUE


_DURATION: Final = re.compile(r"(?:\d+(?:\.\d*)?(?:ms|s|m|h))+")
_UNITS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def deadline_seconds(query: Mapping[str, str]) -> float:
    """Return the ``timeout`` of a request in seconds, at most a minute; a later execution must not take effect.

    Raises:
        ValueError: the timeout is no duration.
    """
    text = query.get("timeout", "")
    if text and not _DURATION.fullmatch(text):
        raise ValueError(f'invalid timeout specified in the request URL - time: invalid duration "{text}"')
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h)", text))
    return min(seconds, LONGEST_SECONDS) if seconds else LONGEST_SECONDS


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """Attributes of a request. ``resource`` is empty for non-resource paths such as ``/version``."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    dry_run: bool = False

    @property
    def full_resource(self) -> str:
        """Resource and subresource in the notation of RBAC."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def read_request(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    """Return the attributes of a request."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    group_parts = {"api": 2, "apis": 3}.get(parts[0], 0)
    if not group_parts or len(parts) <= group_parts:
        return RequestInfo(method.lower(), path)
    group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
    namespace, resource_parts = "", parts[group_parts:]
    if resource_parts[0] == "namespaces" and len(resource_parts) > 1:
        namespace = resource_parts[1]
        if len(resource_parts) > 2 and resource_parts[2] not in _OF_NAMESPACES:
            resource_parts = resource_parts[2:]
    resource, name, subresource = (*resource_parts, "", "")[:3]
    verb = _VERBS.get(method, (method.lower(),) * 2)[0 if name else 1]
    if verb == "list" and is_true(query.get("watch")):
        verb = "watch"
    if not name and verb in ("list", "watch", "deletecollection"):
        name = _selected_name(query.get("fieldSelector", ""))
    return RequestInfo(verb, path, group, version, resource, subresource, namespace, name, bool(query.get("dryRun")))


def _selected_name(fields: str) -> str:
    """Return the name that a field selector demands; RBAC authorizes such a list by the name."""
    clauses = (clause.partition("=") for clause in fields.split(","))
    return next((value.lstrip("=") for label, _, value in clauses if label == "metadata.name"), "")
