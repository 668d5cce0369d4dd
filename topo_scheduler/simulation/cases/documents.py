"""Objects of Kubernetes in files: YAML or JSON, single, in several documents, or in lists of ``kubectl get``.

Each object keeps the file and the line where it begins, so that an error message can name them.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.connection.odd_json import decode_object
from topo_scheduler.kube.connection.resources import Object
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.cases.tables import read_text, wrong

T = TypeVar("T", bound=Object)

SUFFIXES: Final = (".yaml", ".yml", ".json")
_REMEDY: Final = "correct it, or move the file away"
MALFORMED_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Exceptions that constructors of PyYAML raise for malformed scalars, in addition to its own errors."""


RESOLVERS: Final = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
"""Resolvers for a loader that keeps timestamps as strings."""


class _DocumentLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Keeps timestamps as strings."""


_DocumentLoader.yaml_implicit_resolvers = RESOLVERS


@dataclass(frozen=True, slots=True)
class Document:
    """A Kubernetes object. ``line`` is where it begins in its file, from 1; 0 if it comes from no file."""

    obj: dict[str, Any]
    path: Path
    line: int

    @property
    def kind(self) -> str:
        """Its kind, empty if missing."""
        return str(self.obj.get("kind") or "")

    @property
    def api_version(self) -> str:
        """Its API version, empty if missing."""
        return str(self.obj.get("apiVersion") or "")

    @property
    def group(self) -> str:
        """The group of its API version, empty for the core API."""
        return self.api_version.rpartition("/")[0]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Its metadata, empty if missing."""
        metadata = self.obj.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its spec, empty if missing."""
        spec = self.obj.get("spec")
        return spec if isinstance(spec, Mapping) else {}

    @property
    def location(self) -> str:
        """File and line; the path alone if the line is 0."""
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    @property
    def description(self) -> str:
        """Kind, namespace and name."""
        parts = [str(self.metadata.get(part) or "") for part in ("namespace", "name")]
        return f"{self.kind or 'object'} {'/'.join(filter(None, parts)) or 'without a name'}"

    def error(self, problem: str, remedy: str = _REMEDY) -> CaseError:
        """Return a `CaseError` that names this object."""
        return wrong(self.path, self.line, f"{self.description}: {problem}", remedy)


def files_of(folder: Path) -> list[Path]:
    """Return the YAML and JSON files of a folder and its subfolders, sorted.

    Raises:
        CaseError: there are none, or a folder can't be read.
    """
    try:
        files = sorted(
            path
            for directory, _, names in os.walk(folder, onerror=_refuse)  # Path.rglob skips unreadable folders silently
            for path in (Path(directory, name) for name in names)
            if path.suffix in SUFFIXES and (path.is_file() or path.is_symlink())  # a broken link raises an error
        )
    except OSError as error:
        raise wrong(Path(error.filename or folder), 0, f"can't be read: {error.strerror}", "check the path") from error
    if not files:
        remedy = "save objects there, such as kubectl get nodes,pods -A -o yaml > all.yaml"
        raise wrong(folder, 0, f"no file that ends in {', '.join(SUFFIXES)}", remedy)
    return files


def _refuse(error: OSError) -> None:
    raise error


def read_folder(folder: Path) -> list[Document]:
    """Return all objects of a folder's files.

    Raises:
        CaseError: a file can't be used.
    """
    return [document for path in files_of(folder) for document in read_documents(path)]


def read_documents(path: Path) -> list[Document]:
    """Return the objects of a file; lists are split into their items.

    Raises:
        CaseError: the file can't be read, is no YAML, or contains something that is no object.
    """
    text = read_text(path)
    if text.lstrip().startswith("{"):
        try:
            parsed = json.loads(text)
        except json.JSONDecodeError as error:
            json_error = error
        except RecursionError as error:
            raise wrong(path, 1, "it is nested too deeply", _REMEDY) from error
        except ValueError as error:  # a number of thousands of digits
            raise wrong(path, 1, f"not valid JSON: {error}", _REMEDY) from error
        else:
            return list(_flat(path, parsed, _ItemLines(text)))
        if path.suffix == ".json":
            raise wrong(path, json_error.lineno, f"not valid JSON: {json_error.msg}", _REMEDY) from json_error
    return list(_yaml_documents(path, text))


def _yaml_documents(path: Path, text: str) -> Iterator[Document]:
    line = 1
    try:
        loader = _DocumentLoader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                line = node.start_mark.line + 1
                yield from _flat(path, loader.construct_document(node), _lines_of(node), line)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        raise wrong(path, mark.line + 1 if mark else line, f"not valid YAML: {problem}", _REMEDY) from error
    except yaml.reader.ReaderError as error:
        error_line = text.count("\n", 0, error.position if isinstance(error.position, int) else 0) + 1
        raise wrong(path, error_line, f"not valid YAML: {error.reason}", _REMEDY) from error
    except CaseError:
        raise
    except RecursionError as error:
        raise wrong(path, line, "it is nested too deeply", _REMEDY) from error
    except (yaml.YAMLError, *MALFORMED_ERRORS) as error:
        raise wrong(path, line, f"not valid YAML: {error}", _REMEDY) from error


def composed(path: Path) -> yaml.Node | None:
    """Return the YAML nodes, with line numbers, of a file with one document that `read_documents` accepted."""
    node: yaml.Node | None = yaml.compose(read_text(path), Loader=_DocumentLoader)
    return node


class _ItemLines:
    """Finds the line of each item of a JSON list by searching for the name of the item."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._from = 0
        self._line = 1

    def line_of(self, item: object) -> int:
        """Return the line of an item, near its name."""
        metadata = item.get("metadata") if isinstance(item, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        position = self._text.find(json.dumps(name), self._from) if isinstance(name, str) else -1
        if position >= 0:
            self._line += self._text.count("\n", self._from, position)
            self._from = position
        return self._line


def _lines_of(node: yaml.Node) -> list[int]:
    """Return the lines of the items of a list."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == "items" and isinstance(value, yaml.SequenceNode):
                return [item.start_mark.line + 1 for item in value.value]
    return []


def _flat(path: Path, obj: object, lines: _ItemLines | list[int], line: int = 1) -> Iterator[Document]:
    if obj is None:
        return
    if not isinstance(obj, dict):
        problem = f"an object of Kubernetes was expected, found {_described(obj)}"
        raise wrong(path, line, problem, "the file may be something else, or be cut short; " + _REMEDY)
    items = obj.get("items")
    if isinstance(items, list) and (not obj.get("kind") or str(obj["kind"]).endswith("List")):
        kind = str(obj.get("kind") or "").removesuffix("List")
        for number, item in enumerate(items):
            item_line = lines.line_of(item) if isinstance(lines, _ItemLines) else [*lines[number : number + 1], line][0]
            if not isinstance(item, dict):
                raise wrong(path, item_line, f"items[{number}] is {_described(item)}", _REMEDY)
            if kind and not item.get("kind"):  # items of a raw list have no kind
                item = {"apiVersion": obj.get("apiVersion"), "kind": kind, **item}
            yield from _flat(path, item, [], item_line)  # lists may contain lists
        return
    if isinstance(lines, _ItemLines):
        line = lines.line_of(obj)
    if not isinstance(metadata := obj.get("metadata") or {}, dict):
        raise wrong(path, line, f"{obj.get('kind') or 'object'}: metadata is {_described(metadata)}", _REMEDY)
    yield Document(obj, path, line)


def _described(value: object) -> str:
    return {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}.get(
        type(value), "nothing" if value is None else type(value).__name__
    )


# ---------------------------------------------------------------- typed


def convert(document: Document, kind: type[T], *, namespaced: bool = True) -> T:
    """Return an object as the daemon would decode it. An object without uid gets one made of kind, namespace and name.

    Raises:
        CaseError: the object does not match the type.
    """
    try:
        obj = decode_object(msgspec.json.Decoder(kind), msgspec.json.encode(document.obj))
    except msgspec.ValidationError as error:
        raise document.error(str(error)) from error
    except (msgspec.MsgspecError, *MALFORMED_ERRORS) as error:
        raise document.error(f"it can't be written as JSON: {error}") from error
    metadata: ObjectMeta = obj.metadata
    if not metadata.name:
        raise document.error("metadata.name is missing", "give it a name")
    if namespaced and not metadata.namespace:
        metadata.namespace = "default"
    if not metadata.uid:
        metadata.uid = "/".join(filter(None, (document.kind.lower(), metadata.namespace, metadata.name)))
    return obj
