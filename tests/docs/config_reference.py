"""The reference of the configuration: an overview, and a page for each group of fields, read from the models."""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tests.docs.tables import NOTICE, code_list, table
from topo_scheduler.api import names
from topo_scheduler.api.config import TopologySchedulerConfig
from topo_scheduler.api.models import Model
from topo_scheduler.api.process import SchedulerConfig

_OVERVIEW: Final = """\
# Configuration

There are two kinds, `SchedulerConfig` and `TopologySchedulerConfig`. Fields that are not set have their defaults.

```yaml
apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
logging:
  level: debug
---
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec:
  preemption:
    enabled: false
```

The documents may be in one file, in any order, or in several files of one folder. Each kind may occur at most once. A
file may also be a manifest of the ConfigMap `topology-scheduler-config`, with the documents in its `data`. Other
Kubernetes objects in the files are skipped. `metadata` may be that of any Kubernetes object; the scheduler ignores it.

How to change the configuration of a running scheduler: [configure](../how-to/configure.md). Flags of
[`topo-scheduler run`](cli.md) override the file.

## SchedulerConfig

How the process runs. Changes take effect at the next start of the process. All fields:
[SchedulerConfig](config-process.md).

`spec.scoringWeights` and `spec.topologyConstraints` may be set in either kind. Changes take effect while the process
runs. If both kinds set a field to different values, the configuration is refused.

## TopologySchedulerConfig

How the scheduler decides on placements. Changes take effect while the process runs.

"""
_VALUES: Final = """
## Values

The scheduler refuses an unknown key, a duplicate key, or a value out of range. The error names the path of the field
and, if a known key is similar, suggests it. Durations are written as `15s`, `1m30s`, `500ms` or as a number of seconds,
above 0 and at most 24 h.

Names follow the [rules of Kubernetes](https://kubernetes.io/docs/concepts/overview/working-with-objects/names/), which
the tables name by their types. For example, a Lease has a *DNS subdomain* as its name, a namespace a *DNS label*, and a
label or a resource a *qualified name*.

Some rules span several fields:

- `leaseDuration > renewDeadline > 1.2 x retryPeriod`.
- At least one of the four weights must be above 0.0005.
- `topology.levels`, if set, replaces `topology.families`.
- If `plugins` are listed, `pluginTimeout` is at most a fifth of `renewDeadline`.
- A rule of `placementRules` is refused if an earlier rule already covers all its gangs.
"""
_PROCESS: Final = """\
# SchedulerConfig

How the scheduler process runs. Changes take effect at its next start. For example, a scheduler with a name of its own,
which keeps a record of its decisions:

```yaml
apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
schedulerName: gang-scheduler
leaderElection:
  resourceName: gang-scheduler
record:
  directory: /var/lib/topo-scheduler/record
```

The other kind, and what holds for both: [configuration](config.md).

"""
_BELOW: Final = "What holds for all fields: [configuration](config.md).\n"


@dataclass(frozen=True, slots=True)
class _Page:
    """A page on some of the fields of ``TopologySchedulerConfig``."""

    title: str
    introduction: str
    example: str
    fields: tuple[str, ...]

    def text(self) -> str:
        example = f"apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n{self.example}"
        parts = [NOTICE, f"# {self.title}\n\n{self.introduction}\n\n```yaml\n{example}```\n\n{_BELOW}"]
        rows = list(_rows(TopologySchedulerConfig))
        for field in self.fields:
            parts.append(f"\n## {field}\n\n")
            parts.append(table(_HEADER, (row for row in rows if _group(row) == field)))
        return "".join(parts)


_HEADER: Final = ("field", "type", "default", "meaning")
_PAGES: Final = {
    "config-placement.md": _Page(
        "Configuration of placement",
        "Fields of `TopologySchedulerConfig` that decide which nodes a workload gets. For example, gangs of 64\n"
        "nodes and more stay below one spine:",
        "  topologyConstraints:\n"
        "    enforcement: required\n"
        "  placementRules:\n"
        "    - name: large-gangs\n"
        "      nodes: 64\n"
        "      level: spine\n"
        "      enforcement: required\n",
        (
            "scoringWeights",
            "topologyConstraints",
            "placementRules",
            "links",
            "smallPods",
            "otherSchedulers",
            "maxNodesToScore",
        ),
    ),
    "config-sharing.md": _Page(
        "Configuration of sharing",
        "Fields of `TopologySchedulerConfig` that divide the cluster between workloads and namespaces. For example,\n"
        "64 GPUs for a team, and reservations for two gangs of each priority:",
        "  quotas:\n    - namespaces: [team-vision]\n      hard: {gpus: 64}\n  reservation:\n    gangs: 2\n",
        ("fairness", "quotas", "domainAccess", "gpusByAnnotation", "preemption", "reservation", "events"),
    ),
    "config-recovery.md": _Page(
        "Configuration of recovery",
        "Fields of `TopologySchedulerConfig` on failed nodes, spare nodes and moves of running pods. For example,\n"
        "plan Migrations without evicting pods, and keep one spare node of each kind in each leaf:",
        "  recovery:\n    enabled: true\n    dryRun: true\n  spares:\n    perLeaf: 1\n",
        ("recovery", "spares", "repair"),
    ),
}
_SHARED: Final = ("scoringWeights", "topologyConstraints")


