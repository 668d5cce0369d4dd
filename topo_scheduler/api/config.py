"""The configuration kinds: `SchedulerConfig` (how the process runs) and `TopologySchedulerConfig` (how it decides).

Unknown keys are refused with their path and, where one is near, a suggestion. Both kinds may stand in one file or
in the ConfigMap ``topology-scheduler-config``, as YAML documents in any order, each at most once.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
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
from topo_scheduler.api.models import Model, Share
from topo_scheduler.api.process import API_VERSION, SchedulerConfig
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.sharing import DomainAccess, Fairness, Quota
from topo_scheduler.api.small_pods import SmallPods
from topo_scheduler.api.spares import SparesSpec
from topo_scheduler.api.waiting import RepairSpec, ReservationSpec

CONFIG_MAP: Final = "topology-scheduler-config"


class ScoringWeights(Model):
    """Weights of the parts of the score, each from 0 to 1. Only their ratios matter."""

    resource_availability: Share = 0.4
    """Free share of the common domain after the placement."""
    topology_alignment: Share = 0.3
    """1 at the lowest level and fewest leaves, less beyond; a preferred domain counts here."""
    domain_utilization: Share = 0.2
    """How full the leaves are: good when consolidated, bad when distributed, judged by distance from the mean
    when balanced."""
    historical_performance: Share = 0.1
    """How placements in these leaves went lately."""
    plugins: dict[str, Share] = Field(default_factory=dict)
    """Weights of the scores of plugins, by name of the score, in place of those their plugins chose."""

    @model_validator(mode="after")
    def _some(self) -> "ScoringWeights":
        if not any(self.milli()):
            raise ValueError("at least one weight must be above 0.0005")
        return self

    def milli(self) -> tuple[int, int, int, int]:
        """Return the weights in thousandths, in the order of the fields."""
        return tuple(  # type: ignore[return-value]
            round(Fraction(str(weight)) * 1000)
            for weight in (
                self.resource_availability,
                self.topology_alignment,
                self.domain_utilization,
                self.historical_performance,
            )
        )

    def added_milli(self, defaults: Mapping[str, float]) -> list[int]:
        """Return the weights of the scores of plugins in thousandths, in the order of their defaults."""
        return [round(Fraction(str(self.plugins.get(name, weight))) * 1000) for name, weight in defaults.items()]


class TopologyConstraints(Model):
    """The size rule: how a gang may spread over leaves."""

    enforcement: Enforcement = Enforcement.REQUIRED
    """``required``: a gang waits until the fewest leaves that could hold it have room. ``preferred``: it takes the
    next best spread when they have not."""
    max_nodes_per_leaf: Annotated[int, Field(ge=1)] | None = None
    """Most nodes of one leaf a gang may use; none by default."""
    max_gpus_per_leaf: Annotated[int, Field(ge=1)] | None = Field(default=None, alias="maxGPUsPerLeaf")
    """Most GPUs of one leaf a gang may use; none by default."""


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
    match: RuleMatch = RuleMatch()
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


class PreemptionSpec(Model):
    """Whether pods give way to others of higher priority."""

    enabled: bool = True
    """Evict pods of lower priority for one that has no room otherwise. Nominations are honoured either way."""


class TopologySpec(Model):
    """``spec`` of a TopologySchedulerConfig."""

    scoring_weights: ScoringWeights = ScoringWeights()
    topology_constraints: TopologyConstraints = TopologyConstraints()
    preemption: PreemptionSpec = PreemptionSpec()
    other_schedulers: Contention = Contention()
    fairness: Fairness = Fairness()
    quotas: tuple[Quota, ...] = ()
    """How much namespaces may hold; all that apply to a pod must have room."""
    domain_access: tuple[DomainAccess, ...] = ()
    """Domains that are for some namespaces only; what is not listed is for all."""
    reservation: ReservationSpec = ReservationSpec()
    repair: RepairSpec = RepairSpec()
    recovery: RecoverySpec = RecoverySpec()
    spares: SparesSpec = SparesSpec()
    placement_rules: tuple[PlacementRule, ...] = ()
    """How far gangs may spread, beside the size rule. Of the required rules the first that is for a gang holds, and of
    the preferred ones."""
    links: tuple[Link, ...] = ()
    """What links carry, where node labels do not tell; links of unknown capacity are not limited."""
    small_pods: SmallPods = SmallPods()
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
    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: TopologySpec = TopologySpec()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Both kinds together."""

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    topology: TopologySchedulerConfig = field(default_factory=TopologySchedulerConfig)


class ConfigError(ValueError):
    """A configuration that can't be used; the message names the source, the field's path and the remedy."""


_KINDS: Final[dict[str, type[Model]]] = {
    "SchedulerConfig": SchedulerConfig,
    "TopologySchedulerConfig": TopologySchedulerConfig,
}


def load_configuration(documents: Mapping[str, str]) -> Configuration:
    """Read configuration from YAML texts.

    Args:
        documents: text by the name of where it stands (a file's path, a ConfigMap's key).

    Raises:
        ConfigError: not YAML, an unknown kind or key, a value out of range, or a kind twice.
    """
    found: dict[str, tuple[str, Model]] = {}
    for source, text in documents.items():
        for document in _yaml_documents(source, text):
            kind, model = _read_document(source, document)
            if kind in found:
                raise ConfigError(f"{source}: kind {kind} is given twice, here and in {found[kind][0]}; keep one")
            found[kind] = (source, model)
    return Configuration(**{_FIELDS[kind]: model for kind, (_, model) in found.items()})  # type: ignore[arg-type]


_FIELDS: Final = {"SchedulerConfig": "scheduler", "TopologySchedulerConfig": "topology"}


_MISUSED: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What the constructors of PyYAML raise, beside their own errors: of 2026-13-01 for one, which looks like a date."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping: of two truths YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if key != "<<" and keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"key {twice} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _yaml_documents(source: str, text: str) -> Iterable[Any]:
    try:
        # A SafeLoader in all but the name.
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    except _MISUSED as error:
        raise ConfigError(f"{source}: a value is not what it looks like: {error}; put texts into quotes") from error


def _read_document(source: str, document: Any) -> tuple[str, Model]:
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion and kind, found {type(document).__name__}")
    version, kind = document.get("apiVersion"), document.get("kind")
    if version != API_VERSION:
        raise ConfigError(f"{source}: apiVersion is {version!r}; write {API_VERSION}")
    model = _KINDS.get(str(kind))
    if model is None:
        raise ConfigError(f"{source}: kind is {kind!r}; write one of {', '.join(_KINDS)}")
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
    near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    return f"  {path}: unknown key; {hint}"


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
