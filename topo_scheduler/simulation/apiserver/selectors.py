"""Label and field selectors: parsed once, then matched against each object.

Label selectors support equality, sets and existence. Field selectors support equality only, on fields that the kind
lists. Any other field is a bad request, as on a real server; it never silently matches everything.
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
    """Parse a label selector of a query string."""
    return tuple(_parse_clause(clause.strip()) for clause in _CLAUSES.split(text)) if text.strip() else ()


def _parse_clause(clause: str) -> LabelClause:
    if match := _SET.match(clause):
        values = frozenset(value.strip() for value in match["values"].split(","))
        requirement = LabelClause(match["key"], "in" if match["op"] == "in" else "notin", values)
    elif match := _EQUALITY.match(clause):
        requirement = LabelClause(match["key"], "notin" if match["op"] == "!=" else "in", frozenset([match["value"]]))
    elif match := _EXISTS.match(clause):
        requirement = LabelClause(match["key"], "!" if match["op"] else "exists")
    else:
        raise bad_request(f"unable to parse requirement: {clause!r}")
    if not _KEY.match(requirement.key):
        raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{requirement.key}"')
    return requirement


def from_label_selector(selector: Mapping[str, Any] | None) -> tuple[LabelClause, ...] | None:
    """Return the clauses of a selector in an object; None, which matches nothing, if the object has none."""
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
    """Return a selector of an object in the syntax of a query string."""
    signs = {"exists": "", "!": "!"}
    return ",".join(
        f"{signs[clause.operator]}{clause.key}"
        if clause.operator in signs
        else f"{clause.key} {clause.operator} ({','.join(sorted(clause.values))})"
        for clause in from_label_selector(selector) or ()
    )


def matches_labels(requirements: Sequence[LabelClause] | None, labels: Mapping[str, str] | None) -> bool:
    """Whether all clauses match. A missing key satisfies ``notin``, as on a real server."""
    if requirements is None:
        return False
    labels = labels or {}
    for key, operator, values in requirements:
        present = key in labels
        if operator == "in":
            satisfied = present and labels[key] in values
        elif operator == "notin":
            satisfied = not present or labels[key] not in values
        else:
            satisfied = present == (operator == "exists")
        if not satisfied:
            return False
    return True


def parse_fields(text: str, kind: ApiKind) -> tuple[FieldRequirement, ...]:
    """Parse a field selector of a query string."""
    requirements = []
    for clause in filter(None, (text_part.strip() for text_part in text.split(","))):
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
    """Whether all clauses match; a missing field has the zero value of its type."""
    return all((field_text(obj, path) == value) == equal for path, value, equal in requirements)


def field_text(obj: Json, path: Path) -> str:
    """Return the value of a field as text for selectors."""
    value = dig(obj, path)
    if value is None:
        return _ABSENT.get(path, "")
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a kind that a request selects."""

    namespace: str = ""
    labels: tuple[LabelClause, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    def includes(self, key: Key, obj: Json) -> bool:
        """Whether one version of an object is selected."""
        if self.namespace and key.namespace != self.namespace:
            return False
        if self.fields and not matches_fields(self.fields, obj):
            return False
        return not self.labels or matches_labels(self.labels, obj["metadata"].get("labels"))

    @property
    def everything(self) -> bool:
        """Whether there are neither label nor field clauses."""
        return not self.labels and not self.fields


EVERYTHING = Selection()


def select(kind: ApiKind, namespace: str = "", labels: str = "", fields: str = "") -> Selection:
    """Parse the selectors of a query."""
    return Selection(namespace, parse_labels(labels), parse_fields(fields, kind))
