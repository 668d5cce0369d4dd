"""Commands of the README that need no cluster run as they stand, in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.generate import ROOT
from tests.docs.pages import Block, blocks

SIMULATE: Final = [
    block for block in blocks("sh") if block.page.name == "README.md" and "topo-scheduler simulate " in block.text
]
JOBS: Final = ("jobs=1000", "jobs=12")
"""What a command asks for, and what is enough to see that it runs."""


def test_there_is_such_a_command() -> None:
    assert SIMULATE and all(JOBS[0] in block.text for block in SIMULATE)


@pytest.mark.parametrize("block", SIMULATE, ids=lambda block: block.where)
def test_it_runs_where_no_file_is(block: Block, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    shim = tools / "topo-scheduler"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m topo_scheduler "$@"\n')
    shim.chmod(0o755)
    folder = tmp_path / "fresh"
    folder.mkdir()
    path = f"{tools}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    script = block.text.replace(*JOBS)
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "topo:preferred" in done.stdout and "least-allocated" in done.stdout
