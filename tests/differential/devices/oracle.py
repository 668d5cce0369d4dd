"""kube-scheduler's device allocator: a Go program that answers one case per line."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.controlplane.binaries import build
from tests.differential.choices import Json

PROGRAM: Final = "kube-allocator"

FEASIBLE: Final = "feasible"
INFEASIBLE: Final = "infeasible"
ERROR: Final = "error"
TIMEOUT: Final = "timeout"


class OracleError(RuntimeError):
    """The program has ended."""


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


class Oracle:
    """The program, running: start-up costs more than a hundred cases."""

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
        self.close()

    def close(self) -> None:
        """End the program."""
        self._process.communicate()

    def answer(self, case: Mapping[str, Any]) -> Answer:
        """What the allocator does with a case."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(case) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise OracleError(f"{PROGRAM} ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            return Answer(error=answer["error"], timed_out=answer.get("timeout", False))
        return Answer(None if answer.get("infeasible") else answer["allocations"])
