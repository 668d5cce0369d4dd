"""Sentences that a person reads.

They stand in Markdown pages, in comments and descriptions of YAML, and in docstrings, comments, messages and help texts
of Python. Comments and messages of scripts and settings are others.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEAST_WORDS_OF_MESSAGE: Final = 4
"""String constants of fewer words are keys and names."""

_TEST = re.compile(r"^ *(?:async )?def (?P<name>test_\w+)", re.MULTILINE)
_FENCE = re.compile(r"^\s*(```|~~~)")
_BLOCK_START = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=\S)")
_YAML_COMMENT = re.compile(r"^\s*#( ?)(?P<text>.*)$")
_YAML_TEXT = re.compile(
    r"^(?P<indent>\s*)(?:- )?"
    r"(?:(?:description|summary|message):|(?:about|label|name|value):(?=(?:\s+\S+){4}))\s+(?P<text>\S.*)$"
)
"""What is described, and the value of other fields of four words or more: others are names."""
_DRAWING = re.compile(r"[─│├└]")
_ROW = re.compile(r"^\s*\||\S {2,}\S")
"""A row of a table: cells between bars, or columns with spaces between them."""
_CODE = re.compile(r"``.+?``|`[^`]*`", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


_STRING: Final = r"""|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)"""
_SLASHED = re.compile(r"//(?P<comment>[^\n]*)|/\*(?P<block>.*?)\*/" + _STRING, re.DOTALL)
_HASHED = re.compile(r"(?:^|(?<=\s))#(?!!)(?P<comment>[^\n]*)|^description = (?P<block>.*)$" + _STRING, re.MULTILINE)


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


def of_yaml(text: str) -> Iterator[Passage]:
    """Yield comments and descriptions. Text that is indented within a comment is code."""
    lines: list[str] = []
    start, indent = 1, None
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment, described = _YAML_COMMENT.match(line), _YAML_TEXT.match(line)
        depth = len(line) - len(line.lstrip())
        continued = indent is not None and depth > indent and not comment and bool(line.strip())
        said = comment.group("text") if comment else ""
        spoken = bool(said.strip()) and not said.startswith(" ")
        if lines and not continued and not (spoken and indent is None):
            yield Passage(start, _plain(" ".join(lines)))
            lines, indent = [], None
        if continued:
            lines.append(line.strip())
        elif spoken:
            start = start if lines else number
            lines.append(said)
        elif described:
            start, indent = number, len(described.group("indent"))
            lines = [described.group("text").removeprefix(">-").removeprefix("|-")]


def of_python(text: str) -> Iterator[Passage]:
    """Yield docstrings, comments, and string constants that look like messages."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):  # a formatted string comes before its parts
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            whole = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "X"
                for part in node.values
            )
            yield from _message(node.lineno, whole)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield from _message(node.lineno, node.value)
    yield from _joined(
        (token.start[0], token.string[1:], not token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("#!")
    )


def names_of_tests(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each test function of a Python module."""
    for match in _TEST.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match["name"]


def of_script(text: str) -> Iterator[Passage]:
    """Yield comments and messages of a language whose comments begin with ``//``, or stand in ``/* */``."""
    return _of_tokens(text, _SLASHED)


def of_settings(text: str) -> Iterator[Passage]:
    """Yield comments, descriptions and messages of a file whose comments begin with ``#``, such as a shell script."""
    return _of_tokens(text, _HASHED)


def _of_tokens(text: str, token: re.Pattern[str]) -> Iterator[Passage]:
    """Yield comments, and strings that look like messages."""
    comments = []
    for match in token.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["string"] is not None:
            yield from _message(line, match["string"][1:-1])
        elif match["comment"] is None:
            yield Passage(line, _CODE.sub("X", match["block"].strip()))
        else:
            before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            comments.append((line, match["comment"], not before.strip()))
    yield from _joined(comments)


def _joined(comments: Iterable[tuple[int, str, bool]]) -> Iterator[Passage]:
    """Join comments of following lines, except items, rows of tables, and what is indented in them.

    Args:
        comments: of each line its number, the text after the mark, and whether there is nothing before it.
    """
    lines: list[str] = []
    start = end = 0
    for line, comment, alone in comments:
        apart = comment.startswith("  ") or bool(_BLOCK_START.match(comment) or _ROW.search(comment))
        if lines and (line != end + 1 or not alone or apart or not comment.strip()):
            yield Passage(start, _CODE.sub("X", " ".join(lines)))
            lines = []
        if apart:
            yield Passage(line, _CODE.sub("X", comment.strip()), prose=not _ROW.search(comment))
        elif comment.strip():
            start, end = line if not lines else start, line if alone else 0
            lines.append(comment.strip())
    if lines:
        yield Passage(start, _CODE.sub("X", " ".join(lines)))


def _message(line: int, text: str) -> Iterator[Passage]:
    rows = [row for row in text.split("\n") if not _DRAWING.search(row)]
    if sum(len(row.split()) for row in rows) < LEAST_WORDS_OF_MESSAGE:
        return
    for row in rows:
        if _ROW.search(row):
            yield Passage(line, _CODE.sub("X", row), prose=False)
    text = "\n".join("" if _ROW.search(row) else row for row in rows)
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
    return _READERS.get(path.suffix, of_settings)(text)


_READERS: Final = {
    ".md": of_markdown,
    ".yaml": of_yaml,
    ".yml": of_yaml,
    ".py": of_python,
    ".js": of_script,
    ".css": of_script,
}
"""How files are read, by the end of their names; others are settings."""


def words_of_page(text: str) -> int:
    """Return the number of words of a page, with those of its tables, without the lines that draw these."""
    return sum(any(map(str.isalnum, word)) for word in text.split())
