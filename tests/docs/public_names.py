"""The public names, read from the code: what `docs/reference/stability.md` must list.

A name has the form ``a``, ``a.b``, ``c[].d`` below a list, ``e.*.f`` below a map, ``a=value``, ``metric{label}``, or
``command --option``.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tests.docs import printed
from tests.docs.command_line import options
from tests.docs.config_reference import referred
from tests.docs.metric_families import metric_families
from topo_scheduler import plugins
from topo_scheduler.api import annotations, labels
from topo_scheduler.api.annotations import GANG_COMPLETE, OnFailure, Source, read_annotations
from topo_scheduler.api.config import TopologySchedulerConfig
from topo_scheduler.api.device_score import PARTS
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.links import NODE, uplink_label
from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.models import Model
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.reasons import ALL_MEMBERS_BOUND, GroupReason, Reason
from topo_scheduler.cli.explanation_schema import Explained
from topo_scheduler.cli.main import COMMANDS
from topo_scheduler.recording.audit import AuditEntry
from topo_scheduler.recovery.planning.spares import GIVE_WAY
from topo_scheduler.scheduling.instructions import BindOutcome, EvictionOutcome
from topo_scheduler.simulation.results.model import Result
from topo_scheduler.simulation.results.placements import RunFile
from topo_scheduler.state.decision import Verdict
from topo_scheduler.state.devices.device_survey import DeviceState

_CRD: Final = Path(__file__).resolve().parents[2] / "manifests" / "base" / "migrations.yaml"
_NOT_A_VALUE: Final = "?"
Schema = Mapping[str, Any]


@cache
def public_names() -> Mapping[str, frozenset[str]]:
    """Return the names that users write into manifests, scripts and dashboards, by section of the page."""
    documents = printed.documents()
    return {
        section: frozenset(names)
        for section, names in {
            "Annotations": [name.removeprefix(PREFIX) for name in annotations.KNOWN],
            "Values of annotations": _values_of_annotations(),
            "Node labels": _node_labels(),
            "SchedulerConfig": [*_paths_of(SchedulerConfig), *_predefined()],
            "TopologySchedulerConfig": [*_paths_of(TopologySchedulerConfig), f"spec.links[].level={NODE}"],
            "Migration": _paths_of_crd(),
            "Values of Migrations": _values_of_migrations(),
            "Conditions and events of Migrations": _valued(type=ConditionType, reason=MigrationReason),
            "Events and conditions of other objects": _valued(
                type=[GANG_COMPLETE], reason=[*Reason, *GroupReason, ALL_MEMBERS_BOUND]
            ),
            "explain -o json": _paths_of_struct(Explained),
            "topology -o json": [
                *_paths_of_document(documents["topology"]),
                *(f"domains[].nodes[].devices[].state={state}" for state in _values(DeviceState)),
            ],
            "filter -o json": _paths_of_document(documents["filter"]),
            "drain -o json": _paths_of_document(documents["drain"]),
            "replay -o json": _paths_of_document(documents["replay"]),
            "result.json of simulate": _paths(Result.model_json_schema()),
            "Placements of simulate": _paths_of_struct(RunFile),
            "Audit log": [
                *_paths_of_struct(AuditEntry),
                *_valued(verdict=_values(Verdict), outcome=[*_values(BindOutcome), *_values(EvictionOutcome)]),
            ],
            "Metrics": _metrics(),
            "Commands": [*COMMANDS, *(f"{command} {option}" for command, option in options())],
            "Plugins": plugins.__all__,
        }.items()
    }


def _values(kind: type[Enum]) -> list[str]:
    return [member.value for member in kind]


def _valued(**values: Any) -> Iterator[str]:
    return (f"{name}={value}" for name, of_name in values.items() for value in of_name)


def _values_of_annotations() -> Iterator[str]:
    """Yield the values of annotations that users write, as the parser names them, and those of written annotations."""
    for name in annotations.USERS_MAY_WRITE:
        problems = read_annotations([Source("Pod", "p", {name: _NOT_A_VALUE})]).problems
        text = problems[0].message if problems else ""
        choices = re.search(r" is not one of ([^;]+)", text)
        values = choices[1].split(", ") if choices else re.findall(r'"(true|false)"', text)
        yield from (f"{name.removeprefix(PREFIX)}={value}" for value in values)
    yield f"{annotations.SPANNED_LEVEL.removeprefix(PREFIX)}={NODE}"
    yield from (f"{annotations.DEVICE_SCORE.removeprefix(PREFIX)}={part}" for part in PARTS)


def _node_labels() -> set[str]:
    families = [family for families in labels.FAMILIES.values() for family in families]
    keys = {key for family in families for key in family.keys.values()}
    keys |= {key for of_level in labels.ACCELERATOR_LEVELS.values() for key in of_level}
    keys |= {uplink_label(level) for level in labels.LEVELS}
    keys |= {*labels.RAIL_LABELS, *labels.BANDWIDTH_LABELS, labels.GPU_SHARING}
    return {key for key in keys if key.startswith(PREFIX)}


def _predefined() -> Iterator[str]:
    yield from (f"topology.families={family}" for family in labels.FAMILIES)
    yield from (f"topology.levels[].name={level}" for level in labels.LEVELS)
    yield from (f"topology.accelerators[].name={level}" for level in labels.ACCELERATOR_LEVELS)


def _values_of_migrations() -> Iterator[str]:
    yield from (f"spec.reason={cause}" for cause in Cause)
    yield from (f"status.phase={phase}" for phase in Phase)
    yield from (f"status.policy={policy}" for policy in (*OnFailure, GIVE_WAY))


def _metrics() -> Iterator[str]:
    for family in metric_families():
        yield family.name
        yield from (f"{family.name}{{{label}}}" for label in family.labels)


# ---------------------------------------------------------------- paths


def _paths_of(model: type[Model]) -> Iterator[str]:
    return _paths(model.model_json_schema(by_alias=True))


def _paths_of_struct(struct: type[msgspec.Struct]) -> Iterator[str]:
    return _paths(msgspec.json.schema(struct))


def _paths_of_crd() -> Iterator[str]:
    documents = yaml.safe_load_all(_CRD.read_text(encoding="utf-8"))
    (crd,) = (document for document in documents if document["kind"] == "CustomResourceDefinition")
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        yield from _fields(schema, schema["properties"][part], f"{part}.")


def _paths(schema: Schema) -> Iterator[str]:
    return _fields(schema, _resolved(schema, schema), "")


def _fields(schema: Schema, part: Schema, prefix: str, around: tuple[Schema, ...] = ()) -> Iterator[str]:
    """Yield the paths of all fields, and fixed values. An object inside another of its kind has the fields of that."""
    if part in around:
        return
    for name, field in part.get("properties", {}).items():
        inner, path = _resolved(schema, field), prefix + name
        yield path
        if isinstance(inner.get("items"), Mapping):
            inner, path = _resolved(schema, inner["items"]), f"{path}[]"
        elif isinstance(inner.get("additionalProperties"), Mapping):
            inner, path = _resolved(schema, inner["additionalProperties"]), f"{path}.*"
        yield from (f"{prefix}{name}={value}" for value in inner.get("enum", ()))
        if "const" in inner:
            yield f"{prefix}{name}={inner['const']}"
        yield from _fields(schema, inner, f"{path}.", (*around, part))


def _resolved(schema: Schema, part: Schema) -> Schema:
    for choice in part.get("anyOf", part.get("allOf", ())):
        if choice.get("type") != "null":
            return _resolved(schema, choice)
    return referred(schema, part)


def _paths_of_document(value: Any, prefix: str = "", around: Mapping[str, str] | None = None) -> set[str]:
    """Return the paths of all fields of a document. Lists with the name of one around them have the same fields."""
    around = around or {}
    if isinstance(value, list):
        return {path for item in value for path in _paths_of_document(item, prefix, around)}
    if not isinstance(value, dict):
        return set()
    paths = set()
    for name, field in value.items():
        paths.add(prefix + name)
        inside = f"{prefix}{name}[]." if isinstance(field, list) else f"{prefix}{name}."
        inside = around.get(name, inside)
        paths |= _paths_of_document(field, inside, {**around, name: inside} if isinstance(field, list) else around)
    return paths
