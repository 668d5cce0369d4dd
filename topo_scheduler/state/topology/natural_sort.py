"""Natural sort order of names: numbers in them compare as numbers."""

import re
from functools import lru_cache

NaturalKey = tuple[tuple[int, int, str], ...]


@lru_cache(maxsize=262_144)
def natural_key(name: str) -> NaturalKey:
    """Return a sort key by which ``leaf-2`` comes before ``leaf-10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), part) if part.isdigit() else (0, 0, part) for part in parts)
