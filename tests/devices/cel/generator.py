"""Random expressions: mostly well-typed ones from a grammar, some ill-typed, and written ones with changed tokens."""

import random
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from .table import expressions

_Option = TypeVar("_Option")

_DOMAINS = ("gpu.example.com", "other.example.com", "resource.kubernetes.io", "nope.example.com")
_NAMES = (
    "type",
    "productName",
    "index",
    "big",
    "healthy",
    "driverVersion",
    "pre",
    "flag",
    "numa",
    "n",
    "nope",
    "empty",
)
_CAPACITIES = ("memory", "cores", "share", "large", "nope")
_TYPES = ("bool", "int", "uint", "double", "string", "bytes", "quantity", "semver", "list", "map", "optional", "any")
_TOKEN = re.compile(r'"[^"]*"|[A-Za-z_]\w*|\d+\.\d+|\d+|&&|\|\||[=!<>]=|\s+|.', re.DOTALL)
_PATTERN_PIECES = (
    *("a", "b", "[ab]", "[^a]", ".", "\\d", "\\w", "\\s", "\\b", "^", "$", "(a|b)", "(?:ab)", "(|a)", "x*", "(a*)*"),
    *("H", "100", "0{1,2}", "[0-9]+", "[[:alpha:]]", "\\.", "\\S", "(?i)", "(?s)", "(", ")", "[", "|", "{2}", "\\q"),
    *("é", "\\x41", "\\A", "\\z", "\\B", "\\W", "-", "(?P<n>a)", "\\101", "\\pL", "(?i:h)", "(?U)", "(?m)$", "?", "+?"),
)
_QUANTITY_PIECES = (
    *("1", "0", "5", "12", "999", ".", "-", "+", "e", "E", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "Ei"),
    *("m", "n", "u", "i", "e3", "E-2", "00", "9223372036854775807", " ", "_", "1234567890123456789"),
)
_VERSION_PIECES = (
    "1",
    "0",
    "10",
    ".",
    ".",
    "-",
    "+",
    "a",
    "beta",
    "01",
    "v",
    "x",
    " ",
    "-rc.1",
    "1.2.3",
    "18446744073709551616",
)


