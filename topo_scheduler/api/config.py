"""The configuration kinds: `SchedulerConfig` (how the process runs) and `TopologySchedulerConfig` (how it decides).

An unknown key is refused with its path and, if it resembles a known key, a suggestion. Both kinds may be in one file
or in the ConfigMap ``topology-scheduler-config``, as YAML documents in any order, each at most once. A manifest of
that ConfigMap is read as the documents in its ``data``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    model_validator,
)

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.config_errors import explained, problem
from topo_scheduler.api.contention import Contention
from topo_scheduler.api.links import Link
from topo_scheduler.api.models import Metadata, Model
from topo_scheduler.api.names import Count, DnsLabel, LabelValue, QualifiedName
from topo_scheduler.api.process import API_VERSION, SchedulerConfig
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.scoring import ScoringWeights, SharedSpec, TopologyConstraints
from topo_scheduler.api.sharing import DomainAccess, Fairness, GpusByAnnotation, Quota
from topo_scheduler.api.small_pods import SmallPods
from topo_scheduler.api.spares import SparesSpec
from topo_scheduler.api.text import few_of, quoted
from topo_scheduler.api.waiting import RepairSpec, ReservationSpec

CONFIG_MAP: Final = "topology-scheduler-config"


class RuleMatch(Model):
    """Gangs to which a rule applies; all fields must match."""

    namespaces: tuple[DnsLabel, ...] = ()
    """Namespaces of the gangs; empty for all."""
    labels: dict[QualifiedName, LabelValue] = Field(default_factory=dict)
    """Labels that every pod of the gang must have."""
    min_members: Count = 1
    """Minimum number of pods of the gang."""


class PlacementRule(Model):
    """Limit on the spread of gangs that need a number of nodes or more."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=63)]
    """Name of the rule in reasons."""
    match: RuleMatch = RuleMatch.defaults()
    nodes: Count = 1
    """The rule applies to gangs that need at least this number of nodes."""
    max_leaves: Count | None = None
    """Maximum number of leaves of the gang."""
    level: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=32)] | None = None
    """Level of which one domain must contain all leaves of the gang, e.g. ``spine``."""
    enforcement: Enforcement = Enforcement.REQUIRED
    """``required``: a gang stays pending until it can meet the rule. ``preferred``: the scheduler first tries to meet
    the rule, then places the gang without it."""

    @model_validator(mode="after")
    def _asks(self) -> "PlacementRule":
        if self.max_leaves is None and self.level is None:
            raise ValueError(f"rule {self.name} asks for nothing; give maxLeaves, level or both")
        return self

    def covers(self, other: "PlacementRule") -> bool:
        """Return whether this rule applies to every gang to which a later rule applies."""
        own, theirs = self.match, other.match
        return (
            self.enforcement is other.enforcement
            and self.nodes <= other.nodes
            and own.min_members <= theirs.min_members
            and (not own.namespaces or (bool(theirs.namespaces) and set(theirs.namespaces) <= set(own.namespaces)))
            and own.labels.items() <= theirs.labels.items()
        )


class EventsSpec(Model):
    """Content of events and conditions on the objects of a namespace."""

    name_other_namespaces: bool = False
    """Whether messages name pods, gangs and PodDisruptionBudgets of other namespaces. By default they only count
    them."""


class PreemptionSpec(Model):
    """Preemption of pods by pods of higher priority."""

    enabled: bool = True
    """Whether to evict pods of lower priority for a pod that fits on no node. Nominated nodes are honoured in both
    cases."""


