"""What selectors read, what they cost, and how they fail."""

import time
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import pytest

from topo_scheduler.scheduling.devices.cel import (
    CelError,
    CostError,
    EvaluationError,
    ExpressionNotUnderstoodError,
    InvalidExpressionError,
    Reads,
    SelectorDevice,
    compile_selector,
    parse_quantity,
    parse_version,
    read_device,
)
from topo_scheduler.scheduling.devices.cel.frames import Attribute

from .comparison import DEVICES, read
from .generator import random_expression
from .table import expressions

D = "gpu.example.com"
A = f'device.attributes["{D}"]'
C = f'device.capacity["{D}"]'
NOTHING = Reads()


@pytest.mark.parametrize(
    ("expression", "reads"),
    [
        ("true", NOTHING),
        ('device.driver == "a"', Reads(driver=True)),
        ("device.allowMultipleAllocations", Reads(allow_multiple_allocations=True)),
        (f"{A}.x", Reads(attributes=frozenset({(D, "x")}))),
        (f'{A}["x"]', Reads(attributes=frozenset({(D, "x")}))),
        (f"has({A}.x) && {A}.y", Reads(attributes=frozenset({(D, "x"), (D, "y")}))),
        (f"{A}.?x.orValue(true)", Reads(attributes=frozenset({(D, "x")}))),
        (f'"x" in {A}', Reads(attributes=frozenset({(D, "x")}))),
        (f'{C}.memory.isLessThan(quantity("1"))', Reads(capacity=frozenset({(D, "memory")}))),
        (f"cel.bind(a, {A}, a.x && a.y)", Reads(attributes=frozenset({(D, "x"), (D, "y")}))),
        (f"cel.bind(a, {A}.x, a)", Reads(attributes=frozenset({(D, "x")}))),
        (f"cel.bind(a, {A}, true)", NOTHING),
        (f"cel.bind(a, {A}, cel.bind(a, true, a))", NOTHING),
        (f'cel.bind(a, device.attributes, a["{D}"].x)', Reads(attributes=frozenset({(D, "x")}))),
        ('"d" in device.attributes', Reads(attributes=None)),
        (f"{A}.size() == 1", Reads(attributes=None)),
        (f"{A}.exists(k, k == 'x')", Reads(attributes=None)),
        (f"['x'].exists(k, has({A}.x) && {A}[k])", Reads(attributes=None)),
        (f"[1].exists(device, device == 1) || {C}.exists(k, true)", Reads(capacity=None)),
        ("device.attributes[device.driver].x", Reads(driver=True, attributes=None)),
        ("dyn(device).driver == 'a'", Reads(True, True, None, None)),
    ],
)
def test_reads(expression: str, reads: Reads) -> None:
    assert compile_selector(expression).reads == reads


def test_devices_with_equal_keys_get_equal_answers() -> None:
    devices = read(DEVICES)
    changed = [
        replace(device, attributes={**device.attributes, D: {**device.attributes.get(D, {}), "index": value}})
        for device in devices
        for value in (1, True, "1", parse_version("1.0.0"))
    ]
    everything = [*devices, *changed, *(replace(device, driver="x") for device in devices)]
    for seed in range(1_500):
        _, expression = random_expression(seed)
        try:
            selector = compile_selector(expression)
        except CelError:
            continue
        answers: dict[object, object] = {}
        for device in everything:
            try:
                answer: object = selector.matches(device)
            except CelError as error:
                answer = type(error)
            assert answers.setdefault(selector.reads.key(device), answer) == answer, expression


