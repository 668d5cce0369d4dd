"""Pages that may be longer than others, each with the reason."""

from typing import Final

LOOK_UP_PAGES: Final = {
    "CHANGELOG.md": "grows with each release",
    "docs/reference/caps.md": "one row for each cap; a test compares the rows with the containers of the engine",
    "docs/reference/glossary.md": "one row for each term, in alphabetical order",
}
"""Look-up tables: a reader searches such a page for one row."""

MEASUREMENTS: Final = "docs/reference/measurements*.md"
"""Tables of one run stand together."""
