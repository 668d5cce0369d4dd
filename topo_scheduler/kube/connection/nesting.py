"""JSON that is nested too deeply for the decoders: what is deeper than any field with a reader is cut.

Tenants can write such objects: the API server takes 10,000 levels in ``metadata.managedFields`` and in the opaque
configuration of claims, and Python's decoders about 1,000. Without a cut, one object would keep all others of its kind
from being listed.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

MAX_DEPTH: Final = 128
"""Levels of arrays and objects that are kept. Objects with readers have about 20, those of a list two more."""
_TO_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)
"""Everything up to the next bracket outside of texts, without going back: linear in the length of any input."""


def decoded(decode: Callable[[bytes], T], text: bytes) -> T:
    """Return what a decoder makes of a text; one that is nested too deeply for it is cut before."""
    try:
        return decode(text)
    except RecursionError:
        return decode(without_deep_values(text))


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