def test_keys_differ_by_type() -> None:
    reads = compile_selector(f"{A}.x").reads
    values: list[Attribute] = [1, True, "1", parse_version("1.0.0")]
    assert len({reads.key(SelectorDevice(attributes={D: {"x": value}})) for value in values}) == len(values)
    capacity = compile_selector(f'{C}.m == quantity("1")').reads
    keys = {capacity.key(SelectorDevice(capacity={D: {"m": parse_quantity(text)}})) for text in ("1", "2", "1")}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.driver ==", "line 1, column 17"),
        (
            "true &&\n  device.nope",
            "device has no field nope, only driver, allowMultipleAllocations, attributes, capacity",
        ),
        ("true &&\n  device.nope", "line 2, column 9"),
        ("1", "must return bool, and returns int"),
        ("foo(1)", "there is no function foo"),
        ("foo == 1", "there is no variable foo: selectors read device"),
        ("1 == 'a'", "does not take"),
        ("[1, 'a'] == []", "string among elements of type int"),
        ('"a".matches("(")', "is invalid"),
        ("for == 1", "reserved"),
        ('"' + "x" * 11_000 + '" == ""', "10 KiB"),
    ],
)
def test_invalid_expressions_say_where_and_why(expression: str, message: str) -> None:
    with pytest.raises(InvalidExpressionError) as caught:
        compile_selector(expression)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 100 + "true" + ")" * 100,
        "[" * 100 + "]" * 100 + " == []",
        "+".join(["1"] * 500) + " == 1",
        "true ? " * 1_000 + "true" + ": true" * 1_000,
        "!" * 3 + "(true" * 0 + "[" * 60 + "true" + "]" * 60 + ".all(x, x)",
        "[" + ",".join(["1"] * 3_000) + "].size() == 1",
        "{" * 200,
        ".a" * 3_000,
        "optional.of(1)" + ".optMap(x, x)" * 100 + ".hasValue()",
        "a" + ".b" * 2_000,
        "-" * 5_000 + "x == 1",
        '"a".matches("' + "(" * 200 + "a" + ")" * 200 + '")',
        '"a".matches("' + "((a{10}){10}){10}" * 10 + '")',
        "1 == " + "9" * 5_000,
        "1u == " + "9" * 5_000 + "u",
        "1 == 0x" + "f" * 5_000,
        '"1".matches("a{' + "9" * 500 + '}")' + " && 1.0 == " + "9" * 5_000 + ".0",
        "".join(f"cel.bind(v{i + 1}, {{v{i}: v{i}}}, " for i in range(44)).replace("v0", "1") + "v44 == v44" + ")" * 44,
        "".join(f"cel.bind(v{i + 1}, {{v{i}: v{i}}}, " for i in range(44)).replace("v0", "[][0]")
        + "v44 == v43"
        + ")" * 44,
        "".join(f"cel.bind(v{i + 1}, {{v{i}: v{i}}}, cel.bind(w{i + 1}, {{w{i}: w{i}}}, " for i in range(22))
        .replace("v0", "[][0]")
        .replace("w0", "[][0]")
        + "v22 == w22"
        + ")" * 44,
    ],
    ids=range(20),
)
def test_what_is_too_large_is_refused_at_once(expression: str) -> None:
    begun = time.process_time()
    with pytest.raises(CelError):
        compile_selector(expression).matches(SelectorDevice())
    assert time.process_time() - begun < 2


_TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


@pytest.mark.parametrize(
    "expression",
    [
        "".join(f"{_TEN}.all(x{i}, " for i in range(7)) + "true" + ")" * 7,
        "cel.bind(a, '0123456789', " + "".join("cel.bind(a, a + a, " for _ in range(40)) + "a == ''" + ")" * 41,
        "cel.bind(a, [1], " + "".join("cel.bind(a, a + a, " for _ in range(40)) + "a == []" + ")" * 41,
        "cel.bind(a, [1], "
        + "".join("cel.bind(a, [a, a], " for _ in range(1))
        + "a == [[1], [1]]"
        + ")" * 2
        + " && cel.bind(a, dyn(1), "
        + "".join("cel.bind(a, dyn([a, a]), " for _ in range(30))
        + "a == a"
        + ")" * 31,
        "cel.bind(a, dyn([1]), " + "cel.bind(a, dyn([a, a]), " * 40 + "[a].includes(a)" + ")" * 41,
        "cel.bind(a, dyn([1]), " + "cel.bind(a, dyn([a, a]), " * 40 + "a.includes(a)" + ")" * 41,
        "cel.bind(a, '" + "a" * 1_000 + "', cel.bind(b, a.replace('a', a), b.replace('a', a) == ''))",
        "cel.bind(a, '" + "a" * 2_000 + "', cel.bind(b, a.split(''), b.map(x, b.join(a)).map(x, b.join(x)) == []))",
        "cel.bind(a, '" + "a" * 5_000 + "', " + " || ".join(["a.matches('^(a|a)*(a|a)*b$')"] * 9) + ")",
        "cel.bind(a, lists.range(1000), a.map(x, a.map(y, a)).size() == 1)",
        "cel.bind(a, lists.range(5000), sets.contains(a, a) && sets.equivalent(a, a))",
        "cel.bind(a, lists.range(5000), a.distinct() == a)",
    ],
    ids=range(12),
)
def test_what_costs_too_much_is_given_up(expression: str) -> None:
    selector = compile_selector(expression)
    begun = time.process_time()
    with pytest.raises(ExpressionNotUnderstoodError):
        selector.matches(SelectorDevice())
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "builds", [f'"{"a" * 900}".replace("", "{"b" * 900}")', f'{["x"] * 900}.join("{"b" * 900}")'.replace("'", '"')]
)
def test_texts_that_are_built_cost_what_they_hold(builds: str) -> None:
    """A list of some hundred of them would fill the memory."""
    answer, steps = compile_selector(f"{[0] * 300}.map(i, {builds}).size() > 0").judge(SelectorDevice())
    assert isinstance(answer, CostError)
    tracemalloc.start()
    compile_selector(f"{[0] * 300}.map(i, {builds}).size() > 0").judge(SelectorDevice())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * 2**20
    assert steps > 1_000_000


