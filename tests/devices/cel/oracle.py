"""Kubernetes' own CEL environment for devices: a Go program that answers one expression per line."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.controlplane.binaries import build

PROGRAM = "kube-cel"


@dataclass(frozen=True, slots=True)
class Answer:
    """``error`` if the expression does not compile; else for each device a bool, or None if the evaluation fails."""

    error: str = ""
    outcomes: tuple[bool | None, ...] = ()
    messages: tuple[str, ...] = ()
    costs: tuple[int, ...] = ()


class Oracle:
    """The program, running."""

    def __init__(self, program: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [program or build(modules=("go",)) / PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, f"{PROGRAM} ended with code {self._process.wait()} on {question}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def answer(self, expression: str, devices: Sequence[Mapping[str, Any]]) -> Answer:
        """What upstream says of an expression and of each device."""
        answer = self._ask({"expression": expression, "devices": devices})
        outcomes = answer.get("outcomes", [])
        return Answer(
            answer.get("error", ""),
            tuple(None if "error" in outcome else outcome["match"] for outcome in outcomes),
            tuple(outcome.get("error", "") for outcome in outcomes),
            tuple(outcome["cost"] for outcome in outcomes),
        )

    def declarations(self) -> list[str]:
        """Every overload of upstream's environment."""
        declarations: list[str] = self._ask({"declarations": True})["declarations"]
        return declarations
