"""The written table gets the answers of Kubernetes' own code, which a file keeps."""

from collections import defaultdict
from typing import Any

import pytest

from .comparison import DEVICES, ROWS, differs, not_understood, ours, read
from .oracle import Answer
from .table import expressions

FEATURES = sorted({feature for feature, _, _ in ROWS})

NOT_UNDERSTOOD = {
    "url": "url() is not supported",
    "isURL": "isURL() is not supported",
    "format.": "format.",
    ".format(": "format() is not supported",
    "duration": "duration() is not supported",
    "timestamp": "timestamp() is not supported",
    "sortBy": "sortBy() is not supported",
    "google": "names that begin with google",
    ".device": "leading dot",
    "{x: 1}": "message literals",
    "{value: 1}": "message literals",
    "1.0: ": "double as key",
    "[1]: ": "list as key",
    "0x1p-2": "write it as a decimal",
    "1_0": "write it as a decimal",
    "É": "beyond ASCII",
    "\\\\p": "the escape \\p",
    "\\\\Q": "the escape \\Q",
    "lists.range(1000000)": "more than",
    "z5": "steps",
    "x + [1]": "a bound empty list next to +",
    "large.add(": "on a capacity with a fraction",
    "Version in": "a version or bytes as key",
    "-9223372036854775808)": "sub() of the smallest int",
    **dict.fromkeys(("bind(o, ", "? optional.of(ip(", "optMap(v, v)", "[optional.of(int)]"), "an optional"),
    "[?dyn(1)]": "an optional element of unknown type",
}
"""Parts of the table's expressions that are not understood, with a part of the reason: docs/reference has them too."""


def _answer(outcomes: Any) -> Answer:
    if outcomes == "invalid":
        return Answer(error="invalid")
    return Answer(outcomes=tuple(outcomes), messages=("",) * len(outcomes))


def test_the_file_has_the_whole_table() -> None:
    assert [(feature, expression) for feature, expression, _ in ROWS] == expressions()


@pytest.mark.parametrize("feature", FEATURES)
def test_answers_are_those_of_kubernetes(feature: str) -> None:
    devices = read(DEVICES)
    differences: defaultdict[str, str] = defaultdict(str)
    for of_feature, expression, outcomes in ROWS:
        if of_feature == feature and (difference := differs(ours(expression, devices), _answer(outcomes))):
            differences[expression] = difference
    assert not differences


def test_what_is_not_understood_is_known() -> None:
    devices = read(DEVICES)
    unexpected = []
    for _, expression, outcomes in ROWS:
        reasons = not_understood(ours(expression, devices), _answer(outcomes))
        known = [reason for part, reason in NOT_UNDERSTOOD.items() if part in expression]
        if reasons and not all(any(part in reason for part in known) for reason in reasons):
            unexpected.append((expression, reasons))
    assert not unexpected


def test_every_outcome_occurs() -> None:
    outcomes = [outcome for _, _, answers in ROWS if answers != "invalid" for outcome in answers]
    assert sum(answers == "invalid" for _, _, answers in ROWS) >= 250
    assert min(outcomes.count(True), outcomes.count(False), outcomes.count(None)) >= 600
