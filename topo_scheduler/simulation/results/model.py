"""``result.json``: what a simulation found, run by run. Its version is raised when a reader must change."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Final = 1


class Record(BaseModel):
    """A part of the result; every key is told, also where it is null."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Wait(Record):
    """How long workloads of one size waited, from their arrival until all of their pods ran; in seconds.

    Those that never ran are in none of the percentiles: ``never`` counts them.
    """

    gpus: str
    """GPUs of the whole workload: a number, or a range such as `9-16`."""
    workloads: int
    never: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    most: float | None


class Span(Record):
    """Over how much of the fabric gangs lie that were placed: workloads of more than one pod."""

    gangs: int
    leaves_mean: float | None
    leaves_max: int | None
    spines_mean: float | None
    """Domains one level above the leaves; null where the fabric has no such level."""
    spines_max: int | None
    crossing_leaf: int
    """Gangs whose pods are in more than one leaf."""
    leaves: dict[str, int]
    """How many gangs span so many leaves, by that number."""


class Slowdown(Record):
    """By how much longer training steps of gangs are estimated to take than if each had the network to itself.

    Of gangs that ran whole: each counts with the mean of its time, 1 where nobody was in its way.
    """

    gangs: int
    mean: float | None
    p95: float | None
    most: float | None
    by_gpu_seconds: float | None
    """The mean weighted by GPU-seconds: by how much more GPU time gangs would need."""
    job_seconds: float | None
    """Mean of the times that gangs would run for."""


class Assumptions(Record):
    """What the slow-down is estimated by, where the cluster and its configuration don't tell."""

    communication: float
    """Share of a training step that all-reduce takes of many GPUs that nobody is in the way of."""
    network_gbits: float
    """Of each node."""
    oversubscription: float
    """What comes up to a domain from below by what its uplink carries."""


class Run(Record):
    """One policy with one seed."""

    policy: str
    workload: str
    cluster: str
    seed: int
    fill: float | None
    what_if: str | None = None
    """Changes that were made to the cluster or the workload before, as `--what-if` tells them; null where none was."""
    arrived: int
    """Workloads."""
    started: int
    """Workloads of which all pods ran at a time."""
    ended: int
    pods_placed: int
    evictions: int
    gpu_allocated_percent: float
    """GPUs held at the end of the run, of all there are, in percent."""
    utilisation_percent: float | None
    """GPU-seconds held from the first arrival to the end of the run, of all there were; null in a fill."""
    utilisation_while_arriving_percent: float | None
    """The same up to the last arrival."""
    end_seconds: float | None
    """Virtual seconds from the start to the last event; null in a fill."""
    wait: list[Wait]
    """The first of all sizes, then by size."""
    span: Span
    span_by_gpus: dict[str, Span]
    slowdown: Slowdown | None
    """Null in a fill."""
    slowdown_by_gpus: dict[str, Slowdown]
    slowdown_assumes: Assumptions
    decisions: int
    decisions_per_s: float
    """Decisions by second of the machine's clock that the scheduling core took; differs from run to run."""
    wall_s: float
    """Seconds of the machine's clock that the run took; differs from run to run."""
    file: str
    """Where its placements are, relative to this file."""
    complaints: list[str] = Field(default_factory=list)
    """What the scheduler could not make sense of."""
    never_ran: list[str] = Field(default_factory=list)
    """Why workloads never ran: for the most frequent reasons how many there were, one of them, and what was told of it.
    Empty in a fill."""


class Lost(Record):
    """A run that a sweep gave up: no figure of it is known."""

    policy: str
    seed: int
    what_if: str | None
    why: str


class Result(Record):
    """Everything that one command found."""

    schema_version: int = SCHEMA
    version: str
    """Of topo-scheduler."""
    runs: list[Run]
    lost: list[Lost] = Field(default_factory=list)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``result.json``."""
    return Result.model_json_schema()
