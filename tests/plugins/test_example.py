"""The example package: its own tests, as its author runs them, in a process of their own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.plugins.making import EXAMPLE, ROOT
from topo_scheduler.plugins import GROUP

PACKAGES = sorted((ROOT / "examples" / "plugins").iterdir())


def test_there_is_one() -> None:
    assert EXAMPLE in PACKAGES


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_it_is_a_package_with_an_entry_point(package: Path) -> None:
    document = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    (target,) = document["project"]["entry-points"][GROUP].values()
    assert (package / target.partition(":")[0] / "__init__.py").exists()
    assert (package / "README.md").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_its_own_tests_pass(package: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "tests")]
    path = os.pathsep.join([str(ROOT), str(package), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
