"""CEL's macros: has, cel.bind, optMap, optFlatMap and the comprehensions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from .errors import ExpressionNotUnderstoodError, InvalidExpressionError, located
from .syntax import (
    BindExpression,
    CallExpression,
    Comprehension,
    Identifier,
    ListLiteral,
    MapLiteral,
    Node,
    Select,
    children,
    walk,
)

_ONE_NAME: Final = {
    ("all", 2): "all",
    ("exists", 2): "exists",
    ("exists_one", 2): "exists_one",
    ("filter", 2): "filter",
    ("map", 2): "map",
    ("map", 3): "map",
}
_TWO_NAMES: Final = {
    ("all", 3): "all",
    ("exists", 3): "exists",
    ("exists_one", 3): "exists_one",
    ("existsOne", 3): "exists_one",
    ("transformList", 3): "map",
    ("transformList", 4): "map",
    ("transformMap", 3): "transform_map",
    ("transformMap", 4): "transform_map",
    ("transformMapEntry", 3): "transform_entry",
    ("transformMapEntry", 4): "transform_entry",
}
_UNSUPPORTED: Final = {("sortBy", 2)}
_PREDICATES: Final = frozenset({"all", "exists", "exists_one", "filter"})
_ACCUMULATORS: Final = frozenset({"__result__", "@result"})
_MAX_COPIED: Final = 500
_MAX_COPIED_DEPTH: Final = 48


def below(node: Node) -> Iterator[Node]:
    """Yield the nodes directly below one."""
    return children(node)


def dotted_name(node: Node) -> str | None:
    """Return ``a.b.c`` for such a chain of plain selections."""
    names: list[str] = []
    while isinstance(node, Select) and not node.test and not node.optional:
        names.append(node.name)
        node = node.operand
    return ".".join([node.name, *reversed(names)]) if isinstance(node, Identifier) else None


def expand_global(name: str, arguments: list[Node], position: int, expression: str) -> Node | None:
    """Return what ``has(a.b)`` stands for; None for a call that is no macro."""
    if name != "has" or len(arguments) != 1:
        return None
    argument = arguments[0]
    if not isinstance(argument, Select) or argument.test or argument.optional:
        raise InvalidExpressionError(located("has() takes a selection such as a.b", expression, position))
    return Select(position=position, operand=argument.operand, name=argument.name, test=True)


def expand_member(name: str, operand: Node, arguments: list[Node], position: int, expression: str) -> Node | None:
    """Return what a macro in the form of a method stands for; None for a call that is no macro."""
    kind = (name, len(arguments))
    if kind == ("bind", 3) and isinstance(operand, Identifier) and operand.name == "cel":
        variable = _variable(arguments[0], position, expression)
        return BindExpression(position=position, name=variable, value=arguments[1], body=arguments[2])
    if kind in (("optMap", 2), ("optFlatMap", 2)):
        return _optional_map(name, operand, arguments, position, expression)
    if kind in _UNSUPPORTED:
        raise ExpressionNotUnderstoodError(located(f"{name}() is not supported", expression, position))
    if kind in _ONE_NAME:
        return _comprehension(_ONE_NAME[kind], 1, operand, arguments, position, expression)
    if kind in _TWO_NAMES:
        return _comprehension(_TWO_NAMES[kind], 2, operand, arguments, position, expression)
    return None


def _variable(node: Node, position: int, expression: str) -> str:
    if isinstance(node, Identifier):
        return node.name
    raise InvalidExpressionError(located("a macro's variable must be a simple name", expression, position))


def _comprehension(
    macro: str, variables: int, operand: Node, arguments: list[Node], position: int, expression: str
) -> Node:
    names = tuple(_variable(argument, position, expression) for argument in arguments[:variables])
    if len(set(names)) < variables or _ACCUMULATORS & set(names):
        raise InvalidExpressionError(located("a macro's variables must have names of their own", expression, position))
    *rest, last = arguments[variables:]
    predicate, transform = (last, None) if macro in _PREDICATES else (rest[0] if rest else None, last)
    return Comprehension(
        position=position, macro=macro, operand=operand, names=names, predicate=predicate, transform=transform
    )


def _optional_map(name: str, operand: Node, arguments: list[Node], position: int, expression: str) -> Node:
    variable = _variable(arguments[0], position, expression)
    if sum(1 for _ in walk(operand)) > _MAX_COPIED:
        raise ExpressionNotUnderstoodError(
            located(f"{name}() evaluates its operand twice, and this one is too large", expression, position)
        )

    def call(function: str, target: Node | None, *values: Node) -> Node:
        return CallExpression(position=position, function=function, target=target, arguments=list(values))

    copied = _copy(operand, position, expression)
    mapped: Node = BindExpression(position=position, name=variable, value=call("value", copied), body=arguments[1])
    if name == "optMap":
        mapped = call("optional.of", None, mapped)
    return call("_?_:_", None, call("hasValue", operand), mapped, call("optional.none", None))


def _copy(node: Node, position: int, expression: str, depth: int = 0) -> Node:
    """Copy a tree: the two copies may get different types."""
    if depth > _MAX_COPIED_DEPTH:
        raise ExpressionNotUnderstoodError(located("the operand of the macro nests too deeply", expression, position))

    def copy(below: Node) -> Node:
        return _copy(below, position, expression, depth + 1)

    match node:
        case Select():
            return replace(node, operand=copy(node.operand))
        case CallExpression():
            target = None if node.target is None else copy(node.target)
            return replace(node, target=target, arguments=[copy(argument) for argument in node.arguments], overloads=[])
        case ListLiteral():
            return replace(node, elements=[copy(element) for element in node.elements])
        case MapLiteral():
            return replace(node, entries=[(copy(key), copy(value)) for key, value in node.entries])
        case BindExpression():
            return replace(node, value=copy(node.value), body=copy(node.body))
        case Comprehension():
            predicate = None if node.predicate is None else copy(node.predicate)
            transform = None if node.transform is None else copy(node.transform)
            return replace(node, operand=copy(node.operand), predicate=predicate, transform=transform)
    return replace(node)
