"""Static types, as cel-go's checker assigns them: what it refuses, the API server refuses too."""

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from .declarations import FUNCTIONS, Overload
from .errors import ExpressionNotUnderstoodError, InvalidExpressionError, located
from .macros import dotted_name
from .syntax import (
    BindExpression,
    CallExpression,
    Comprehension,
    Identifier,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    walk,
)
from .types import (
    ANY,
    BOOL,
    BYTES,
    DEVICE,
    DOUBLE,
    DYNAMIC,
    ERROR,
    INT,
    NULL,
    QUANTITY,
    STRING,
    UINT,
    Substitutions,
    Type,
    instantiate,
    is_dynamic,
    list_of,
    map_of,
    most_general,
    optional_of,
    type_of,
)
from .values import Uint

_DEVICE_FIELDS: Final = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
}
_TYPE_NAMES: Final = {
    **{str(kind): kind for kind in (BOOL, BYTES, DOUBLE, INT, NULL, STRING, UINT)},
    "list": list_of(DYNAMIC),
    "map": map_of(DYNAMIC, DYNAMIC),
    "optional_type": optional_of(DYNAMIC),
    "type": Type("type"),
}
_LITERALS: Final[Mapping[type, Type]] = {
    bool: BOOL,
    int: INT,
    Uint: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    type(None): NULL,
}
_NAMESPACES: Final = ("google", "net", "kubernetes", "__result__")


def check(tree: Node, expression: str) -> None:
    """Write the type of every node into the tree.

    Raises:
        InvalidExpressionError: the expression is ill-typed, or does not return bool.
        ExpressionNotUnderstoodError: it uses a type that is not supported here.
    """
    checker = _Checker(expression)
    checker.check(tree)
    checker.finish(tree)


