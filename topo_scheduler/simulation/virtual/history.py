"""What happened in a run: every pod's time on its node, and every workload's wait."""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.state.fabric import Path

BEFORE: Final = -1
"""In place of the index of a job: a pod that ran before the first arrival."""


@dataclass(slots=True)
class Stay:
    """A pod on a node. ``job`` and ``node`` are indexes; ``milli`` thousandths of GPUs; ``devices`` where told apart.

    ``start`` and ``end`` in seconds; infinite while it runs.
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
    """What became of a workload.

    ``arrived`` and ``started`` (all of its pods ran) and ``ended`` in seconds, infinite where that never came.
    ``milli`` thousandths of GPUs of all its pods; -1 as long as the scheduler has not made sense of them.
    ``restarts`` how often a pod of it was evicted after it had started. ``reason`` why it had no place, as told last.
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
    """A whole run. ``nodes`` names, ``paths`` of the leaf of each, ``capacity`` thousandths of GPUs of each.

    ``cordoned`` indexes of nodes that take no new pods.
    ``busy`` seconds of the machine's clock that decisions took, ``decisions`` how many there were. ``end`` of the run
    in virtual seconds. ``order`` whether times are numbers of arrivals: nobody leaves, and no time passes.
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
