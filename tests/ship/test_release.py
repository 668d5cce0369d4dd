"""The release script refuses what is not ready, names the remedy, and writes the version wherever it is."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

import topo_scheduler

ROOT = Path(__file__).parents[2]
ELSEWHERE: Final = ("tests/", "docs/decisions/", "CHANGELOG.md", "manifests/image/")
"""Files that name versions of other programs, and records of what was."""
OF_THE_EXAMPLE: Final = 'version = "0.1.0"'
"""The version of the example of a plugin, which is a package of its own."""


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=30)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository with the files that the script reads."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release", tmp_path / ".ci" / "release")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.2.0] - Unreleased\n\n## [0.1.0] - 2026-01-01\n")
    _git(tmp_path, "init", "--quiet", "--initial-branch=main")
    _git(tmp_path, "add", "--all")
    _git(tmp_path, "commit", "--quiet", "--message=first")
    _git(tmp_path, "tag", "v0.1.0")
    return tmp_path


def _check(checkout: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", ".ci/release", "--check", version]
    return subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True, timeout=30)


def test_a_described_version_above_the_last_one_can_be_released(checkout: Path) -> None:
    result = _check(checkout, "0.2.0")
    assert (result.returncode, result.stdout) == (0, "release: 0.2.0 can be released\n")


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("next", "usage: "),
        ("0.1.0", "0.1.0 is not above the last release v0.1.0"),
        ("0.0.9", "0.0.9 is not above the last release v0.1.0"),
        ("0.3.0", "CHANGELOG.md has no line '## [0.3.0] - Unreleased'"),
    ],
)
def test_what_is_not_ready_is_refused(checkout: Path, version: str, problem: str) -> None:
    result = _check(checkout, version)
    assert result.returncode == 1 and problem in result.stderr


def test_uncommitted_changes_and_other_branches_are_refused(checkout: Path) -> None:
    (checkout / "new").touch()
    assert "the working tree is not clean" in _check(checkout, "0.2.0").stderr
    (checkout / "new").unlink()
    _git(checkout, "checkout", "--quiet", "-b", "feature")
    assert "the branch is not main" in _check(checkout, "0.2.0").stderr


def _names(folder: Path) -> list[str]:
    """Return the files of a checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=30)
    return [name for name in result.stdout.splitlines() if (folder / name).is_file()]


def _texts_with(version: str, folder: Path) -> list[str]:
    """Return each line that has a version, as ``file: line``."""
    whole = re.compile(rf"(?<![\d.]){re.escape(version)}(?!\.?\d)")
    return [
        f"{name}: {line}"
        for name in _names(folder)
        if not name.startswith(ELSEWHERE)
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
        if whole.search(line) and line != OF_THE_EXAMPLE
    ]


def _set_version(version: str, folder: Path) -> list[str]:
    """Return the files that the script changed."""
    command = ["bash", ".ci/set-version", version]
    result = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=30)
    return result.stdout.splitlines()


def test_a_release_writes_the_version_wherever_the_tree_carries_it(tmp_path: Path) -> None:
    for name in _names(ROOT):
        if not name.startswith("tests/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    _git(tmp_path, "init", "--quiet", "--initial-branch=main")
    _git(tmp_path, "add", "--all", "--force")
    before = _texts_with(topo_scheduler.__version__, tmp_path)
    assert _set_version(topo_scheduler.__version__, tmp_path) == [], "as for a first release"
    written = set(_set_version("90.1.2", tmp_path))
    assert _texts_with(topo_scheduler.__version__, tmp_path) == []
    after = _texts_with("90.1.2", tmp_path)
    assert after == [line.replace(topo_scheduler.__version__, "90.1.2") for line in before]
    assert written == {line.partition(": ")[0] for line in after}
    assert {"manifests/base/deployment.yaml", "manifests/install.yaml", "README.md"} <= written


def test_a_release_commits_what_it_wrote() -> None:
    script = (ROOT / ".ci" / "release").read_text(encoding="utf-8")
    assert 'written=$(bash .ci/set-version "$version")' in script
    assert 'git commit --quiet --message "Release $version" CHANGELOG.md "${changed[@]}"' in script
