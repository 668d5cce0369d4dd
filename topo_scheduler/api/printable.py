"""Escaping of external strings for logs, events, conditions and terminals.

Names that tenants choose, messages of servers and errors of plugins may contain harmful characters. Line breaks forge a
log line, escape codes move a terminal's cursor, and marks change the direction of text. All invisible characters are
replaced by escape codes.
"""

import json
import re
from typing import Final

LONGEST_CHARACTERS: Final = 8192
"""Characters after which a text is cut, as log lines and rows of tables must stay short."""
_MAYBE_INVISIBLE: Final = re.compile(r"[^\t\n\r -~]+")
"""Runs of characters of JSON that may be invisible. Line breaks and tabs stand only between its values."""


def printable(text: str, limit: int = LONGEST_CHARACTERS) -> str:
    """Return the text on one line, at most about ``limit`` characters, with escape codes for invisible characters.

    These are control characters, line breaks, directional and other format characters, and lone surrogates.
    """
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text) - limit} more characters)"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_json(document: bytes) -> bytes:
    """Return a JSON document with escape codes for invisible characters. Readers decode the same strings."""
    if document.isascii() and b"\x7f" not in document:
        return document
    return _MAYBE_INVISIBLE.sub(_escaped, document.decode()).encode()


def _escaped(run: re.Match[str]) -> str:
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in run[0])
