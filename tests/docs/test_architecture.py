"""The page on the architecture names every package, and each path on it or in CODEOWNERS exists."""

import re

from tests.docs.generate import ROOT

PACKAGE = ROOT / "topo_scheduler"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Packages")[2].partition("\n## ")[0]


def test_every_package_has_a_row() -> None:
    packages = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("__init__.py")} - {"./"}
    rows = re.findall(r"^\| `([\w/]+/)` \|", TABLE, re.MULTILINE)
    assert sorted(rows) == sorted(packages)


def test_every_path_exists() -> None:
    paths = {name for name in re.findall(r"`([\w./]+)`", PAGE) if name.endswith((".py", "/"))}
    assert len(paths) > 50
    paths -= {"topo_scheduler/", "__init__.py"}
    assert [path for path in sorted(paths) if not (PACKAGE / path).exists()] == []


def test_every_path_with_an_owner_exists() -> None:
    owners = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8")
    paths = re.findall(r"^/(\S+)", owners, re.MULTILINE)
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []
