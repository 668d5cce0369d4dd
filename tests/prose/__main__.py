"""Check the language of the project: ``python -m tests.prose [FILE...]``. Needs nothing but Python.

Prints each finding as ``file:line: what, and what to write instead``; exit code 1 if there is any.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from .extract import Passage, names_of_tests, passages, sentences, words_of_page
from .page_length import LOOK_UP_PAGES, MEASUREMENTS
from .rules import MOST_WORDS_OF_PAGE, MOST_WORDS_OF_SENTENCE, RULES, TEST_NAMES

ROOT = Path(__file__).resolve().parents[2]


_READ: Final = {
    ".": ("*.md", "*.toml", "*.ini", "*.yaml", "Dockerfile", ".dockerignore", ".gitignore", ".editorconfig"),
    ".ci": ("*",),
    ".github": ("**/*.md", "**/*.yml", "CODEOWNERS"),
    "docs": ("**/*.md",),
    "examples": ("**/*.md", "**/*.yaml", "**/*.py", "**/*.toml"),
    "manifests": ("**/*.yaml", "**/*.sh", "**/*.in"),
    "tests": ("**/*.md", "**/*.yaml", "**/*.py"),
    "topo_scheduler": ("**/*.py", "**/*.yaml", "**/*.js", "**/*.css"),
}
"""Patterns of the files that are checked, by folder. Go modules are not: a change of theirs builds binaries again."""
_EXAMPLES: Final = (ROOT / "tests" / "prose" / "rules.py", ROOT / "tests" / "prose" / "test_prose.py")
"""Files that quote phrases which are not written."""


def files() -> list[Path]:
    """Return everything that a person reads, but for files that quote what is not written."""
    paths = {path for folder, names in _READ.items() for name in names for path in ROOT.glob(f"{folder}/{name}")}
    return sorted(path for path in paths if path.is_file() and path not in _EXAMPLES)


_QUOTED: Final = ROOT / "topo_scheduler" / "simulation" / "apiserver"
"""Modules whose messages are those of Kubernetes, as long as they are there."""


def _of_passage(passage: Passage, *, counted: bool) -> Iterator[str]:
    for rule in RULES:
        for match in rule.pattern.finditer(passage.text):
            yield f"«{match.group(0)}»: {rule.instead}"
    if counted and passage.prose:
        for sentence in sentences(passage.text):
            if (words := len(sentence.split())) > MOST_WORDS_OF_SENTENCE:
                yield f"a sentence of {words} words, at most {MOST_WORDS_OF_SENTENCE}: {sentence[:60]}"


def findings(path: Path) -> Iterator[str]:
    """Yield what is to be written otherwise in a file, as ``line: what``."""
    page = path.suffix == ".md"
    for passage in passages(path):
        yield from (
            f"{passage.line}: {finding}" for finding in _of_passage(passage, counted=_QUOTED not in path.parents)
        )
    if path.suffix == ".py":
        for line, name in names_of_tests(path.read_text(encoding="utf-8")):
            for match in TEST_NAMES.pattern.finditer(name):
                yield f"{line}: «{match.group(0)}» in {name}: {TEST_NAMES.instead}"
    if page and not may_be_long(path):
        words = words_of_page(path.read_text(encoding="utf-8"))
        if words > MOST_WORDS_OF_PAGE:
            yield f"1: a page of {words} words, at most {MOST_WORDS_OF_PAGE}: split it by topic"


def may_be_long(path: Path) -> bool:
    """Return whether a page is a look-up table, or one of measurements."""
    return path.match(MEASUREMENTS) or any(path == ROOT / name for name in LOOK_UP_PAGES)


def main(arguments: Sequence[str]) -> int:
    """Check files, or all; return the exit code."""
    count = 0
    for path in [Path(name).resolve() for name in arguments] or files():
        for finding in findings(path):
            print(f"{path.relative_to(ROOT)}:{finding}")
            count += 1
    print(f"{count} findings", file=sys.stderr)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
