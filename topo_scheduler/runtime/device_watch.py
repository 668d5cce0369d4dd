"""Looks at the devices of the cluster from time to time, for metrics and the log. It decides nothing.

A pass covers only pools that changed, in slices, since a cluster may have a million devices and decisions come first.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.state.devices.device_survey import PoolSums, problems_of, problems_of_use, sums_of
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.pool_problems import LASTING, DeviceProblem
from topo_scheduler.state.devices.pools import Pool, PoolId, Slice, whole_pool

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 15.0
"""Pause between two passes."""
SLICE_SECONDS: Final = 0.002
"""Time after which a pass lets others work; one pool takes no longer."""
PAUSE_SECONDS: Final = 0.02
"""Pause after each slice, so that a pass takes at most a tenth of a core, however many pools changed."""
LASTING_SECONDS: Final = 60.0
"""How long a problem that also arises during updates must exist before it is logged."""
MAX_LOGGED_PROBLEMS: Final = 50
"""Problems that one pass logs; of the others it logs the number."""
MAX_DEVICES_PER_CHECK: Final = 256
"""Devices in use that are checked at once."""
MAX_PROFILES: Final = 64
"""Pairs of driver and profile in metrics; those with the fewest devices are counted together as ``other``."""
OTHER: Final = "other"


@dataclass(slots=True)
class DeviceTotals:
    """Sums over all pools.

    Attributes:
        devices: by driver, profile and state.
        fragmentation: by driver and profile of partitions: share of free memory slices, from 0 to 1, that no instance
            of the profile can use.
        problems: by kind.
    """

    devices: dict[tuple[str, str, str], int] = field(default_factory=dict)
    fragmentation: dict[tuple[str, str], float] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _PoolView:
    """What is known of a pool: what its slices say, and the use of its devices."""

    version: int
    slices: tuple[Slice, ...]
    pool: Pool | None
    problems: tuple[DeviceProblem, ...]
    sums: PoolSums | None


class DeviceWatch:
    """Keeps the totals of the devices of an inventory."""

    def __init__(self, inventory: Callable[[], DeviceInventory], clock: Callable[[], float]) -> None:
        """Set up; ``inventory`` returns that of the engine, which owns it."""
        self.totals = DeviceTotals()
        self._inventory = inventory
        self._clock = clock
        self._views: dict[PoolId, _PoolView] = {}
        self._since: dict[DeviceProblem, float] = {}
        """When each problem that exists was seen first."""
        self._logged: set[DeviceProblem] = set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # views must not end the term
                log.exception("devices could not be surveyed; metrics of devices are those of the last survey")
            await asyncio.sleep(PASS_SECONDS)

    async def look(self) -> None:
        """Make one pass: bring the totals up to date, and log each new problem once."""
        began = time.perf_counter()
        problems: list[DeviceProblem] = []
        for batch in self._passing():
            problems += batch
            if time.perf_counter() - began > SLICE_SECONDS:
                await asyncio.sleep(PAUSE_SECONDS)
                began = time.perf_counter()
        views = [view for view in self._views.values() if view.sums is not None]
        self.totals = DeviceTotals(
            capped(*(view.sums.devices for view in views if view.sums is not None)),
            fragmentation_of(view.sums for view in views if view.sums is not None),
            dict(sorted(Counter(problem.kind.value for problem in problems).items())),
        )
        self._log(problems)

    def _passing(self) -> Iterator[Iterable[DeviceProblem]]:
        """Yield the problems of each pool and of the use of devices; what else changed since the last pass is kept."""
        inventory = self._inventory()
        for pool in inventory.pools():
            version = inventory.pool_version(pool)
            view = self._views.get(pool)
            if view is None or view.version != version:
                view = self._views[pool] = self._view(pool, version, view)
            yield view.problems
        for pool in [pool for pool in self._views if not inventory.pool_version(pool)]:
            del self._views[pool]
        devices = inventory.devices_in_use()
        for start in range(0, len(devices), MAX_DEVICES_PER_CHECK):
            yield problems_of_use(inventory, devices[start : start + MAX_DEVICES_PER_CHECK])

    def _view(self, id_: PoolId, version: int, before: _PoolView | None) -> _PoolView:
        inventory = self._inventory()
        slices = tuple(inventory.slices_of_pool(id_))
        if before is not None and before.slices == slices:  # only the use of its devices changed
            pool, problems = before.pool, before.problems
        else:
            pool, problems = whole_pool(slices), tuple(problems_of(inventory, id_))
        sums = sums_of(pool, inventory) if pool is not None else None
        return _PoolView(version, slices, pool, problems, sums)

    def _log(self, problems: Iterable[DeviceProblem]) -> None:
        now = self._clock()
        self._since = {problem: self._since.get(problem, now) for problem in sorted(problems)}
        self._logged &= self._since.keys()
        due = [
            problem
            for problem, since in self._since.items()
            if problem not in self._logged and (problem.kind not in LASTING or now - since >= LASTING_SECONDS)
        ]
        for problem in due[:MAX_LOGGED_PROBLEMS]:
            log.warning("devices: %s", problem, extra={"kind": problem.kind.value})
        if len(due) > MAX_LOGGED_PROBLEMS:
            log.warning(
                "devices: %d more problems; `topo-scheduler topology` shows them", len(due) - MAX_LOGGED_PROBLEMS
            )
        self._logged.update(due)


def capped(*counts: Mapping[tuple[str, str, str], int]) -> dict[tuple[str, str, str], int]:
    """Return sums of numbers of devices by driver, profile and state, with a cap on pairs of driver and profile.

    Of more than `MAX_PROFILES` pairs, those with the most devices keep their names.
    """
    total: Counter[tuple[str, str, str]] = Counter()
    for of_part in counts:
        total.update(of_part)
    sizes: Counter[tuple[str, str]] = Counter()
    for (driver, profile, _), number in total.items():
        sizes[driver, profile] += number
    if len(sizes) <= MAX_PROFILES:
        return dict(total)
    named = set(sorted(sizes, key=lambda pair: (-sizes[pair], pair))[: MAX_PROFILES - 1])
    shown: Counter[tuple[str, str, str]] = Counter()
    for (driver, profile, state), number in sorted(total.items()):
        pair = (driver, profile) if (driver, profile) in named else (OTHER, OTHER)
        shown[*pair, state] += number
    return dict(shown)


def fragmentation_of(sums: Iterable[PoolSums]) -> dict[tuple[str, str], float]:
    """Return the share of free memory slices that no instance can use, by driver and profile; where slices are free.

    Of more than `MAX_PROFILES` pairs of driver and profile, those with the fewest free slices are left out.
    """
    free: Counter[tuple[str, str]] = Counter()
    lost: Counter[tuple[str, str]] = Counter()
    for of_pool in sums:
        for pair, (free_slices, lost_slices) in of_pool.slices.items():
            free[pair] += free_slices
            lost[pair] += lost_slices
    pairs = sorted((pair for pair in free if free[pair]), key=lambda pair: (-free[pair], pair))[:MAX_PROFILES]
    return {pair: lost[pair] / free[pair] for pair in sorted(pairs)}
