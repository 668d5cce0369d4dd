"""Data model of ``result.json``: the figures of each run. Incompatible changes raise its schema version."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Final = 1


class Record(BaseModel):
    """A part of the result; all keys are present, null values included."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Wait(Record):
    """Wait of workloads of one size, from their arrival until all of their pods ran; in seconds.

    Workloads that never ran count in ``never_ran``, not in the percentiles.
    """

    gpus: str
    """GPUs of the whole workload: a number, or a range such as `9-16`."""
    workloads: int
    never_ran: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    max: float | None


class Span(Record):
    """How many leaves and spines placed gangs span. A gang is a workload of more than one pod."""

    gangs: int
    leaves_mean: float | None
    leaves_max: int | None
    spines_mean: float | None
    """Domains one level above the leaves; null if the fabric has no such level."""
    spines_max: int | None
    crossing_leaf: int
    """Gangs with pods in more than one leaf."""
    leaves: dict[str, int]
    """Number of gangs by the number of leaves that they span."""


class Slowdown(Record):
    """Estimated slowdown of training steps of gangs by network contention, as a factor.

    Only gangs of which all pods ran count, each with the mean over its running time; 1 means no contention.
    """

    gangs: int
    mean: float | None
    p95: float | None
    max: float | None
    by_gpu_seconds: float | None
    """The mean weighted by GPU-seconds: the factor by which the GPU time of gangs would grow."""
    job_seconds: float | None
    """Mean estimated running time of gangs, in seconds."""


class Assumptions(Record):
    """Assumptions of the slowdown estimate, used where the cluster and the configuration have no value."""

    communication: float
    """Share of a training step that an all-reduce of many GPUs takes without contention, from 0 to 1."""
    network_gbits: float
    """Network bandwidth of each node, in Gbit/s."""
    oversubscription: float
    """Bandwidth of the links below a domain divided by the bandwidth of its uplink."""


class Run(Record):
    """One policy with one seed."""

    policy: str
    workload: str
    cluster: str
    seed: int
    fill: float | None
    what_if: str | None = None
    """Changes applied to the cluster or the workload, as given to `--what-if`; null for none."""
    arrived: int
    """Number of workloads that arrived."""
    started: int
    """Number of workloads of which all pods ran at the same time."""
    ended: int
    pods_placed: int
    evictions: int
    gpu_allocated_percent: float
    """Allocated GPUs at the end of the run, in percent of all GPUs."""
    utilisation_percent: float | None
    """Allocated GPU-seconds from the first arrival to the end of the run, in percent of all; null in a fill."""
    utilisation_while_arriving_percent: float | None
    """The same up to the last arrival."""
    end_seconds: float | None
    """Virtual seconds from the start to the last event; null in a fill."""
    wait: list[Wait]
    """The first entry covers all sizes, the others one size each."""
    span: Span
    span_by_gpus: dict[str, Span]
    slowdown: Slowdown | None
    """Null in a fill."""
    slowdown_by_gpus: dict[str, Slowdown]
    slowdown_assumes: Assumptions
    decisions: int
    decisions_per_s: float
    """Decisions per second of wall-clock time spent in the scheduling core; differs between repetitions."""
    wall_s: float
    """Wall-clock time of the run, in seconds; differs between repetitions."""
    file: str
    """Path of the file with its placements, relative to this file."""
    warnings: list[str] = Field(default_factory=list)
    """Warnings of the scheduler about its input."""
    never_ran_reasons: list[str] = Field(default_factory=list)
    """The most frequent reasons why workloads never ran, each with their number and an example. Empty in a fill."""


class Lost(Record):
    """A run that a sweep gave up; it has no figures."""

    policy: str
    seed: int
    what_if: str | None
    reason: str


class Result(Record):
    """The result of one `simulate` command."""

    schema_version: int = SCHEMA
    version: str
    """Version of topo-scheduler that wrote the result."""
    runs: list[Run]
    lost: list[Lost] = Field(default_factory=list)
