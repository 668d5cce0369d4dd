"""Sentences that a person reads: of Markdown pages, and of docstrings, comments, messages and help texts in Python."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEAST_WORDS_OF_MESSAGE: Final = 4
"""String constants of fewer words are keys and names."""

_FENCE = re.compile(r"^\s*(```|~~~)")
_BLOCK_START = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=\S)")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Passage:
    """Text that starts at a line; ``prose`` whether its sentences are counted."""

    line: int
    text: str
    prose: bool = True


def of_markdown(text: str) -> Iterator[Passage]:
    """Yield paragraphs, items and headings of a page, without code blocks; cells of tables are no sentences."""
    lines: list[str] = []
    start, fenced = 1, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = bool(_FENCE.match(line))
        table = line.lstrip().startswith("|")
        heading = line.startswith("#")
        if lines and (fence or table or heading or not line.strip() or _BLOCK_START.match(line)):
            yield Passage(start, _plain(" ".join(lines)))
            lines = []
        if fence:
            fenced = not fenced
        elif fenced or not line.strip():
            continue
        elif table or heading:
            yield Passage(number, _plain(line), prose=False)
        else:
            start = start if lines else number
            lines.append(_BLOCK_START.sub("", line).strip())


def of_python(text: str) -> Iterator[Passage]:
    """Yield docstrings, comments, and string constants that look like messages."""
    tree = ast.parse(text)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            whole = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "X"
                for part in node.values
            )
            yield from _message(node.lineno, whole)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield from _message(node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield Passage(token.start[0], token.string.lstrip("# "))


def _message(line: int, text: str) -> Iterator[Passage]:
    if len(text.split()) >= LEAST_WORDS_OF_MESSAGE:
        for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*]\s)|\n(?=\s*\w+:\s)", text):
            yield Passage(line, _CODE.sub("X", paragraph))


def _plain(text: str) -> str:
    return _CODE.sub("X", _LINK.sub(r"\1", text))


def sentences(text: str) -> list[str]:
    """Return the sentences of a passage."""
    return [sentence for sentence in _SENTENCE_END.split(" ".join(text.split())) if sentence]


def passages(path: Path) -> Iterator[Passage]:
    """Yield what a person reads in a file."""
    text = path.read_text(encoding="utf-8")
    return of_markdown(text) if path.suffix == ".md" else of_python(text)


def words_of_page(text: str) -> int:
    """Return the number of words of a page, with those of its tables, without the lines that draw these."""
    return sum(any(map(str.isalnum, word)) for word in text.split())
