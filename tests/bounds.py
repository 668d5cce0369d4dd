"""What docs/reference/caps.md says of containers, and whether those that hang at an object keep to it."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final

from tests.soak.census import census

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "caps.md"
NESTED_ENTRIES: Final = 1024
"""Entries on average of tables within tables: terms of a pod, rows of a view."""
SLACK_ENTRIES: Final = 64
COLUMNS: Final = 128
"""Columns of an array of nodes."""
ROWS: Final = 256
"""Rows of the table of nodes at least."""
WORDS: Final = ("pods", "nodes", "nodes × resources", "namespaces", "configuration", "objects of storage", "PodGroups")
FEW: Final = (
    "objects of devices: ResourceSlices and their devices",
    "objects of devices",
    "budgets",
    "Migrations",
    "owners",
    "events",
)


def bounds(root: str) -> dict[str, str]:
    """Return the bound of each container below a root by its path, as the page says it. A row may name many objects."""
    rows: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[1].startswith("`"):
            paths = [path for path in re.findall(r"`([\w.]+)`", cells[1]) if path.partition(".")[0] == root]
            for path, name in product(paths, re.findall(r"`([\w.<>\[\]]+)`", cells[3])):
                assert f"{path}.{name}" not in rows, f"{path}.{name} has two rows"
                rows[f"{path}.{name}"] = cells[2]
    return rows


def most(bound: str, pods: int, nodes: int, objects: int = 0, slack: int = SLACK_ENTRIES, *, devices: int = 0) -> int:
    """Return how many entries a container may have.

    ``objects`` other than pods, nodes and ``devices`` that there are. ``devices``: claims, and slices with theirs.
    """
    number = re.match(r"([\d,]+) entries", bound)
    if number:
        return int(number[1].replace(",", ""))
    word = bound.split(",")[0]
    match word:
        case "pods":
            return 2 * pods + slack
        case "nodes":
            return 4 * max(nodes, ROWS) + SLACK_ENTRIES
        case "nodes × resources":
            return COLUMNS * max(nodes, ROWS)
        case "configuration":
            return 4 * SLACK_ENTRIES
    assert word in (*WORDS, *FEW), f"{bound}: a bound of no kind that is known"
    return 2 * (objects + (devices if word.startswith("objects of devices") else 0)) + slack


def container(path: str, root: str) -> str:
    """Return the container of a path of the census: tables within it count as its entries."""
    return re.split(r"\[\]|<>", path.replace("daemon", root, 1))[0]


def check_containers(
    root_object: object,
    root: str,
    pods: int,
    nodes: int,
    objects: int = 0,
    others: Collection[str] = (),
    sections: Mapping[str, str] | None = None,
    slack: int = SLACK_ENTRIES,
    *,
    devices: int = 0,
) -> None:
    """Fail where a container below an object has no row, or more entries than its row allows.

    Args:
        root_object: the object.
        root: what the page calls it.
        pods: how many pods there are.
        nodes: how many nodes.
        objects: how many other objects.
        others: beginnings of paths that are skipped, as other objects own them.
        sections: beginnings of paths whose objects the page calls otherwise, with their names there.
        slack: entries in addition to those of pods and of other objects.
        devices: how many claims, slices and devices in slices there are.
    """
    sections = sections or {}
    assert not (stale := _stale(root_object, root)), f"{PAGE.name} has rows for containers that do not exist: {stale}"
    named = {name: bound for called in {root, *sections.values()} for name, bound in bounds(called).items()}
    sizes: Counter[str] = census(root_object)
    for path, entries in sizes.items():
        name = container(path, root)
        if name.startswith(tuple(others)):
            continue
        inner = max((begin for begin in sections if name.startswith(f"{begin}.")), key=len, default="")
        if inner:
            name = sections[inner] + name.removeprefix(inner)
        assert name in named, f"{name} has no row in {PAGE.name}: what bounds it?"
        nested = "[" in path or "<" in path
        allowed = most(named[name], pods, nodes, objects, slack, devices=devices) * (NESTED_ENTRIES if nested else 1)
        assert entries <= allowed, f"{path} has {entries} entries, by {PAGE.name} at most {allowed} ({named[name]})"


def _stale(root_object: object, root: str) -> list[str]:
    """Return the containers of the page that no object below a root has. What is absent just now is skipped."""
    return [path for path in bounds(root) if not _exists(root_object, path.split(".")[1:])]


def _exists(holder: object, names: Sequence[str]) -> bool:
    for name in names:
        attribute = name.removesuffix("[]")
        if holder is None:
            return True
        if not hasattr(holder, attribute):
            return False
        holder = getattr(holder, attribute)
        if attribute != name:  # any of the objects in a container
            assert isinstance(holder, Mapping)
            holder = next(iter(holder.values()), None)
    return True
