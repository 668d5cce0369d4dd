"""The Dockerfile, and the reader that these tests carry it out with."""

from pathlib import Path

import pytest

from .dockerfile import Ignore, Instruction, NotUnderstood, read_dockerfile
from .manifests import ROOT


def _dockerfile(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    return path


def test_reads_stages_and_continued_lines(tmp_path: Path) -> None:
    text = "# top\nFROM a AS b\nENV X=1 \\\n    # inside\n    Y='2 3'\n\nFROM b\nRUN one \\\n    && two\n"
    first, second = read_dockerfile(_dockerfile(tmp_path, text))
    assert (first.base, first.name) == ("a", "b")
    assert first.instructions[0].pairs() == {"X": "1", "Y": "2 3"}
    assert (second.base, second.name) == ("b", "")
    assert second.instructions == (Instruction("RUN", "one     && two"),)


@pytest.mark.parametrize("line", ["ADD a b", "RUN <<END", "SHELL []", "ARG X", "FROM --platform=x y", "VOLUME /x"])
def test_refuses_what_it_can_not_carry_out(tmp_path: Path, line: str) -> None:
    with pytest.raises(NotUnderstood):
        read_dockerfile(_dockerfile(tmp_path, f"FROM a\n{line}\n"))


def test_refuses_the_shell_form_of_the_entrypoint() -> None:
    with pytest.raises(NotUnderstood, match="write it as"):
        Instruction("ENTRYPOINT", "topo-scheduler run").command()


def test_the_last_matching_ignore_pattern_decides(tmp_path: Path) -> None:
    path = tmp_path / ".dockerignore"
    path.write_text("# all\n*\n!keep\n!one.txt\n**/cache\n**/*.py[co]\n")
    ignore = Ignore.read(path)
    kept = ["keep/a.py", "keep/deep/b.txt", "one.txt"]
    left_out = ["other", "other/one.txt", "keep/cache/x", "keep/deep/cache/x", "keep/a.pyc", "two.txt"]
    assert [name for name in kept if ignore.excludes(name)] == []
    assert [name for name in left_out if not ignore.excludes(name)] == []


def test_the_build_context_is_what_the_package_is_made_of() -> None:
    ignore = Ignore.read(ROOT / ".dockerignore")
    copied = {
        word
        for stage in read_dockerfile(ROOT / "Dockerfile")
        for instruction in stage.instructions
        if instruction.name == "COPY" and not instruction.options()[0]
        for word in instruction.options()[1][:-1]
    }
    locks = {"manifests/image/requirements.txt", "manifests/image/build-requirements.txt"}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "examples", "topo_scheduler", *locks}
    for path in ("pyproject.toml", "README.md", "LICENSE", "examples/01-single-gpu.yaml", "topo_scheduler/__init__.py"):
        assert not ignore.excludes(path), path
    for path in (".git/config", "tests/conftest.py", "topo_scheduler/api/__pycache__/labels.pyc", ".tox/x", ".env"):
        assert ignore.excludes(path), path


def test_stages_share_what_names_the_kernels() -> None:
    """Kernels that were compiled under other settings than the daemon's would be compiled again at every start."""
    stages = {stage.name: stage for stage in read_dockerfile(ROOT / "Dockerfile")}
    values = [i.pairs() for i in stages["base"].instructions if i.name == "ENV"]
    assert values[0]["NUMBA_CPU_NAME"] == "generic"
    assert stages["build"].base == stages[""].base == "base"
    for stage in (stages["build"], stages[""]):
        changed = [name for i in stage.instructions if i.name == "ENV" for name in i.pairs()]
        assert not [name for name in changed if name.startswith("NUMBA_")]


def test_both_images_are_slim_and_of_one_python() -> None:
    assert read_dockerfile(ROOT / "Dockerfile")[0].base == "python:3.12-slim"
