"""Caches and tables of modules live as long as the process: each has a row in the table of caps."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from pathlib import Path
from types import ModuleType
from typing import Final

import topo_scheduler
from tests.bounds import PAGE

NOT_OF_THE_DAEMON: Final = ("topo_scheduler.simulation", "topo_scheduler.cli", "topo_scheduler.__main__")
WRITES: Final = r"\[[^\]]*\] = |\.(?:add|append|update|setdefault|extend|insert)\("


def modules() -> Iterator[ModuleType]:
    for module_info in pkgutil.walk_packages(topo_scheduler.__path__, "topo_scheduler."):
        if not module_info.name.startswith(NOT_OF_THE_DAEMON):
            yield importlib.import_module(module_info.name)


def caches() -> dict[str, str]:
    """Return the most entries of each cache of a function or method, by its name."""
    bounds = {}
    for module in modules():
        classes = [
            member
            for member in list(vars(module).values())
            if isinstance(member, type) and member.__module__ == module.__name__
        ]
        for owner in (module, *classes):
            for name, value in list(vars(owner).items()):
                function = getattr(value, "__func__", value)
                if isinstance(function, _lru_cache_wrapper) and function.__module__ == module.__name__:
                    maxsize = function.cache_info().maxsize
                    bounds[f"{_short(module)}.{name}"] = "configuration" if maxsize is None else f"{maxsize:,} entries"
    return bounds


def tables() -> dict[str, str]:
    """Return the tables of modules that functions write to, as far as the text of their module shows it."""
    bounds = {}
    for module in modules():
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        for name, value in list(vars(module).items()):
            if isinstance(value, dict | list | set) and re.search(rf"^ +.*\b{name}(?:{WRITES})", source, re.MULTILINE):
                bounds[f"{_short(module)}.{name}"] = "configuration"
    return bounds


def _short(module: ModuleType) -> str:
    return module.__name__.removeprefix("topo_scheduler.")


def test_each_cache_of_a_module_has_a_row_with_its_bound() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Caches of modules")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+?) \|", section, re.MULTILINE))
    assert {**caches(), **tables()} == rows
