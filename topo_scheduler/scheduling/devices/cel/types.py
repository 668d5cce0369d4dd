"""CEL's static types and their unification, as cel-go's checker does it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .errors import ExpressionNotUnderstoodError

_MAX_SIZE: Final = 200
"""Maximum parts of a type, so that none grows without bound."""
_MAX_STEPS: Final = 500_000
"""Maximum steps of unification for one expression."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type. ``kind`` is the name, except for ``parameter`` (a type variable), ``object`` and ``optional_type``."""

    kind: str
    name: str = ""
    parameters: tuple["Type", ...] = ()
    size: int = field(default=1, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.parameters:
            size = 1 + sum(parameter.size for parameter in self.parameters)
            if size > _MAX_SIZE:
                raise ExpressionNotUnderstoodError("the types in the expression are too complex: simplify it")
            object.__setattr__(self, "size", size)

    def __str__(self) -> str:
        inner = f"({', '.join(map(str, self.parameters))})" if self.parameters else ""
        return (self.name or self.kind) + inner


DYNAMIC: Final = Type("dyn")
ANY: Final = Type("any", "google.protobuf.Any")
ERROR: Final = Type("error")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
NULL: Final = Type("null_type")
DURATION: Final = Type("duration", "google.protobuf.Duration")
TIMESTAMP: Final = Type("timestamp", "google.protobuf.Timestamp")
QUANTITY: Final = Type("object", "kubernetes.Quantity")
VERSION: Final = Type("object", "kubernetes.Semver")
DEVICE: Final = Type("object", "kubernetes.DRADevice")

_PRIMITIVES: Final = {
    str(kind): kind for kind in (DYNAMIC, ANY, BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL, DURATION, TIMESTAMP)
}
_NULLABLE: Final = frozenset({"optional_type", "object", "any", "duration", "timestamp"})
_STRUCTURED: Final = frozenset({"list", "map", "optional_type"})
_TYPE_TEXT: Final = re.compile(r"<(\w+)>|([\w.]+)|([(),])")


def list_of(element: Type) -> Type:
    """Return the type of a list."""
    return Type("list", parameters=(element,))


def map_of(key: Type, value: Type) -> Type:
    """Return the type of a map."""
    return Type("map", parameters=(key, value))


def optional_of(value: Type) -> Type:
    """Return the type of an optional."""
    return Type("optional_type", parameters=(value,))


def type_of(instance: Type) -> Type:
    """Return the type of a type."""
    return Type("type", parameters=(instance,))


def parse_types(text: str) -> list[Type]:
    """Return the types of a list such as ``map(<A>, <B>), string``."""
    tokens = iter([*_TYPE_TEXT.finditer(text)])
    return _type_list(tokens)


def _type_list(tokens: Iterator[re.Match[str]]) -> list[Type]:
    types: list[Type] = []
    for token in tokens:
        if token[3] == ")":
            break
        if token[3] == "(":
            types[-1] = Type(types[-1].name, parameters=tuple(_type_list(tokens)))
        elif token[1]:
            types.append(Type("parameter", token[1]))
        elif token[2]:
            structured = token[2] in (*_STRUCTURED, "type")
            types.append(_PRIMITIVES.get(token[2]) or Type(token[2] if structured else "object", token[2]))
    return types


def is_dynamic(kind: Type) -> bool:
    """Return whether a value's type is known only at run time."""
    return kind.kind in ("dyn", "any")


class Substitutions:
    """What the type variables of an expression stand for."""

    def __init__(self) -> None:
        self._bound: dict[Type, Type] = {}
        self._undo: list[tuple[Type, Type | None]] = []
        self._variables = 0
        self._steps = 0

    def variable(self) -> Type:
        """Return a new type variable."""
        self._variables += 1
        return Type("parameter", f"_var{self._variables}")

    def assignable(self, pairs: Sequence[tuple[Type, Type]]) -> bool:
        """Return whether each first type is assignable to the second; if so, what this binds stays bound."""
        self._undo.clear()
        if all(self._assignable(first, second) for first, second in pairs):
            return True
        for key, old in reversed(self._undo):
            if old is None:
                del self._bound[key]
            else:
                self._bound[key] = old
        return False

    def apply(self, kind: Type, unbound: Type | None = None) -> Type:
        """Return a type with its variables replaced; those without a value by ``unbound``."""
        while kind.kind == "parameter" and kind in self._bound:
            kind = self._bound[kind]
        if kind.kind == "parameter":
            return kind if unbound is None else unbound
        if not kind.parameters:
            return kind
        return Type(kind.kind, kind.name, tuple(self.apply(inner, unbound) for inner in kind.parameters))

    def _bind(self, variable: Type, value: Type) -> None:
        self._undo.append((variable, self._bound.get(variable)))
        self._bound[variable] = value

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise ExpressionNotUnderstoodError("the types in the expression are too complex: simplify it")

    def _assignable(self, first: Type, second: Type) -> bool:
        self._count()
        if second.kind == "parameter":
            valid, bound = self._valid(first, second)
            if valid:
                return True
            if bound:
                return False
        if first.kind == "parameter":
            return self._valid(second, first)[0]
        if first.kind in ("dyn", "any", "error") or second.kind in ("dyn", "any", "error"):
            return True
        if first.kind == "null_type" or second.kind == "null_type":
            return first == second or (second if first.kind == "null_type" else first).kind in _NULLABLE
        if first.kind == "type":
            return second.kind == "type"
        if first.kind in _STRUCTURED:
            return (
                first.kind == second.kind
                and len(first.parameters) == len(second.parameters)
                and all(map(self._assignable, first.parameters, second.parameters))
            )
        return first == second

    def _valid(self, value: Type, variable: Type) -> tuple[bool, bool]:
        """Return whether a variable can stand for a type, and whether it already stood for one."""
        if value == variable:
            return True, True
        bound = self._bound.get(variable)
        if bound is not None:
            if value == bound:
                return True, True
            if not self._assignable(value, bound):
                return False, True
            general = most_general(value, bound)
            if self._free_of(variable, general):
                self._bind(variable, general)
            return True, True
        if not self._free_of(variable, value):
            return False, False
        self._bind(variable, value)
        return True, False

    def _free_of(self, variable: Type, within: Type) -> bool:
        self._count()
        if variable == within:
            return False
        if within.kind == "parameter":
            bound = self._bound.get(within)
            return bound is None or self._free_of(variable, bound)
        return all(self._free_of(variable, inner) for inner in within.parameters)


def most_general(first: Type, second: Type) -> Type:
    """Return the less specific one of two types that unify."""
    return first if _less_specific(first, second) else second


def _less_specific(first: Type, second: Type) -> bool:
    if is_dynamic(first) or first.kind == "parameter":
        return True
    if is_dynamic(second) or second.kind == "parameter" or first.kind != second.kind:
        return False
    if first.kind in _STRUCTURED:
        return all(map(_less_specific, first.parameters, second.parameters))
    return first.kind == "type" or first == second


def instantiate(kind: Type, variables: Mapping[str, Type]) -> Type:
    """Return a declared type with its parameters replaced."""
    if kind.kind == "parameter":
        return variables[kind.name]
    if not kind.parameters:
        return kind
    return Type(kind.kind, kind.name, tuple(instantiate(inner, variables) for inner in kind.parameters))


def parameter_names(kind: Type) -> set[str]:
    """Return the names of the type parameters within a type."""
    if kind.kind == "parameter":
        return {kind.name}
    return set().union(*map(parameter_names, kind.parameters))
