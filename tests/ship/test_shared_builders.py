"""Builders that tests share live in fixture modules: no module imports a test module."""

from pathlib import Path

import pytest

from tests.imports import imported_names

from .manifests import ROOT

TESTS = ROOT / "tests"


def imported_test_modules(path: Path) -> set[str]:
    """Return the test modules among the imports of a file."""
    modules = set()
    for name in imported_names(path, ROOT):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            is_test = parts[0] == "tests" and parts[end - 1].startswith("test_")
            if is_test and ROOT.joinpath(*parts[:end]).with_suffix(".py").is_file():
                modules.add(".".join(parts[:end]))
    return modules


def test_no_module_imports_a_test_module() -> None:
    imports = {str(path.relative_to(ROOT)): sorted(imported_test_modules(path)) for path in TESTS.rglob("*.py")}
    assert {path: modules for path, modules in imports.items() if modules} == {}


@pytest.mark.parametrize(
    "statement",
    [
        "from tests.ship.test_shared_builders import TESTS",
        "from tests.ship import test_shared_builders",
        "from .test_shared_builders import TESTS",
        "from . import test_shared_builders",
        "import tests.ship.test_shared_builders",
    ],
)
def test_each_form_of_import_is_found(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tests" / "ship" / "test_other.py"
    path.parent.mkdir(parents=True)
    path.write_text(statement)
    path.with_name("test_shared_builders.py").touch()
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert imported_test_modules(path) == {"tests.ship.test_shared_builders"}
