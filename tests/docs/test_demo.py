"""What the pages show of the demo is what the demo prints."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.generate import ROOT
from tests.docs.pages import Block, blocks

SHOWN = [block for block in blocks("text") if block.text.startswith("cluster ")]


@pytest.fixture(scope="module")
def printed() -> str:
    """Output of ``topo-scheduler demo``."""
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "topo_scheduler", "demo"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _lines(text: str) -> list[str]:
    # The last part of a pod's name is made up by the API server.
    return [re.sub(r"-[a-z0-9]{5}(?= |,|$)", "-*", line).rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.where)
def test_the_tree_is_the_one_that_is_printed(block: Block, printed: str) -> None:
    assert _lines(block.text) == _lines(printed.partition("\n\n")[0])


def test_readme_and_tutorial_show_it() -> None:
    assert {block.page.name for block in SHOWN} == {"README.md", "tutorial.md"}
