"""Which parts of a device an expression reads: devices that agree in them get the same answer."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from .frames import Attribute, DeviceView
from .quantities import Quantity
from .syntax import BindExpression, CallExpression, Comprehension, Identifier, Literal, Node, Select, children

_MAPS: Final = frozenset({"attributes", "capacity"})


@dataclass(frozen=True, slots=True)
class Reads:
    """What an expression reads. Attributes and capacities are pairs of domain and name.

    Attributes:
        driver: the name of the driver.
        allow_multiple_allocations: whether claims may share the device.
        attributes: None stands for all.
        capacity: None stands for all.
    """

    driver: bool = False
    allow_multiple_allocations: bool = False
    attributes: frozenset[tuple[str, str]] | None = frozenset()
    capacity: frozenset[tuple[str, str]] | None = frozenset()

    @property
    def everything(self) -> bool:
        """Whether all attributes or all capacities are read."""
        return self.attributes is None or self.capacity is None

    def key(self, view: DeviceView) -> Hashable:
        """Return what is read of a device, as one hashable value that tells types apart."""
        return (
            view.driver if self.driver else None,
            view.allow_multiple_allocations if self.allow_multiple_allocations else None,
            _values(self.attributes, view.attributes),
            _values(self.capacity, view.capacity),
        )


def _values(
    names: frozenset[tuple[str, str]] | None,
    domains: Mapping[str, Mapping[str, Attribute]] | Mapping[str, Mapping[str, Quantity]],
) -> Hashable:
    if names is None:
        return tuple(
            (domain, name, type(value), _hashable(value))
            for domain, values in sorted(domains.items())
            for name, value in sorted(values.items(), key=lambda item: item[0])
        )
    triples = ((domain, name, domains.get(domain, {}).get(name)) for domain, name in sorted(names))
    return tuple((domain, name, type(value), _hashable(value)) for domain, name, value in triples)


def _hashable(value: object) -> Hashable:
    if isinstance(value, Quantity):
        return (value.value, value.scale, value.decimal)
    assert isinstance(value, Hashable)
    return value


_Path: TypeAlias = tuple[str, ...]


def reads_of(tree: Node) -> Reads:
    """Return what an expression reads, as far as constant names tell."""
    analysis = _Analysis()
    analysis.visit(tree, {})
    return analysis.reads()


class _Analysis:
    def __init__(self) -> None:
        self._fields: set[str] = set()
        self._names: dict[str, set[tuple[str, str]]] = {name: set() for name in _MAPS}
        self._all: set[str] = set()

    def reads(self) -> Reads:
        attributes, capacity = (
            None if name in self._all else frozenset(self._names[name]) for name in ("attributes", "capacity")
        )
        return Reads("driver" in self._fields, "allowMultipleAllocations" in self._fields, attributes, capacity)

    def visit(self, node: Node, bound: dict[str, _Path | None]) -> None:
        """Record what a node and those below it read; ``bound`` are the names that macros bind, with their path."""
        if isinstance(node, Select) and node.test:
            self._visit_member(node.operand, node.name, bound)
            return
        path = _path(node, bound)
        if path is not None:
            self._record(path)
            return
        match node:
            case CallExpression(function="@in") if isinstance(node.arguments[0], Literal):
                self._visit_member(node.arguments[1], node.arguments[0].value, bound)
            case BindExpression():
                value = _path(node.value, bound)
                if value is None:
                    self.visit(node.value, bound)
                self.visit(node.body, {**bound, node.name: value})
            case Comprehension():
                self.visit(node.operand, bound)
                inner: dict[str, _Path | None] = {**bound, **dict.fromkeys(node.names)}
                for below in (node.predicate, node.transform):
                    if below is not None:
                        self.visit(below, inner)
            case _:
                for below in children(node):
                    self.visit(below, bound)

    def _visit_member(self, operand: Node, name: object, bound: dict[str, _Path | None]) -> None:
        path = _path(operand, bound)
        if path is not None and len(path) >= 2 and isinstance(name, str):
            self._record((*path, name))
        else:
            self.visit(operand, bound)

    def _record(self, path: _Path) -> None:
        if not path:
            self._fields |= {"driver", "allowMultipleAllocations"}
            self._all |= _MAPS
        elif path[0] not in _MAPS:
            self._fields.add(path[0])
        elif len(path) < 3:
            self._all.add(path[0])
        else:
            self._names[path[0]].add((path[1], path[2]))


def _path(node: Node, bound: dict[str, _Path | None]) -> _Path | None:
    """Return the constant names that lead from ``device`` to a node, if that is all it is."""
    names: list[str] = []
    while True:
        if isinstance(node, Select) and not node.test:
            names.append(node.name)
            node = node.operand
        elif isinstance(node, CallExpression) and node.function in ("_[_]", "_[?_]"):
            operand, index = node.arguments
            if not isinstance(index, Literal) or not isinstance(index.value, str):
                return None
            names.append(index.value)
            node = operand
        elif isinstance(node, Identifier):
            start = bound.get(node.name, () if node.name == "device" else None)
            return None if start is None else (*start, *reversed(names))
        else:
            return None
