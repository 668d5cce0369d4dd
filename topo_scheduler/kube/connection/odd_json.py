"""JSON that the API server takes and gives back, but that Python's decoders refuse: it is read as Go reads it.

Tenants can write such objects. ``metadata.managedFields`` and the opaque configuration of claims may be nested 10,000
levels deep, and Python's decoders take about 1,000. That configuration may also have bytes that are no UTF-8, and
halves of surrogate pairs. Unless they are read nevertheless, one object keeps all others of its kind from being listed.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

MAX_DEPTH: Final = 128
"""Levels of arrays and objects that are kept. Objects with readers have about 20, those of a list two more."""
REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise for such JSON, and for what is none."""
_TO_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)
"""Everything up to the next bracket outside of texts, without going back: linear in the length of any input."""
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
"""A surrogate pair, half of one, or another escape sequence; of these the half is a group."""


def decoded(decode: Callable[[bytes], T], text: bytes) -> T:
    """Return what a decoder makes of a text; if it refuses it for another reason than types, of `readable` text.

    Raises:
        DecodeError: it is no JSON, or it does not fit the type.
    """
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise
    except REFUSED:
        return decode(readable(text))


def readable(text: bytes) -> bytes:
    """Return JSON without what decoders refuse: the deepest levels are null, and odd characters U+FFFD."""
    shallow = without_deep_values(text).decode(errors="replace").encode()
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], shallow)


def without_deep_values(text: bytes, most: int = MAX_DEPTH) -> bytes:
    """Return JSON in which arrays and objects below ``most`` levels of them are null."""
    parts: list[bytes] = []
    kept = at = depth = 0
    while (found := _TO_BRACKET.match(text, at)) is not None:
        at = found.end()
        if found[1] in b"[{":
            depth += 1
            if depth == most + 1:
                parts += (text[kept : at - 1], b"null")
        else:
            if depth == most + 1:
                kept = at
            depth -= 1
    if depth > most:
        kept = len(text)  # it is cut off there: no JSON
    return b"".join((*parts, text[kept:])) if parts else text


def is_deeper(value: object, most: int) -> bool:
    """Return whether decoded JSON has arrays and objects below ``most`` levels of them."""
    level = [value]
    for _ in range(most):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)
