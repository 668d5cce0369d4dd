"""The structure of API objects, and helper functions on them.

Objects are plain dicts as in JSON. One rule holds everywhere in this package: **stored objects are immutable**. Writers
build a new dict and may share unchanged parts with the old one. So a version that was read stays valid, and comparing
versions mostly compares identities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]
Clock = Callable[[], datetime]

_NOTHING: Mapping[str, Any] = {}


class Key(NamedTuple):
    """Namespace and name of an object; lists are sorted by key."""

    namespace: str
    name: str

    @property
    def address(self) -> tuple[str, str]:
        """Name and namespace, in the order of function parameters."""
        return self.name, self.namespace

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def utc_now() -> datetime:
    """Return the time of the wall clock; simulations use a clock of their own."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Return a timestamp in seconds, in the format of ``metav1.Time``."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Parse a timestamp of the API, with seconds or microseconds."""
    return datetime.fromisoformat(text)


def meta(obj: Mapping[str, Any]) -> Json:
    """Return the metadata of an object, empty if missing."""
    return obj.get("metadata") or {}


def spec(obj: Mapping[str, Any]) -> Json:
    """Return the spec of an object, empty if missing."""
    return obj.get("spec") or {}


def status(obj: Mapping[str, Any]) -> Json:
    """Return the status of an object, empty if missing."""
    return obj.get("status") or {}


def key_of(obj: Mapping[str, Any]) -> Key:
    """Return the key in the metadata of an object."""
    metadata = meta(obj)
    return Key(metadata.get("namespace") or "", metadata.get("name") or "")


def dig(obj: Any, path: Iterable[str]) -> Any:
    """Return the value at a path, or None if a part of the path is missing."""
    for name in path:
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def changed(obj: Json, section: str, **fields: Any) -> Json:
    """Return a copy of ``obj`` with ``fields`` set in a section such as ``spec``; None removes a field."""
    merged = {**(obj.get(section) or _NOTHING), **fields}
    return {**obj, section: {name: value for name, value in merged.items() if value is not None}}


def with_condition(conditions: list[Json] | None, new: Json, moment: datetime) -> list[Json]:
    """Return conditions with ``new`` replacing its type; the transition time changes only if the status does."""
    stamped = {**new, "lastTransitionTime": timestamp(moment)}
    result: list[Json] = []
    placed = False
    for old in conditions or []:
        if old.get("type") != new["type"]:
            result.append(old)
            continue
        placed = True
        if old.get("status") == new["status"] and "lastTransitionTime" in old:
            stamped["lastTransitionTime"] = old["lastTransitionTime"]
        result.append(stamped)
    return result if placed else [*result, stamped]


def condition(obj: Mapping[str, Any], condition_type: str) -> Json | None:
    """Return the condition of a type in the status of an object, or None."""
    return next((entry for entry in status(obj).get("conditions") or [] if entry.get("type") == condition_type), None)


def is_ready(obj: Mapping[str, Any]) -> bool:
    """Whether the Ready condition of a pod or a node is true."""
    return (condition(obj, "Ready") or {}).get("status") == "True"


def is_deleting(obj: Mapping[str, Any]) -> bool:
    """Whether deletion of an object was requested; it may exist for a while."""
    return "deletionTimestamp" in meta(obj)


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has succeeded or failed, and uses no resources any more."""
    return status(pod).get("phase") in ("Succeeded", "Failed")


def controller_of(obj: Mapping[str, Any]) -> Json | None:
    """Return the controller among the owner references of an object, or None."""
    return next((ref for ref in meta(obj).get("ownerReferences") or [] if ref.get("controller")), None)
