"""Label and field selectors: parsed once to data, then asked of every object that passes.

Labels know equality, sets and existence; fields know equality only, and only those a kind lists: any other field is
a bad request, as on a real server, never a selector that silently matches everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .errors import bad_request
from .kinds import ApiKind, Path
from .objects import Json, Key, dig

Operator = Literal["in", "notin", "exists", "!"]


class LabelClause(NamedTuple):
    """One clause of a label selector; equality is a set of one."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()


class FieldRequirement(NamedTuple):
    """One clause of a field selector."""

    path: Path
    value: str
    equal: bool = True


_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^\s=!]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!]*)$")
_EXISTS = re.compile(r"^(?P<op>!?)\s*(?P<key>[^\s=!(),]+)$")
_CLAUSES = re.compile(r",(?![^(]*\))")
_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_ABSENT: dict[Path, str] = {
    ("spec", "unschedulable"): "false",
    ("spec", "hostNetwork"): "false",
    ("status", "replicas"): "0",
    ("status", "succeeded"): "0",
}


def parse_labels(text: str) -> tuple[LabelClause, ...]:
    """A label selector as the query string has it."""
    return tuple(_parse_clause(clause.strip()) for clause in _CLAUSES.split(text)) if text.strip() else ()


def _parse_clause(clause: str) -> LabelClause:
    if found := _SET.match(clause):
        values = frozenset(value.strip() for value in found["values"].split(","))
        requirement = LabelClause(found["key"], "in" if found["op"] == "in" else "notin", values)
    elif found := _EQUALITY.match(clause):
        requirement = LabelClause(found["key"], "notin" if found["op"] == "!=" else "in", frozenset([found["value"]]))
    elif found := _EXISTS.match(clause):
        requirement = LabelClause(found["key"], "!" if found["op"] else "exists")
    else:
        raise bad_request(f"unable to parse requirement: {clause!r}")
    if not _KEY.match(requirement.key):
        raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{requirement.key}"')
    return requirement


def from_label_selector(selector: Mapping[str, Any] | None) -> tuple[LabelClause, ...] | None:
    """The selector inside an object; None, which matches nothing, where the object has none."""
    if selector is None:
        return None
    operators: dict[str, Operator] = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
    return (
        *(LabelClause(key, "in", frozenset([value])) for key, value in (selector.get("matchLabels") or {}).items()),
        *(
            LabelClause(clause["key"], operators[clause["operator"]], frozenset(clause.get("values") or ()))
            for clause in selector.get("matchExpressions") or ()
        ),
    )


def selector_text(selector: Mapping[str, Any] | None) -> str:
    """A selector of an object as a query would have it."""
    signs = {"exists": "", "!": "!"}
    return ",".join(
        f"{signs[r.operator]}{r.key}" if r.operator in signs else f"{r.key} {r.operator} ({','.join(sorted(r.values))})"
        for r in from_label_selector(selector) or ()
    )


def matches_labels(requirements: Sequence[LabelClause] | None, labels: Mapping[str, str] | None) -> bool:
    """Whether every clause holds. A key that is missing satisfies ``notin``, as it does on a real server."""
    if requirements is None:
        return False
    labels = labels or {}
    for key, operator, values in requirements:
        present = key in labels
        if operator == "in":
            holds = present and labels[key] in values
        elif operator == "notin":
            holds = not present or labels[key] not in values
        else:
            holds = present == (operator == "exists")
        if not holds:
            return False
    return True


def parse_fields(text: str, kind: ApiKind) -> tuple[FieldRequirement, ...]:
    """A field selector as the query string has it."""
    requirements = []
    for clause in filter(None, (part.strip() for part in text.split(","))):
        label, equals, value = clause.partition("=")
        if not equals:
            raise bad_request(f'invalid selector: "{text}"; can\'t understand "{clause}"')
        equal = not label.endswith("!")
        label = label.rstrip("!").strip()
        path = kind.field_path(label)
        if path is None:
            resource = f"{kind.api_version if kind.group else '/' + kind.version}, Resource={kind.plural}"
            raise bad_request(
                f'Unable to find "{resource}" that match label selector "", field selector "{text}": '
                f"field label not supported: {label}"
            )
        requirements.append(FieldRequirement(path, value.lstrip("=").strip(), equal))
    return tuple(requirements)


def matches_fields(requirements: Sequence[FieldRequirement], obj: Json) -> bool:
    """Whether every clause holds; a field that is missing has the zero value of its type."""
    return all((field_text(obj, path) == value) == equal for path, value, equal in requirements)


def field_text(obj: Json, path: Path) -> str:
    """A field's value as selectors write it."""
    value = dig(obj, path)
    if value is None:
        return _ABSENT.get(path, "")
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind a request means."""

    namespace: str = ""
    labels: tuple[LabelClause, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    def includes(self, key: Key, obj: Json) -> bool:
        """Whether an object, in one of its versions, is meant."""
        if self.namespace and key.namespace != self.namespace:
            return False
        if self.fields and not matches_fields(self.fields, obj):
            return False
        return not self.labels or matches_labels(self.labels, obj["metadata"].get("labels"))

    @property
    def everything(self) -> bool:
        """Whether neither labels nor fields narrow it."""
        return not self.labels and not self.fields

    @property
    def name(self) -> str:
        """The one name it asks for, as ``metadata.name=x`` does."""
        named = (clause.value for clause in self.fields if clause.path == ("metadata", "name") and clause.equal)
        return next(named, "")


EVERYTHING = Selection()


def select(kind: ApiKind, namespace: str = "", labels: str = "", fields: str = "") -> Selection:
    """Parse what a request's query says."""
    return Selection(namespace, parse_labels(labels), parse_fields(fields, kind))
