"""How large everything is that a daemon holds: each table found by walking its objects, none by name."""

import sys
from collections import Counter, deque
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from typing import Any, Final

import numpy as np

OURS: Final = "topo_scheduler."
NOT_OURS: Final = ("topo_scheduler.simulation.", "topo_scheduler.cli.")
_TABLES: Final = (dict, list, set, frozenset, tuple, deque)


def census(root: object) -> Counter[str]:
    """Return how many entries the tables have that hang at an object, by the way to them.

    Tables within tables count together: ``daemon.term.engine.workloads._workloads[].members``.
    """
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    left: deque[tuple[str, object]] = deque([("daemon", root)])
    while left:
        path, holder = left.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        if isinstance(holder, np.ndarray):
            counts[path] += holder.size
        elif isinstance(holder, _TABLES):
            # A tuple is as long as it was made; what fields of objects are, neither.
            if not isinstance(holder, tuple):
                counts[path] += len(holder)
            inside = holder.values() if isinstance(holder, dict) else holder
            left += [(f"{path}[]", item) for item in inside if _holds(item)]
            if isinstance(holder, dict):
                left += [(f"{path}<>", key) for key in holder if _holds(key)]
        else:
            left += [(f"{path}.{name}", value) for name, value in _fields(holder) if _holds(value)]
    return counts


def caches() -> Counter[str]:
    """Return how many entries the tables of our modules have, and the caches that have no end of their own."""
    counts: Counter[str] = Counter()
    for name, module in list(sys.modules.items()):
        if not name.startswith(OURS) or name.startswith(NOT_OURS):
            continue
        for key, value in vars(module).items():
            if isinstance(value, _lru_cache_wrapper):
                if value.cache_info().maxsize is None:
                    counts[f"{name}.{key}()"] = value.cache_info().currsize
            elif isinstance(value, dict | list | set | deque) and not key.startswith("__"):
                counts[f"{name}.{key}"] = len(value)
    return counts


def _holds(value: object) -> bool:
    if isinstance(value, _TABLES):
        return True
    if isinstance(value, str | bytes | int | float | type(None) | type):
        return False
    return isinstance(value, np.ndarray) or _is_ours(value)


def _is_ours(value: object) -> bool:
    module = type(value).__module__
    return module.startswith(OURS) and not module.startswith(NOT_OURS)


def _fields(holder: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(holder, "__dict__", {}).items()
    for cls in type(holder).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            attribute = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if hasattr(holder, attribute):
                yield name, getattr(holder, attribute)
    for name in getattr(type(holder), "__struct_fields__", ()):
        yield name, getattr(holder, name)
