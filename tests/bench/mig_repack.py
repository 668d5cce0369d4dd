"""Whether MIG instances fit on so many GPUs however they are placed: by an integer solver, exactly."""

from collections import Counter
from functools import cache

import numpy as np

from topo_scheduler.simulation.devices.mig_repacking import maximal_sets
from topo_scheduler.state.devices.mig import MigGeometry


class Repacking:
    """Whether instances fit on a number of GPUs of one geometry."""

    def __init__(self, geometry: MigGeometry, gpus: int) -> None:
        self._names = [profile.name for profile in geometry.profiles]
        self._sets = np.array(maximal_sets(geometry)).T
        self._gpus = gpus
        self._fewest = cache(self._solve)

    def fits(self, instances: Counter[str]) -> bool:
        """Return whether instances, counted by profile, fit if all of them are placed again."""
        return self._fewest(tuple(instances[name] for name in self._names)) <= self._gpus

    def _solve(self, counts: tuple[int, ...]) -> int:
        """Return the fewest GPUs that hold so many instances of each profile."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped,import-not-found,unused-ignore]

        kinds = self._sets.shape[1]
        solution = milp(
            np.ones(kinds),
            constraints=LinearConstraint(self._sets, counts, np.inf),
            integrality=np.ones(kinds),
            bounds=Bounds(0, np.inf),
        )
        assert solution.status == 0, solution.message
        fewest: float = solution.fun
        return round(fewest)
