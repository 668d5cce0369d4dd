"""What stands in logs, events and terminals is visible and on one line, whatever tenants write."""

import json
import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.printable import printable, printable_json
from topo_scheduler.observability import logs

HOSTILE = [
    "a\nERROR forged",
    "a\r\n12:00:00 ERROR   forged",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "\u200b\ufeff",
    "\x9b31m",
    "\u2028next\u2029",
    "\ud800",
    "\x00",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_unseen_is_written_as_a_code(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert "\\" in shown
    shown.encode()


@pytest.mark.parametrize("text", ["", "default/training-0", "spine-1/leaf-2 · 8 GPUs → ok", "日本語 ü"])
def test_what_is_seen_stays(text: str) -> None:
    assert printable(text) == text


def test_what_is_very_long_is_cut() -> None:
    assert printable("x" * 1000, 10) == "x" * 10 + "... (990 more characters)"
    assert len(printable("\n" * 1_000_000)) < 20_000


@given(st.text())
def test_every_text_is_on_one_line(text: str) -> None:
    assert printable(text).isprintable()
    assert len(printable(text).splitlines()) <= 1


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("text", HOSTILE)
def test_no_message_forges_a_log_line(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure("info", "json" if form == "json" else "text")
        log = logging.getLogger("topo_scheduler.test")
        log.warning("a group called %s", text, extra={"group": text})
        try:
            raise ValueError(text)
        except ValueError:
            log.exception("a plugin failed: %s", text)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    lines = capsys.readouterr().err.split("\n")
    assert all(line.isprintable() for line in lines)
    begun = [line for line in lines if line and not line.startswith(logs.CONTINUED)]
    assert len(begun) == 2, "lines of a traceback can't be taken for messages"


@given(st.text(), st.text(alphabet='\x7f\x9b\u202e\u2028\U000e0001\u200b\\"\n\xe9\u65e5'))
def test_json_is_visible_and_decodes_to_the_same_strings(text: str, hostile: str) -> None:
    document = msgspec.json.encode({text: [hostile, 1.5, None]})
    shown = printable_json(document)
    assert shown.decode().isprintable()
    assert json.loads(shown) == msgspec.json.decode(shown) == {text: [hostile, 1.5, None]}
    assert printable_json(shown) == shown
    assert printable_json(b'{\n\t"\x7f": 1\r\n}') == b'{\n\t"\\u007f": 1\r\n}'


def test_visible_characters_of_json_stay() -> None:
    document = '{"name":"日本語 ü → ok"}'.encode()
    assert printable_json(document) == document