class _Checker:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._types = Substitutions()
        self._scopes: list[dict[str, Type]] = [{"device": DEVICE}]

    def _fail(self, message: str, node: Node) -> NoReturn:
        raise InvalidExpressionError(located(message, self._expression, node.position))

    # -- nodes

    def check(self, node: Node) -> Type:
        """Assign the types of a node and of those below it."""
        match node:
            case Literal():
                node.type = _LITERALS[type(node.value)]
            case Identifier():
                node.type = self._identifier(node)
            case Select():
                node.type = self._select(node)
            case CallExpression():
                node.type = self._call(node)
            case ListLiteral():
                node.type = self._list(node)
            case MapLiteral():
                node.type = self._map(node)
            case BindExpression():
                value = self.check(node.value)
                node.type = self._types.apply(self._within({node.name: value}, node.body))
            case Comprehension():
                node.type = self._types.apply(self._comprehension(node))
        return node.type

    def _within(self, names: dict[str, Type], node: Node) -> Type:
        self._scopes.append(names)
        type_ = self.check(node)
        self._scopes.pop()
        return type_

    def _identifier(self, node: Identifier) -> Type:
        for scope in reversed(self._scopes):
            if node.name in scope:
                return scope[node.name]
        if node.name in _TYPE_NAMES:
            return type_of(_TYPE_NAMES[node.name])
        if node.name in _NAMESPACES:
            message = f"names that begin with {node.name} are not supported"
            raise ExpressionNotUnderstoodError(located(message, self._expression, node.position))
        return self._fail(f"there is no variable {node.name}: selectors read device", node)

    def _select(self, node: Select) -> Type:
        operand = self._types.apply(self.check(node.operand))
        optional = operand.kind == "optional_type"
        target = operand.parameters[0] if optional else operand
        result = self._field(node, target)
        if node.test:
            return BOOL
        return optional_of(result) if optional or node.optional else self._types.apply(result)

    def _field(self, node: Select, target: Type) -> Type:
        if target.kind == "map":
            return target.parameters[1]
        if target == DEVICE:
            if node.name not in _DEVICE_FIELDS:
                self._fail(f"device has no field {node.name}, only {', '.join(_DEVICE_FIELDS)}", node)
            return _DEVICE_FIELDS[node.name]
        if target.kind == "parameter":
            self._types.assignable([(DYNAMIC, target)])
            return DYNAMIC
        if target.kind == "object":
            self._fail(f"{target} has no field {node.name}", node)
        if not is_dynamic(target):
            self._fail(f"{target} has no fields, so none named {node.name}", node)
        return DYNAMIC

    def _call(self, node: CallExpression) -> Type:
        for argument in node.arguments:
            self.check(argument)
        if node.target is not None:
            prefix = dotted_name(node.target)
            name = f"{prefix}.{node.function}"
            if prefix is not None and name in FUNCTIONS:
                node.function, node.target = name, None
            else:
                self.check(node.target)
        if node.function not in FUNCTIONS:
            self._fail(f"there is no function {node.function}", node)
        operands = [*([] if node.target is None else [node.target]), *node.arguments]
        types = [operand.type for operand in operands]
        if node.function in ("_&&_", "_||_"):
            for operand in operands:
                self._require(operand, BOOL)
            return BOOL
        return self._resolve(node, types)

    def _require(self, node: Node, wanted: Type) -> None:
        if not self._types.assignable([(node.type, wanted)]):
            self._fail(f"this is of type {self._shown(node.type)}, and must be {wanted}", node)

    def _shown(self, kind: Type) -> Type:
        return self._types.apply(kind, DYNAMIC)

    def _resolve(self, node: CallExpression, types: Sequence[Type]) -> Type:
        member = node.target is not None
        result, node.overloads = self._overloads(FUNCTIONS[node.function], types, member)
        if result is None:
            shown = ", ".join(str(self._shown(kind)) for kind in types)
            self._fail(f"{node.function} does not take {'a target and ' * member}arguments of types ({shown})", node)
        return result

    def _overloads(
        self, overloads: Sequence[Overload], types: Sequence[Type], member: bool
    ) -> tuple[Type | None, list[str]]:
        """Return the type of the result and the overloads that match."""
        result: Type | None = None
        identifiers: list[str] = []
        for overload in overloads:
            if overload.member != member or len(overload.arguments) != len(types):
                continue
            variables = {name: self._types.variable() for name in overload.parameters}
            wanted = [instantiate(argument, variables) for argument in overload.arguments]
            if not self._types.assignable(list(zip(types, wanted, strict=True))):
                continue
            identifiers.append(overload.identifier)
            candidate = self._types.apply(instantiate(overload.result, variables))
            if result is None:
                result = candidate
            elif not is_dynamic(result) and candidate != result:
                result = DYNAMIC
        return result, identifiers

    def _operator(self, node: Node, function: str, *types: Type) -> Type:
        result, _ = self._overloads(FUNCTIONS[function], types, member=False)
        if result is None:
            shown = ", ".join(str(self._shown(kind)) for kind in types)
            self._fail(f"{function} does not take arguments of types ({shown})", node)
        return result

    # -- literals

    def _list(self, node: ListLiteral) -> Type:
        joined: Type | None = None
        for element, optional in zip(node.elements, node.optional, strict=True):
            element_type = self._unwrapped(element, self.check(element), optional)
            joined = self._join(element, joined, element_type)
        return list_of(joined or self._types.variable())

    def _map(self, node: MapLiteral) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for (key, value), optional in zip(node.entries, node.optional, strict=True):
            keys = self._join(key, keys, self.check(key))
            value_type = self._unwrapped(value, self.check(value), optional)
            values = self._join(value, values, value_type)
        return map_of(keys or self._types.variable(), values or self._types.variable())

    def _unwrapped(self, node: Node, kind: Type, optional: bool) -> Type:
        if not optional:
            return kind
        if kind.kind == "optional_type":
            return kind.parameters[0]
        if not is_dynamic(kind):
            self._fail(f"behind ? must be an optional, not {self._shown(kind)}", node)
        return kind

    def _join(self, node: Node, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if not self._types.assignable([(previous, current)]):
            self._fail(f"{self._shown(current)} among elements of type {self._shown(previous)}", node)
        return most_general(previous, current)

    # -- comprehensions

    def _comprehension(self, node: Comprehension) -> Type:
        names = self._iteration(node)
        macro = node.macro
        if macro in ("all", "exists", "exists_one"):
            assert node.predicate is not None
            predicate_type = self._within(names, node.predicate)
            if macro == "exists_one":
                self._operator(node, "_?_:_", predicate_type, INT, INT)
            else:
                self._require(node.predicate, BOOL)
            return BOOL
        return self._transformation(node, names)

    def _iteration(self, node: Comprehension) -> dict[str, Type]:
        operand = self._types.apply(self.check(node.operand))
        pair: tuple[Type, Type]
        if operand.kind == "list":
            pair = (INT, operand.parameters[0])
            if len(node.names) == 1:
                pair = (operand.parameters[0], ERROR)
        elif operand.kind == "map":
            pair = (operand.parameters[0], operand.parameters[1])
        elif operand.kind in ("dyn", "parameter"):
            self._types.assignable([(DYNAMIC, operand)])
            pair = (DYNAMIC, DYNAMIC)
        else:
            self._fail(f"{node.macro}() iterates over lists and maps, not over {self._shown(operand)}", node.operand)
        return dict(zip(node.names, pair, strict=False))

    def _transformation(self, node: Comprehension, names: dict[str, Type]) -> Type:
        kind = self._types.variable()
        accumulated = list_of(kind)
        if node.macro in ("transform_map", "transform_entry"):
            accumulated = map_of(kind, self._types.variable())
        predicate = None if node.predicate is None else self._within(names, node.predicate)
        if node.macro in ("transform_map", "transform_entry"):
            assert node.transform is not None
            added = [self._within(names, node.transform)]
            if node.macro == "transform_map":
                added.insert(0, names[node.names[0]])
            step = self._operator(node, "cel.@mapInsert", accumulated, *added)
        else:
            element = names[node.names[0]] if node.transform is None else self._within(names, node.transform)
            step = self._operator(node, "_+_", accumulated, list_of(element))
        if predicate is not None:
            step = self._operator(node, "_?_:_", predicate, step, accumulated)
        if not self._types.assignable([(accumulated, step)]):
            self._fail(f"{node.macro}() cannot collect values of type {self._shown(step)}", node)
        return accumulated

    # -- the whole

    def finish(self, tree: Node) -> None:
        """Replace type variables, and check literals and the result."""
        for node in walk(tree):
            node.type = self._types.apply(node.type, DYNAMIC)
        for node in walk(tree):
            if isinstance(node, ListLiteral):
                self._homogeneous(node.elements, node.optional)
            elif isinstance(node, MapLiteral):
                self._homogeneous([key for key, _ in node.entries], [False] * len(node.entries))
                self._homogeneous([value for _, value in node.entries], node.optional)
        if tree.type not in (BOOL, ANY):
            self._fail(f"the expression must return bool, and returns {tree.type}", tree)

    def _homogeneous(self, nodes: Sequence[Node], optional: Sequence[bool]) -> None:
        first: Type | None = None
        for node, is_optional in zip(nodes, optional, strict=True):
            if is_optional and not node.type.parameters:
                message = "an optional element of unknown type is not supported"  # upstream crashes
                raise ExpressionNotUnderstoodError(located(message, self._expression, node.position))
            kind = node.type.parameters[0] if is_optional else node.type
            if first is not None and kind != first:
                self._fail(f"{kind} among elements of type {first}", node)
            first = first or kind