def test_cost_is_an_error_of_its_own() -> None:
    selector = compile_selector("".join(f"{_TEN}.all(x{i}, " for i in range(7)) + "true" + ")" * 7 + " || true")
    with pytest.raises(CostError, match="1000000 steps"):
        selector.matches(SelectorDevice())


@pytest.mark.parametrize("text", ["1" * 63, "a" * 64, "a" * 63 + "b"])
def test_patterns_take_linear_time(text: str) -> None:
    begun = time.process_time()
    device = SelectorDevice(attributes={D: {"x": text}})
    assert compile_selector(f'{A}.x.matches("^(a|a)*(a+)+$")').matches(device) is (text == "a" * 64)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "written",
    ["(?i)" + r"\w" * 980 + "(", "(?i)[" + r"\W" * 900 + "](", "(?i)" + "[a-z]" * 390 + "(", "a" * 1_980 + "("],
)
def test_patterns_that_are_computed_cost_what_reading_them_takes(written: str) -> None:
    """Each is another one, and so is read each time; all are invalid, and an error does not end ``exists()``."""
    selector = compile_selector(f"cel.bind(p, r'{written}', lists.range(90).exists(i, ''.matches(string(i) + p)))")
    begun = time.process_time()
    answer, _ = selector.judge(SelectorDevice(), 50_000)
    assert time.process_time() - begun < 1
    assert isinstance(answer, CostError)


def test_patterns_of_one_expression_are_small_together() -> None:
    letters = [f"{first}{second}" for first in "abcdefghijklmnop" for second in "abcdefghijklmnop"]
    expression = " || ".join(f"''.matches('{pair}[acegikmoqs]{{998}}')" for pair in letters)[:10_000].rpartition(" ||")[
        0
    ]
    begun = time.process_time()
    with pytest.raises(ExpressionNotUnderstoodError, match="regular expressions are too large together"):
        compile_selector(expression)
    assert time.process_time() - begun < 1


def test_copies_of_a_class_share_its_ranges() -> None:
    characters = "".join(chr(0x4E00 + 2 * number) for number in range(1_980))
    tracemalloc.start()
    compile_selector(f"''.matches('[{characters}]{{1000}}')")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * 2**20


@pytest.mark.timeout(20)
def test_texts_that_are_no_doubles_take_linear_time() -> None:
    digits = '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".replace("a", "' + "1" * 1_000 + '")'
    for text in (f'{digits} + "x"', f'{digits} + "."  + {digits} + "e"', f'"." + {digits} + "."'):
        answer, _ = compile_selector(f"double({text}) > 0.0").judge(SelectorDevice())
        assert isinstance(answer, EvaluationError), "is no double"
    with pytest.raises(InvalidExpressionError, match="is not a double"):
        compile_selector(f'double("{"1" * 9_000}x") > 0.0')


def test_tables_expressions_never_raise_anything_else() -> None:
    devices = read(DEVICES)
    for _, expression in expressions():
        for cut in (expression[:-1], expression[1:], expression + ")", expression.replace('"', "'", 1)):
            try:
                selector = compile_selector(cut)
            except CelError:
                continue
            for device in devices[:1]:
                with suppress(CelError):
                    assert selector.matches(device) in (True, False)


@pytest.mark.parametrize(
    "device",
    [
        {"attributes": {"x": {}}},
        {"attributes": {"x": {"strings": ["a"]}}},
        {"attributes": {"x": {"version": "1"}}},
        {"attributes": {"x": {"int": True}}},
        {"capacity": {"x": {"value": "1Q"}}},
    ],
)
def test_attributes_that_upstream_refuses(device: dict[str, object]) -> None:
    with pytest.raises(EvaluationError):
        read_device(D, device)


def test_reading_a_device() -> None:
    device = read_device(
        D,
        {
            "attributes": {"x": {"int": 1}, "other/x": {"string": "a"}, "b": {"bool": False}},
            "capacity": {"m": {"value": "1.5Gi"}, "other/m": {"value": "1"}},
            "allowMultipleAllocations": True,
        },
    )
    assert device.attributes == {D: {"x": 1, "b": False}, "other": {"x": "a"}}
    assert device.capacity[D]["m"].exact == 1536 * 2**20
    assert device.allow_multiple_allocations
    assert read_device(D, {}) == SelectorDevice(D)


def test_a_selector_can_be_used_again() -> None:
    selector = compile_selector(f"cel.bind(a, {A}.x, [1, 2].exists(i, i == a) && a == 2)")
    devices = [SelectorDevice(attributes={D: {"x": value}}) for value in (1, 2, 3, 2)]
    assert [selector.matches(device) for device in devices] == [False, True, False, True]
