"""What is promised of attacks, crashes and outages, with its verdict, from the recorded runs of these commands."""

from collections.abc import Iterator, Mapping
from typing import Final

from tests.attacks.verdict import KINDS, MOST_CORES, MOST_MIB, SLOWER_SECONDS

from .objects import Json
from .promises import SettledElsewhere

ROLLBACK_SECONDS: Final = 5.0
"""From a fault until a partially bound gang is complete or rolled back, at most."""
AFTER_OUTAGE_SECONDS: Final = 3.0
"""From the first answer of the API server until the next bind, at most."""
_ATTACKS: Final = "attacks.md#result"
_GANGS: Final = "measurements-reliability.md#partially-bound-gangs"
_LEADERS: Final = "measurements-reliability.md#two-leaders"
_FAILOVER: Final = "measurements-reliability.md#failover"


def reliability_promises(figures: Mapping[str, Json]) -> Iterator[SettledElsewhere]:
    """Yield each promise with the figure that was measured.

    Args:
        figures: of the recorded runs, by the name of the run.
    """
    attacks = figures["attacks"]
    quiet, attacked = attacks["quiet"], attacks["attacked"]
    where = f"nine attacks at once on {attacks['nodes']:,} nodes"
    for kind in KINDS:
        slower = round(attacked[kind]["p99"] - quiet[kind]["p99"], 3)
        name = f"{where}: {kind} of another namespace until bound, 99th percentile, beyond that without attacks"
        yield _within(name, slower, SLOWER_SECONDS, "s", _ATTACKS)
    yield _within(f"{where}: memory, the peak", attacked["rss_mib"], MOST_MIB, "MiB", _ATTACKS)
    yield _within(f"{where}: CPU", attacked["cpus"], MOST_CORES, "core", _ATTACKS)
    rounds = [figures[name]["longest_s"] for name in ("half_gangs_first", "half_gangs")]
    for faults, cause in (
        (("LEADER", "SERVER"), "leader or API server was killed"),
        (("REFUSES", "HANGS"), "a webhook refuses a member or hangs on it"),
    ):
        longest = max(longest_s[fault] for longest_s in rounds for fault in faults)
        name = f"gangs partially bound because {cause}: until complete or rolled back, the longest"
        yield _within(name, longest, ROLLBACK_SECONDS, "s", _GANGS)
    zombies = figures["zombies"]
    yield _within(
        f"a leader stopped for {zombies['stop_s']} s and continued: writes after another had taken the Lease",
        zombies["writes_after_the_lease"],
        0,
        "writes",
        _LEADERS,
    )
    name = "API server away for a minute: from its first answer until the next bind, the longest of three"
    yield _within(name, max(figures["failover_outage"]["next_bind_s"]), AFTER_OUTAGE_SECONDS, "s", _FAILOVER)


def _within(name: str, figure: float, bound: float, unit: str, page: str) -> SettledElsewhere:
    """Return the promise that a figure is at most a bound."""
    return SettledElsewhere(name, f"at most {bound:g} {unit}", f"{figure:g} {unit}", figure <= bound, page)
