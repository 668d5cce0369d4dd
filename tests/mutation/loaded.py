"""Puts mutants in the place of functions that are loaded."""

import ast
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from tests.mutation.targets import PACKAGE, ROOT

SEEN: Final = "__seen__"


@dataclass(frozen=True)
class Change:
    """A changed line of a function, with the code of its file as it would be."""

    part: str
    file: Path
    line: int
    operator: str
    diff: str
    code: CodeType


@cache
def original(path: Path) -> CodeType:
    return compile(path.read_text(), path, "exec")


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods; those inside of them are a part of theirs."""
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if not constant.co_flags & CO_NEWLOCALS:
            yield from _functions(constant)  # the body of a class
        elif not constant.co_name.endswith(("comp>", "<genexpr>")):
            yield constant


def changed(code: CodeType, path: Path) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the functions of a file that differ in this code, each with the original."""
    for new_code, was in zip(_functions(code), _functions(original(path)), strict=True):
        if new_code != was:
            yield new_code, was


class Loaded:
    """The package's functions in this process."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, int], list[FunctionType]] = {}
        package = str(ROOT / PACKAGE)
        gc.unfreeze()  # frozen objects are not listed
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(package):
                self._of.setdefault(self._key(function.__code__), []).append(function)

    def replace(self, path: Path, code: CodeType) -> None:
        """Have this process run other code in the functions of a file that differ."""
        for new_code, was in changed(code, path):
            for function in self._of.get(self._key(was), ()):
                function.__code__ = new_code

    @staticmethod
    def _key(code: CodeType) -> tuple[str, str, int]:
        return code.co_filename, code.co_qualname, code.co_firstlineno


def marked(path: Path, lines: Sequence[tuple[int, int]]) -> CodeType:
    """Return the code of a file that calls ``__seen__(number)`` before each statement at one of these lines.

    Args:
        path: the file.
        lines: numbers, each with its line.
    """
    tree = ast.parse(path.read_text())
    for number, line in lines:
        at = [(block, candidate) for block in _blocks(tree) for candidate in block if _covers(candidate, line)]
        if at:
            block, statement = at[-1]
            mark = ast.parse(f"{SEEN}({number})").body[0]
            for node in ast.walk(mark):
                ast.copy_location(node, statement)
            block.insert(block.index(statement), mark)
    return compile(tree, path, "exec")


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield each list of statements, outer ones first."""
    for node in ast.walk(tree):
        blocks = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        yield from (block for block in blocks if isinstance(block, list))


def _covers(statement: ast.stmt, line: int) -> bool:
    """Return whether a statement that is no mark has a line."""
    if (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and getattr(statement.value.func, "id", "") == SEEN
    ):
        return False
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)
