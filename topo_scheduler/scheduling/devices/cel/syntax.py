"""The syntax tree of an expression. The checker writes the type of each node into it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from .types import ERROR, Type
from .values import Value


@dataclass(slots=True, kw_only=True)
class NodeBase:
    """What all nodes have: the position in the expression and, once checked, the type."""

    position: int
    type: Type = field(default=ERROR, repr=False)


@dataclass(slots=True, kw_only=True)
class Literal(NodeBase):
    """A constant of a primitive type, or null."""

    value: Value


@dataclass(slots=True, kw_only=True)
class Identifier(NodeBase):
    """A variable or the name of a type. Dotted names of types are selections until they are checked."""

    name: str


@dataclass(slots=True, kw_only=True)
class Select(NodeBase):
    """``operand.name``; with ``test`` it is ``has(operand.name)``, with ``optional`` ``operand.?name``."""

    operand: "Node"
    name: str
    test: bool = False
    optional: bool = False


@dataclass(slots=True, kw_only=True)
class CallExpression(NodeBase):
    """A function, an operator (``_+_``) or, with a target, a method. ``_&&_`` and ``_||_`` take two or more."""

    function: str
    target: "Node | None"
    arguments: "list[Node]"
    overloads: list[str] = field(default_factory=list, repr=False)


@dataclass(slots=True, kw_only=True)
class ListLiteral(NodeBase):
    """``[a, ?b]``."""

    elements: "list[Node]"
    optional: list[bool]


@dataclass(slots=True, kw_only=True)
class MapLiteral(NodeBase):
    """``{a: b, ?c: d}``."""

    entries: "list[tuple[Node, Node]]"
    optional: list[bool]


@dataclass(slots=True, kw_only=True)
class BindExpression(NodeBase):
    """``cel.bind(name, value, body)``."""

    name: str
    value: "Node"
    body: "Node"


@dataclass(slots=True, kw_only=True)
class Comprehension(NodeBase):
    """One of the macros over a list or the keys of a map; with two names, over indices or keys and values."""

    macro: str
    operand: "Node"
    names: tuple[str, ...]
    predicate: "Node | None"
    transform: "Node | None"


Node: TypeAlias = (
    Literal | Identifier | Select | CallExpression | ListLiteral | MapLiteral | BindExpression | Comprehension
)


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes directly below one."""
    match node:
        case Select():
            yield node.operand
        case CallExpression():
            if node.target is not None:
                yield node.target
            yield from node.arguments
        case ListLiteral():
            yield from node.elements
        case MapLiteral():
            for key, value in node.entries:
                yield key
                yield value
        case BindExpression():
            yield node.value
            yield node.body
        case Comprehension():
            yield node.operand
            if node.predicate is not None:
                yield node.predicate
            if node.transform is not None:
                yield node.transform
        case _:
            pass


def walk(root: Node) -> Iterator[Node]:
    """Yield a node and all below it."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(children(node))
