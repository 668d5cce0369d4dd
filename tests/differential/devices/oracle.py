"""kube-scheduler's device allocator: a Go program that answers one case per line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.controlplane.line_program import LineProgram
from tests.differential.choices import Json

PROGRAM: Final = "kube-allocator"

FEASIBLE: Final = "feasible"
INFEASIBLE: Final = "infeasible"
ERROR: Final = "error"
TIMEOUT: Final = "timeout"


@dataclass(frozen=True, slots=True)
class Answer:
    """One allocation for each claim, or neither that nor an error if the node cannot serve the claims."""

    allocations: list[Json] | None = None
    error: str | None = None
    timed_out: bool = False

    @property
    def outcome(self) -> str:
        if self.timed_out:
            return TIMEOUT
        if self.error is not None:
            return ERROR
        return INFEASIBLE if self.allocations is None else FEASIBLE


class Oracle(LineProgram):
    """The program, running."""

    def __init__(self, program: Path | None = None) -> None:
        super().__init__(PROGRAM, program)

    def answer(self, case: Mapping[str, Any]) -> Answer:
        """What the allocator does with a case."""
        answer = self.ask(case)
        if "error" in answer:
            return Answer(error=answer["error"], timed_out=answer.get("timeout", False))
        return Answer(None if answer.get("infeasible") else answer["allocations"])
