"""Go programs beside the control plane that answer one line of JSON for each line of JSON."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.controlplane.binaries import build


class OracleError(RuntimeError):
    """The program has ended, or could not answer."""


class LineProgram:
    """The program, running: start-up costs more than a hundred answers."""

    def __init__(self, name: str, program: Path | None = None) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [program or build(modules=("go",)) / name],
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

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the program's answer as it is.

        Raises:
            OracleError: the program has ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise OracleError(f"{self._name} ended with code {self._process.wait()} on {str(question)[:1000]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
