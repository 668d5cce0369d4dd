"""Delta debugging: the smallest snapshot for which something still holds."""

import copy
from collections.abc import Callable, Collection
from typing import Any

from .choices import Json

Predicate = Callable[[Json], bool]

LISTS = (
    "pending",
    "pods",
    "nodes",
    "pvcs",
    "pvs",
    "storageClasses",
    "csiNodes",
    "csiDrivers",
    "csiStorageCapacities",
    "volumeAttachments",
    "namespaces",
)
_KEPT = """
metadata name namespace uid spec status containers key operator topologyKey maxSkew whenUnsatisfiable claimName

volumeID pdName iqn monitors image driver volumeHandle provisioner controller hostPort effect nodeSelectorTerms
devices requests exactly pool count allocationMode
"""
KEPT = frozenset(_KEPT.split())
"""Fields without which an object is none, another, or nothing an API server would take."""


def shrink(
    snapshot: Json,
    holds: Predicate,
    lists: Collection[str] = LISTS,
    kept: Collection[str] = ("nodes", "pods", "pending"),
) -> Json:
    """Drop objects, then fields, as long as ``holds`` says so. A snapshot for which it raises does not hold.

    Args:
        snapshot: what to make smaller.
        holds: whether a smaller one still shows what matters.
        lists: the names of the lists of objects.
        kept: the lists that stay when they are empty.
    """
    small = copy.deepcopy(snapshot)
    before = None
    while before != small:
        before = copy.deepcopy(small)
        for name in lists:
            if small.get(name):
                small[name] = _smallest(small, name, holds)
        for name in lists:
            for index in range(len(small.get(name, []))):
                _drop_fields(small, small[name][index], holds)
    return {name: objects for name, objects in small.items() if objects or name in kept}


def _holds(snapshot: Json, holds: Predicate) -> bool:
    try:
        return holds(snapshot)
    except Exception:  # whatever a snapshot without this field does to either side
        return False


def _smallest(snapshot: Json, name: str, holds: Predicate) -> list[Json]:
    """Take away runs of objects, shorter and shorter ones."""
    objects = list(snapshot[name])
    size = len(objects)
    while size:
        start = 0
        while start < len(objects):
            fewer = objects[:start] + objects[start + size :]
            if _holds({**snapshot, name: fewer}, holds):
                objects = fewer
            else:
                start += size
        size //= 2
    return objects


def _drop_fields(snapshot: Json, value: Any, holds: Predicate) -> None:
    """Remove fields and list elements of ``value``, a part of ``snapshot``, in place."""
    if isinstance(value, dict):
        for key in list(value):
            kept = value.pop(key)
            if key in KEPT or not _holds(snapshot, holds):
                value[key] = kept
                _drop_fields(snapshot, kept, holds)
    elif isinstance(value, list):
        for index in reversed(range(len(value))):
            kept = value.pop(index)
            if not _holds(snapshot, holds):
                value.insert(index, kept)
                _drop_fields(snapshot, kept, holds)
