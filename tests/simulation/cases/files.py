"""Files with Kubernetes objects."""

from pathlib import Path
from typing import Any

import yaml


def write(path: Path, *objects: dict[str, Any]) -> str:
    """Write objects as documents of a file; return its path."""
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return str(path)
