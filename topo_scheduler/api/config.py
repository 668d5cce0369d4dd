"""The configuration kinds: `SchedulerConfig` (how the process runs) and `TopologySchedulerConfig` (how it decides).

Unknown keys are refused with their path and, where one is near, a suggestion. Both kinds may stand in one file or
in the ConfigMap ``topology-scheduler-config``, as YAML documents in any order, each at most once. A manifest of that
ConfigMap is read as the documents in its ``data``.
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
from topo_scheduler.api.contention import Contention
from topo_scheduler.api.links import Link
from topo_scheduler.api.models import Metadata, Model
from topo_scheduler.api.process import API_VERSION, SchedulerConfig
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.scoring import ScoringWeights, SharedSpec, TopologyConstraints
from topo_scheduler.api.sharing import DomainAccess, Fairness, GpusByAnnotation, Quota
from topo_scheduler.api.small_pods import SmallPods
from topo_scheduler.api.spares import SparesSpec
from topo_scheduler.api.waiting import RepairSpec, ReservationSpec
from topo_scheduler.api.words import did_you_mean, few_of

CONFIG_MAP: Final = "topology-scheduler-config"


class RuleMatch(Model):
    """Which gangs a rule is for; all of it must match."""

    namespaces: tuple[str, ...] = ()
    """Namespaces; none means every one."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that every pod of the gang must carry."""
    min_members: Annotated[int, Field(ge=1)] = 1
    """From so many pods on."""


