"""Markdown tables, and the line above a generated page."""

from collections.abc import Iterable, Sequence
from typing import Final

NOTICE: Final = "<!-- Written by `python -m tests.docs.generate`; change the code, not this file. -->\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    cells = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in cells)


def code_list(items: Iterable[str]) -> str:
    """Return items as code, with commas between them."""
    return ", ".join(f"`{item}`" for item in items)
