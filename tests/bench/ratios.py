"""Numbers that hold where rates do not: of one run, on one machine, each over another or over a reference loop.

A ratio is read from the figures of a run by paths such as ``plain.1000.ours.pods_per_s``: a part and the keys below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

from .objects import Json

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """``over`` divided by ``by`` (or as it is); worse than the baseline by more than the factor ``allowed`` fails."""

    name: str
    tells: str
    over: str
    by: str = ""
    better: Better = "lower"
    allowed: float = 1.5

    @property
    def parts(self) -> set[str]:
        """The parts it is read from."""
        return {path.partition(".")[0] for path in (self.over, self.by) if path}


STEPS: Final[Mapping[str, tuple[str, float]]] = {
    "gang_of_4_on_1000_nodes": ("a gang of 4 on 1,000 nodes", 1.5),
    "gang_of_4_on_5000_nodes": ("a gang of 4 on 5,000 nodes", 1.5),
    "gang_of_4_on_100000_nodes": ("a gang of 4 on 100,000 nodes", 1.7),
    "gang_of_64_on_10000_nodes": ("a gang of 64 on 10,000 nodes", 1.5),
    "gang_of_1000_in_segments": ("a gang of 1,000 in 100 segments", 1.6),
    "gang_of_8_with_bandwidth": ("a gang of 8 that asks for bandwidth, 5,000 nodes", 1.5),
    "recheck": ("a gang of 64 without room, looked at again", 1.7),
    "pod_alone": ("a pod alone, 1,000 nodes", 1.6),
    "share_of_a_gpu": ("a pod alone, some ask for shares of a GPU, 1,000 nodes", 1.6),
    "backlog_of_200": ("a second of a backlog of 200 gangs, 1,000 nodes", 1.6),
    "preemption": ("choice of victims for a gang of 4, 1,000 nodes", 1.6),
    "explanation": ("why a gang of 64 waits and what would help, 7,200 pods", 1.6),
    "reservation": ("nodes held for a gang of 16, 1,000 nodes", 1.6),
    "moves": ("the moves that make room for a gang of 16, 1,000 nodes", 1.6),
    "fragmentation": ("measuring fragmentation, 5,000 nodes", 1.6),
    "changed_node": ("one node's changed labels, 5,000 nodes", 1.7),
}
"""Of the part `rounds`: what takes so many steps of the reference loop, and by which factor it may be worse."""


def _races(race: str, tells: str, other: str, named: str, beside: str = "") -> list[Ratio]:
    ratios = []
    for size in (1000, 5000):
        ours, theirs = f"{race}.{size}.ours", f"{beside or race}.{size}.{other}"
        text = f"{tells} on {size:,} nodes: ours over {named}'s"
        rate, cpu = f"{race}_{size}_over_{other}", f"{race}_{size}_cpu_of_{other}"
        ratios += [
            Ratio(rate, f"pods a second, {text}", f"{ours}.pods_per_s", f"{theirs}.pods_per_s", "higher", 1.6),
            Ratio(cpu, f"CPU a pod, {text}", f"{ours}.cpu_ms_per_pod", f"{theirs}.cpu_ms_per_pod", "lower", 1.4),
        ]
    return ratios


RATIOS: Final = (
    *(
        Ratio(name, f"{tells}, in steps of the reference loop", f"rounds.{name}.steps", allowed=allowed)
        for name, (tells, allowed) in STEPS.items()
    ),
    Ratio(
        "growth_to_100000",
        "a gang of 4 on 100,000 nodes over one on 1,000",
        "rounds.gang_of_4_on_100000_nodes.steps",
        "rounds.gang_of_4_on_1000_nodes.steps",
    ),
    Ratio(
        "bandwidth",
        "a gang of 8 that asks for bandwidth over one where links are unknown",
        "rounds.gang_of_8_with_bandwidth.steps",
        "rounds.gang_of_8_without_links.steps",
        allowed=1.4,
    ),
    Ratio("recorded", "CPU a pod with a record over without", "rounds.recording.record", "rounds.recording.nobody"),
    Ratio("audited", "CPU a pod with an audit log over without", "rounds.recording.audit", "rounds.recording.nobody"),
    Ratio("memory_at_1000", "MiB of its own of a daemon, 1,000 nodes", "memory.1000.0.uss_mb", allowed=1.2),
    Ratio("memory_of_a_node", "KiB a node", "memory.kib_per_node", allowed=1.3),
    Ratio("memory_of_a_pod", "KiB a bound pod", "memory.kib_per_pod", allowed=1.3),
    Ratio(
        "kernels_cached",
        "CPU of a process that has its kernels from a cache over one that compiles them",
        "starting.kernels.cached.process_cpu_s",
        "starting.kernels.cold.process_cpu_s",
    ),
    Ratio(
        "fgd_cpu",
        "an experiment of FGD by our score over one by theirs",
        "fgd.ours.cpu_s_with_its_nodes",
        "fgd.fgd.cpu_s_with_its_nodes",
    ),
    Ratio(
        "fgd_allocated",
        "GPUs allocated in it, ours over what is published of FGD",
        "fgd.ours.allocated_percent",
        "fgd.published_percent",
        "higher",
        1.002,
    ),
    Ratio(
        "recovery_moved", "pods moved over pods lost", "recovery.healing.8.moved_pods", "recovery.healing.8.lower_bound"
    ),
    *_races("plain", "plain pods", "kube_scheduler", "kube-scheduler"),
    *_races("gangs", "gangs of 8", "kube_scheduler", "kube-scheduler"),
    *_races("gangs", "gangs of 8", "kai", "KAI-Scheduler", "kai"),
    *(
        Ratio(
            f"embedded_{nodes}",
            f"pods a second, {nodes:,} nodes: on the embedded API server over a real one",
            f"embedded.{nodes}.ours.pods_per_s",
            f"plain.{nodes}.ours.pods_per_s",
            "higher",
            2.0,
        )
        for nodes in (1000, 5000)
    ),
    Ratio(
        "served_recorded",
        "pods a second with a record and an audit log over with neither",
        "record.served.both.pods_per_s",
        "record.served.nobody.pods_per_s",
        "higher",
    ),
    Ratio("bytes_received", "bytes received a decision", "load.at_work.received_bytes_per_decision", allowed=1.2),
    Ratio("bytes_sent", "bytes sent a decision", "load.at_work.sent_bytes_per_decision", allowed=1.2),
)


def figure(parts: Mapping[str, Json], path: str) -> float | None:
    """Return a figure by its path, None where it was not measured. A number in a path is a place in a list."""
    name, *keys = path.split(".")
    value: Any = parts.get(name, {}).get("figures")
    for key in keys:
        if isinstance(value, list):
            value = value[int(key)] if key.isdecimal() and int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def ratios_of(parts: Mapping[str, Json]) -> dict[str, float]:
    """Return the ratios that follow from these parts; one without its figures is left out."""
    ratios = {}
    for ratio in RATIOS:
        over = figure(parts, ratio.over)
        by = figure(parts, ratio.by) if ratio.by else 1.0
        if over is not None and by and isfinite(over / by):
            ratios[ratio.name] = float(f"{over / by:.4g}")
    return ratios
