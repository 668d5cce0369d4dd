"""What a file imports, read from its text."""

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_names(path: Path, root: Path) -> Iterator[str]:
    """Return the modules that a file below ``root`` imports, and the names that it imports from them, absolute."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
