"""The configuration kinds: `SchedulerConfig` (how the process runs) and `TopologySchedulerConfig` (how it decides).

Unknown keys are refused with their path and, where one is near, a suggestion. Both kinds may stand in one file or
in the ConfigMap ``topology-scheduler-config``, as YAML documents in any order, each at most once.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.labels import (
    BANDWIDTH_LABELS,
    FAMILIES,
    GPU_MODEL_LABELS,
    GPU_RESOURCES,
    NETWORK_FAMILIES,
)

API_VERSION: Final = "topology.scheduler/v1alpha1"
SCHEDULER_NAME: Final = "topology-aware-scheduler"
CONFIG_MAP: Final = "topology-scheduler-config"

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


def parse_duration(value: object) -> object:
    """Turn a duration such as ``15s``, ``1m30s`` or ``500ms`` into seconds; numbers pass."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{value!r} is not a duration such as 15s, 1m30s or 500ms")
    hours, minutes, seconds, millis = (float(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda value: f"{value:g}s"),
    Field(gt=0, le=86400),
]
"""Seconds, written as a duration (``15s``) or a number."""
Share = Annotated[float, Field(ge=0, le=1)]


class Model(BaseModel):
    """Common rules: camelCase keys, nothing unknown, frozen once read."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


class LeaderElection(Model):
    """Leader election on a Lease, with kube-scheduler's names and defaults."""

    leader_elect: bool = True
    """Whether to take a Lease before scheduling. Off only where one replica is certain."""
    lease_duration: Seconds = 15.0
    """How long others wait after the last renewal before they take over."""
    renew_deadline: Seconds = 10.0
    """How long a leader tries to renew before it stops leading; less than the lease."""
    retry_period: Seconds = 2.0
    """Pause between attempts to take or renew the Lease."""
    resource_name: str = "topology-scheduler"
    """Name of the Lease."""
    resource_namespace: str = "kube-system"
    """Namespace of the Lease."""

    @model_validator(mode="after")
    def _ordered(self) -> "LeaderElection":
        if not self.lease_duration > self.renew_deadline > 1.2 * self.retry_period:
            raise ValueError("leaseDuration > renewDeadline > 1.2 x retryPeriod must hold")
        return self


class ClientConnection(Model):
    """How to reach the API server, and how hard to use it."""

    kubeconfig: str = ""
    """Path of a kubeconfig; empty means in-cluster, then the default kubeconfig."""
    context: str = ""
    """Context of the kubeconfig; empty means its current one."""
    max_binds_in_flight: Annotated[int, Field(ge=1, le=1000)] = 48
    """Bindings written at once. Measured: more does not bind faster, it only queues in the API server."""
    bind_timeout: Seconds = 20.0
    """How long one bind may take with its retries before it counts as failed; also how long a new leader waits
    before its first decision, so that binds of the last one have landed or will never."""


class Level(Model):
    """One level of the fabric and the node labels that name its domains; the first one present wins."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=32)]
    """What to call the level, e.g. ``spine``."""
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    """Label keys, tried in order."""


class Fabric(Model):
    """Where nodes hang in the network, as told by their labels."""

    families: tuple[str, ...] = NETWORK_FAMILIES
    """Ready-made label families, tried in order for each node. ``kubernetes`` adds region and zone outside."""
    levels: tuple[Level, ...] = ()
    """Own levels, outermost first; when given, they replace the families."""

    @model_validator(mode="after")
    def _known(self) -> "Fabric":
        for name in self.families:
            if name not in FAMILIES:
                raise ValueError(f"unknown family {name!r}; known are {', '.join(FAMILIES)}")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise ValueError("two levels have one name")
        return self


class Logging(Model):
    """What is logged and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["json", "text"] = "json"
    """One JSON object a line, or text for people."""


class Metrics(Model):
    """Where metrics and health are served."""

    bind_address: str = "0.0.0.0"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 10261
    """Port for /metrics, /healthz, /livez and /readyz; 0 picks a free one."""


class SchedulerConfig(Model):
    """How the daemon runs. Changes take effect at its next start."""

    api_version: Literal["topology.scheduler/v1alpha1"] = API_VERSION
    kind: Literal["SchedulerConfig"] = "SchedulerConfig"
    scheduler_name: Annotated[str, Field(min_length=1, max_length=253)] = SCHEDULER_NAME
    """Pods with this ``spec.schedulerName`` are ours."""
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    pod_initial_backoff_seconds: Seconds = 1.0
    """Pause before the second attempt of a gang whose bind failed; doubled with each failure."""
    pod_max_backoff_seconds: Seconds = 10.0
    """Longest such pause."""
    gpu_resources: Annotated[tuple[str, ...], Field(min_length=1)] = GPU_RESOURCES
    """Extended resources that are GPUs."""
    gpu_model_labels: tuple[str, ...] = GPU_MODEL_LABELS
    """Node labels that name the GPU model; the first one present wins."""
    bandwidth_labels: tuple[str, ...] = BANDWIDTH_LABELS
    """Node labels that tell the bandwidth of a node's network, e.g. ``200Gb``; the first one present wins."""
    topology: Fabric = Fabric()
    logging: Logging = Logging()
    metrics: Metrics = Metrics()


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


class TopologyConstraints(Model):
    """The size rule: how a gang may spread over leaves."""

    enforcement: Enforcement = Enforcement.REQUIRED
    """``required``: a gang waits until the fewest leaves that could hold it have room. ``preferred``: it takes the
    next best spread when they have not."""
    max_nodes_per_leaf: Annotated[int, Field(ge=1)] | None = None
    """Most nodes of one leaf a gang may use; none by default."""
    max_gpus_per_leaf: Annotated[int, Field(ge=1)] | None = Field(default=None, alias="maxGPUsPerLeaf")
    """Most GPUs of one leaf a gang may use; none by default."""


class PreemptionSpec(Model):
    """Whether pods give way to others of higher priority."""

    enabled: bool = True
    """Evict pods of lower priority for one that has no room otherwise. Nominations are honoured either way."""


class TopologySpec(Model):
    """``spec`` of a TopologySchedulerConfig."""

    scoring_weights: ScoringWeights = ScoringWeights()
    topology_constraints: TopologyConstraints = TopologyConstraints()
    preemption: PreemptionSpec = PreemptionSpec()


class TopologySchedulerConfig(Model):
    """How placements are decided. Reloaded while running."""

    api_version: Literal["topology.scheduler/v1alpha1"] = API_VERSION
    kind: Literal["TopologySchedulerConfig"] = "TopologySchedulerConfig"
    metadata: dict[str, Any] = {}
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
