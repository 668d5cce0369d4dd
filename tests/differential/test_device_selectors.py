"""Our CEL for device selectors gives the answers of Kubernetes' own code, asked now."""

from collections.abc import Iterator

import pytest

from tests.devices.cel.__main__ import compare
from tests.devices.cel.comparison import DEVICES, RECORDED, ROWS, differs, ours, read
from tests.devices.cel.oracle import Oracle
from tests.devices.cel.table import costly_expressions, expressions
from topo_scheduler.scheduling.devices.cel import declarations

EXPRESSIONS = 10_000
FIRST_SEED = 1_000_000


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_random_expressions_get_the_same_answer(oracle: Oracle) -> None:
    report = compare(oracle, FIRST_SEED, EXPRESSIONS)
    assert report["differences"] == 0, "python -m tests.devices.cel prints the expressions"
    assert report["not understood"] <= 0.02 * report["answers"]
    assert min(count for kind, count in report["kinds"].items() if kind.endswith(", valid")) >= 100


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_the_recorded_answers_are_kubernetes(oracle: Oracle) -> None:
    for (_, expression), (_, _, recorded) in zip(expressions(), ROWS, strict=True):
        answer = oracle.answer(expression, DEVICES)
        assert ("invalid" if answer.error else list(answer.outcomes)) == recorded, f"{RECORDED.name}: {expression}"


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_no_count_of_steps_is_below_upstreams_cost(oracle: Oracle) -> None:
    devices = read(DEVICES)
    for expression in (*costly_expressions(), *(expression for _, expression in expressions())):
        answer = oracle.answer(expression, DEVICES)
        assert not differs(ours(expression, devices, with_steps=True), answer), expression


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_the_declarations_are_kubernetes(oracle: Oracle) -> None:
    text = declarations.declarations_text()
    assert text.splitlines() == oracle.declarations()
