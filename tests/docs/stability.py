"""The public names, read from the code: what `docs/reference/stability.md` must list."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from tests.docs.config_reference import referred
from tests.docs.generate import REFERENCE, ROOT, commands, metric_names
from topo_scheduler import plugins
from topo_scheduler.api import annotations
from topo_scheduler.api.annotations import Enforcement, OnFailure, PlacementStrategy
from topo_scheduler.api.config import TopologySchedulerConfig
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.models import Model
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import GroupReason, Reason

PAGE: Final = REFERENCE / "stability.md"
_CRD: Final = ROOT / "manifests" / "base" / "migrations.yaml"


def public_names() -> Mapping[str, frozenset[str]]:
    """Return the names that users write into manifests, scripts and dashboards, by section of the page."""
    return {
        "Annotations": frozenset(name.removeprefix(PREFIX) for name in annotations.KNOWN),
        "Values of annotations": frozenset((*PlacementStrategy, *Enforcement, *OnFailure)),
        "SchedulerConfig": frozenset(_fields_of(SchedulerConfig)),
        "TopologySchedulerConfig": frozenset(_fields_of(TopologySchedulerConfig)),
        "Migration": frozenset(_fields_of_crd()),
        "Values of Migrations": frozenset((*Phase, *Cause)),
        "Reasons of events and conditions": frozenset((*Reason, *GroupReason)),
        "Output of explain -o json": frozenset(_fields_of_schema("explain.schema.json")),
        "result.json of simulate": frozenset(_fields_of_schema("result.schema.json")),
        "Metrics": frozenset(metric_names()),
        "Commands": frozenset(commands()),
        "Plugins": frozenset(plugins.__all__),
    }


def _fields_of(model: type[Model]) -> Iterator[str]:
    schema = model.model_json_schema(by_alias=True)
    yield from _paths(schema, schema, "")


def _fields_of_schema(name: str) -> Iterator[str]:
    schema = json.loads((REFERENCE / name).read_text(encoding="utf-8"))
    for definition in schema["$defs"].values():
        yield from definition.get("properties", {})


def _fields_of_crd() -> Iterator[str]:
    documents = yaml.safe_load_all(_CRD.read_text(encoding="utf-8"))
    (crd,) = (document for document in documents if document["kind"] == "CustomResourceDefinition")
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        yield from _paths(schema, schema["properties"][part], f"{part}.")


def _paths(schema: Mapping[str, Any], part: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield the paths of all fields: ``a``, ``a.b``, and ``c[].d`` below a list."""
    for name, field in part.get("properties", {}).items():
        yield prefix + name
        inner, below = _resolved(schema, field), f"{prefix}{name}."
        if "items" in inner:
            inner, below = _resolved(schema, inner["items"]), f"{prefix}{name}[]."
        yield from _paths(schema, inner, below)


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    for choice in part.get("anyOf", part.get("allOf", ())):
        if choice.get("type") != "null":
            return _resolved(schema, choice)
    return referred(schema, part)
