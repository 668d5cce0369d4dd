"""The release script refuses what is not ready, and names the remedy."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
