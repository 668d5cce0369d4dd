"""Strings from outside, made safe for logs, events, conditions and terminals.

Names that tenants choose, messages of servers and errors of plugins may hold line breaks that forge a log line, escape
codes that move a terminal's cursor, and marks that turn the direction of text. All that is not plainly visible is
written as a code.
"""

from typing import Final

LONGEST_CHARACTERS: Final = 8192
"""What is longer is cut: a log line or a row of a table is no place for more."""


def printable(text: str, limit: int = LONGEST_CHARACTERS) -> str:
    """Return the text on one line, at most about ``limit`` characters, with codes for what is unseen.

    Control characters, line breaks, directional and other format characters, and lone surrogates are unseen.
    """
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text) - limit} more characters)"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
