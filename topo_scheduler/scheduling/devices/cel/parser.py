"""A Pratt parser for CEL's grammar. Macros are expanded while parsing, as upstream does."""

from typing import Final

from . import macros
from .errors import ExpressionNotUnderstoodError, InvalidExpressionError, located
from .lexer import Token, number_value, tokenise
from .syntax import CallExpression, Identifier, ListLiteral, Literal, MapLiteral, Node, Select

MAX_CHARACTERS: Final = 10 * 1024
"""The API server accepts expressions of this length at most."""
MAX_NODES: Final = 2_500
MAX_DEPTH: Final = 48
"""Deeper nesting is refused, so that no expression exhausts Python's stack."""

_RELATIONS: Final = {"==": "_==_", "!=": "_!=_", "<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "in": "@in"}
_SUMS: Final = {"+": "_+_", "-": "_-_"}
_PRODUCTS: Final = {"*": "_*_", "/": "_/_", "%": "_%_"}
_LEFT_ASSOCIATIVE: Final = (_RELATIONS, _SUMS, _PRODUCTS)
_RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package"),
        *("namespace", "return", "var", "void", "while"),
    )
)


def parse(expression: str) -> Node:
    """Return the syntax tree of an expression.

    Raises:
        InvalidExpressionError: a syntax error.
        ExpressionNotUnderstoodError: too large, too deep, or syntax that is not supported here.
    """
    if len(expression) > MAX_CHARACTERS or len(expression.encode(errors="replace")) > MAX_CHARACTERS:
        raise InvalidExpressionError("the expression is longer than the 10 KiB that the API server accepts")
    if any("\ud800" <= character <= "\udfff" for character in expression):
        raise ExpressionNotUnderstoodError("the expression is not valid Unicode")
    parser = _Parser(expression)
    tree = parser.expression()
    parser.expect("end")
    parser.limit(tree)
    return tree


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenise(expression)
        self._index = 0
        self._depth = 0

    # -- tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    def _take(self) -> Token:
        token = self._tokens[self._index]
        self._index += token.kind != "end"
        return token

    def _skip(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._take()
        return True

    def expect(self, kind: str) -> Token:
        """Return the next token, which must be of a kind."""
        if self._next.kind != kind:
            wanted = {"end": "an operator or the end", "name": "a name"}.get(kind, kind)
            raise self._invalid(f"syntax error: {self._next.text} where {wanted} should be", self._next)
        return self._take()

    def _invalid(self, message: str, at: Token) -> InvalidExpressionError:
        return InvalidExpressionError(located(message, self._expression, at.position))

    def _unsupported(self, message: str, position: int) -> ExpressionNotUnderstoodError:
        return ExpressionNotUnderstoodError(located(message, self._expression, position))

    def limit(self, tree: Node) -> None:
        """Refuse what has too many nodes or is nested too deeply once macros are expanded."""
        level, depth, count = [tree], 0, 0
        while level:
            depth, count = depth + 1, count + len(level)
            if depth > MAX_DEPTH:
                raise ExpressionNotUnderstoodError(
                    f"the expression nests more than {MAX_DEPTH} levels, which is not supported: simplify it"
                )
            if count > MAX_NODES:
                raise ExpressionNotUnderstoodError(
                    f"the expression has more than {MAX_NODES} parts, which is not supported: simplify it"
                )
            level = [below for node in level for below in macros.below(node)]

    # -- operators

    def expression(self) -> Node:
        """Parse a ternary or what binds more tightly."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._unsupported(f"more than {MAX_DEPTH} levels of nesting are not supported", self._next.position)
        condition = self._logical("||", "_||_")
        if self._next.kind == "?":
            position = self._take().position
            if_true = self._logical("||", "_||_")
            self.expect(":")
            if_false = self.expression()
            condition = CallExpression(
                position=position, function="_?_:_", target=None, arguments=[condition, if_true, if_false]
            )
        self._depth -= 1
        return condition

    def _logical(self, operator: str, function: str) -> Node:
        terms = [self._operand(operator)]
        position = self._next.position
        while self._skip(operator):
            terms.append(self._operand(operator))
        if len(terms) == 1:
            return terms[0]
        return CallExpression(position=position, function=function, target=None, arguments=terms)

    def _operand(self, operator: str) -> Node:
        return self._logical("&&", "_&&_") if operator == "||" else self._binary(0)

    def _binary(self, level: int) -> Node:
        """Climb precedence: relations, sums and products are all left-associative."""
        left = self._unary()
        return self._continue(left, level)

    def _continue(self, left: Node, level: int) -> Node:
        while True:
            kind = self._next.kind
            next_level = next((at for at in range(level, 3) if kind in _LEFT_ASSOCIATIVE[at]), None)
            if next_level is None:
                return left
            operator = self._take()
            right = self._unary()
            if next_level < 2:
                right = self._continue(right, next_level + 1)
            function = _LEFT_ASSOCIATIVE[next_level][operator.kind]
            left = CallExpression(position=operator.position, function=function, target=None, arguments=[left, right])

    def _unary(self) -> Node:
        first = self._next
        if first.kind not in ("!", "-"):
            return self._member()
        if first.kind == "-" and self._tokens[self._index + 1].kind == "number":
            return self._member()
        count = 0
        while self._skip(first.kind):
            count += 1
        operand = self._member(signed=first.kind == "!")
        if count % 2 == 0:
            return operand
        function = "!_" if first.kind == "!" else "-_"
        return CallExpression(position=first.position, function=function, target=None, arguments=[operand])

    def _member(self, signed: bool = True) -> Node:
        node = self._primary(signed)
        while True:
            token = self._next
            if token.kind == ".":
                node = self._dotted(node)
            elif token.kind == "[":
                self._take()
                optional = self._skip("?")
                index = self.expression()
                self.expect("]")
                function = "_[?_]" if optional else "_[_]"
                node = CallExpression(position=token.position, function=function, target=None, arguments=[node, index])
            elif token.kind == "{" and macros.dotted_name(node):
                raise self._unsupported("message literals are not supported", token.position)
            else:
                return node

    def _dotted(self, operand: Node) -> Node:
        dot = self._take()
        optional = self._skip("?")
        name = self.expect("name")
        if self._next.kind != "(" or optional:
            return Select(position=dot.position, operand=operand, name=name.text, optional=optional)
        position = self._take().position
        arguments = self._items(")")
        expanded = macros.expand_member(name.text, operand, arguments, position, self._expression)
        return expanded or CallExpression(position=position, function=name.text, target=operand, arguments=arguments)

    # -- primaries

    def _primary(self, signed: bool) -> Node:
        token = self._take()
        match token.kind:
            case "literal":
                return Literal(position=token.position, value=token.value)
            case "number":
                value = number_value(token.text, self._expression, token.position)
                return Literal(position=token.position, value=value)
            case "-" if signed and self._next.kind == "number":
                value = number_value("-" + self._take().text, self._expression, token.position)
                return Literal(position=token.position, value=value)
            case "(":
                inner = self.expression()
                self.expect(")")
                return inner
            case "[":
                elements, optional = self._list_items()
                return ListLiteral(position=token.position, elements=elements, optional=optional)
            case "{":
                return self._map(token.position)
            case "name":
                return self._named(token)
            case ".":
                raise self._unsupported("names with a leading dot are not supported", token.position)
        raise self._invalid(f"syntax error: {token.text} where a value should be", token)

    def _named(self, name: Token) -> Node:
        if name.text in _RESERVED:
            raise self._invalid(f"{name.text} is a reserved word", name)
        if self._next.kind != "(":
            return Identifier(position=name.position, name=name.text)
        position = self._take().position
        arguments = self._items(")")
        expanded = macros.expand_global(name.text, arguments, position, self._expression)
        return expanded or CallExpression(position=position, function=name.text, target=None, arguments=arguments)

    def _items(self, end: str) -> list[Node]:
        items: list[Node] = []
        if self._skip(end):
            return items
        items.append(self.expression())
        while self._skip(","):
            items.append(self.expression())
        self.expect(end)
        return items

    def _list_items(self) -> tuple[list[Node], list[bool]]:
        elements: list[Node] = []
        optional: list[bool] = []
        while self._more("]", first=not elements):
            optional.append(self._skip("?"))
            elements.append(self.expression())
        return elements, optional

    def _more(self, end: str, first: bool) -> bool:
        """Return whether another element follows, behind a comma; the end may have a comma in front."""
        if self._skip(end):
            return False
        if first and self._next.kind != ",":
            return True
        self.expect(",")
        if first:
            self.expect(end)
            return False
        return not self._skip(end)

    def _map(self, position: int) -> Node:
        entries: list[tuple[Node, Node]] = []
        optional: list[bool] = []
        while self._more("}", first=not entries):
            optional.append(self._skip("?"))
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression()))
        return MapLiteral(position=position, entries=entries, optional=optional)
