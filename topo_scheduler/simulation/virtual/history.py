"""The history of a run: when each pod ran on its node, and how long each workload waited."""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.state.topology.fabric import Path

BEFORE: Final = -1
"""Job index of pods that ran before the first arrival."""


@dataclass(slots=True)
class Stay:
    """A pod on a node. ``job`` and ``node`` are indexes; ``milli`` is in thousandths of GPUs.

    ``devices`` are GPU indexes, empty if the scheduler did not choose them. ``start`` and ``end`` are in seconds;
    ``end`` is infinite while the pod runs.
    """

    job: int
    pod: str
    node: int
    milli: int
    devices: tuple[int, ...]
    start: float
    end: float = inf


@dataclass(slots=True)
class WorkloadOutcome:
    """The outcome of a workload.

    ``arrived``, ``started`` (all of its pods ran) and ``ended`` are in seconds, infinite if that never happened.
    ``milli`` is the sum over its pods in thousandths of GPUs. ``restarts`` counts the evictions of its pods after it
    had started. ``reason`` is the last reported reason why it could not be placed.
    """

    name: str
    pods: int
    arrived: float
    milli: int = 0
    started: float = inf
    ended: float = inf
    restarts: int = 0
    reason: str = ""


@dataclass(slots=True)
class RunHistory:
    """A whole run. ``nodes`` are names; ``paths`` and ``capacity`` (thousandths of GPUs) are per node.

    ``cordoned`` are indexes of nodes that accept no new pods. ``decisions`` took ``busy`` seconds of wall-clock time.
    ``end`` of the run is in virtual seconds. ``order`` means a fill: times are arrival numbers, and no workload ends.
    """

    nodes: tuple[str, ...]
    paths: tuple[Path, ...]
    levels: tuple[str, ...]
    capacity: tuple[int, ...]
    order: bool = False
    stays: list[Stay] = field(default_factory=list)
    outcomes: list[WorkloadOutcome] = field(default_factory=list)
    decisions: int = 0
    evictions: int = 0
    end: float = 0.0
    busy: float = 0.0
    complaints: list[str] = field(default_factory=list)
    cordoned: tuple[int, ...] = ()
