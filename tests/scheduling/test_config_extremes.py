"""Every number and every text of the configuration at its extremes: refused, or decisions go on as ever."""

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Final, Union

import pytest
import yaml
from pydantic import BaseModel

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.api.annotations import KNOWN
from topo_scheduler.api.config import CONFIG_KINDS, ConfigError, Configuration, load_configuration
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.process import API_VERSION
from topo_scheduler.api.text import clipped
from topo_scheduler.scheduling.instructions import CountFailure, Instruction

INF: Final = float("inf")
NUMBERS: Final = (0, -1, 1, 12, 2**31, 2**53, 2**63 - 1, 2**63, 10**30, 0.5, 1e-300, 1e308, float("nan"), INF, -INF)
ENDLESS: Final = (2**63 - 1, 2**63, 10**30, 1e308, float("nan"), INF, -INF)
"""Values that no field may take: beyond int64 in a sum of a few, or no number."""
QUANTITIES: Final = ("0", "-1", "9223372036854775807", "9223372036854775808", "1e30", "9" * 60, "1e308", "nan", "inf")
NO_NAMES: Final = ("", "No Such/..", "../x", "a\x1b[31mb", "a\nb", "\x00", "x" * 5000)
FREE_TEXTS: Final = frozenset(
    {
        "clientConnection.context",  # compared with the contexts of a kubeconfig
        "clientConnection.kubeconfig",
        "metrics.tls.certFile",
        "metrics.tls.keyFile",
        "record.directory",
        "auditLog.path",
        "spec.smallPods.scoring",  # compared with the names of plugins' scores
        "spec.scoringWeights.plugins.KEY",
        "plugins.0.arguments.KEY",
    }
)
"""Texts that are no names of Kubernetes: paths, and what is only compared."""
MAY_BE_EMPTY: Final = frozenset({"metrics.bindAddress", "spec.placementRules.0.match.labels.KEY"})
REQUIRED: Final[dict[str, dict[str, Any]]] = {
    "Level": {"name": "leaf", "labels": ["a/leaf"]},
    "PluginConfig": {"name": "x"},
    "LinkLabels": {"current": "a/b", "expected": "a/c"},
    "Quota": {"namespaces": ["a"], "hard": {"gpus": 1}},
    "DomainAccess": {"domain": "s1", "namespaces": ["a"]},
    "PlacementRule": {"name": "r", "maxLeaves": 1},
    "Link": {"level": "leaf", "capacity": "1Gb"},
}
"""What an entry of a list needs besides the field that is tried."""

Path = tuple[str | int, ...]