class TopologySpec(Model):
    """``spec`` of a TopologySchedulerConfig."""

    scoring_weights: ScoringWeights = ScoringWeights.defaults()
    topology_constraints: TopologyConstraints = TopologyConstraints.defaults()
    preemption: PreemptionSpec = PreemptionSpec.defaults()
    events: EventsSpec = EventsSpec.defaults()
    other_schedulers: Contention = Contention.defaults()
    fairness: Fairness = Fairness.defaults()
    quotas: tuple[Quota, ...] = ()
    """Maximum resources of namespaces. All quotas that apply to a pod must have room for it."""
    gpus_by_annotation: GpusByAnnotation = GpusByAnnotation.defaults()
    domain_access: tuple[DomainAccess, ...] = ()
    """Domains that only some namespaces may use. All namespaces may use domains that are not listed."""
    reservation: ReservationSpec = ReservationSpec.defaults()
    repair: RepairSpec = RepairSpec.defaults()
    recovery: RecoverySpec = RecoverySpec.defaults()
    spares: SparesSpec = SparesSpec.defaults()
    placement_rules: tuple[PlacementRule, ...] = ()
    """Limits on the spread of gangs, in addition to the fewest-leaves rule. For each gang the first required rule that
    matches applies, and the first preferred rule."""
    links: tuple[Link, ...] = ()
    """Capacities of links whose node labels do not give them. Links of unknown capacity are not limited."""
    small_pods: SmallPods = SmallPods.defaults()
    max_nodes_to_score: Count | None = None
    """Score only the first candidate placements that together have this number of nodes. By default all are scored."""

    @model_validator(mode="after")
    def _rules(self) -> "TopologySpec":
        for index, rule in enumerate(self.placement_rules):
            for earlier in self.placement_rules[:index]:
                if earlier.name == rule.name:
                    raise ValueError(f"two placementRules are called {rule.name}; rename one")
                if earlier.covers(rule):
                    raise ValueError(
                        f"placementRules: {rule.name} can never hold, since {earlier.name} before it is for every gang"
                        " it is for; put the rule for more nodes first"
                    )
        return self

    @model_validator(mode="after")
    def _once(self) -> "TopologySpec":
        domains = [access.domain for access in self.domain_access]
        if duplicate := next((domain for domain in domains if domains.count(domain) > 1), None):
            raise ValueError(f"domainAccess lists {duplicate} twice; put its namespaces into one entry")
        links = [link.name for link in self.links]
        if duplicate := next((name for name in links if links.count(name) > 1), None):
            raise ValueError(f"links names {duplicate} twice; keep one entry")
        return self


class TopologySchedulerConfig(Model):
    """How the scheduler decides on placements. Changes take effect while the process runs."""

    api_version: Literal["topology.scheduler/v1alpha1"] = API_VERSION
    kind: Literal["TopologySchedulerConfig"] = "TopologySchedulerConfig"
    metadata: Metadata = Field(default_factory=dict)
    spec: TopologySpec = TopologySpec.defaults()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Both kinds together. ``skipped`` has the names of other objects in the files, which are no configuration.

    ``kinds`` are those of the documents that were read; the fields of the others have their defaults.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    topology: TopologySchedulerConfig = field(default_factory=TopologySchedulerConfig)
    skipped: tuple[str, ...] = field(default=(), compare=False)
    kinds: tuple[str, ...] = field(default=(), compare=False)


class ConfigError(ValueError):
    """A configuration that can't be used; the message names the source, the field's path and the remedy."""


CONFIG_KINDS: Final[dict[str, type[Model]]] = {
    "SchedulerConfig": SchedulerConfig,
    "TopologySchedulerConfig": TopologySchedulerConfig,
}
_SUFFIXES: Final = (".yaml", ".yml")
"""Suffixes of the keys of the ConfigMap that are read, as of files in a mounted folder."""


