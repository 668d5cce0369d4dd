"""Kubernetes' own CEL environment for devices: a Go program that answers one expression per line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.controlplane.line_program import LineProgram

PROGRAM = "kube-cel"


@dataclass(frozen=True, slots=True)
class Answer:
    """``error`` if the expression does not compile; else for each device a bool, or None if the evaluation fails."""

    error: str = ""
    outcomes: tuple[bool | None, ...] = ()
    messages: tuple[str, ...] = ()
    costs: tuple[int, ...] = ()


class Oracle(LineProgram):
    """The program, running."""

    def __init__(self, program: Path | None = None) -> None:
        super().__init__(PROGRAM, program)

    def answer(self, expression: str, devices: Sequence[Mapping[str, Any]]) -> Answer:
        """What upstream says of an expression and of each device."""
        answer = self.ask({"expression": expression, "devices": devices})
        outcomes = answer.get("outcomes", [])
        return Answer(
            answer.get("error", ""),
            tuple(None if "error" in outcome else outcome["match"] for outcome in outcomes),
            tuple(outcome.get("error", "") for outcome in outcomes),
            tuple(outcome["cost"] for outcome in outcomes),
        )

    def declarations(self) -> list[str]:
        """Every overload of upstream's environment."""
        declarations: list[str] = self.ask({"declarations": True})["declarations"]
        return declarations
