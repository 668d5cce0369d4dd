"""The Markdown pages and what stands in them: links, headings, code blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.generate import ROOT

_GUIDES: Final = [ROOT / ".github" / name for name in ("CONTRIBUTING.md", "SECURITY.md")]
PAGES: Final = [ROOT / "README.md", ROOT / "CHANGELOG.md", *_GUIDES, *sorted((ROOT / "docs").rglob("*.md"))]
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        """For messages and names of tests."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the code blocks of all pages that are written in one of these languages."""
    return [block for page in PAGES for block in _blocks(page) if block.language in languages]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tables(text: str) -> Iterator[list[str]]:
    """Yield the tables of a page, the header first, without the line below it."""
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        lines = block.splitlines()
        yield [lines[0], *lines[2:]]