class PlacementRule(Model):
    """How far gangs may spread, from a number of nodes on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=63)]
    """What reasons call the rule."""
    match: RuleMatch = RuleMatch.defaults()
    nodes: Annotated[int, Field(ge=1)] = 1
    """The rule is for gangs that need so many nodes or more."""
    max_leaves: Annotated[int, Field(ge=1)] | None = None
    """At most so many leaves."""
    level: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=32)] | None = None
    """All leaves within one domain of this level, e.g. ``spine``."""
    enforcement: Enforcement = Enforcement.REQUIRED
    """``required``: a gang waits until the rule can be kept. ``preferred``: it is tried first, then done without."""

    @model_validator(mode="after")
    def _asks(self) -> "PlacementRule":
        if self.max_leaves is None and self.level is None:
            raise ValueError(f"rule {self.name} asks for nothing; give maxLeaves, level or both")
        return self

    def covers(self, other: "PlacementRule") -> bool:
        """Return whether every gang that the other is for has this rule before it."""
        mine, theirs = self.match, other.match
        return (
            self.enforcement is other.enforcement
            and self.nodes <= other.nodes
            and mine.min_members <= theirs.min_members
            and (not mine.namespaces or (bool(theirs.namespaces) and set(theirs.namespaces) <= set(mine.namespaces)))
            and mine.labels.items() <= theirs.labels.items()
        )


class EventsSpec(Model):
    """What events and conditions on the objects of a namespace say."""

    name_other_namespaces: bool = False
    """Name pods, gangs and budgets of other namespaces. By default they are only counted."""


class PreemptionSpec(Model):
    """Whether pods give way to others of higher priority."""

    enabled: bool = True
    """Evict pods of lower priority for one that has no room otherwise. Nominations are honoured either way."""


class TopologySpec(Model):
    """``spec`` of a TopologySchedulerConfig."""

    scoring_weights: ScoringWeights = ScoringWeights.defaults()
    topology_constraints: TopologyConstraints = TopologyConstraints.defaults()
    preemption: PreemptionSpec = PreemptionSpec.defaults()
    events: EventsSpec = EventsSpec.defaults()
    other_schedulers: Contention = Contention.defaults()
    fairness: Fairness = Fairness.defaults()
    quotas: tuple[Quota, ...] = ()
    """How much namespaces may hold; all that apply to a pod must have room."""
    gpus_by_annotation: GpusByAnnotation = GpusByAnnotation.defaults()
    domain_access: tuple[DomainAccess, ...] = ()
    """Domains that are for some namespaces only; what is not listed is for all."""
    reservation: ReservationSpec = ReservationSpec.defaults()
    repair: RepairSpec = RepairSpec.defaults()
    recovery: RecoverySpec = RecoverySpec.defaults()
    spares: SparesSpec = SparesSpec.defaults()
    placement_rules: tuple[PlacementRule, ...] = ()
    """How far gangs may spread, beside the size rule. Of the required rules the first that is for a gang holds, and of
    the preferred ones."""
    links: tuple[Link, ...] = ()
    """What links carry, where node labels do not tell; links of unknown capacity are not limited."""
    small_pods: SmallPods = SmallPods.defaults()
    max_nodes_to_score: Annotated[int, Field(ge=1)] | None = None
    """Only the first places are scored that have so many nodes together; none by default, which scores all."""

    @model_validator(mode="after")
    def _rules(self) -> "TopologySpec":
        for at, rule in enumerate(self.placement_rules):
            for earlier in self.placement_rules[:at]:
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
        if twice := next((domain for domain in domains if domains.count(domain) > 1), None):
            raise ValueError(f"domainAccess lists {twice} twice; put its namespaces into one entry")
        links = [link.name for link in self.links]
        if twice := next((name for name in links if links.count(name) > 1), None):
            raise ValueError(f"links tells of {twice} twice; keep one entry")
        return self


class TopologySchedulerConfig(Model):
    """How placements are decided. Reloaded while running."""

    api_version: Literal["topology.scheduler/v1alpha1"] = API_VERSION
    kind: Literal["TopologySchedulerConfig"] = "TopologySchedulerConfig"
    metadata: Metadata = Field(default_factory=dict)
    spec: TopologySpec = TopologySpec.defaults()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Both kinds together. ``skipped`` objects that stood beside them, which are no configuration.

    ``empty`` if what was read has no document at all, so that everything has its default.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    topology: TopologySchedulerConfig = field(default_factory=TopologySchedulerConfig)
    skipped: tuple[str, ...] = field(default=(), compare=False)
    empty: bool = field(default=False, compare=False)


class ConfigError(ValueError):
    """A configuration that can't be used; the message names the source, the field's path and the remedy."""


CONFIG_KINDS: Final[dict[str, type[Model]]] = {
    "SchedulerConfig": SchedulerConfig,
    "TopologySchedulerConfig": TopologySchedulerConfig,
}
_SUFFIXES: Final = (".yaml", ".yml")
"""Of keys of the ConfigMap: mounted as a folder, files of other names are not read either."""


def load_configuration(documents: Mapping[str, str]) -> Configuration:
    """Read configuration from YAML texts.

    A ConfigMap among the documents of a text stands for the documents in its ``data``, a List for its items; Kubernetes
    objects of other kinds are skipped, as in a folder of manifests.

    Args:
        documents: text by the name of where it stands (a file's path, a ConfigMap's key).

    Raises:
        ConfigError: not YAML, an unknown kind or key, a value out of range, a kind twice, one field with two values, or
            nothing but other objects.
    """
    found: dict[str, tuple[str, Model]] = {}
    skipped: list[str] = []
    for source, document in _config_documents(documents, skipped):
        kind, model = _read_document(source, document)
        if kind in found:
            raise ConfigError(f"{source}: kind {kind} is given twice, here and in {found[kind][0]}; keep one")
        found[kind] = (source, model)
    if skipped and not found:
        raise ConfigError(
            f"{few_of(list(documents))}: no configuration among the objects in it ({few_of(skipped)}); write a document"
            f" of apiVersion {API_VERSION} and kind {' or '.join(CONFIG_KINDS)}, alone or in a ConfigMap"
        )
    return replace(_combine(found), skipped=tuple(skipped), empty=not found)


def _combine(found: Mapping[str, tuple[str, Model]]) -> Configuration:
    """Put together what both kinds say; fields of ``SchedulerConfig.spec`` are moved to the other kind."""
    where, scheduler = found.get("SchedulerConfig", ("", SchedulerConfig()))
    other, topology = found.get("TopologySchedulerConfig", ("", TopologySchedulerConfig()))
    assert isinstance(scheduler, SchedulerConfig)
    assert isinstance(topology, TopologySchedulerConfig)
    merged: dict[str, Model] = {}
    for section in sorted(scheduler.spec.model_fields_set):
        first, second = getattr(scheduler.spec, section), getattr(topology.spec, section)
        mine, theirs = first.model_dump(exclude_unset=True), second.model_dump(exclude_unset=True)
        path = f"spec.{_alias(SharedSpec, section)}"
        for name in sorted(mine.keys() & theirs.keys()):
            if mine[name] != theirs[name]:
                raise ConfigError(
                    f"{where}: SchedulerConfig: {path}.{_alias(type(first), name)} is {_plain(mine[name])}, but"
                    f" TopologySchedulerConfig in {other} says {_plain(theirs[name])}; keep one of the two"
                )
        try:
            merged[section] = type(first).model_validate(theirs | mine)
        except ValidationError as error:
            lines = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
            raise ConfigError(
                f"{where}: {path} of both kinds together (the other in {other}) is refused: {lines}"
            ) from error
    # Cleared here: a change of these does not need a restart, which any other change of a SchedulerConfig does.
    scheduler = scheduler.model_copy(update={"spec": SharedSpec(), "metadata": {}})
    spec = topology.spec.model_copy(update=merged) if merged else topology.spec
    return Configuration(scheduler, topology.model_copy(update={"spec": spec}))


def _alias(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].alias or name


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enforcement) else value


_MISUSED: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What the constructors of PyYAML raise, beside their own errors: of 2026-13-01 for one, which looks like a date."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping: of two truths YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if key != "<<" and keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"key {twice} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _yaml_documents(source: str, text: str) -> Iterable[Any]:
    try:
        # A SafeLoader in all but the name.
        return [document for document in yaml.load_all(text, _UniqueKeyLoader) if document is not None]
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: mappings or lists are nested too deeply; is a bracket left open?") from error
    except _MISUSED as error:
        raise ConfigError(f"{source}: a value is not what it looks like: {error}; put texts into quotes") from error


def _config_documents(texts: Mapping[str, str], skipped: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield every document with where it stands, those inside ConfigMaps too; note the objects that are skipped."""
    for source, text in texts.items():
        documents = list(_items(_yaml_documents(source, text)))
        beside = any(_is_config_map(document) for document in documents)
        for document in documents:
            if _is_config_map(document):
                yield from _in_config_map(source, document)
            elif _is_other_object(document, beside=beside):
                skipped.append(_named(document))
            else:
                yield source, document


