"""The first difference between two lists of instructions, as text."""

from collections.abc import Sequence
from typing import Any

import msgspec

from topo_scheduler.api.printable import printable_json

Out = Sequence[tuple[str, msgspec.Raw]]


def first_difference(recorded: Out, replayed: Out) -> tuple[str, str, str, str] | None:
    """Return workload or object, path of the field, recorded and replayed value. None where the lists are equal."""
    for index in range(max(len(recorded), len(replayed))):
        if index >= len(recorded) or index >= len(replayed):
            extra, values = (replayed, recorded) if index >= len(recorded) else (recorded, replayed)
            kind, fields = extra[index][0], msgspec.json.decode(extra[index][1])
            extra_text = f"{kind} {_short(fields)}"
            values_text = ("nothing", extra_text) if values is recorded else (extra_text, "nothing")
            return subject(fields), f"instruction {index + 1}", *values_text
        (kind, raw), (other_kind, other_raw) = recorded[index], replayed[index]
        # A record has escape codes for invisible characters; those of earlier versions have none.
        if kind == other_kind and bytes(raw) in (bytes(other_raw), printable_json(bytes(other_raw))):
            continue
        fields, other_fields = msgspec.json.decode(raw), msgspec.json.decode(other_raw)
        if kind != other_kind:
            values_text = (f"{kind} {_short(fields)}", f"{other_kind} {_short(other_fields)}")
            return subject(fields), f"instruction {index + 1}", *values_text
        path, recorded_value, replayed_value = _inside(fields, other_fields, kind)
        return subject(fields), path, _short(recorded_value), _short(replayed_value)
    return None


def subject(fields: Any) -> str:
    """Return the namespace and name of the object of an instruction."""
    for name in ("decision", "bind", "pod"):
        if isinstance(fields, dict):
            fields = fields.get(name) or fields
    if not isinstance(fields, dict):
        return ""  # the record was changed
    name = fields.get("name", "")
    return f"{fields['namespace']}/{name}" if fields.get("namespace") else str(name)


def _inside(recorded: Any, replayed: Any, path: str) -> tuple[str, Any, Any]:
    """Return the path of the first value that differs, and both values. If only the order differs, return the whole."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for name in recorded:
            if name not in replayed:
                return f"{path}.{name}", recorded[name], "nothing"
            if recorded[name] != replayed[name]:
                return _inside(recorded[name], replayed[name], f"{path}.{name}")
        if added := next((name for name in replayed if name not in recorded), None):
            return f"{path}.{added}", "nothing", replayed[added]
    if isinstance(recorded, list) and isinstance(replayed, list):
        for index, (recorded_item, replayed_item) in enumerate(zip(recorded, replayed, strict=False)):
            if recorded_item != replayed_item:
                return _inside(recorded_item, replayed_item, f"{path}[{index}]")
    return path, recorded, replayed


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 400 else f"{text[:400]} …"
