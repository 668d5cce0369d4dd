"""Names of arguments and local variables say what they are, in the package and in tests."""

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from tests.prose.__main__ import ROOT

SOURCES: Final = [ROOT / "topo_scheduler", ROOT / "tests"]
VAGUE: Final = frozenset({"one", "found", "told", "some", "most", "gone", "there"})
"""Instead: the thing itself (``node``, ``candidate``, ``reason``), or what is counted (``max_pods``)."""
SECOND_WORDS: Final = {
    "half_bound": "partially_bound",
    "half_gang": "partially_bound",
    "held_back": "in_backoff",
    "loosened": "relaxed",
    "loosening": "relaxation",
    "parked": "unschedulable",
    "set_aside": "unschedulable",
    "ways_out": "remedies",
    "why_not": "reason",
}
"""Parts of names that are second words for a term, with that term."""


def _bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each argument, and of each variable that is assigned, looped over, caught or matched."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def _fields(tree: ast.AST) -> set[tuple[int, str]]:
    """Return the fields of classes: what their objects record may have these names."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        (statement.target.lineno, statement.target.id)
        for body in bodies
        for statement in body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def vague_names(source: str) -> list[str]:
    """Return the names of arguments and variables that say nothing, and names with second words, with their lines."""
    tree = ast.parse(source)
    fields = _fields(tree)
    bound = sorted(set(_bound(tree)))
    wrong = [f"{line}: {name}" for line, name in bound if name in VAGUE and (line, name) not in fields]
    return wrong + [
        f"{line}: {name}: write {term}"
        for line, name in sorted({*bound, *_defined(tree)})
        for word, term in SECOND_WORDS.items()
        if f"_{word}_" in f"_{name}_".replace("gangs_", "gang_")
    ]


def test_names_say_what_they_are() -> None:
    paths = [path for folder in SOURCES for path in folder.rglob("*.py")]
    wrong = {str(path.relative_to(ROOT)): vague_names(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(found): ...", ["found"]),
        ("for one in pods: ...", ["one"]),
        ("ids = [one.id for one in pods]", ["one"]),
        ("if (gone := f()): ...", ["gone"]),
        ("lambda there: 0", ["there"]),
        ("try: ...\nexcept E as found: ...", ["found"]),
        ("class C:\n    found: bool = False", []),
        ("class C:\n    def f(self, *, most: int) -> None: ...", ["most"]),
        ("found_pods = 1", []),
        ("self.found = 1", []),
        ("half_gangs = 1", ["half_gangs"]),
        ("def is_half_bound(): ...", ["is_half_bound"]),
        ("class C:\n    def next_loosening(self): ...", ["next_loosening"]),
        ("class C:\n    half_bound: bool = False", ["half_bound"]),
    ],
)
def test_the_check_finds_vague_names(source: str, names: list[str]) -> None:
    assert [name.split(": ")[1] for name in vague_names(source)] == names
