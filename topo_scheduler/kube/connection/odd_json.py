"""JSON that the API server takes and gives back, but that Python's decoders refuse: it is read as Go reads it.

Tenants can write such objects. ``metadata.managedFields`` and the opaque configuration of claims may be nested 10,000
levels deep, and Python's decoders take about 1,000. That configuration may also have bytes that are no UTF-8, and
halves of surrogate pairs. Unless they are read nevertheless, one object keeps all others of its kind from being listed.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

T = TypeVar("T")

MAX_DEPTH: Final = 128
"""Levels of arrays and objects that are kept. Objects with readers have about 20, those of a list two more."""
REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise for such JSON, and for what is none."""
_BRACKETS: Final = np.frombuffer(b"[]{}", np.uint8)
_OPENING: Final = np.frombuffer(b"[{", np.uint8)
_TO_SURROGATE: Final = re.compile(
    rb"(?:[^\\]++|\\(?!u[dD][89a-fA-F]).)*+"
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}))",
    re.DOTALL,
)
"""Everything up to the next surrogate pair, or half of one, which is a group: linear in the length of any input."""


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
    return _without_halves(without_deep_values(text).decode(errors="replace").encode())


def _without_halves(text: bytes) -> bytes:
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    parts: list[bytes] = []
    kept = at = 0
    while (found := _TO_SURROGATE.match(text, at)) is not None:
        at = found.end()
        if found[1]:
            parts += (text[kept : found.start(1)], b"\\ufffd")
            kept = at
    return b"".join((*parts, text[kept:])) if parts else text


def without_deep_values(text: bytes, most: int = MAX_DEPTH) -> bytes:
    """Return JSON in which arrays and objects below ``most`` levels of them are null; no JSON stays none."""
    characters = np.frombuffer(text, np.uint8)
    brackets = np.flatnonzero(np.isin(characters, _BRACKETS))
    brackets = brackets[np.searchsorted(_quotation_marks(characters), brackets) % 2 == 0]
    opens = np.isin(characters[brackets], _OPENING)
    depth = np.cumsum(np.where(opens, 1, -1))
    begins = brackets[opens & (depth == most + 1)].tolist()
    if not begins:
        return text
    ends = brackets[~opens & (depth == most)].tolist()
    parts: list[bytes] = []
    kept = 0
    for begin, end in zip(begins, ends, strict=False):
        parts += (text[kept:begin], b"null")
        kept = end + 1
    if len(begins) != len(ends):  # it is cut off there
        return b"".join((*parts, text[kept : begins[min(len(ends), len(begins) - 1)]]))
    return b"".join((*parts, text[kept:]))


def _quotation_marks(characters: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Return where texts begin and end: the marks that do not follow an odd number of backslashes."""
    marks = np.flatnonzero(characters == ord('"'))
    slashes = np.flatnonzero(characters == ord("\\"))
    if not len(slashes):
        return marks
    begins_run = np.concatenate((np.ones(1, np.bool_), np.diff(slashes) != 1))
    run = slashes[np.maximum.accumulate(np.where(begins_run, np.arange(len(slashes)), 0))]
    last = np.minimum(np.searchsorted(slashes, marks - 1), len(slashes) - 1)
    escaped: npt.NDArray[np.bool_] = (slashes[last] == marks - 1) & ((marks - run[last]) % 2 == 1)
    return marks[~escaped]


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