def load_configuration(documents: Mapping[str, str]) -> Configuration:
    """Read configuration from YAML texts.

    A ConfigMap is replaced by the documents in its ``data``, a List by its items. Kubernetes objects of other kinds are
    skipped, as in a folder of manifests.

    Args:
        documents: text by the name of its source (the path of a file, or the key of a ConfigMap).

    Raises:
        ConfigError: not YAML, an unknown kind or key, a value out of range, a kind twice, one field with two values, or
            only other objects.
    """
    models: dict[str, tuple[str, Model]] = {}
    skipped: list[str] = []
    problems: list[str] = []
    for source, document in _config_documents(documents, skipped):
        try:
            kind, model = _read_document(source, document)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if kind in models:
            problems.append(f"{source}: kind {kind} is given twice, here and in {models[kind][0]}; keep one")
            continue
        models[kind] = (source, model)
    if problems:
        raise ConfigError("\n".join(problems))
    if skipped and not models:
        raise ConfigError(
            f"{few_of(list(documents))}: no configuration among the objects in it ({few_of(skipped)}); write a document"
            f" of apiVersion {API_VERSION} and kind {' or '.join(CONFIG_KINDS)}, alone or in a ConfigMap"
        )
    return replace(_combine(models), skipped=tuple(skipped), kinds=tuple(sorted(models)))


def _combine(models: Mapping[str, tuple[str, Model]]) -> Configuration:
    """Merge both kinds; fields of ``SchedulerConfig.spec`` move to the other kind."""
    scheduler_source, scheduler = models.get("SchedulerConfig", ("", SchedulerConfig()))
    topology_source, topology = models.get("TopologySchedulerConfig", ("", TopologySchedulerConfig()))
    assert isinstance(scheduler, SchedulerConfig)
    assert isinstance(topology, TopologySchedulerConfig)
    merged: dict[str, Model] = {}
    for section in sorted(scheduler.spec.model_fields_set):
        scheduler_section, topology_section = getattr(scheduler.spec, section), getattr(topology.spec, section)
        scheduler_values, topology_values = (
            scheduler_section.model_dump(exclude_unset=True),
            topology_section.model_dump(exclude_unset=True),
        )
        path = f"spec.{_alias(SharedSpec, section)}"
        for name in sorted(scheduler_values.keys() & topology_values.keys()):
            if scheduler_values[name] != topology_values[name]:
                field_path = f"{path}.{_alias(type(scheduler_section), name)}"
                raise ConfigError(
                    f"{scheduler_source}: SchedulerConfig: {field_path} is {_raw_value(scheduler_values[name])}, but"
                    f" TopologySchedulerConfig in {topology_source} says {_raw_value(topology_values[name])}; keep one"
                    " of the two"
                )
        try:
            merged[section] = type(scheduler_section).model_validate(topology_values | scheduler_values)
        except ValidationError as error:
            lines = "; ".join(problem(item) for item in error.errors())
            raise ConfigError(
                f"{scheduler_source}: {path} of both kinds together (the other in {topology_source}) is refused:"
                f" {lines}"
            ) from error
    # Cleared here, because changes of these fields need no restart, unlike all other changes of a SchedulerConfig.
    scheduler = scheduler.model_copy(update={"spec": SharedSpec(), "metadata": {}})
    spec = topology.spec.model_copy(update=merged) if merged else topology.spec
    return Configuration(scheduler, topology.model_copy(update={"spec": spec}))


def _alias(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].alias or name


def _raw_value(value: object) -> object:
    return value.value if isinstance(value, Enforcement) else value


_MISUSED: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors that constructors of PyYAML raise in addition to their own, e.g. for 2026-13-01, which looks like a date."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that occurs twice in one mapping: PyYAML would silently keep the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    problem = f"key {quoted(key.value)} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _yaml_documents(source: str, text: str) -> Iterable[Any]:
    try:
        # `_UniqueKeyLoader` is a SafeLoader.
        return [document for document in yaml.load_all(text, _UniqueKeyLoader) if document is not None]
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: mappings or lists are nested too deeply; is a bracket left open?") from error
    except _MISUSED as error:
        raise ConfigError(
            f"{source}: YAML reads a value as another type than text: {error}; put it into quotes"
        ) from error


