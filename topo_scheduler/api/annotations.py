"""The annotations users write and the ones the scheduler writes, parsed here and nowhere else.

A request is read from a chain of objects: the pod first, then its owners outward. For each annotation the nearest
object that has it counts. A malformed value never raises: it becomes an `AnnotationProblem`, and the scheduler refuses
the pod with its message.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from topo_scheduler.api.durations import parse_duration
from topo_scheduler.api.fractions import parse_fraction
from topo_scheduler.api.gpu_needs import (
    GpuLocality,
    GpuNeeds,
    parse_architectures,
    parse_gpu_bandwidth,
    parse_gpu_memory,
    parse_mig_profile,
)
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.quantity import QuantityError, parse_bandwidth
from topo_scheduler.api.text import did_you_mean, few_of, quoted

GPU_COUNT: Final = PREFIX + "gpu-count"
GPU_FRACTION: Final = PREFIX + "gpu-fraction"
GPU_MODEL: Final = PREFIX + "gpu-model"
GPU_MODEL_MIXED: Final = PREFIX + "gpu-model-mixed"
GPU_LOCALITY: Final = PREFIX + "gpu-locality"
GPU_MIN_BANDWIDTH: Final = PREFIX + "gpu-min-bandwidth"
GPU_MEMORY: Final = PREFIX + "gpu-memory"
GPU_ARCHITECTURE: Final = PREFIX + "gpu-architecture"
MIG_PROFILE: Final = PREFIX + "mig-profile"
GPU_REQUIREMENTS: Final = PREFIX + "gpu-requirements"
PREFERRED_DOMAIN: Final = PREFIX + "preferred-domain"
NETWORK_BANDWIDTH: Final = PREFIX + "network-bandwidth"
LATENCY_SENSITIVE: Final = PREFIX + "latency-sensitive"
PLACEMENT_STRATEGY: Final = PREFIX + "placement-strategy"
PLACEMENT: Final = PREFIX + "placement"
GANG: Final = PREFIX + "gang"
GANG_NAME: Final = PREFIX + "gang-name"
GANG_SIZE: Final = PREFIX + "gang-size"
REQUIRED_LEVEL: Final = PREFIX + "required-level"
PREFERRED_LEVEL: Final = PREFIX + "preferred-level"
RELAX_AFTER: Final = PREFIX + "relax-after"
SEGMENT_SIZE: Final = PREFIX + "segment-size"
SEGMENT_LEVEL: Final = PREFIX + "segment-level"
EXPECTED_DURATION: Final = PREFIX + "expected-duration"
MOVABLE: Final = PREFIX + "movable"
ON_FAILURE: Final = PREFIX + "on-failure"
CHECKPOINT_INTERVAL: Final = PREFIX + "checkpoint-interval"

RANK: Final = PREFIX + "rank"
ADDRESS: Final = PREFIX + "address"
SCORE: Final = PREFIX + "score"
SPANNED_LEVEL: Final = PREFIX + "spanned-level"
"""Written on the Binding: innermost level at which one domain contains the whole gang, ``node`` for a single node."""
LEVELS_SPANNED: Final = PREFIX + "levels-spanned"
"""Written on the Binding: height of that level; 0 for a single node."""
HOPS: Final = PREFIX + "hops"
"""Written on the Binding: mean hops between two members of the gang."""
CHARGED_GPUS: Final = PREFIX + "charged-gpus"
"""Written on the Binding of a pod without GPU limits: GPUs that the ledger charges for it, to survive a restart."""
CHARGED_FRACTION: Final = PREFIX + "charged-gpu-fraction"
"""Written on the Binding of a pod that requests a share of a GPU: the share that the ledger charges for it."""
GPU_INDEX: Final = PREFIX + "gpu-index"
"""Written on the Binding on nodes that share GPUs: indexes of the pod's GPUs, separated by commas."""
PREDICTED_GPUS: Final = PREFIX + "predicted-gpus"
"""Written on the Binding on other nodes: indexes of the GPUs that the device plugin is predicted to give to the pod."""
DEVICE_SCORE: Final = PREFIX + "device-score"
"""Written on the Binding of a pod that asks how close its GPUs are: the parts of their score."""
RESERVED_BANDWIDTH: Final = PREFIX + "reserved-bandwidth"
"""Written on the Binding: Mbit/s that the pod's gang has reserved on each of its nodes."""
GANG_ID: Final = PREFIX + "gang-id"
"""Written on the Binding: identity of the pod's gang, so that a restarted scheduler finds its members."""
GANG_MINIMUM: Final = PREFIX + "gang-minimum"
"""Written on the Binding: required number of members, so that a restarted scheduler knows if the gang is complete."""
GANG_COMPLETE: Final = PREFIX + "GangComplete"
"""Type of the condition on members of a gang that ran complete, so that a restarted scheduler does not roll it back."""

