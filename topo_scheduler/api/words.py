"""Words that messages share."""

from collections.abc import Sequence


def few_of(names: Sequence[str], most: int = 4) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
