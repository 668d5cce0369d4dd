"""Escaping of external strings for logs, events, conditions and terminals.

Names that tenants choose, messages of servers and errors of plugins may contain harmful characters. Line breaks forge a
log line, escape codes move a terminal's cursor, and marks change the direction of text. All invisible characters are
replaced by escape codes.
"""

from typing import Final

LONGEST_CHARACTERS: Final = 8192
"""Characters after which a text is cut, as log lines and rows of tables must stay short."""


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