WRITTEN: Final = frozenset(
    {
        RANK,
        ADDRESS,
        SCORE,
        SPANNED_LEVEL,
        LEVELS_SPANNED,
        HOPS,
        CHARGED_GPUS,
        CHARGED_FRACTION,
        GPU_INDEX,
        PREDICTED_GPUS,
        DEVICE_SCORE,
        RESERVED_BANDWIDTH,
        GANG_ID,
        GANG_MINIMUM,
    }
)
MAX_GPUS: Final = 1_000_000
MAX_UNKNOWN_ANNOTATIONS: Final = 8
"""Maximum unknown annotations of a pod and its owners that warnings name."""
MAX_SUGGESTIONS: Final = 2
"""Maximum unknown annotations of a pod for which a warning suggests a known name: the search for one takes longest."""
MAX_GANG_PODS: Final = 100_000
_LONGEST_SUGGESTED_CHARACTERS: Final = 40
"""Maximum characters of an unknown annotation after the prefix, or of a keyword, that may have a typing error."""


class PlacementStrategy(StrEnum):
    """How a workload should be spread over the cluster."""

    CONSOLIDATED = "consolidated"
    DISTRIBUTED = "distributed"
    BALANCED = "balanced"


class Enforcement(StrEnum):
    """Whether a gang stays pending if no placement meets a rule, or may break it."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class OnFailure(StrEnum):
    """What happens to a gang if some of its members must move."""

    REPLACE = "replace"
    RESTART_GANG = "restart-gang"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True)
class Source:
    """An object whose annotations are read: the pod, or one of its owners."""

    kind: str
    name: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AnnotationProblem:
    """An annotation that can't be used, and the remedy."""

    annotation: str
    source: str
    message: str

    def __str__(self) -> str:
        return f"annotation {self.annotation} on {self.source}: {self.message}"


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Request of a workload in annotations, merged over its chain.

    ``gpu_count`` is as written; ``gpu_count_kind`` is the kind of the object that has it. On a Job it is the GPUs of
    the whole job, elsewhere those of one pod; ``gang_size_kind`` likewise. ``gpu_share`` is in thousandths of one GPU,
    0 without a request. ``gpu_min_bandwidth`` is in MB/s in each direction, ``gpu_memory`` in bytes; `gpu_needs` has
    them together. ``bandwidth`` is in Mbit/s, 0 without a request. ``strategy`` is a `PlacementStrategy`, or one
    of a plugin. ``gang`` is None if not set.

    Levels are names of levels of the fabric. ``relax_after`` is in seconds, 0 for never. ``segment_size`` is a number
    of pods of consecutive ranks, 0 for none. ``expected_duration`` is in seconds, 0 if not set;
    ``expected_duration_kind`` is the kind of the object that has it. ``checkpoint_interval`` is in seconds, 0 if not
    set.
    """

    gpu_count: int | None = None
    gpu_count_kind: str = ""
    gpu_share: int = 0
    gpu_models: tuple[str, ...] = ()
    gpu_model_mixed: bool = False
    gpu_locality: GpuLocality = GpuLocality.ANY
    gpu_min_bandwidth: int = 0
    gpu_memory: int = 0
    gpu_architectures: tuple[str, ...] = ()
    mig_profile: str = ""
    gpu_requirements: str = Enforcement.REQUIRED
    preferred_domain: str = ""
    bandwidth: int = 0
    latency_sensitive: bool = False
    strategy: str = PlacementStrategy.BALANCED
    placement: Enforcement | None = None
    gang: bool | None = None
    gang_name: str = ""
    gang_size: int | None = None
    gang_size_kind: str = ""
    movable: bool = True
    required_level: str = ""
    preferred_level: str = ""
    relax_after: float = 0.0
    segment_size: int = 0
    segment_level: str = ""
    expected_duration: float = 0.0
    expected_duration_kind: str = ""
    on_failure: str = OnFailure.REPLACE
    checkpoint_interval: float = 0.0
    problems: tuple[AnnotationProblem, ...] = ()

    @property
    def gpu_needs(self) -> GpuNeeds | None:
        """What it asks of the GPUs of a node; None if nothing."""
        needs = GpuNeeds(
            self.gpu_locality,
            self.gpu_min_bandwidth,
            self.gpu_memory,
            self.gpu_architectures,
            self.mig_profile,
            self.gpu_requirements != Enforcement.PREFERRED,
        )
        asks = needs.close or needs.memory_bytes or needs.architectures or needs.mig_profile
        return needs if asks else None


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()) is None:
            raise ValueError(f"{quoted(text)} is not a whole number; write one from {low} to {high}")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low} and {high}")
        return value

    return parse


def _boolean(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError(f'{quoted(text)} is neither "true" nor "false"')


def _models(text: str) -> tuple[str, ...]:
    models = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not models:
        raise ValueError("the list of models is empty; write one or more, separated by commas")
    return models


def _domain(text: str) -> str:
    path = text.strip().strip("/")
    if not path or any(not part for part in path.split("/")):
        raise ValueError(f"{quoted(text)} is not a domain such as leaf-1 or spine-1/leaf-1")
    return path


def _name(text: str) -> str:
    name = text.strip()
    if not name or len(name) > 253 or any(c.isspace() or c == "/" for c in name):
        raise ValueError(f"{quoted(text)} is not a name: 1 to 253 characters without spaces or slashes")
    return name


def _choice(choices: Iterable[str]) -> Callable[[str], str]:
    known = {str(choice): choice for choice in choices}

    def parse(text: str) -> str:
        choice = known.get(text.strip().lower())
        if choice is None:
            raise ValueError(f"{quoted(text)} is not one of {', '.join(known)}{_suggested(text, tuple(known))}")
        return choice

    return parse


def _level(levels: Mapping[str, str]) -> Callable[[str], str]:
    known = tuple(dict.fromkeys(reversed(tuple(levels.values()))))

    def parse(text: str) -> str:
        name = text.strip()
        level = name if name in known else levels.get(name)
        if level is None:
            # Levels that a configuration defines may differ in case alone.
            alike = [level for level in known if level.lower() == name.lower()]
            level = alike[0] if len(alike) == 1 else None
        if level is None:
            raise ValueError(
                f"{quoted(name)} is no level of the fabric; write one of {', '.join(known) or 'none'}, or the key of"
                f" a node label for one{_suggested(name, known)}"
            )
        return level

    return parse


_LEVELS: Final = frozenset((REQUIRED_LEVEL, PREFERRED_LEVEL, SEGMENT_LEVEL))
_PARSERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    GPU_COUNT: ("gpu_count", _integer(0, MAX_GPUS)),
    GPU_FRACTION: ("gpu_share", parse_fraction),
    GPU_MODEL: ("gpu_models", _models),
    GPU_MODEL_MIXED: ("gpu_model_mixed", _boolean),
    GPU_LOCALITY: ("gpu_locality", _choice(GpuLocality)),
    GPU_MIN_BANDWIDTH: ("gpu_min_bandwidth", parse_gpu_bandwidth),
    GPU_MEMORY: ("gpu_memory", parse_gpu_memory),
    GPU_ARCHITECTURE: ("gpu_architectures", parse_architectures),
    MIG_PROFILE: ("mig_profile", parse_mig_profile),
    GPU_REQUIREMENTS: ("gpu_requirements", _choice(Enforcement)),
    PREFERRED_DOMAIN: ("preferred_domain", _domain),
    NETWORK_BANDWIDTH: ("bandwidth", parse_bandwidth),
    LATENCY_SENSITIVE: ("latency_sensitive", _boolean),
    PLACEMENT_STRATEGY: ("strategy", _choice(PlacementStrategy)),
    PLACEMENT: ("placement", _choice(Enforcement)),
    GANG: ("gang", _boolean),
    GANG_NAME: ("gang_name", _name),
    GANG_SIZE: ("gang_size", _integer(1, MAX_GANG_PODS)),
    REQUIRED_LEVEL: ("required_level", _name),
    PREFERRED_LEVEL: ("preferred_level", _name),
    RELAX_AFTER: ("relax_after", parse_duration),
    SEGMENT_SIZE: ("segment_size", _integer(1, MAX_GANG_PODS)),
    SEGMENT_LEVEL: ("segment_level", _name),
    EXPECTED_DURATION: ("expected_duration", parse_duration),
    MOVABLE: ("movable", _boolean),
    ON_FAILURE: ("on_failure", _choice(OnFailure)),
    CHECKPOINT_INTERVAL: ("checkpoint_interval", parse_duration),
}
_RANK: Final = {name: rank for rank, name in enumerate(_PARSERS)}
USERS_MAY_WRITE: Final = tuple(_PARSERS)
_USERS_KEYS: Final = frozenset(_PARSERS)
_NAMES: Final = tuple(name.removeprefix(PREFIX) for name in _PARSERS)
KNOWN: Final = frozenset(_PARSERS) | WRITTEN
"""All annotations under the prefix that the scheduler knows; it reports others as probable typing errors."""


def read_annotations(
    chain: Sequence[Source],
    strategies: Collection[str] = tuple(PlacementStrategy),
    levels: Mapping[str, str] | None = None,
) -> PlacementRequest:
    """Merge the annotations of a chain into one request.

    Args:
        chain: the pod first, then its owners outward.
        strategies: the names of allowed strategies.
        levels: the level of the fabric of each node label; None if levels are unknown and any name is allowed.

    Returns:
        The request. Annotations that could not be read are in ``problems``, and their fields have the default.
    """
    values: dict[str, Any] = {}
    problems: list[AnnotationProblem] = []
    source_of: dict[str, Source] = {}
    for source in chain:
        for annotation in source.annotations:
            if annotation in _PARSERS:
                source_of.setdefault(annotation, source)
    for annotation in sorted(source_of, key=_RANK.__getitem__) if len(source_of) > 1 else source_of:
        source = source_of[annotation]
        attribute, parse = _PARSERS[annotation]
        if annotation == PLACEMENT_STRATEGY:
            parse = _choice(strategies)
        elif annotation in _LEVELS and levels is not None:
            parse = _level(levels)
        try:
            values[attribute] = parse(source.annotations[annotation])
        except (ValueError, QuantityError) as error:
            problems.append(AnnotationProblem(annotation, f"{source.kind} {source.name}", str(error)))
            continue
        if attribute in ("gpu_count", "gang_size", "expected_duration"):
            values[f"{attribute}_kind"] = source.kind
    if not values and not problems:
        return _NOTHING
    return PlacementRequest(**values, problems=tuple(problems))


_NOTHING: Final = PlacementRequest()


def unknown_annotations(chain: Sequence[Source], labels: Mapping[str, str] | None = None) -> list[str]:
    """Return warnings about ignored annotations; the last one counts those beyond `MAX_UNKNOWN_ANNOTATIONS`.

    These are unknown ones under our prefix, known ones under a prefix like it, and those of owners that only we write.
    One more warning is on ``labels`` of the pod that have the name of an annotation, unless that is written as well.
    """
    unknown = [
        (source, name)
        for position, source in enumerate(chain)
        for name in source.annotations
        if _is_ignored(name, owner=position > 0)
    ]
    warnings = [
        str(AnnotationProblem(name, f"{source.kind} {source.name}", _ignored(name, suggest=number < MAX_SUGGESTIONS)))
        for number, (source, name) in enumerate(unknown[:MAX_UNKNOWN_ANNOTATIONS])
    ]
    if omitted := len(unknown) - len(warnings):
        warnings.append(
            f"{omitted} more annotations such as {PREFIX}... of the pod and its owners are not known and were ignored"
        )
    if labels and not _USERS_KEYS.isdisjoint(labels):
        warnings += _ignored_labels(chain, labels)
    return warnings


def _ignored_labels(chain: Sequence[Source], labels: Mapping[str, str]) -> list[str]:
    """Return a warning on labels that should be annotations; none for those that repeat one, as selectors need it."""
    written = {name for source in chain for name in source.annotations}
    ignored = [name for name in USERS_MAY_WRITE if name in labels and name not in written]
    if not ignored:
        return []
    noun = "label" if len(ignored) == 1 else "labels"
    return [
        f"{noun} {few_of(ignored, MAX_UNKNOWN_ANNOTATIONS)} on {chain[0].kind} {chain[0].name}: the scheduler reads"
        f" annotations and ignores {noun} of these names; write them in metadata.annotations"
    ]


def _is_ignored(name: str, *, owner: bool) -> bool:
    if not name.startswith(PREFIX):
        return bool(with_our_prefix(name))
    return name not in KNOWN or (owner and name in WRITTEN)


def _ignored(name: str, *, suggest: bool) -> str:
    if name in WRITTEN:
        return "only the scheduler writes it, on pods, so it ignores this one; remove it"
    if right := with_our_prefix(name):
        return f"the scheduler ignores it, as its annotations have the prefix {PREFIX}; write {right}"
    if not suggest:
        return "the scheduler does not know it and ignores it"
    return f"the scheduler does not know it and ignores it{_suggested(name.removeprefix(PREFIX), _NAMES, PREFIX)}"


def with_our_prefix(name: str) -> str:
    """Return the annotation that one under a wrong prefix stands for, as ``topology-scheduler/gpu-count``; or nothing.

    Without any prefix only names with a hyphen do, as ``gang`` may be of another program.
    """
    prefix, _, key = name.rpartition("/")
    if f"{prefix}/" == PREFIX or PREFIX + key not in _PARSERS:
        return ""
    resembles = ("top" in prefix and "sched" in prefix) if prefix else "-" in key
    return PREFIX + key if resembles else ""


def _suggested(text: str, known: tuple[str, ...], prefix: str = "") -> str:
    """Return a suggestion of a similar name or keyword, shown after ``prefix``; empty if none is similar.

    Texts that are too long to resemble a known one are not compared.
    """
    key = text.strip().lower()
    if len(key) > _LONGEST_SUGGESTED_CHARACTERS or not (suggestion := _meant(key, known)):
        return ""
    return f"; {suggestion.replace('mean ', f'mean {prefix}')}"


@lru_cache(maxsize=256)
def _meant(key: str, known: tuple[str, ...]) -> str:
    """Return which name a text may have meant. It takes up to 0.1 ms, and many pods have the same texts."""
    return did_you_mean(key, known)


def written_number(annotations: Mapping[str, str], name: str) -> int | None:
    """Return a number that this scheduler wrote; None without a valid one."""
    text = annotations.get(name, "")
    return int(text) if text and re.fullmatch(r"[0-9]{1,10}", text) else None


def written_models(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPU models in a pod's own annotations; none without a valid list."""
    try:
        return _models(annotations[GPU_MODEL]) if GPU_MODEL in annotations else ()
    except ValueError:
        return ()


assert {attribute for attribute, _ in _PARSERS.values()} <= {field.name for field in fields(PlacementRequest)}