class Generator:
    """Makes one expression. ``confusion`` is the share of operands of a wrong type."""

    def __init__(self, seed: int, confusion: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._confusion = confusion
        self._variables: list[tuple[str, str]] = []

    def expression(self) -> str:
        """An expression that should return bool."""
        return self.make("bool", self._random.randint(1, 4))

    def make(self, kind: str, depth: int) -> str:
        """An expression of a type."""
        if self._random.random() < self._confusion:
            kind = self._random.choice(_TYPES)
        usable = [name for name, of_kind in self._variables if of_kind == kind]
        if usable and self._random.random() < 0.5:
            return self._random.choice(usable)
        if depth <= 0 or self._random.random() < 0.15:
            return self._leaf(kind)
        if self._random.random() < 0.12:
            return self._generic(kind, depth)
        makers: dict[str, Sequence[Callable[[int], str]]] = {
            "bool": (
                self._comparison,
                self._logic,
                self._predicate,
                self._quantifier,
                self._text_test,
                self._kubernetes,
            ),
            "int": (self._arithmetic, self._int_function),
            "uint": (
                lambda d: f"({self.make('uint', d)} {self._pick('+', '-', '*', '/', '%')} {self.make('uint', d)})",
            ),
            "double": (
                lambda d: f"({self.make('double', d)} {self._pick('+', '-', '*', '/')} {self.make('double', d)})",
            ),
            "string": (self._text,),
            "list": (self._list,),
            "map": (self._map,),
            "optional": (self._optional,),
            "quantity": (self._quantity,),
        }
        options = makers.get(kind)
        return self._pick(*options)(depth - 1) if options else self._leaf(kind)

    def _pick(self, *options: _Option) -> _Option:
        return self._random.choice(options)

    # -- leaves

    def _leaf(self, kind: str) -> str:
        match kind:
            case "bool":
                return self._pick("true", "false", self._attribute("healthy"), "device.allowMultipleAllocations")
            case "int":
                return self._pick(
                    *("0", "1", "2", "-1", "3", "7", "100", "9223372036854775807", "-9223372036854775808"),
                    *(self._attribute("index"), self._attribute("numa"), self._attribute("big")),
                )
            case "uint":
                return self._pick("0u", "1u", "3u", "18446744073709551615u", "0xFFu")
            case "double":
                return self._pick("0.0", "1.0", "-1.5", "3.0", "1e300", "-0.0", "9007199254740993.0", ".5", "1e-7")
            case "string":
                return self._pick(
                    *('""', '"a"', '"H100"', '"gpu"', '"3"', '"größe⚡"', "'NVIDIA'", 'r"\\d"', '"a,b,,c"', '"  x "'),
                    *(self._attribute("productName"), self._attribute("type"), "device.driver"),
                )
            case "bytes":
                return self._pick('b""', 'b"abc"', 'b"\\xff"', 'bytes("é")')
            case "quantity":
                return self._pick(
                    f'quantity("{self._pick("1Gi", "40Gi", "80Gi", "1", "500m", "100Ti", "1.5")}")', self._capacity()
                )
            case "semver":
                version = self._pick("1.2.3", "550.54.15", "1.2.3-beta.2", "0.0.1+x")
                return self._pick(f'semver("{version}")', self._attribute("driverVersion"), self._attribute("pre"))
            case "list":
                return self._pick("[]", "[1, 2, 3]", '["gpu", "mig"]', "[true, false]", "[1.5]", "[3, 1, 2, 1]")
            case "map":
                return self._pick(
                    "{}", '{"a": 1}', '{"a": 1, "b": 2}', "{1: true}", self._domain(), "device.attributes"
                )
            case "optional":
                return self._pick("optional.none()", "optional.of(1)", f"{self._domain()}.?{self._pick(*_NAMES)}")
            case "type":
                return self._pick(
                    "int", "string", "bool", "double", "list", "map", "uint", "bytes", "type", "null_type"
                )
        return self._attribute(self._pick(*_NAMES))

    def _domain(self) -> str:
        return f'device.attributes["{self._pick(*_DOMAINS[:2], *_DOMAINS)}"]'

    def _attribute(self, name: str) -> str:
        name = name if self._random.random() < 0.8 else self._pick(*_NAMES)
        domain = _DOMAINS[0] if self._random.random() < 0.7 else self._pick(*_DOMAINS)
        if name in ("numa", "flag") and self._random.random() < 0.9:
            domain = {"numa": _DOMAINS[2], "flag": _DOMAINS[1]}[name]
        path = f'device.attributes["{domain}"]'
        return self._pick(f"{path}.{name}", f'{path}["{name}"]')

    def _capacity(self) -> str:
        domain = _DOMAINS[0] if self._random.random() < 0.9 else _DOMAINS[1]
        return f'device.capacity["{domain}"].{self._pick(*_CAPACITIES)}'

    # -- operators and functions

    def _generic(self, kind: str, depth: int) -> str:
        below = depth - 1
        choice = self._random.randrange(6)
        if choice == 0:
            return f"({self.make('bool', below)} ? {self.make(kind, below)} : {self.make(kind, below)})"
        if choice == 1:
            value_kind = self._pick(*_TYPES)
            name = f"v{len(self._variables)}"
            value = self.make(value_kind, below)
            return f"cel.bind({name}, {value}, {self._inside(name, value_kind, kind, below)})"
        if choice == 2:
            return f"{self.make('optional', below)}.orValue({self.make(kind, below)})"
        if choice == 3:
            return f"dyn({self.make(kind, below)})"
        if choice == 4:
            return f"[{self.make(kind, below)}, {self.make(kind, below)}][{self.make('int', 0)}]"
        selection = self._pick(".k", "['k']", ".x", ".?k.value()")
        return f'{{"k": {self.make(kind, below)}}}{selection}'

    def _inside(self, name: str, value_kind: str, kind: str, depth: int) -> str:
        self._variables.append((name, value_kind))
        body = self.make(kind, depth)
        self._variables.pop()
        return body

    def _comparison(self, depth: int) -> str:
        kind = self._pick(*_TYPES)
        operator = self._pick("==", "!=", "<", "<=", ">", ">=", "==", "in")
        if operator == "in":
            collection = self._pick(self.make("list", depth), self.make("map", depth), self._domain())
            return f"({self.make(kind, depth)} in {collection})"
        return f"({self.make(kind, depth)} {operator} {self.make(kind, depth)})"

    def _logic(self, depth: int) -> str:
        terms = [self.make("bool", depth) for _ in range(self._random.randint(2, 4))]
        joined = f" {self._pick('&&', '||')} ".join(terms)
        return self._pick(f"({joined})", f"!{self.make('bool', depth)}", joined)

    def _predicate(self, depth: int) -> str:
        sets = self._pick("contains", "intersects", "equivalent")
        return self._pick(
            f"has({self._domain()}.{self._pick(*_NAMES)})",
            f"has({self.make('map', depth)}.a)",
            f"{self.make('optional', depth)}.hasValue()",
            f"(type({self.make(self._pick(*_TYPES), depth)}) == {self._leaf('type')})",
            f"sets.{sets}({self.make('list', depth)}, {self.make('list', depth)})",
            f"{self.make('list', depth)}.isSorted()",
            f"{self.make('any', 0)}.includes({self.make('any', 0)})",
            f"is{self._pick('Quantity', 'Semver')}({self.make('string', depth)})",
        )

    def _quantifier(self, depth: int) -> str:
        source, kind = self._pick(("list", "int"), ("list", "string"), ("map", "string"))
        name = f"v{len(self._variables)}"
        macro = self._pick("all", "exists", "exists_one")
        return f"{self.make(source, depth)}.{macro}({name}, {self._inside(name, kind, 'bool', depth)})"

    def _text_test(self, depth: int) -> str:
        function = self._pick("startsWith", "endsWith", "contains", "matches")
        pattern = self._pick("H100", "^N", "a+", "[0-9]{2}", "g.u", "")
        argument = f'"{pattern}"' if function == "matches" else ""
        return f"{self.make('string', depth)}.{function}({argument or self.make('string', depth)})"

    def _kubernetes(self, depth: int) -> str:
        kind = self._pick("quantity", "semver")
        first, second = self.make(kind, depth), self.make(kind, depth)
        return f"{first}.{self._pick('isGreaterThan', 'isLessThan')}({second})"

    def _arithmetic(self, depth: int) -> str:
        operator = self._pick("+", "-", "*", "/", "%")
        return self._pick(
            f"({self.make('int', depth)} {operator} {self.make('int', depth)})", f"-({self.make('int', depth)})"
        )

    def _int_function(self, depth: int) -> str:
        text, values = self.make("string", depth), self.make("list", depth)
        return self._pick(
            f"size({self._pick(text, values, self.make('map', depth))})",
            f"{self._pick(text, values)}.size()",
            f"int({self.make(self._pick('string', 'double', 'uint', 'int', 'any'), depth)})",
            f"{text}.{self._pick('indexOf', 'lastIndexOf')}({self.make('string', depth)})",
            f"{text}.{self._pick('indexOf', 'lastIndexOf')}({self.make('string', depth)}, {self.make('int', 0)})",
            f"{values}.{self._pick('indexOf', 'lastIndexOf')}({self.make('int', depth)})",
            f"{values}.{self._pick('sum', 'min', 'max')}()",
            f"{self.make('quantity', depth)}.compareTo({self.make('quantity', depth)})",
            f"{self.make('semver', depth)}.{self._pick('major', 'minor', 'patch')}()",
            f"{self._capacity()}.asInteger()",
        )

    def _text(self, depth: int) -> str:
        text, other, number = self.make("string", depth), self.make("string", 0), self.make("int", 0)
        pattern = self._pick('"[0-9]+"', '"a*"', other)
        return self._pick(
            f"({text} + {other})",
            f"{text}.{self._pick('lowerAscii', 'upperAscii', 'trim')}()",
            f"{text}.replace({other}, {self.make('string', 0)})",
            f"{text}.replace({other}, {self.make('string', 0)}, {number})",
            f"{text}.substring({number})",
            f"{text}.substring({number}, {self.make('int', 0)})",
            f"{text}.charAt({number})",
            f"{text}.split({other})[{number}]",
            f"{text}.find({pattern})",
            f"string({self.make(self._pick('int', 'double', 'uint', 'bool', 'string', 'bytes', 'any'), depth)})",
            f"{text}.split({other}).join({self.make('string', 0)})",
            f"strings.quote({text})",
        )

    def _list(self, depth: int) -> str:
        values, kind = self.make("list", depth), self._pick("int", "string", "bool", "any", "double")
        name = f"v{len(self._variables)}"
        number = self.make("int", 0)
        pattern = self._pick('"[0-9]+"', '"a*"', '"x|y"')
        return self._pick(
            f"[{', '.join(self.make(kind, depth) for _ in range(self._random.randint(0, 3)))}]",
            f"({values} + {self.make('list', depth)})",
            f"{values}.map({name}, {self._inside(name, 'int', kind, depth)})",
            f"{values}.filter({name}, {self._inside(name, 'int', 'bool', depth)})",
            f"{values}.map({name}, {self._inside(name, 'int', 'bool', 0)}, {self._inside(name, 'int', kind, depth)})",
            f"{values}.{self._pick('reverse', 'distinct', 'sort', 'flatten')}()",
            f"{values}.slice({number}, {self.make('int', 0)})",
            f"{self.make('string', depth)}.split({self.make('string', 0)})",
            f"{self.make('string', depth)}.findAll({pattern})",
            f"[?{self.make('optional', depth)}]",
            f"{values}.transformList(i, {name}, {self._inside(name, 'int', kind, depth)})",
            "lists.range(3)",
        )

    def _map(self, depth: int) -> str:
        kind = self._pick("int", "string", "any", "bool")
        return self._pick(
            f'{{"a": {self.make(kind, depth)}}}',
            f'{{"a": {self.make(kind, depth)}, "b": {self.make(kind, depth)}}}',
            f"{{{self.make('string', depth)}: {self.make(kind, depth)}}}",
            f"{{{self.make('int', depth)}: {self.make(kind, depth)}}}",
            f'{{?"a": {self.make("optional", depth)}}}',
            f"{self.make('list', depth)}.transformMap(i, v, {self.make(kind, 0)})",
        )

    def _optional(self, depth: int) -> str:
        name = f"v{len(self._variables)}"
        return self._pick(
            f"optional.of({self.make(self._pick(*_TYPES), depth)})",
            f"optional.ofNonZeroValue({self.make(self._pick(*_TYPES), depth)})",
            f"{self.make('map', depth)}.?a",
            f"{self.make('map', depth)}[?{self.make('string', depth)}]",
            f"{self.make('list', depth)}[?{self.make('int', depth)}]",
            f"{self.make('optional', depth)}.or({self.make('optional', depth)})",
            f"{self.make('optional', depth)}.optMap({name}, {self._inside(name, 'int', 'int', depth)})",
            f"{self.make('optional', depth)}.optFlatMap({name}, {self._inside(name, 'int', 'optional', depth)})",
            f"{self.make('list', depth)}.{self._pick('first', 'last')}()",
            f"{self._domain()}.?{self._pick(*_NAMES)}",
            f"{self.make('optional', depth)}.{self._pick('a', '?a', 'b')}",
        )

    def _quantity(self, depth: int) -> str:
        addend = self._pick(self.make("quantity", depth), self.make("int", 0))
        return f"{self.make('quantity', depth)}.{self._pick('add', 'sub')}({addend})"


_HUGE_EXPONENT = re.compile(r"[eE][+-]?\d{4}")
"""Upstream computes with all the digits, for minutes."""
_HUGE_RANGE = re.compile(r"lists\.range\((?!\d{1,5}\))")
"""Upstream makes the list, however long: this would end the Go program for want of memory."""


def mutated(seed: int) -> str:
    """A written expression with some tokens dropped, doubled, swapped, or replaced by those of another one."""
    source = random.Random(seed)
    written = [expression for _, expression in expressions()]
    tokens = _TOKEN.findall(source.choice(written))
    others = _TOKEN.findall(source.choice(written))
    for _ in range(source.randint(1, 2)):
        index = source.randrange(len(tokens)) if tokens else 0
        change = source.randrange(4)
        if change == 0 and tokens:
            del tokens[index]
        elif change == 1:
            tokens.insert(index, source.choice(others))
        elif change == 2 and tokens:
            tokens[index] = source.choice(others)
        elif tokens:
            other = source.randrange(len(tokens))
            tokens[index], tokens[other] = tokens[other], tokens[index]
    changed = "".join(tokens)
    return "false" if _HUGE_RANGE.search(changed) else changed


def literal_test(seed: int) -> str:
    """A test of a random regular expression, quantity or version."""
    source = random.Random(seed)

    def pieces(choices: Sequence[str], limit: int) -> str:
        text = "".join(source.choice(choices) for _ in range(source.randint(0, limit)))
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    kind = source.randrange(4)
    if kind == 0:
        first, second = pieces(_QUANTITY_PIECES, 4), pieces(_QUANTITY_PIECES, 4)
        forms = ("quantity({0}).compareTo(quantity({1})) == 0", "isQuantity({0})", "quantity({0}).isInteger()")
        more = (
            "quantity({0}).isLessThan(quantity({1}))",
            "quantity({0}).asInteger() > 0",
            "quantity({0}) == quantity({1})",
        )
        sums = ("quantity({0}).add(quantity({1})).isInteger()", "quantity({0}).sub(quantity({1})).sign() > 0")
        floats = ("quantity({0}).asApproximateFloat() > quantity({1}).asApproximateFloat()",)
        form = source.choice((*forms, *more, *sums, *floats))
        return "false" if _HUGE_EXPONENT.search(first + second) else form.format(first, second)
    if kind == 1:
        first, second = pieces(_VERSION_PIECES, 7), pieces(_VERSION_PIECES, 7)
        forms = ("isSemver({0})", "isSemver({0}, true)", "semver({0}, true).isLessThan(semver({1}, true))")
        return source.choice(forms).format(first, second)
    text = source.choice(('"aabb ab"', '"H100 0"', '"a\\nb"', '"é-ü A"', '""', '"xxaxx\\n"', '"\u212aks\u017f"'))
    start = source.randint(0, 3)
    pattern_forms = (
        *(
            "{0}.matches({1})",
            "{0}.matches({1})",
            "{0}.find({1}) == {0}.find({2})",
            "{0}.findAll({1}) == {0}.findAll({2})",
        ),
        *('{0}.findAll({1}).join("|") == "{3}"', "{0}.find({1}).size() == {3}", "{0}.findAll({1}).size() == {3}"),
        *("{0}.find({1}) == {0}.substring({3}, {4})", "{0}.findAll({1}).size() == {4}", "{0}.find({1}).size() == {4}"),
    )
    form = source.choice(pattern_forms)
    return form.format(text, pieces(_PATTERN_PIECES, 4), pieces(_PATTERN_PIECES, 4), start, source.randint(start, 6))


def random_expression(seed: int) -> tuple[str, str]:
    """The kind and the text of an expression; a seed always gives the same."""
    match seed % 5:
        case 0 | 1:
            return "typed", Generator(seed).expression()
        case 2:
            return "confused", Generator(seed, confusion=0.08).expression()
        case 3:
            return "mutated", mutated(seed)
    return "literal", literal_test(seed)
