"""Our answers beside upstream's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topo_scheduler.scheduling.devices.cel import (
    EvaluationError,
    ExpressionNotUnderstoodError,
    InvalidExpressionError,
    SelectorDevice,
    compile_selector,
    read_device,
)

from .oracle import Answer

RECORDED = Path(__file__).parent / "recorded" / "answers-of-kube-cel.json"
"""What Kubernetes 1.36.3 answers to the table, written by ``python -m tests.devices.cel --record``."""

ROWS: Sequence[tuple[str, str, Any]] = [tuple(row) for row in json.loads(RECORDED.read_text(encoding="utf-8"))]
"""Feature, expression, and ``invalid`` or an outcome for each device."""

DRIVER = "gpu.example.com"
DEVICES: Sequence[Mapping[str, Any]] = (
    {
        "driver": DRIVER,
        "attributes": {
            "type": {"string": "gpu"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "architecture": {"string": "Hopper"},
            "index": {"int": 3},
            "big": {"int": 9223372036854775807},
            "healthy": {"bool": True},
            "driverVersion": {"version": "550.54.15"},
            "pre": {"version": "1.2.3-beta.2+build.7"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:0f:00.0"},
            "resource.kubernetes.io/numa": {"int": 1},
            "other.example.com/flag": {"bool": False},
            "other.example.com/empty": {"string": ""},
            "other.example.com/unicode": {"string": "größe⚡"},
        },
        "capacity": {
            "memory": {"value": "80Gi"},
            "cores": {"value": "132"},
            "share": {"value": "500m"},
            "large": {"value": "100Ti"},
            "other.example.com/bandwidth": {"value": "3200G"},
        },
        "allowMultipleAllocations": True,
    },
    {
        "driver": DRIVER,
        "attributes": {
            "type": {"int": -5},
            "productName": {"bool": True},
            "index": {"string": "3"},
            "healthy": {"bool": False},
            "driverVersion": {"string": "550.54.15"},
            "resource.kubernetes.io/numa": {"int": 0},
        },
        "capacity": {"memory": {"value": "40Gi"}, "cores": {"value": "1.5"}},
    },
    {"driver": "other.example.com", "attributes": {"flag": {"bool": True}, "n": {"int": 0}}, "capacity": {}},
    {"driver": ""},
)


def read(devices: Sequence[Mapping[str, Any]]) -> list[SelectorDevice]:
    """The devices as selectors see them."""
    return [read_device(device["driver"], device) for device in devices]


@dataclass(frozen=True, slots=True)
class Ours:
    """``kind`` is ``invalid``, ``not understood`` or ``compiled``; an outcome that is a text was not understood."""

    kind: str
    message: str = ""
    outcomes: tuple[bool | str | None, ...] = ()
    steps: tuple[int, ...] = ()


def ours(expression: str, devices: Sequence[SelectorDevice], with_steps: bool = False) -> Ours:
    """Our answer."""
    try:
        selector = compile_selector(expression)
    except InvalidExpressionError as error:
        return Ours("invalid", str(error))
    except ExpressionNotUnderstoodError as error:
        return Ours("not understood", str(error))
    outcomes: list[bool | str | None] = []
    for device in devices:
        try:
            outcomes.append(selector.matches(device))
        except EvaluationError:
            outcomes.append(None)
        except ExpressionNotUnderstoodError as error:
            outcomes.append(str(error))
    steps = tuple(selector.steps(device) for device in devices) if with_steps else ()
    return Ours("compiled", outcomes=tuple(outcomes), steps=steps)


def differs(mine: Ours, theirs: Answer) -> str:
    """Where the two contradict each other; empty where they agree or we do not understand."""
    if mine.kind == "not understood":
        return ""
    if (mine.kind == "invalid") != bool(theirs.error):
        return f"ours: {mine.kind} {mine.message}; upstream: {theirs.error or 'compiles'}"
    for index, (outcome, answer) in enumerate(zip(mine.outcomes, theirs.outcomes, strict=True)):
        if not isinstance(outcome, str) and outcome is not answer:
            return f"device {index}: ours {outcome}; upstream {answer} {theirs.messages[index]}"
    for index, (steps, cost) in enumerate(zip(mine.steps, theirs.costs, strict=False)):
        if steps < cost:
            return f"device {index}: we count {steps} steps; upstream {cost}"
    return ""


def not_understood(mine: Ours, theirs: Answer) -> list[str]:
    """Our excuses where upstream has an answer."""
    if theirs.error:
        return []
    if mine.kind == "not understood":
        return [mine.message]
    return [outcome for outcome in mine.outcomes if isinstance(outcome, str)]
