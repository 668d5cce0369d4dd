"""kube-scheduler's filter plugins: a Go program that answers one snapshot per line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.controlplane.line_program import LineProgram, OracleError

PROGRAM = "kube-filters"


@dataclass(frozen=True, slots=True)
class Answer:
    """Which pod may run where, and for the other pairs the plugin that said no."""

    feasible: dict[str, list[str]]
    reasons: dict[str, dict[str, str]]


class Oracle(LineProgram):
    """The program, running."""

    def __init__(self, program: Path | None = None) -> None:
        super().__init__(PROGRAM, program)

    def answer(self, snapshot: Mapping[str, Any]) -> Answer:
        """What the plugins say about every pending pod of a snapshot."""
        answer = self.ask(snapshot)
        if "error" in answer:  # the snapshot as a whole could not be read, or a plugin crashed on it
            raise OracleError(answer["error"])
        return Answer(answer["feasible"], answer["reasons"])