def _items(documents: Iterable[Any]) -> Iterator[Any]:
    """Yield documents, of a List its items."""
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        if isinstance(items, list):
            yield from _items(items)
        else:
            yield document


def _is_other_object(document: Any, *, beside: bool) -> bool:
    """Return whether a document is an object of Kubernetes, and none of ours; ``beside`` a ConfigMap it may be less."""
    if not isinstance(document, dict) or str(document.get("kind")) in CONFIG_KINDS:
        return False
    version, kind = document.get("apiVersion"), document.get("kind")
    ours = isinstance(version, str) and version.partition("/")[0] == API_VERSION.partition("/")[0]
    return beside or (isinstance(version, str) and isinstance(kind, str) and not ours)


def _named(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{document.get('kind', 'a document without a kind')}{f' {name}' if name else ''}"


def _is_config_map(document: Any) -> bool:
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != ("v1", "ConfigMap"):
        return False
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    data = document.get("data")
    # Of any name, where it holds our documents: clusters may call it as they like.
    ours = isinstance(data, dict) and any(isinstance(text, str) and API_VERSION in text for text in data.values())
    return name == CONFIG_MAP or ours


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
            where = f"{source}: ConfigMap {name}: {key}"
            if not isinstance(text, str):
                raise ConfigError(f"{where}: expected a text, found {type(text).__name__}; write `{key}: |` before it")
            yield from ((where, document) for document in _yaml_documents(where, text))


def _read_document(source: str, document: Any) -> tuple[str, Model]:
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion and kind, found {type(document).__name__}")
    version, kind = document.get("apiVersion"), document.get("kind")
    if version != API_VERSION:
        raise ConfigError(f"{source}: apiVersion is {version!r}; write {API_VERSION}")
    model = CONFIG_KINDS.get(str(kind))
    if model is None:
        raise ConfigError(f"{source}: kind is {kind!r}; write one of {', '.join(CONFIG_KINDS)}")
    try:
        return str(kind), model.model_validate(document)
    except ValidationError as error:
        lines = "\n".join(_explain(model, item) for item in error.errors())
        raise ConfigError(f"{source}: {kind} is refused:\n{lines}") from error


def _explain(model: type[Model], error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"]) or "(top)"
    if error["type"] != "extra_forbidden":
        return f"  {path}: {error['msg'].removeprefix('Value error, ')} (found {error['input']!r})"
    known = _aliases(model, error["loc"][:-1])
    if home := _home(model, error["loc"]):
        return f"  {path}: unknown key; {home}"
    hint = did_you_mean(str(error["loc"][-1]), known, f"known here: {', '.join(known)}")
    return f"  {path}: unknown key; {hint}"


def _home(model: type[Model], location: tuple[str | int, ...]) -> str:
    """Return where a known key belongs that stands in the wrong kind or place, or an empty string."""
    if model is not SchedulerConfig or location[0] != "spec" or len(location) != 2:
        return ""
    if location[1] in _aliases(TopologySchedulerConfig, ("spec",)):
        return "it belongs into a document of kind TopologySchedulerConfig"
    return "write it beside spec, not in it" if location[1] in _aliases(SchedulerConfig, ()) else ""


def _aliases(model: type[BaseModel], location: Iterable[Any]) -> list[str]:
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or isinstance(part, int):
            continue
        info = next((f for f in current.model_fields.values() if f.alias == part), None)
        current = _inner_model(info.annotation) if info else None
    return [f.alias or "" for f in current.model_fields.values()] if current else []


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, (_inner_model(arg) for arg in getattr(annotation, "__args__", ()))), None)
