"""Each package says what lives there and which packages import it; what it says is what the code does."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.imports import imported_names

ROOT = Path(__file__).parents[2] / "topo_scheduler"
PACKAGES = {
    path.parent.relative_to(ROOT.parent).as_posix().replace("/", "."): path for path in ROOT.rglob("__init__.py")
}
LEAST_WORDS = 4
"""Words with which a package says what lives there: a name alone says nothing."""
SAYS = re.compile(r"^Imported by: (.+?)\.$", re.MULTILINE | re.DOTALL)


def _package_of(name: str) -> str:
    """Return the innermost package of a module, or of a name in a module."""
    while name not in PACKAGES:
        name = name.rpartition(".")[0]
    return name


def _imported(path: Path) -> set[str]:
    """Return the packages of this project that a file imports."""
    names = imported_names(path, ROOT.parent)
    return {_package_of(name) for name in names if name.partition(".")[0] == ROOT.name}


@cache
def _importers() -> dict[str, set[str]]:
    importers: dict[str, set[str]] = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        module = path.relative_to(ROOT.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        package = module if path.name == "__init__.py" else _package_of(module)
        for imported in _imported(path) - {package}:
            parts = imported.split(".")
            # An import of a part is one of the whole; of the root only its own names count, as all is below it.
            for depth in range(min(len(parts), 2), len(parts) + 1):
                importers[".".join(parts[:depth])].add(module if package == ROOT.name else package)
    return importers


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_says_what_lives_there(package: str) -> None:
    docstring = ast.get_docstring(ast.parse(PACKAGES[package].read_text())) or ""
    first = docstring.partition("\n\n")[0]
    assert not first.startswith("Imported by") and first.endswith(".")
    own_names = {*package.split("."), "package"}
    words = [word for word in re.findall(r"[\w-]+", first) if word.lower() not in own_names]
    assert len(words) >= LEAST_WORDS, f"{package}: {first}"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_names_its_importers(package: str) -> None:
    """Every importer is below a name of the list, and every name of the list stands for an importer."""
    docstring = ast.get_docstring(ast.parse(PACKAGES[package].read_text())) or ""
    says = SAYS.search(docstring)
    assert says, f"{package}: the docstring lacks a line `Imported by: ...`"
    named = {f"{ROOT.name}.{name}" for name in re.findall(r"`([\w.]+)`", says[1])}
    inside = f"{package}." if package != ROOT.name else "."
    actual = {name for name in _importers()[package] if not f"{name}.".startswith(inside)}

    def below(name: str, above: str) -> bool:
        return f"{name}.".startswith(f"{above}.")

    missing = {name for name in actual if not any(below(name, above) for above in named)}
    stale = {above for above in named if not any(below(name, above) for name in actual)}
    assert not missing and not stale, f"{package}: not in its list {sorted(missing)}; no importer below {sorted(stale)}"
