"""From the checked tree to closures."""

from typing import Final

from .calls import PATTERN_FUNCTIONS, call, uses_representation
from .errors import CelError, EvaluationError, ExpressionNotUnderstoodError, InvalidExpressionError, located
from .frames import DEVICE_SLOT, FIRST_VARIABLE, Code, Frame, Run, constant
from .iteration import comprehension
from .operators import BINARY_OPERATORS, binary, conditional, logical, negation
from .patterns import pattern
from .selection import KEY_TYPES, Step, chain, device_chain, device_map, resolved
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
from .values import MISSING, CelMap, DomainMap, Optional, TypeValue, Uint, Value, map_key, no_such_overload, type_name

_LIST_COST: Final = 10
_CALL_COST: Final = 12
_MAP_COST: Final = 30
_BIND_COST: Final = 20
_MAX_PATTERN_INSTRUCTIONS: Final = 10_000
"""Maximum size of all constant regular expressions of one expression: compiling them takes about 10 ms."""
_MAKE_QUANTITIES: Final = frozenset({"quantity", "add", "sub"})


class ExpressionCompiler:
    """Compiles one tree. ``cost`` is at least what upstream charges for one pass without loops and long texts."""

    def __init__(self, tree: Node, expression: str) -> None:
        self._expression = expression
        self._scopes: list[dict[str, tuple[int, Run | None]]] = []
        self._calls = frozenset(node.function for node in walk(tree) if isinstance(node, CallExpression))
        self._strict = uses_representation(self._calls)
        self._pattern_instructions = 0
        self.slots = FIRST_VARIABLE
        self.cost = 0
        self.run = self.compile(tree).run

    def compile(self, node: Node) -> Code:
        """Return the code of a node."""
        self.cost += 2
        match node:
            case Literal():
                return constant(node.value)
            case Identifier():
                return self._identifier(node)
            case Select():
                return Code(self._chain(node, []), fixed_cost=self._is_plain(node))
            case CallExpression():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case BindExpression():
                return self._bind(node)
            case Comprehension():
                return self._comprehension(node)

    def _at(self, error: CelError, node: Node) -> CelError:
        return type(error)(located(str(error), self._expression, node.position))

    # -- names

    def _identifier(self, node: Identifier) -> Code:
        scope = next((each for each in reversed(self._scopes) if node.name in each), None)
        if scope is not None:
            slot, value = scope[node.name]
            if value is None:
                return Code(resolved(lambda frame: frame[slot]), fixed_cost=True)
            return Code(resolved(_lazy(slot, value)))
        if node.name == "device":
            return Code(lambda frame: device_map(frame[DEVICE_SLOT]))
        return Code(lambda frame: TypeValue(node.name))

    def _is_device(self, node: Node) -> bool:
        return (
            isinstance(node, Identifier)
            and node.name == "device"
            and not any("device" in scope for scope in self._scopes)
        )

    def _is_plain(self, node: Node) -> bool:
        """Return whether a node only selects by name from the device."""
        while isinstance(node, Select):
            node = node.operand
            if isinstance(node, CallExpression) and node.function == "_[_]" and isinstance(node.arguments[1], Literal):
                node = node.arguments[0]
        return self._is_device(node)

    def _bind(self, node: BindExpression) -> Code:
        self.cost += _BIND_COST
        value = self.compile(node.value).run
        if any(isinstance(below, CallExpression) and below.function == "_+_" for below in walk(node.body)):
            value = _not_empty(value)
        slot = self._new_slot()
        self._scopes.append({node.name: (slot, value)})
        body = self.compile(node.body).run
        self._scopes.pop()

        def run(frame: Frame) -> Value:
            frame[slot] = MISSING
            return body(frame)

        return Code(run)

    def _new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _comprehension(self, node: Comprehension) -> Code:
        operand = self.compile(node.operand).run
        outside, self.cost = self.cost, 0
        slots = [self._new_slot() for _ in node.names]
        self._scopes.append({name: (slot, None) for name, slot in zip(node.names, slots, strict=True)})
        predicate = None if node.predicate is None else self.compile(node.predicate).run
        transform = None if node.transform is None else self.compile(node.transform).run
        self._scopes.pop()
        body, self.cost = self.cost, outside + _LIST_COST
        return Code(comprehension(node.macro, operand, slots, predicate, transform, body))

    # -- selections

    def _chain(self, node: Node, steps: list[Step]) -> Run:
        """Return the code of a node with steps behind it, the first one last in the list."""
        if isinstance(node, Select):
            steps.append(Step(constant(node.name), node.optional, node.test))
            return self._chain(node.operand, steps)
        if isinstance(node, CallExpression) and node.function in ("_[_]", "_[?_]"):
            steps.append(Step(self._index(node.arguments[1]), node.function == "_[?_]"))
            return self._chain(node.arguments[0], steps)
        if isinstance(node, CallExpression) and node.function == "_?_:_":
            condition = self.compile(node.arguments[0]).run
            if_true, if_false = (self._branch(branch, steps) for branch in node.arguments[1:])
            return conditional(condition, if_true, if_false)
        self.cost += 2 * len(steps)
        ordered = steps[::-1]
        if self._is_device(node):
            return chain(*device_chain(ordered))
        return chain(self.compile(node).run, ordered)

    def _branch(self, node: Node, steps: list[Step]) -> Run:
        """Return the code of one branch of a conditional expression, with the steps behind that expression."""
        run = self._chain(node, list(steps))
        selects = isinstance(node, Select) or (
            isinstance(node, CallExpression) and node.function in ("_[_]", "_[?_]", "_?_:_")
        )
        return run if steps or selects else resolved(run)

    def _index(self, node: Node) -> Code:
        code = self.compile(node)
        if code.constant is not MISSING and type(code.constant) not in KEY_TYPES:
            raise self._at(InvalidExpressionError("this is neither the key of a map nor the index of a list"), node)
        return code

    # -- calls

    def _call(self, node: CallExpression) -> Code:
        function = node.function
        if function in ("_[_]", "_[?_]", "_?_:_"):
            return Code(self._chain(node, []))
        arguments = [*([] if node.target is None else [node.target]), *node.arguments]
        first = node.arguments[0] if function == "matches" else None
        if isinstance(first, Literal):  # upstream's validator reads the first argument, also of matches(text, pattern)
            self._check_pattern(first.value, first)
        codes = [self.compile(argument) for argument in arguments]
        if function in PATTERN_FUNCTIONS and first is not arguments[1]:
            self._check_pattern(codes[1].constant, arguments[1])
        runs = [code.run for code in codes]
        if function in ("_&&_", "_||_"):
            return Code(logical(function, runs))
        if function in ("!_", "-_"):
            return Code(negation(function, runs[0]))
        self.cost += sum(len(code.constant) // 4 + 1 for code in codes if isinstance(code.constant, str))
        self.cost += _CALL_COST  # upstream charges also where an argument fails
        if function in BINARY_OPERATORS:
            return binary(function, codes[0], codes[1], in_list=node.overloads == ["in_list"])
        if function in ("or", "orValue"):
            return Code(_alternative(runs[0], runs[1], unwrap=function == "orValue"))
        try:
            fresh = isinstance(node.target, CallExpression) and node.target.function in _MAKE_QUANTITIES
            return call(function, node.overloads, codes, self._strict, fresh)
        except CelError as error:
            raise self._at(error, node) from None

    def _check_pattern(self, source: Value, node: Node) -> None:
        """Refuse a constant regular expression that upstream refuses while compiling, and too many of them."""
        if not isinstance(source, str):
            return
        try:
            self._pattern_instructions += pattern(source).size
        except EvaluationError as error:
            raise self._at(InvalidExpressionError(str(error)), node) from None
        except ExpressionNotUnderstoodError as error:
            raise self._at(error, node) from None
        if self._pattern_instructions > _MAX_PATTERN_INSTRUCTIONS:
            message = "the regular expressions are too large together: repeat less in them"
            raise self._at(ExpressionNotUnderstoodError(message), node)

    # -- literals

    def _list(self, node: ListLiteral) -> Code:
        self.cost += _LIST_COST
        codes = [self.compile(element) for element in node.elements]
        if all(code.constant is not MISSING for code in codes):
            return constant([code.constant for code in codes])
        parts = [(code.run, optional) for code, optional in zip(codes, node.optional, strict=True)]

        def run(frame: Frame) -> Value:
            values: list[Value] = []
            for part, optional in parts:
                value = part(frame)
                if not optional:
                    values.append(value)
                elif not isinstance(value, Optional):
                    raise no_such_overload("[?_]", value)
                elif value.present:
                    values.append(value.value)
            return values

        return Code(run)

    def _map(self, node: MapLiteral) -> Code:
        self.cost += _MAP_COST
        entries = [(self.compile(key), self.compile(value)) for key, value in node.entries]
        parts = [(key.run, value.run, optional) for (key, value), optional in zip(entries, node.optional, strict=True)]
        run = _map_literal(parts)
        if all(key.constant is not MISSING and value.constant is not MISSING for key, value in entries):
            try:
                return constant(run([None, 0]))
            except EvaluationError as error:
                raise self._at(ExpressionNotUnderstoodError(str(error)), node) from None
        return Code(run)


def _map_literal(parts: list[tuple[Run, Run, bool]]) -> Run:
    def run(frame: Frame) -> Value:
        entries: dict[Value, tuple[Value, Value]] = {}
        for key_run, value_run, optional in parts:
            key, value = key_run(frame), value_run(frame)
            if type(key) not in (str, int, Uint, bool):
                raise ExpressionNotUnderstoodError(f"maps with a {type_name(key)} as key are not supported")
            if optional:
                if not isinstance(value, Optional):
                    raise no_such_overload("{?_: _}", value)
                if not value.present:
                    entries.pop(map_key(key), None)
                    continue
                value = value.value
            entries[map_key(key)] = (key, value)
        return CelMap(entries)

    return run


def _lazy(slot: int, value: Run) -> Run:
    """Return the code of a bound name: its value is computed where it is first used, as upstream does."""

    def run(frame: Frame) -> Value:
        result = frame[slot]
        if result is MISSING:
            try:
                result = value(frame)
            except EvaluationError as error:
                result = error
            if type(result) is DomainMap and not len(result):
                result = CelMap({})  # upstream copies bound maps that are empty
            frame[slot] = result
        if isinstance(result, EvaluationError):
            raise result
        return result

    return run


def _not_empty(value: Run) -> Run:
    """Return a value that is no empty list: upstream changes a bound empty list where ``+`` is applied to it."""

    def run(frame: Frame) -> Value:
        result = value(frame)
        if isinstance(result, list) and not result:
            raise ExpressionNotUnderstoodError("a bound empty list next to + is not supported")
        return result

    return run


def _alternative(first: Run, second: Run, unwrap: bool) -> Run:
    def run(frame: Frame) -> Value:
        value = first(frame)
        if not isinstance(value, Optional):
            return value
        if value.present:
            return value.value if unwrap else value
        return second(frame)

    return run