def _config_documents(texts: Mapping[str, str], skipped: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield every document with its source, including those inside ConfigMaps; append other objects to ``skipped``."""
    for source, text in texts.items():
        documents = list(_items(_yaml_documents(source, text)))
        with_config_map = any(_is_config_map(document) for document in documents)
        for document in documents:
            if _is_config_map(document):
                yield from _in_config_map(source, document)
            elif _is_other_object(document, with_config_map=with_config_map):
                skipped.append(_named(document))
            else:
                yield source, document


def _items(documents: Iterable[Any]) -> Iterator[Any]:
    """Yield documents, and the items of a List instead of the List."""
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        if isinstance(items, list):
            yield from _items(items)
        else:
            yield document


def _is_other_object(document: Any, *, with_config_map: bool) -> bool:
    """Return whether a document is a Kubernetes object and no configuration.

    ``with_config_map``: next to a ConfigMap, any other mapping counts as such an object.
    """
    if not isinstance(document, dict) or str(document.get("kind")) in CONFIG_KINDS:
        return False
    version, kind = document.get("apiVersion"), document.get("kind")
    own = isinstance(version, str) and version.partition("/")[0] == API_VERSION.partition("/")[0]
    return with_config_map or (isinstance(version, str) and isinstance(kind, str) and not own)


def _name_of(document: dict[str, Any]) -> Any:
    metadata = document.get("metadata")
    return metadata.get("name") if isinstance(metadata, dict) else None


def _named(document: dict[str, Any]) -> str:
    name = _name_of(document)
    return f"{document.get('kind', 'a document without a kind')}{f' {name}' if name else ''}"


def _is_config_map(document: Any) -> bool:
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != ("v1", "ConfigMap"):
        return False
    data = document.get("data")
    # A ConfigMap of any name counts if it has our documents: clusters may choose the name.
    own = isinstance(data, dict) and any(_has_configuration(str(key), text) for key, text in data.items())
    return _name_of(document) == CONFIG_MAP or own


def _has_configuration(key: str, text: Any) -> bool:
    """Return whether a text of a ConfigMap has a document of ours: by its ``apiVersion``, or without one by its kind.

    Texts of other programs may have a kind of the same name, or quote ours.
    """
    if not isinstance(text, str) or not any(mark in text for mark in (API_VERSION, *CONFIG_KINDS)):
        return False
    try:
        documents = list(_items(_yaml_documents(key, text)))
    except ConfigError:
        return key.endswith(_SUFFIXES) and API_VERSION in text
    return any(
        version == API_VERSION or (version is None and kind in CONFIG_KINDS and key.endswith(_SUFFIXES))
        for version, kind in (
            (document.get("apiVersion"), str(document.get("kind")))
            for document in documents
            if isinstance(document, dict)
        )
    )


def _in_config_map(source: str, config_map: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    metadata, data = config_map.get("metadata"), config_map.get("data")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    if not isinstance(data, dict) or not any(str(key).endswith(_SUFFIXES) for key in data):
        raise ConfigError(
            f"{source}: ConfigMap {name}: no key of data ends with {' or '.join(_SUFFIXES)}; put the configuration"
            " under a key such as config.yaml"
        )
    for key, text in data.items():
        if str(key).endswith(_SUFFIXES):
            location = f"{source}: ConfigMap {name}: {key}"
            if not isinstance(text, str):
                raise ConfigError(
                    f"{location}: expected a text, found {type(text).__name__}; write `{key}: |` before it"
                )
            yield from ((location, document) for document in _yaml_documents(location, text))


def _read_document(source: str, document: Any) -> tuple[str, Model]:
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion and kind, found {type(document).__name__}")
    version, kind = document.get("apiVersion"), document.get("kind")
    if version != API_VERSION:
        raise ConfigError(f"{source}: apiVersion is {_or_missing(version)}; write {API_VERSION}")
    model = CONFIG_KINDS.get(str(kind))
    if model is None:
        raise ConfigError(f"{source}: kind is {_or_missing(kind)}; write one of {', '.join(CONFIG_KINDS)}")
    try:
        return str(kind), model.model_validate(document)
    except ValidationError as error:
        lines = "\n".join(f"  {explained(model, item, CONFIG_KINDS.values())}" for item in error.errors())
        raise ConfigError(f"{source}: {kind} is refused:\n{lines}") from error


def _or_missing(value: object) -> str:
    return "missing" if value is None else quoted(value)
