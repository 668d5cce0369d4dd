"""Where two lists of instructions first differ, in words."""

from collections.abc import Sequence
from typing import Any

import msgspec

Out = Sequence[tuple[str, msgspec.Raw]]


def first_difference(recorded: Out, replayed: Out) -> tuple[str, str, str, str] | None:
    """Return workload or object, path of the field, recorded and replayed value; None where they are equal."""
    for at in range(max(len(recorded), len(replayed))):
        if at >= len(recorded) or at >= len(replayed):
            extra, values = (replayed, recorded) if at >= len(recorded) else (recorded, replayed)
            kind, fields = extra[at][0], msgspec.json.decode(extra[at][1])
            told = f"{kind} {_short(fields)}"
            pair = ("nothing", told) if values is recorded else (told, "nothing")
            return subject(fields), f"instruction {at + 1}", *pair
        (kind, raw), (other_kind, other_raw) = recorded[at], replayed[at]
        if kind != other_kind:
            whole, others = msgspec.json.decode(raw), msgspec.json.decode(other_raw)
            where = f"instruction {at + 1}"
            return subject(whole), where, f"{kind} {_short(whole)}", f"{other_kind} {_short(others)}"
        if bytes(raw) != bytes(other_raw):
            whole, others = msgspec.json.decode(raw), msgspec.json.decode(other_raw)
            path, one, other = _inside(whole, others, kind)
            return subject(whole), path, _short(one), _short(other)
    return None


def subject(fields: Any) -> str:
    """Return whom an instruction is about."""
    if not isinstance(fields, dict):
        return ""
    inner = fields.get("decision") or fields.get("pod") or fields.get("bind", {}).get("pod") or fields
    name = inner.get("name", "")
    return f"{inner['namespace']}/{name}" if inner.get("namespace") else str(name)


def _inside(one: Any, other: Any, path: str) -> tuple[str, Any, Any]:
    """Return the path of the first value that differs, and both values. Equal but for their order differ as a whole."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one:
            if name not in other:
                return f"{path}.{name}", one[name], "nothing"
            if one[name] != other[name]:
                return _inside(one[name], other[name], f"{path}.{name}")
        if fresh := next((name for name in other if name not in one), None):
            return f"{path}.{fresh}", "nothing", other[fresh]
    if isinstance(one, list) and isinstance(other, list):
        for at, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                return _inside(left, right, f"{path}[{at}]")
    return path, one, other


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 400 else f"{text[:400]} …"
