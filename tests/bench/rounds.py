"""Short rounds in core, each between two rounds of the reference loops: what ``tox -e bench-check`` looks at.

A figure is CPU time in steps of a loop that never changes (`machine.python_loop`). So figures of a slow
day and of a fast one can be compared, and roughly those of two machines.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from . import recording, roomless, small, starting
from .backlog import backlog
from .machine import Reference, mean, reference
from .objects import Json
from .placing import Cluster, filled, latency, recheck, segments
from .waiting import moves, reservation

Sampler = Callable[[], float]
"""Returns microseconds of CPU time of one of what is measured, typically a median of many."""


@dataclass(frozen=True, slots=True)
class Measure:
    """``make`` prepares what is measured and returns what takes a sample of it; ``rounds`` samples are taken."""

    name: str
    make: Callable[[], Sampler]
    rounds: int = 5


def _gangs(nodes: int, per_leaf: int, members: int, many: int) -> Callable[[], Sampler]:
    """Gangs on one cluster that fills, so many in a sample; the first sample is not taken."""

    def make() -> Sampler:
        cluster = Cluster(nodes, per_leaf)
        filled(cluster, members, 2, {}, "first-")
        taken = iter(range(1_000_000))

        def sample() -> float:
            said = filled(cluster, members, many, {}, f"g{next(taken)}-")
            return 1e6 * median(record.seconds for record in said)

        return sample

    return make


def _told(work: Callable[[], Json], key: str, factor: float = 1.0) -> Callable[[], Sampler]:
    """What a measurement of its own says; it leaves out its first time itself."""
    return lambda: lambda: factor * float(work()[key])


MEASURES: Final = (
    Measure("gang_of_4_on_1000_nodes", _gangs(1000, 16, 4, 20)),
    Measure("gang_of_4_on_5000_nodes", _gangs(5000, 100, 4, 40)),
    Measure("gang_of_4_on_100000_nodes", _gangs(100_000, 16, 4, 20)),
    Measure("gang_of_64_on_10000_nodes", _gangs(10_000, 16, 64, 10)),
    Measure("gang_of_1000_in_segments", _told(lambda: segments(1), "p50_us"), 3),
    Measure("gang_of_8_without_links", _told(lambda: latency(5000, 16, 8, 60), "p50_us")),
    Measure("gang_of_8_with_bandwidth", _told(lambda: latency(5000, 16, 8, 60, "100Gb", links=True), "p50_us")),
    Measure("recheck", _told(lambda: recheck(gangs=50, repeats=100), "p50_us"), 3),
    Measure("pod_alone", _told(lambda: small.small_pods(1000, 600), "p50_us")),
    Measure("share_of_a_gpu", _told(lambda: small.small_pods(1000, 600, sharing=True), "p50_us")),
    Measure("backlog_of_200", _told(lambda: backlog(1000, 200, 10), "p50_ms", 1e3), 3),
    Measure("preemption", _told(lambda: roomless.preemption(1000, 350, 1, 4, 8, 1), "p50_ms", 1e3), 3),
    Measure("explanation", _told(lambda: roomless.explanations(1000, 8, 64, 1), "p50_ms", 1e3), 3),
    Measure("reservation", _told(lambda: reservation(1000, 16, 3), "cpu_ms", 1e3), 3),
    Measure("moves", _told(lambda: moves(1000, 16, 3), "cpu_ms", 1e3), 3),
    Measure("fragmentation", _told(lambda: starting.largest_gangs(5000), "p50_us")),
    Measure("changed_node", lambda: lambda: float(starting.fabric(5000, 60)["one_change"]["p50_us"])),
)


def rounds(measures: tuple[Measure, ...] = MEASURES) -> Json:
    """Take samples of each; return by name the fastest in microseconds, and the median in steps of the loop."""
    results: Json = {}
    for measure in measures:
        sample = measure.make()
        sample()
        pairs = [_between(sample) for _ in range(measure.rounds)]
        steps = [1e3 * taken / loops.python_ns for taken, loops in pairs]
        results[measure.name] = {
            "us": round(min(taken for taken, _ in pairs), 1),
            "steps": round(median(steps), 2),
            "spread": round((max(steps) - min(steps)) / median(steps), 2),
        }
        sys.stderr.write(f"  {measure.name}: {results[measure.name]['us']:,.1f} us\n")
        del sample
        gc.collect()
    return results | {"recording": _recording()}


def _between(sample: Sampler) -> tuple[float, Reference]:
    before = reference(3)
    taken = sample()
    return taken, mean([before, reference(3)])


def _recording() -> Json:
    """Neither, record and audit log, in turn: CPU of the engine's thread a pod."""
    costs = recording.core(300)
    return {name: costs[f"{name}_us_per_pod"] for name in ("nobody", "record", "audit")}
