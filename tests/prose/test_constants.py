"""Constants of the package carry their unit."""

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.prose.__main__ import ROOT

PACKAGE: Final = ROOT / "topo_scheduler"
UNITS: Final = {"second": "_SECONDS", "byte": "_BYTES"}
"""What the name of a constant ends in or contains, as in ``PAUSE_SECONDS_PER_POD``, if its text names a unit.

A text that names both is read up to the first.
"""
COUNTS: Final = {"pods": "PODS", "characters": "CHARACTERS"}
"""What the name of a constant contains if its text begins with what it counts."""
MODULES: Final = sorted(PACKAGE.rglob("*.py"))


def _texts(source: str, body: list[ast.stmt]) -> Iterator[tuple[list[str], ast.expr, str]]:
    """Yield the names, the value and the text of each constant: its docstring, and the comments at it and above it."""
    lines = source.splitlines()
    for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.ClassDef):
            yield from _texts(source, statement.body)
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [
            name.id
            for target in targets
            for name in (target.elts if isinstance(target, ast.Tuple) else [target])
            if isinstance(name, ast.Name) and name.id.isupper()
        ]
        text = [lines[statement.end_lineno - 1].partition("  # ")[2]] if statement.end_lineno else []
        for line in reversed(lines[: statement.lineno - 1]):
            if not line.lstrip().startswith("#"):
                break
            text.append(line)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text.append(str(following.value.value))
        yield names, statement.value, "\n".join(text)


def _is_number(value: ast.expr) -> bool:
    """Return whether a value is a number, or numbers: computed from literals and other constants."""
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.Name, ast.expr_context)
    constants = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    names = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
    return (
        all(isinstance(node, allowed) for node in ast.walk(value))
        and all(isinstance(constant, int | float) and not isinstance(constant, bool) for constant in constants)
        and all(name.isupper() for name in names)
    )


def without_unit(source: str) -> list[str]:
    """Return each constant whose name lacks its unit.

    That is the unit with which its text begins or that it names after «in», or what it counts by its first words.
    """
    wrong = []
    for names, value, text in _texts(source, ast.parse(source).body):
        said = re.search(r"\A\W*(?:\w+\W+){0,2}?(second|byte)s?\b|\bin (second|byte)s\b", text, re.IGNORECASE)
        if said is not None and _is_number(value):
            suffix = UNITS[(said.group(1) or said.group(2)).lower()]
            wrong += [f"{name}: write {name}{suffix}" for name in names if suffix not in f"_{name}"]
        counted = re.match(r"\W*(?:the )?(?:most |maximum )?(pods|characters)\b", text, re.IGNORECASE)
        if counted is not None and _is_number(value):
            word = COUNTS[counted[1].lower()]
            wrong += [f"{name}: write {name}_{word}" for name in names if word not in name]
    return wrong


def test_constants_say_their_unit() -> None:
    wrong = {str(path.relative_to(ROOT)): without_unit(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ('RETRY: Final = 2.0\n"""Seconds after which a write is retried."""\n', ["RETRY"]),
        ('RETRY_SECONDS: Final = 2.0\n"""Seconds after which a write is retried."""\n', []),
        ('FIRST, LAST = 0.2, 30.0\n"""Bounds of the pause, in seconds."""\n', ["FIRST", "LAST"]),
        ("# Longest line in bytes.\nLINE = 64 * 1024\n", ["LINE"]),
        ("LINE = 64 * 1024  # bytes of a line\n", ["LINE"]),
        ('class Writer:\n    PAUSE = 2\n    """Seconds."""\n', ["PAUSE"]),
        ('PODS: Final = 3\n"""Pods that are evicted within 5 seconds."""\n', []),
        ('MOVED: Final = 3\n"""Pods that are moved at once."""\n', ["MOVED"]),
        ('QUEUED_PODS_PER_READ: Final = 3\n"""Pods that are queued meanwhile."""\n', []),
        ('LINE: Final = 80\n"""The most characters of a line."""\n', ["LINE"]),
        ('NAMES: Final = ("s",)\n"""Seconds, by another name."""\n', []),
    ],
)
def test_the_check_finds_constants_without_unit(source: str, wrong: list[str]) -> None:
    assert [name.partition(":")[0] for name in without_unit(source)] == wrong
