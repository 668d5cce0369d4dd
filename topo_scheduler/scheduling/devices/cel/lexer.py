"""Text to tokens, with CEL's literals converted to values."""

import re
from dataclasses import dataclass
from typing import Final

from .errors import ExpressionNotUnderstoodError, InvalidExpressionError, located
from .values import MAX_INT, MAX_UINT, Uint, Value

_ESCAPE: Final = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_TOKEN: Final = re.compile(
    r"""
    (?P<space>[\t \r\n\f]+|//[^\n]*)
  | (?P<text>(?P<bytes>[bB])?(?:
        (?P<raw>[rR])(?:\"{3}(?:(?!\"{3})[\s\S])*\"{3}|'{3}(?:(?!'{3})[\s\S])*'{3}|\"[^\"\n\r]*\"|'[^'\n\r]*')
      | \"{3}(?:ESC|(?!\"{3})[^\\])*\"{3}|'{3}(?:ESC|(?!'{3})[^\\])*'{3}
      | \"(?:ESC|[^\\\"\n\r])*\"|'(?:ESC|[^\\'\n\r])*'))
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<operator>==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}])
    """.replace("ESC", _ESCAPE),
    re.VERBOSE,
)
_SIMPLE_ESCAPES: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_MAX_DIGITS: Final = 4_000
"""Python converts no longer decimal numbers."""
_KEYWORDS: Final = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is ``name``, ``literal``, ``number`` (still without its sign), ``end``, or the operator itself."""

    kind: str
    text: str
    position: int
    value: Value = None


def tokenise(expression: str) -> list[Token]:
    """Return the tokens of an expression, with one of kind ``end`` behind them.

    Raises:
        InvalidExpressionError: a character or a literal that CEL does not have.
        ExpressionNotUnderstoodError: a name in backquotes, or text that is not valid Unicode.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            if expression[position] == "`":
                raise ExpressionNotUnderstoodError(
                    located("names in backquotes are not supported", expression, position)
                )
            raise InvalidExpressionError(located("syntax error: no token starts here", expression, position))
        if match["space"] is None:
            tokens.append(_token(match, expression))
        position = match.end()
    tokens.append(Token("end", "the end of the expression", len(expression)))
    return tokens


def _token(match: re.Match[str], expression: str) -> Token:
    text, position = match[0], match.start()
    if match["name"] is not None:
        if text in _KEYWORDS:
            return Token("literal", text, position, _KEYWORDS[text])
        return Token("in" if text == "in" else "name", text, position)
    if match["operator"] is not None:
        return Token(text, text, position)
    if match["text"] is not None:
        return Token("literal", text, position, _text(match, expression))
    if match["uint"] is not None:
        number = MAX_UINT + 1
        if len(text) <= _MAX_DIGITS:
            number = int(text[:-1], 16 if text.startswith("0x") else 10)
        if number > MAX_UINT:
            raise InvalidExpressionError(located(f"{text} is larger than any uint", expression, position))
        return Token("literal", text, position, Uint(number))
    return Token("number", text, position)


def number_value(text: str, expression: str, position: int) -> Value:
    """Return the value of a signed or unsigned int or double literal."""
    if not re.fullmatch(r"-?(?:0x[0-9a-fA-F]+|[0-9]+)", text):
        double = float(text)
        if double in (float("inf"), float("-inf")):
            raise InvalidExpressionError(located(f"{text} is larger than any double", expression, position))
        return double
    number = int(text, 16 if "0x" in text else 10) if len(text) <= _MAX_DIGITS else MAX_INT + 2
    if not -MAX_INT - 1 <= number <= MAX_INT:
        raise InvalidExpressionError(located(f"{text} is larger than any int", expression, position))
    return number


def _text(match: re.Match[str], expression: str) -> str | bytes:
    text = match["text"].replace("\r\n", "\n").replace("\r", "\n")
    is_bytes, is_raw = match["bytes"] is not None, match["raw"] is not None
    text = text[is_bytes + is_raw :]
    quotes = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    text = text[quotes:-quotes]
    if is_bytes:
        return text.encode() if is_raw else _unescaped_bytes(text)
    if is_raw or "\\" not in text:
        return text
    unescaped = re.sub(_ESCAPE, lambda escape: _unescaped(escape[0]), text)
    if any("\ud800" <= character <= "\udfff" for character in unescaped):
        raise InvalidExpressionError(located("no Unicode character has this number", expression, match.start()))
    return unescaped


def _unescaped(escape: str) -> str:
    kind = escape[1]
    if kind in "xXuU":
        number = int(escape[2:], 16)
        return chr(number) if number <= 0x10FFFF else "\ud800"
    if kind.isdigit():
        return chr(int(escape[1:], 8))
    return _SIMPLE_ESCAPES.get(kind, kind)


def _unescaped_bytes(text: str) -> bytes:
    pieces: list[bytes] = []
    end = 0
    for escape in re.finditer(_ESCAPE, text):
        if escape[0][1] in "uU":
            raise InvalidExpressionError("bytes have no \\u escapes: write the bytes as \\x escapes")
        pieces += [text[end : escape.start()].encode(), _unescaped(escape[0]).encode("latin-1")]
        end = escape.end()
    return b"".join([*pieces, text[end:].encode()])
