"""The image installs what its lock files pin, by hash, and these fit what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .dockerfile import read_dockerfile
from .manifests import ROOT

LOCKS = ROOT / "manifests" / "image"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ("3.11.0", "3.12.0", "3.13.0")


def _pinned(path: Path) -> list[tuple[Requirement, list[str]]]:
    """Return the requirements of a lock file, each with its hashes."""
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [
        (Requirement(line.split(" --hash=")[0]), re.findall(r"--hash=sha256:([0-9a-f]{64})", line)) for line in lines
    ]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("requirements.txt", PROJECT["project"]["dependencies"]),
        ("build-requirements.txt", PROJECT["build-system"]["requires"]),
    ],
)
def test_each_dependency_is_pinned_to_a_version_that_the_project_allows(
    name: str, wanted: list[str], python: str
) -> None:
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0], "sys_platform": "linux"}
    pinned = {
        entry.name.lower().replace("_", "-"): entry
        for entry, _ in _pinned(LOCKS / name)
        if entry.marker is None or entry.marker.evaluate(environment)
    }
    for requirement in map(Requirement, wanted):
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        locked = pinned.get(requirement.name.lower().replace("_", "-"))
        assert locked is not None, f"{requirement.name} is not in {name}: run manifests/image/lock.sh"
        (version,) = locked.specifier
        assert version.operator == "=="
        assert version.version in requirement.specifier, f"{locked} in {name} against {requirement}"


@pytest.mark.parametrize("name", ["requirements.txt", "build-requirements.txt"])
def test_each_pinned_version_has_hashes(name: str) -> None:
    pinned = _pinned(LOCKS / name)
    assert pinned
    assert [str(entry) for entry, hashes in pinned if not hashes] == []


def test_the_image_installs_nothing_without_a_hash() -> None:
    installs = [
        command
        for stage in read_dockerfile(ROOT / "Dockerfile")
        for instruction in stage.instructions
        if instruction.name == "RUN"
        for command in instruction.text.split("&&")
        if " install " in command
    ]
    assert len(installs) == 3
    for command in installs:
        # The wheel of the project itself is built in the stage before, without any index.
        assert "--require-hashes" in command or ("--no-index" in command and "--no-deps" in command), command
