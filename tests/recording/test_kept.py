"""What tests do to engines is kept and replayed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recording import kept
from tests.recording.making import lines_of, rewrite
from tests.scheduling.driver import Driver, fabric, gang

pytestmark = pytest.mark.unrecorded


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(kept.KEEP, str(tmp_path))
    monkeypatch.setenv(kept.REPLAY, str(tmp_path))
    kept.begin_test(suspended=False)
    yield tmp_path
    kept.begin_test(suspended=True)


def place_a_gang() -> Driver:
    d = Driver(fabric({"s1/l1": 4}))
    d.apply(*gang(4))
    d.settle()
    return d


def test_a_test_is_replayed_and_left_out_elsewhere(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place_a_gang()
    assert not kept.is_replayed("a test")
    kept.end_test("a test")
    assert kept.is_replayed("a test") and not kept.is_replayed("another")
    assert kept.main(records) == 0
    assert "1 tests, " in capsys.readouterr().out


def test_a_decision_that_differs_is_named(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place_a_gang()
    kept.end_test("a test")
    [path] = records.glob("*/0/*.zst")
    lines = lines_of(path)
    text = json.dumps(lines).replace("s1-l1-3", "s1-l1-9", 1)
    rewrite(path, json.loads(text))
    assert kept.main(records) == 1
    assert "a test\n    " in capsys.readouterr().out


def test_what_is_set_behind_the_engines_back_differs(records: Path) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.engine.attempts.planner.policy = None  # type: ignore[assignment]
    d.apply(*gang(4))
    d.settle()
    kept.end_test("a test")
    assert kept.main(records) == 1


def test_a_history_that_is_too_long_is_run_again_instead(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LINES_PER_ENGINE", 3)
    place_a_gang()
    kept.end_test("a test")
    assert not kept.is_replayed("a test")


def test_nothing_to_replay_is_a_failure(records: Path) -> None:
    assert kept.main(records) == 1


def test_the_engines_of_a_suspended_test_are_not_kept(records: Path) -> None:
    kept.begin_test(suspended=True)
    place_a_gang()
    kept.end_test("a test")
    assert not kept.is_replayed("a test")
