"""Words that messages share."""

from collections.abc import Sequence


def few_of(names: Sequence[str], most: int = 4) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def plural(level: str) -> str:
    """Return the name of several domains of a level, or of several nodes."""
    return "leaves" if level == "leaf" else f"{level}s"
