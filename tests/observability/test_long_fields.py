"""Lines of JSON logs have a bounded length, whatever objects of tenants hold."""

import json
import logging
from collections.abc import Iterator

import pytest

from topo_scheduler.observability import logs
from topo_scheduler.state.decision import Decision, Verdict


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored")
def test_long_fields_are_cut_and_short_ones_kept(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    long = "\u202e" + "x" * 1_000_000 + "end"
    extra = {"text": long, "items": [long] * 10, "keys": {f"{n}": n for n in range(10_000)}, "spec": {"a": [1, None]}}
    try:
        raise ValueError(long)
    except ValueError:
        logging.getLogger("test").info("a message %s", long, extra=extra, exc_info=True)
    line = capfd.readouterr().err
    assert line.count("\n") == 1 and line.isascii() and len(line) < 300_000
    record = json.loads(line)
    assert record["spec"] == {"a": [1, None]} and record["level"] == "INFO"
    assert record["text"].endswith("end") and "983620 more characters" in record["text"]
    assert record["exc_info"].startswith("Traceback") and record["exc_info"].endswith("end")
    assert record["keys"]["..."] == "and 9744 more"
    assert record["message"].startswith("a message ")


@pytest.mark.usefixtures("restored")
def test_a_decision_is_logged_with_what_it_took(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logs.log_decision(Decision(7, "default/p", "default/p", 3, Verdict.PLACED, 2), 0.0015)
    record = json.loads(capfd.readouterr().err)
    assert (record["decision"], record["members"], record["generation"], record["microseconds"]) == (7, 2, 3, 1500)


@pytest.mark.usefixtures("restored")
def test_a_line_of_text_has_the_fields_of_the_message(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    extra = {"server": "https://a:1", "nodes": ["n1", "n2"], "leaves": [], "dry": True, "spec": {"a": [1, None]}}
    logging.getLogger("test").info("starting", extra=extra)
    line = capfd.readouterr().err
    assert line.endswith(
        ' INFO    starting server=https://a:1 nodes=[n1,n2] leaves=[] dry=True spec={"a": [1, null]}\n'
    )
    logs.log_decision(Decision(7, "default/p", "default/p", 3, Verdict.PLACED, 2), 0.0015)
    line = capfd.readouterr().err
    assert " decision=7 workload=default/p verdict=placed members=2 generation=3 microseconds=1500 nodes=[]" in line


@pytest.mark.usefixtures("restored")
def test_a_field_can_forge_neither_a_line_nor_another_field(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    extra = {"a": "x\n12:00:00 INFO forged", "b": "y verdict=placed", "c": ["p,q", "r\x1b[31m"], "d": "", "e\n": "z"}
    logging.getLogger("test").info("m", extra=extra | {"long": "x" * 1_000_000, "many": ["n"] * 1000})
    line = capfd.readouterr().err
    assert line.count("\n") == 1 and "\x1b" not in line and len(line) < 30_000
    assert r' a="x\n12:00:00 INFO forged" b="y verdict=placed" c=["p,q","r\u001b[31m"] d="" e\n=z long="xxx' in line
    assert ',n,"and 744 more"]' in line
