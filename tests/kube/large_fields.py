"""Objects of which one field is large, for each field that the definition of a type has."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.inspect import (
    AnyType,
    BoolType,
    DictType,
    FloatType,
    IntType,
    ListType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

SIZE_BYTES: Final = 200_000
"""Approximate size of the large field as JSON."""
NAMESPACE: Final = "hostile"
Make = Callable[[int], Any]
"""Returns the value with a number: values with different numbers have no large part in common."""

_MARK: Final = "@"
_VALID: Final[Mapping[str, Any]] = {
    "operator": "In",
    "topology_key": "kubernetes.io/hostname",
    "when_unsatisfiable": "DoNotSchedule",
    "restart_policy": "Always",
}
"""Values of small fields beside the large one; of others any value is valid, or nothing but the field is lost."""


def large_fields(type_: type) -> Iterator[tuple[str, Make]]:
    """Yield the path of each string, list and map of a type, and what makes an object where it is large."""
    info = type_info(type_)
    assert isinstance(info, StructType)
    return _of_struct(info, "", {})


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the fields of two; where both have one that is no object, that of the second."""
    both = {
        name: merged(base[name], over[name])
        for name in base.keys() & over.keys()
        if isinstance(base[name], dict) and isinstance(over[name], dict)
    }
    return {**base, **over, **both}


def text(number: int) -> str:
    """Return a large string."""
    return f"{NAMESPACE}/{number}-{'x' * SIZE_BYTES}"


def _of_struct(info: StructType, path: str, beside: Mapping[str, Any]) -> Iterator[tuple[str, Make]]:
    for field in info.fields:
        for name, make in _of(field.type, f"{path}.{field.encode_name}" if path else field.encode_name):
            yield name, partial(_object, beside, field.encode_name, make)


def _of(info: Type, path: str) -> Iterator[tuple[str, Make]]:
    match info:
        case StrType():
            yield path, text
        case UnionType():
            for part in info.types:
                yield from _of(part, path)
        case AnyType():
            yield path, text
            yield f"{path}[*]", partial(_list, info)
        case DictType():
            yield f"{path}{{*}}", partial(_map, info.value_type)
            for name, make in _of(info.value_type, f"{path}{{}}"):
                yield name, partial(_object, {}, "example.com/a", make)
        case ListType() | VarTupleType():
            item, parts = info.item_type, _of(info.item_type, f"{path}[]")
            yield f"{path}[*]", partial(_list, item)
            if isinstance(item, StructType):
                parts = _of_struct(item, f"{path}[]", _small(item, "0-0"))
            for name, make in parts:
                yield name, partial(_item, make)
        case StructType():
            yield from _of_struct(info, path, {})


def _object(beside: Mapping[str, Any], name: str, make: Make, number: int) -> dict[str, Any]:
    return {**beside, name: make(number)}


def _item(make: Make, number: int) -> list[Any]:
    return [make(number)]


def _list(item: Type, number: int) -> msgspec.Raw:
    """Return a list of many items."""
    return msgspec.Raw(f"[{','.join(_many(_json(item), number))}]".encode())


def _map(value: Type, number: int) -> msgspec.Raw:
    """Return a map of many entries."""
    entries = _many(f'"a/{_MARK}":{_json(value)}', number)
    return msgspec.Raw(f"{{{','.join(entries)}}}".encode())


def _many(template: str, number: int) -> Iterator[str]:
    for index in range(SIZE_BYTES // (8 + len(template))):
        yield template.replace(_MARK, f"{number}-{index}")


def _json(info: Type) -> str:
    return msgspec.json.encode(_small(info, _MARK)).decode()


def _small(info: Type, name: str) -> Any:
    """Return a small value; its strings contain ``name``."""
    match info:
        case StrType() | AnyType():
            return name
        case BoolType():
            return True
        case IntType() | FloatType():
            return 1
        case UnionType():
            parts = [part for part in info.types if not isinstance(part, NoneType)]
            # A quantity may be a number or text.
            return _small(next((part for part in parts if isinstance(part, IntType)), parts[0]), name)
        case ListType() | VarTupleType():
            return [name] if isinstance(info.item_type, StrType) else []
        case StructType():
            return {field.encode_name: _VALID.get(field.name) or _small(field.type, name) for field in info.fields}
    return {}