def _fields(annotation: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the type of each value below a field."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        yield from _fields(arguments[0], path)
    elif origin in (Union, types.UnionType):
        for part in arguments:
            yield from _fields(part, path)
    elif origin is tuple:
        yield from _fields(arguments[0], (*path, 0))
    elif origin is dict:
        yield (*path, "KEY"), dict
        yield from _fields(arguments[1], (*path, "KEY"))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for field in annotation.model_fields.values():
            yield from _fields(field.annotation, (*path, field.alias or ""))
    elif isinstance(annotation, type):
        yield path, annotation


def _model_of_entry(model: type[BaseModel], path: Path) -> str:
    """Return the name of the model of the list entry at a path."""
    annotation: Any = model
    for part in path:
        while typing.get_origin(annotation) in (Annotated, Union, types.UnionType):
            annotation = typing.get_args(annotation)[0]
        if isinstance(part, int):
            annotation = typing.get_args(annotation)[0]
        else:
            annotation = next(f.annotation for f in annotation.model_fields.values() if f.alias == part)
    return str(getattr(annotation, "__name__", ""))


def _document(kind: str, path: Path, value: object) -> dict[str, Any]:
    """Return a document with one value, and what its list entries need besides."""
    out: Any = value
    for depth in range(len(path) - 1, -1, -1):
        part = path[depth]
        if isinstance(part, str):
            out = {part: out}
            if depth and isinstance(path[depth - 1], int):
                needed = REQUIRED.get(_model_of_entry(CONFIG_KINDS[kind], path[:depth]), {})
                # A level and a domain, or a share and whole GPUs, exclude each other.
                needed = {key: given for key, given in needed.items() if (key, part) != ("level", "domain")}
                out = needed | out
        else:
            out = [out]
    return {"apiVersion": API_VERSION, "kind": kind, **out}


def _read(kind: str, path: Path, value: object) -> Configuration | None:
    """Return the configuration; None if it is refused, with the field and in few words."""
    document = _document(kind, path, value)
    try:
        return load_configuration({"test": _yaml(document)})
    except ConfigError as error:
        assert "Traceback" not in str(error)
        assert len(str(error)) < 600, str(error)
        assert str(path[0]) in str(error)
        return None


def _yaml(document: object) -> str:
    return str(yaml.safe_dump(document))


CASES: Final = [
    (kind, path, type_)
    for kind, model in CONFIG_KINDS.items()
    for path, type_ in dict.fromkeys(_fields(model, ()))
    if path[0] not in ("apiVersion", "kind")
]


def _ids(case: tuple[str, Path, Any]) -> str:
    return f"{case[0][:3]}.{'.'.join(map(str, case[1]))}:{case[2].__name__}"


@pytest.mark.parametrize("case", [case for case in CASES if case[2] in (int, float)], ids=_ids)
def test_a_number_is_bounded_and_any_that_is_accepted_leaves_decisions_alone(case: tuple[str, Path, Any]) -> None:
    kind, path, _ = case
    accepted = 0
    for value in NUMBERS:
        configuration = _read(kind, path, value)
        if configuration is not None:
            assert value not in ENDLESS, f"{path} has no upper bound"
            accepted += 1
            _decides(configuration)
    assert accepted, "no value of the field was tried"


@pytest.mark.parametrize("case", [case for case in CASES if case[2] is str], ids=_ids)
def test_a_quantity_is_refused_or_leaves_decisions_alone(case: tuple[str, Path, Any]) -> None:
    kind, path, _ = case
    for value in QUANTITIES:
        for given in {path, (*path[:-1], "cpu")} if path[-1] == "KEY" else {path}:
            if (configuration := _read(kind, given, value)) is not None:
                _decides(configuration)


@pytest.mark.parametrize("case", [case for case in CASES if case[2] in (str, dict)], ids=_ids)
def test_a_text_that_names_something_of_kubernetes_is_checked(case: tuple[str, Path, Any]) -> None:
    kind, path, type_ = case
    dotted = ".".join(map(str, path))
    for name in NO_NAMES:
        given = (*path[:-1], name) if type_ is dict else path
        configuration = _read(kind, given, "1" if type_ is dict else name)
        free = dotted in FREE_TEXTS or (path[-1] == "domain" and name == "../x")
        assert configuration is None or free or (not name and dotted in MAY_BE_EMPTY), (
            f"{dotted} accepts {clipped(name, 40)!r}"
        )


def _decides(configuration: Configuration) -> None:
    """Let an engine decide on a gang and a single pod; no attempt may end in an internal error."""
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}, gpus=2), configuration)
    pods = [make_pod("alone", namespace="other", gpus=1), *gang(2, gpus=2), *gang(3, gpus=1, name="h")]
    for pod in pods:
        pod.spec.scheduler_name = configuration.scheduler.scheduler_name
    d.apply(*pods)
    d.step()
    d.step(3600)
    assert not _failures(d)
    assert d.decisions()


def _failures(d: Driver) -> list[Instruction]:
    """Return the internal errors."""
    return [said for said in d.said if isinstance(said, CountFailure)]


WRITTEN_NUMBERS: Final = ("0", "-1", "9999999999", "9223372036854775808", "1e308", "nan", "9" * 40, "0,9999", "0.999")


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_no_number_in_an_annotation_stops_a_decision(name: str) -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}, gpus=2))
    for number, value in enumerate((*QUANTITIES, *WRITTEN_NUMBERS)):
        # One pod that is pending, and one that is found bound, as after a restart.
        annotations = {name.removeprefix(PREFIX): value}
        pending = make_pod(f"a-{number}", annotations=annotations, gpus=1)
        bound = make_pod(f"b-{number}", annotations=annotations, gpus=1, node="s1-l1-1")
        d.apply(pending, bound)
        d.settle(3600)
        d.delete(pending, bound)
    assert d.run(make_pod("last", gpus=1))
    assert not _failures(d)
