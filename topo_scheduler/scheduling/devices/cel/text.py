"""The strings extension of CEL, by the names of its overloads."""

from collections.abc import Mapping, Sequence
from typing import Final

from .conversions import Implementation
from .errors import EvaluationError, ExpressionNotUnderstoodError

MAX_CHARACTERS: Final = 1_000_000
"""A longer text is not built."""
_ASCII_UPPER: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TO_LOWER: Final = str.maketrans(_ASCII_UPPER, _ASCII_UPPER.lower())
_TO_UPPER: Final = str.maketrans(_ASCII_UPPER.lower(), _ASCII_UPPER)
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_ALL_SPACE: Final = _SPACE + "\u2028\u2029\u202f\u205f\u3000"
_QUOTED: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def _outside(position: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {position}")


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise _outside(position)
    return text[position : position + 1]


def _index_of(text: str, wanted: str, offset: int = 0) -> int:
    if not wanted:
        return offset
    if offset < 0:
        raise _outside(offset)
    return text.find(wanted, offset) if offset < len(text) else -1


def _last_index_of(text: str, wanted: str, offset: int | None = None) -> int:
    if offset is None:
        if not wanted:
            return len(text)
        if len(text.encode()) < len(wanted.encode()):
            return -1
        offset = len(text) - 1
    if not wanted:
        return offset
    if offset < 0:
        raise _outside(offset)
    return text.rfind(wanted, 0, offset + len(wanted)) if offset < len(text) else -1


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if end is not None and start > end:
        raise EvaluationError(f"invalid substring range: {start} is behind {end}")
    if not 0 <= start <= len(text):
        raise _outside(start)
    if not 0 <= stop <= len(text):
        raise _outside(stop)
    return text[start:stop]


def _limit(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise ExpressionNotUnderstoodError(
            "the expression builds a text of more than 1,000,000 characters: simplify it"
        )


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    replacements = text.count(old) if count < 0 else min(count, text.count(old))
    _limit(len(text) + replacements * len(new))
    return text.replace(old, new, count if count >= 0 else -1)


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if separator:
        return text.split(separator, count - 1 if count > 0 else -1)
    if count < 0 or count > len(text):
        return list(text)
    return [*text[: count - 1], text[count - 1 :]] if text else []


def _join(texts: Sequence[object], separator: str = "") -> str:
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) < len(texts):
        raise EvaluationError("join() takes a list of strings")
    _limit(sum(map(len, strings)) + len(strings) * len(separator))
    return separator.join(strings)


TEXT: Final[Mapping[str, Implementation]] = {
    "contains_string": lambda text, part: part in text,
    "ends_with_string": lambda text, part: text.endswith(part),
    "starts_with_string": lambda text, part: text.startswith(part),
    "string_char_at_int": _char_at,
    "string_index_of_string": _index_of,
    "string_index_of_string_int": _index_of,
    "string_last_index_of_string": _last_index_of,
    "string_last_index_of_string_int": _last_index_of,
    "string_lower_ascii": lambda text: text.translate(_TO_LOWER),
    "string_upper_ascii": lambda text: text.translate(_TO_UPPER),
    "string_replace_string_string": _replace,
    "string_replace_string_string_int": _replace,
    "string_split_string": _split,
    "string_split_string_int": _split,
    "string_substring_int": _substring,
    "string_substring_int_int": _substring,
    "string_trim": lambda text: text.strip(_ALL_SPACE),
    "strings_quote": lambda text: f'"{text.translate(_QUOTED)}"',
    "list_join": _join,
    "list_join_string": _join,
}
