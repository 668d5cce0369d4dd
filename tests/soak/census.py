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
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: deque[tuple[str, object]] = deque([("daemon", root)])
    while left:
        path, one = left.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            found[path] += one.size
        elif isinstance(one, _TABLES):
            # A tuple is as long as it was made; what fields of objects are, neither.
            if not isinstance(one, tuple):
                found[path] += len(one)
            inside = one.values() if isinstance(one, dict) else one
            left += [(f"{path}[]", item) for item in inside if _holds(item)]
            if isinstance(one, dict):
                left += [(f"{path}<>", key) for key in one if _holds(key)]
        else:
            left += [(f"{path}.{name}", value) for name, value in _fields(one) if _holds(value)]
    return found


def caches() -> Counter[str]:
    """Return how many entries the tables of our modules have, and the caches that have no end of their own."""
    found: Counter[str] = Counter()
    for name, module in list(sys.modules.items()):
        if not name.startswith(OURS) or name.startswith(NOT_OURS):
            continue
        for key, value in vars(module).items():
            if isinstance(value, _lru_cache_wrapper):
                if value.cache_info().maxsize is None:
                    found[f"{name}.{key}()"] = value.cache_info().currsize
            elif isinstance(value, dict | list | set | deque) and not key.startswith("__"):
                found[f"{name}.{key}"] = len(value)
    return found


def _holds(value: object) -> bool:
    if isinstance(value, _TABLES):
        return True
    if isinstance(value, str | bytes | int | float | type(None) | type):
        return False
    return isinstance(value, np.ndarray) or _is_ours(value)


def _is_ours(value: object) -> bool:
    module = type(value).__module__
    return module.startswith(OURS) and not module.startswith(NOT_OURS)


def _fields(one: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(one, "__dict__", {}).items()
    for cls in type(one).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            attribute = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if hasattr(one, attribute):
                yield name, getattr(one, attribute)
    for name in getattr(type(one), "__struct_fields__", ()):
        yield name, getattr(one, name)
