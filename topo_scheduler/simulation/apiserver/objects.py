"""The shape of API objects and the small questions every other module asks of them.

Objects are plain dicts as JSON has them. One rule holds everywhere in this package: **an object that was stored
is never changed again**. Writers build a new dict and may share unchanged parts with the old one, so a version
that was read stays what it was, and comparing versions is mostly comparing identities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]
Clock = Callable[[], datetime]

_NOTHING: Mapping[str, Any] = {}


class Key(NamedTuple):
    """An object's place among its kind; the order of keys is the order of lists."""

    namespace: str
    name: str

    @property
    def address(self) -> tuple[str, str]:
        """Name and namespace, in the order in which calls take them."""
        return self.name, self.namespace

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def utc_now() -> datetime:
    """The wall clock; a simulation passes a clock of its own."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Seconds precision, as ``metav1.Time`` is written."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Read either precision of the API's timestamps."""
    return datetime.fromisoformat(text)


def meta(obj: Mapping[str, Any]) -> Json:
    """The object's metadata, empty where there is none."""
    return obj.get("metadata") or {}


def spec(obj: Mapping[str, Any]) -> Json:
    """The object's spec, empty where there is none."""
    return obj.get("spec") or {}


def status(obj: Mapping[str, Any]) -> Json:
    """The object's status, empty where there is none."""
    return obj.get("status") or {}


def key_of(obj: Mapping[str, Any]) -> Key:
    """The key an object names for itself."""
    metadata = meta(obj)
    return Key(metadata.get("namespace") or "", metadata.get("name") or "")


def dig(obj: Any, path: Iterable[str]) -> Any:
    """The value at ``path``, or None as soon as a step is missing."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def changed(obj: Json, part: str, **fields: Any) -> Json:
    """A copy of ``obj`` in which ``fields`` of its ``part`` are set; None takes a field away."""
    merged = {**(obj.get(part) or _NOTHING), **fields}
    return {**obj, part: {name: value for name, value in merged.items() if value is not None}}


def with_condition(conditions: list[Json] | None, new: Json, moment: datetime) -> list[Json]:
    """``conditions`` with ``new`` in the place of its type; the transition time moves only when the status does."""
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


def condition(obj: Mapping[str, Any], kind: str) -> Json | None:
    """The condition of that type in the object's status."""
    return next((c for c in status(obj).get("conditions") or [] if c.get("type") == kind), None)


def is_deleting(obj: Mapping[str, Any]) -> bool:
    """Whether deletion was asked for, though the object may stay for a while."""
    return "deletionTimestamp" in meta(obj)


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has come to its end and holds nothing any more."""
    return status(pod).get("phase") in ("Succeeded", "Failed")


def controller_of(obj: Mapping[str, Any]) -> Json | None:
    """The owner reference that manages the object."""
    return next((ref for ref in meta(obj).get("ownerReferences") or [] if ref.get("controller")), None)
