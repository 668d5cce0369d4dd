"""What the project promises of its speed, to be told beside what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .objects import Json
from .ratios import figure


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure by its path (see `ratios`) that stays below so much of a unit."""

    tells: str
    path: str
    below: float
    unit: str
    factor: float = 1.0
    """From the unit of the figure to this one."""

    def measured(self, parts: Mapping[str, Json]) -> float | None:
        """Return what was measured in the unit, None where it was not."""
        found = figure(parts, self.path)
        return None if found is None else found * self.factor


_US: Final = 1e-3
PROMISES: Final = (
    Promise(
        "gang of 4 on 5,000 nodes in 50 leaves, 99th percentile", "decisions.targets.gang_of_4.p99_us", 1, "ms", _US
    ),
    Promise(
        "gang of 64 on 100,000 nodes with 800,000 GPUs, 99th percentile",
        "decisions.targets.gang_of_64.p99_us",
        10,
        "ms",
        _US,
    ),
    Promise(
        "gang of 1,000 pods in 100 segments on 1,000 nodes in 100 leaves, the longest",
        "decisions.targets.gang_in_segments.max_us",
        50,
        "ms",
        _US,
    ),
    Promise(
        "gang of 64 without room, looked at again where nothing helps it, 99th percentile",
        "decisions.targets.recheck.p99_us",
        20,
        "µs",
    ),
    Promise(
        "why a gang of 64 waits and what would help, 1,000 nodes, the longest",
        "roomless.explanations.1000_nodes_8_each_gang_of_64.max_ms",
        1,
        "s",
        _US,
    ),
    Promise(
        "8 of 992 nodes fail: CPU until the seat of every lost pod is held",
        "recovery.healing.8.cpu_s_until_all_seats_are_held",
        1,
        "s",
    ),
    *(
        Promise(
            f"{what} of 1,000 nodes: from not ready to the last replacement bound, without the Job controller",
            f"heal.{name}.s_from_not_ready.last_bound_less_the_job_controller",
            30,
            "s",
        )
        for what, name in (("eight nodes", "eight_nodes"), ("a leaf", "leaf"), ("a spine", "spine"))
    ),
    Promise("a whole experiment by the protocol of FGD, our score", "fgd.ours.seconds", 5, "s"),
    Promise("a whole experiment by the protocol of FGD, the published score", "fgd.fgd.seconds", 5, "s"),
)
