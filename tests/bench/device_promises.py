"""What is promised of the choice of devices, with its verdict, from the recorded runs of ``tests.bench.devices``."""

from collections.abc import Iterator, Mapping
from typing import Final

from .objects import Json
from .promises import SettledElsewhere

MESH_BOUND_PERCENT: Final = 94.0
BEHIND_BOUND_POINTS: Final = 0.5
MIG_BOUNDS: Final[Mapping[str, float]] = {
    "ours_at_70": 0.5,
    "ours_at_90": 4.0,
    "engine_two_moves_at_70": 0.0,
    "engine_two_moves_at_90": 1.0,
}
"""Percent of requests blocked only by fragmentation, at most; by chooser and load, for the mix that is recorded."""
TABLE_BOUNDS_MS: Final[Mapping[int, float]] = {8: 1.0, 16: 200.0}
"""Milliseconds of CPU time for the tables of one shape, at most, by its number of GPUs."""
_PAGE: Final = "measurements-devices.md"


def device_promises(figures: Mapping[str, Json]) -> Iterator[SettledElsewhere]:
    """Yield each promise on the choice of devices with the figure that was measured."""
    gpus = figures["device_bandwidth"]
    mig = figures["mig_fragmentation"]["fitted"] | figures["mig_engine"]["fitted"]
    load, lowest, behind = gpus["load_percent"], gpus["lowest_on_meshes_percent"], gpus["most_behind_points"]
    yield SettledElsewhere(
        f"bandwidth kept inside nodes with a mesh at {load} % load, the lowest of {gpus['meshes']} meshes",
        f"at least {MESH_BOUND_PERCENT:g} %",
        f"{lowest:g} %",
        lowest >= MESH_BOUND_PERCENT,
        f"{_PAGE}#gpus-of-a-node",
    )
    name = f"bandwidth kept inside nodes at {load} % load: behind the choosers of NVIDIA and AMD, the most"
    yield _at_most(name, max(0.0, behind), BEHIND_BOUND_POINTS, "points", "gpus-of-a-node")
    for count, most_ms in TABLE_BOUNDS_MS.items():
        longest_ms = figures["gpu_tables"][f"longest_of_{count}_ms"]
        name = f"tables of a shape with {count} GPUs, CPU time, the longest of all shapes"
        yield _at_most(name, longest_ms, most_ms, "ms", "time-for-the-tables")
    for name, bound in MIG_BOUNDS.items():
        policy, _, at = name.rpartition("_at_")
        moves = "with up to two moves" if policy == "engine_two_moves" else "without moves"
        yield _at_most(
            f"MIG requests blocked only by fragmentation at {at} % load, {moves}", mig[name], bound, "%", "mig-slots"
        )


def _at_most(name: str, figure: float | None, bound: float, unit: str, section: str) -> SettledElsewhere:
    """Return the promise that a figure stays below a bound, which it does not as long as it is not recorded."""
    return SettledElsewhere(
        name,
        f"at most {bound:g} {unit}",
        "not recorded" if figure is None else f"{figure:g} {unit}",
        figure is not None and figure <= bound,
        f"{_PAGE}#{section}",
    )
