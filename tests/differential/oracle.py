"""kube-scheduler's filter plugins: a Go program that answers one snapshot per line."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.controlplane.binaries import build

PROGRAM = "kube-filters"


class OracleError(RuntimeError):
    """The snapshot as a whole could not be read, or a plugin crashed on it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Who may run where, and for the other pairs the plugin that said no."""

    feasible: dict[str, list[str]]
    reasons: dict[str, dict[str, str]]


class Oracle:
    """The program, running: start-up costs more than a hundred snapshots."""

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

    def answer(self, snapshot: Mapping[str, Any]) -> Answer:
        """What the plugins say about every pending pod of a snapshot."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(snapshot) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise OracleError(f"{PROGRAM} ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise OracleError(answer["error"])
        return Answer(answer["feasible"], answer["reasons"])