def overview_page() -> str:
    """Return ``config.md``: the fields of ``spec``, each with the page that describes it."""
    meanings = {_group(row): row[-1] for row in _rows(TopologySchedulerConfig) if row[0].count(".") == 1}
    where = {field: name for name, page in _PAGES.items() for field in page.fields}
    fields = [(f"[`spec.{field}`]({where[field]}#{field.lower()})", meaning) for field, meaning in meanings.items()]
    return NOTICE + _OVERVIEW + table(("field", "meaning"), fields) + _VALUES


def process_page() -> str:
    """Return ``config-process.md``: the fields of ``SchedulerConfig``, those it shares in brief."""
    rows = []
    for row in _rows(SchedulerConfig):
        field = _group(row)
        if field not in _SHARED:
            rows.append(row)
        elif row[0] == f"`spec.{field}`":
            link = f"[the same fields](config-placement.md#{field.lower()})"
            rows.append((*row[:-1], f"{row[-1]} As in `TopologySchedulerConfig`: {link}."))
    return NOTICE + _PROCESS + table(_HEADER, rows)


PAGES: Final = {
    "config.md": overview_page,
    "config-process.md": process_page,
    **{name: page.text for name, page in _PAGES.items()},
}


def _rows(model: type[Model]) -> Iterator[Sequence[str]]:
    schema = model.model_json_schema(by_alias=True)
    rows = _fields(schema, schema, model().model_dump(mode="json", by_alias=True), "")
    return (row for row in rows if row[0] not in ("`apiVersion`", "`kind`"))


def _group(row: Sequence[str]) -> str:
    """Return the field of ``spec`` to which a row belongs, or nothing."""
    names_of_row = row[0].strip("`").replace("[]", "").split(".")
    return names_of_row[1] if names_of_row[0] == "spec" and len(names_of_row) > 1 else ""


def _fields(schema: dict[str, Any], part: dict[str, Any], defaults: Any, prefix: str) -> Iterator[Sequence[str]]:
    for name, described in part.get("properties", {}).items():
        path = f"{prefix}{name}"
        inner = referred(schema, described)
        meaning = _text(_texts_of_fields()[str(part["title"])].get(name) or inner.get("description"))
        default = defaults.get(name) if isinstance(defaults, dict) else None
        if "properties" in inner:
            yield f"`{path}`", "object", "", meaning
            yield from _fields(schema, inner, default, f"{path}.")
            continue
        kind = _type(schema, described)
        if kind == "number" and isinstance(default, str):
            kind = "duration"
        yield f"`{path}`", kind, _default(default) if isinstance(defaults, dict) else "", meaning
        lists = (option["items"] for option in (described, *described.get("anyOf", ())) if "items" in option)
        items = referred(schema, next(lists, {}))
        if "properties" in items:
            yield from _fields(schema, items, None, f"{path}[].")


@cache
def _texts_of_fields() -> dict[str, dict[str, str]]:
    """Return the text that stands below each field of a model, by the model's name and the field's alias."""
    by_model: dict[str, dict[str, str]] = {}
    for model in _models(Model):
        (written,) = ast.parse(inspect.getsource(model)).body
        assert isinstance(written, ast.ClassDef)
        texts = by_model[model.__name__] = {}
        for statement, after in zip(written.body, written.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(statement.target, ast.Name) and isinstance(after.value, ast.Constant)
                texts[model.model_fields[statement.target.id].alias or ""] = str(after.value.value)
    return by_model


def _models(base: type[Model]) -> Iterator[type[Model]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def referred(schema: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a part of a JSON schema refers to, or the part."""
    name = part.get("$ref", "").rpartition("/")[2]
    return dict(schema["$defs"][name] if name else part)


def _type(schema: dict[str, Any], described: dict[str, Any]) -> str:
    if "anyOf" in described:
        options = [option for option in described["anyOf"] if option.get("type") != "null"]
        return " or ".join(_type(schema, option) for option in options)
    inner = referred(schema, described)
    if "enum" in inner:
        return " or ".join(f"`{value}`" for value in inner["enum"])
    kind = inner.get("type", "any")
    if kind == "array":
        least = ", at least one" if inner.get("minItems") else ""
        return f"list of {_plural(_type(schema, inner['items']))}{least}"
    low, high = inner.get("minimum"), inner.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low:.12g} to {high:.12g}"
    if low is not None:
        return f"{kind}, at least {low:.12g}"
    if "pattern" in inner:
        return _KINDS.get(inner["pattern"], f"{kind}, `{inner['pattern']}`")
    return str(kind)


_KINDS: Final = {
    names.DNS_LABEL: "DNS label",
    names.DNS_SUBDOMAIN: "DNS subdomain",
    names.QUALIFIED_NAME: "qualified name",
    names.LABEL_VALUE: "label value",
    names.NAMESPACE_PATTERN: "namespace or pattern",
    names.DOMAIN_PATH: "domain",
    names.HOST_ADDRESS: "address",
    names.FILE_PATH: "path",
}
"""What a text that matches a pattern is called."""


def _plural(kind: str) -> str:
    return {"address": "addresses", "namespace or pattern": "namespaces or patterns"}.get(kind, f"{kind}s")


def _default(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return code_list(value) or "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in ("", {}) else "empty"


def _text(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split())
