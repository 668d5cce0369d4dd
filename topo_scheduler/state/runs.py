"""How long earlier runs of the same workload took: a short record that fades, lost with a restart."""

import re
from collections import OrderedDict
from math import inf
from typing import Final

from topo_scheduler.api.objects import Pod

Run = tuple[str, str, str]
"""Namespace, kind and name of what a pod is a run of."""

REMEMBERED: Final = 3
"""Runs of which the longest is what the next is expected to take."""
KEEP: Final = 4096
"""Workloads that are remembered; the one that ran longest ago goes first."""
_GENERATED: Final = re.compile(r"(?:-(?:[0-9]+|[bcdfghjklmnpqrstvwxz2456789]{5}))+$")
"""Numbers, and the five characters that ``generateName`` adds: Kubernetes chooses them so that they form no words."""


def run_of(pod: Pod) -> Run:
    """Return what a pod is a run of: its controller, else itself, by the name without what was generated of it.

    So are the Jobs of one CronJob, and pods that are submitted again under ``name-1``, ``name-2``.
    """
    meta = pod.metadata
    controller = meta.controller
    kind, name = (controller.kind, controller.name) if controller else ("Pod", meta.name)
    return meta.namespace, kind, _GENERATED.sub("", name) or name


class Runs:
    """Seconds of the last runs that succeeded.

    Source of the idea that the last few runs tell more than the average of all: Tsafrir, Etsion, Feitelson, Backfilling
    using system-generated predictions, TPDS 18(6), 2007. They take the mean of two; here the longest of three counts,
    as to promise too early costs more.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[Run, tuple[float, ...]] = OrderedDict()
        self.changes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def note(self, run: Run, seconds: float) -> None:
        """Remember how long a run took that succeeded."""
        if seconds < 0:
            return
        self._runs[run] = (*self._runs.get(run, ()), seconds)[-REMEMBERED:]
        self._runs.move_to_end(run)
        self.changes += 1
        if len(self._runs) > KEEP:
            self._runs.popitem(last=False)

    def longest(self, run: Run) -> float:
        """Return how long the next run is expected to take; infinite where nothing is known."""
        return max(self._runs.get(run, (inf,)))
