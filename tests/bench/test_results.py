"""A part that fails costs only itself, and figures that don't go together are not put together."""

import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.bench import machine, race, results
from tests.bench.__main__ import main
from tests.bench.objects import Json
from tests.bench.parts import PARTS, Part
from tests.bench.results import Unusable, begun, failures, measured, read, to_add_to, write
from tests.bench.synthetic_results import synthetic_parts


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: part.name)
def test_what_a_part_measures_exists(part: Part) -> None:
    module, _, name = part.work.partition(":")
    assert callable(getattr(importlib.import_module(f"tests.bench.{module}"), name))


def test_a_part_that_raises_has_failed_and_says_why() -> None:
    result = measured(Part("no such part", "", "nowhere:nothing"))
    assert "KeyError: 'no such part'" in result["failed"]
    assert result["seconds"] >= 0


def test_a_part_that_takes_too_long_has_failed_and_is_ended() -> None:
    result = measured(replace(PARTS["rounds"], limit=1))
    assert result["failed"] == "not done after 1 s"


def test_one_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stands_in(part: Part) -> Json:
        result: Json = {"seconds": 1.0, "load": {"begin": 0.0, "end": 0.0}}
        return {**result, "failed": "broken"} if part.name == "fgd" else synthetic_parts()[part.name]

    monkeypatch.setattr(results, "measured", stands_in)
    out = tmp_path / "folder" / "bench.json"
    assert main(["fgd", "rounds", "gap", "--out", str(out)]) == 1
    run = read(out)
    assert list(run["parts"]) == ["rounds", "fgd", "gap"]
    assert failures(run["parts"]) == ["fgd"]
    assert "recheck" in run["ratios"]
    assert main(["memory", "--add", "--out", str(out)]) == 1, "what failed is still there"
    assert list(read(out)["parts"]) == ["rounds", "fgd", "gap", "memory"]
    assert main(["memory", "--out", str(out)]) == 0
    assert list(read(out)["parts"]) == ["memory"]


@pytest.mark.parametrize(("key", "what"), [("machine", "another machine"), ("source", "other code")])
def test_figures_of_other_machines_and_other_code_are_not_added_to(tmp_path: Path, key: str, what: str) -> None:
    path = tmp_path / "bench.json"
    run = begun()
    write(path, run)
    assert to_add_to(path)["source"] == run["source"]
    run[key] = {**run["machine"], "where": "elsewhere"} if key == "machine" else "0123"
    write(path, run)
    with pytest.raises(Unusable, match=what):
        to_add_to(path)
    before = path.read_text()
    assert main(["gap", "--add", "--out", str(path)]) == 1
    assert path.read_text() == before


def test_a_run_names_the_commit_that_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(machine, "PACKAGE", tmp_path)
    assert begun()["commit"] == "", "there is no repository"
    file = tmp_path / "code.py"
    file.write_text("1")
    git("init", "-q")
    git("add", "code.py")
    git("commit", "-q", "-m", "first")
    commit = begun()["commit"]
    assert re.fullmatch("[0-9a-f]{12}", commit)
    file.write_text("2")
    assert begun()["commit"] == f"{commit}, changed"


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}'])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(Unusable, match=r"bench\.json"):
        read(path)


def test_parts_that_do_not_exist_are_refused() -> None:
    command = [sys.executable, "-m", "tests.bench", "speed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'speed'" in done.stderr


def test_a_run_is_json_to_the_last(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write(path, begun())
    assert json.loads(path.read_text()) == read(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bench.json"]


async def test_events_that_do_not_come_in_time_break_their_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(*_: object, **__: object) -> Json:
        return {"items": [], "metadata": {}}

    monkeypatch.setattr(race, "EVENTS_SECONDS", 0.4)
    assert await race._events_exist(cast("Any", SimpleNamespace(get=get)), 1) >= 0.4
    assert await race._events_exist(cast("Any", SimpleNamespace(get=get)), 0) < 0.4
