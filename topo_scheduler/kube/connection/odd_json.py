"""JSON that the API server takes and gives back, but that Python's decoders refuse: it is read as Go reads it.

Tenants can write such objects. ``metadata.managedFields`` and the opaque configuration of claims may be nested 10,000
levels deep, and Python's decoders take about 1,000. That configuration may also have bytes that are no UTF-8, and
halves of surrogate pairs. Unless they are read nevertheless, one object keeps all others of its kind from being listed.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64: TypeAlias = NDArray[np.int64]
    Bool: TypeAlias = NDArray[np.bool_]

T = TypeVar("T")

MAX_DEPTH: Final = 128
"""Levels of arrays and objects that are kept. Objects with readers have about 20, those of a list two more."""
REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise for such JSON, and for what is none."""
_anything: Final = msgspec.json.Decoder()
_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes that are scanned at a time: the arrays have several times as many."""
_QUOTE, _BACKSLASH, _BRACKET, _U, _D = b'"\\{ud'


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


def decode_object(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw) -> T:
    """Decode an object and treat nulls as absent: API servers write null for some empty lists.

    Examples are ``names`` of a node's images, ``drivers`` of a CSINode, and ``requests`` of a ResourceClaim.

    Raises:
        DecodeError: it is no JSON, or does not fit for another reason.
        RecursionError: it is nested too deeply.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        bare = without_nulls(_anything.decode(raw))
        return decoder.decode(msgspec.json.encode(bare))


def without_nulls(value: Any) -> Any:
    """Return JSON without the fields that are null."""
    if isinstance(value, dict):
        return {name: without_nulls(field) for name, field in value.items() if field is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def readable(text: bytes) -> bytes:
    """Return JSON without what decoders refuse: the deepest levels are null, and odd characters U+FFFD."""
    shallow = without_deep_values(text).decode(errors="replace").encode()
    return _without_half_pairs(shallow)


def without_deep_values(text: bytes, max_depth: int = MAX_DEPTH) -> bytes:
    """Return JSON in which arrays and objects below ``max_depth`` levels of them are null."""
    parts: list[bytes] = []
    kept = depth = 0
    for positions, depths, opens in _brackets(text):
        cuts = (opens & (depths == max_depth + 1)) | (~opens & (depths == max_depth))
        for at, begins in zip(positions[cuts].tolist(), opens[cuts].tolist(), strict=True):
            if begins:
                parts += (text[kept:at], b"null")
            else:
                kept = at + 1
        depth = int(depths[-1])
    if depth > max_depth:
        kept = len(text)  # it is cut off there: no JSON
    return b"".join((*parts, text[kept:])) if parts else text


def _brackets(text: bytes) -> "Iterator[tuple[Int64, Int64, Bool]]":
    """Yield the brackets outside of strings, a chunk at a time: positions, depths after them, and whether they open."""
    import numpy as np  # not above: few programs that read objects meet such JSON

    depth = 0
    quoted = False
    for begin, chunk, escapes in _chunks(text):
        quotes = chunk == _QUOTE
        escaped = escapes + 1
        quotes[escaped[escaped < len(chunk)]] = False
        outside = np.logical_xor.accumulate(quotes) == quoted
        quoted = quoted != bool(np.count_nonzero(quotes) % 2)
        folded = chunk | 0x20  # square brackets become curly ones
        positions = np.flatnonzero(outside & ((folded == _BRACKET) | (folded == _BRACKET + 2)))
        if len(positions):
            opens = folded[positions] == _BRACKET
            depths = depth + np.cumsum(np.where(opens, 1, -1))
            depth = int(depths[-1])
            yield positions + begin, depths, opens


def _without_half_pairs(text: bytes) -> bytes:
    """Return JSON in which each escape sequence for half of a surrogate pair is one for U+FFFD, which is as long."""
    import numpy as np

    if b"\\u" not in text:
        return text
    count = max(0, len(text) - 5)  # places where such a sequence may begin
    begins = np.zeros(len(text), np.bool_)
    for begin, _, escapes in _chunks(text):
        begins[escapes + begin] = True
    whole = np.frombuffer(text, np.uint8)
    of_pair = begins[:count] & (whole[1 : count + 1] == _U) & (whole[2 : count + 2] | 0x20 == _D)
    digits = np.zeros(256, np.uint8)
    digits[list(b"89abAB")], digits[list(b"cdefCDEF")] = 1, 2
    parts = np.where(of_pair, digits[whole[3 : count + 3]], 0)
    paired = (parts[:-6] == 1) & (parts[6:] == 2)
    parts[:-6][paired] = parts[6:][paired] = 0
    changed, halves = whole.copy(), parts > 0
    for offset, character in enumerate(b"fffd", 2):
        np.putmask(changed[offset : count + offset], halves, character)
    return changed.tobytes()


def _chunks(text: bytes) -> "Iterator[tuple[int, NDArray[np.uint8], Int64]]":
    """Yield parts of a text: where each begins, its bytes, and where escape sequences begin; -1 is the byte before."""
    import numpy as np

    whole = np.frombuffer(text, np.uint8)
    is_escaped = False
    for begin in range(0, len(text), _CHUNK_BYTES):
        chunk = whole[begin : begin + _CHUNK_BYTES]
        backslashes = np.flatnonzero(chunk == _BACKSLASH)
        if is_escaped:
            backslashes = np.concatenate(([-1], backslashes))
        # Of backslashes in a row, every second one is escaped by the one before it.
        first_of_row = np.flatnonzero(np.diff(backslashes, prepend=-3) != 1)
        in_row = np.arange(len(backslashes)) - np.repeat(first_of_row, np.diff(first_of_row, append=len(backslashes)))
        escapes = backslashes[in_row % 2 == 0]
        is_escaped = bool(len(escapes) and escapes[-1] == len(chunk) - 1)
        yield begin, chunk, escapes


def is_deeper(value: object, max_depth: int) -> bool:
    """Return whether decoded JSON has arrays and objects below ``max_depth`` levels of them."""
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)
