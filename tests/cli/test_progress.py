"""The bar that long commands show on a terminal."""

import pytest

from topo_scheduler.cli.progress import progress


def test_a_name_in_brackets_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with progress(1) as shown:
        shown(0, "topo:[/b].yaml, seed 42", 1, 2)
    assert "topo:[/b].yaml, seed 42" in capsys.readouterr().err
