"""The checks themselves: tox has every environment it promises, and .ci/run calls them and can fail."""

import configparser
import os
import re
import shutil
import subprocess
import tomllib

import pytest

from .manifests import ROOT

CI = ROOT / ".ci" / "run"


@pytest.fixture(scope="module")
def tox() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    return parser


def test_tox_alone_runs_every_check(tox: configparser.ConfigParser) -> None:
    default = re.split(r",\s*", tox["tox"]["env_list"])
    assert default == ["lint", "type", "imports", "unit", "nojit", "boundscheck", "e2e"]
    for name in [*default, "e2e-real", "bench", "bench-check"]:
        assert tox[f"testenv:{name}"]["commands"].strip()
        assert tox[f"testenv:{name}"]["description"]


def test_tools_are_the_ones_of_the_lint_extra(tox: configparser.ConfigParser) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in ("lint", "imports"):
        assert tox[f"testenv:{name}"]["deps"] in project["optional-dependencies"]["lint"]


def test_what_tox_names_exists(tox: configparser.ConfigParser) -> None:
    text = (ROOT / "tox.ini").read_text()
    for path in re.findall(r"(?<![\w/])tests/[\w./-]+", text):
        assert (ROOT / path).exists(), path


def test_ci_is_a_script_that_stops_at_the_first_error() -> None:
    text = CI.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    assert os.access(CI, os.X_OK)
    bash = shutil.which("bash")
    assert bash, "bash is what runs it"
    subprocess.run([bash, "-n", CI], check=True, timeout=10)


def test_ci_calls_what_the_readme_promises() -> None:
    text = CI.read_text()
    demo, tox, real = '"$venv/bin/topo-scheduler" demo', '"$venv/bin/tox" run', '"$venv/bin/tox" run -e e2e-real'
    for promised in ("export CI=true", demo, f"{tox}\n", "tests.controlplane build", f"{real}\n"):
        assert promised in text


def test_every_package_of_recovery_that_decides_is_kept_from_io() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (entry for entry in contracts if entry["name"] == "Recovery decides without I/O")
    recovery = ROOT / "topo_scheduler" / "recovery"
    assert [path.name for path in recovery.glob("*.py")] == ["__init__.py"]
    packages = {f"topo_scheduler.recovery.{path.parent.name}" for path in recovery.glob("*/__init__.py")}
    assert set(contract["source_modules"]) == packages - {"topo_scheduler.recovery.controller"}


def test_the_urls_of_the_project_are_of_one_repository_and_name_what_is_there() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls.keys() >= {"Source", "Documentation", "Changelog", "Issues"}
    source = urls["Source"]
    assert re.fullmatch(r"https://github\.com/[\w-]+/topo-scheduler", source)
    assert [url for url in urls.values() if not f"{url}/".startswith(f"{source}/")] == []
    paths = [match[1] for url in urls.values() if (match := re.search(r"/(?:tree|blob)/main/(.+)", url))]
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def test_the_package_says_that_it_has_types() -> None:
    """Without this file, type checkers ignore the annotations of an installed package."""
    assert (ROOT / "topo_scheduler" / "py.typed").read_text() == ""
    assert "Typing :: Typed" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
