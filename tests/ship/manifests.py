"""The manifests as data, and as ``kubectl kustomize`` renders them where kubectl is at hand."""

import copy
import functools
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
BASE = MANIFESTS / "base"
EXAMPLES = ROOT / "examples"

Object = dict[str, Any]


def read(path: Path) -> list[Object]:
    """Read every document of a YAML file of this project."""
    return copy.deepcopy(_parsed(path))


@functools.cache  # as YAML the definition of Migrations takes 0.2 s, and each test that moves pods wants it
def _parsed(path: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def kustomization(folder: Path) -> Object:
    """Read the kustomization of a folder."""
    (document,) = read(folder / "kustomization.yaml")
    return document


def resources(folder: Path) -> list[Object]:
    """Every object a kustomization names, folders followed, nothing patched."""
    objects: list[Object] = []
    for name in kustomization(folder)["resources"]:
        path = (folder / name).resolve()
        objects += resources(path) if path.is_dir() else read(path)
    return objects


def render(folder: Path) -> list[Object] | None:
    """What ``kubectl kustomize`` makes of a folder, or None where there is no kubectl."""
    if shutil.which("kubectl") is None:
        return None
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def identity(item: Object) -> tuple[str, str, str]:
    """What tells objects apart."""
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def by_identity(items: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    """Objects by identity; one that is there twice is an error."""
    objects: dict[tuple[str, str, str], Object] = {}
    for item in items:
        assert identity(item) not in objects, f"twice: {identity(item)}"
        objects[identity(item)] = item
    return objects


def one(items: Iterable[Object], kind: str, name: str = "topology-scheduler") -> Object:
    """The one object of a kind and name."""
    (selected,) = (item for item in items if item["kind"] == kind and item["metadata"]["name"] == name)
    return selected


def container(items: Iterable[Object]) -> Object:
    """The container of the Deployment."""
    (container_spec,) = one(items, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container_spec, dict)
    return container_spec
