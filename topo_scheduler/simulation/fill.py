"""The protocol of FGD's authors: pods arrive in a shuffled order until so much is asked, and nobody leaves.

The list is shuffled, then some of it comes again, until the GPUs asked for are a stated share of those there are.
Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 6.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.scheduling.intake.understand import understand
from topo_scheduler.simulation.cases.model import Arrival, WorkloadCase
from topo_scheduler.simulation.cases.transforms import fill
from topo_scheduler.simulation.virtual.objects import Owners
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.resources import ResourceTable
from topo_scheduler.state.typical import PodKind, Popular, kind_of, popular


@dataclass(frozen=True, slots=True)
class CaseDemand:
    """What the workloads of a case ask for: thousandths of GPUs of each, and how many pods of each kind there are."""

    milli: tuple[int, ...]
    kinds: Mapping[PodKind, int]

    @property
    def typical(self) -> Popular:
        """The typical pods of the whole case."""
        return popular(self.kinds)


def asked_of(workload: WorkloadCase) -> CaseDemand:
    """Return what workloads ask for, as the scheduler understands them."""
    resources, milli, kinds = ResourceTable(GPU_RESOURCES), [], Counter[PodKind]()
    known: dict[object, PodClass] = {}
    for arrival in workload.arrivals:
        owners = Owners()
        owners.add(arrival.owners)
        total = 0
        for pod in arrival.pods:
            # Most pods of a list are like another one: what they ask for is worked out once.
            key = (msgspec.json.encode((pod.spec, pod.metadata.annotations)), *arrival.owners)
            cls = known.get(key)
            if cls is None:
                cls = known[key] = understand(pod, owners.resolve(pod), resources, 0.0).member.cls
            total += 1000 * cls.gpus + cls.share
            kinds[kind_of(dict(cls.amounts), cls.models)] += 1
        milli.append(total)
    return CaseDemand(tuple(milli), kinds)


def filled(workload: WorkloadCase, asked: CaseDemand, capacity: int, share: float, seed: int) -> list[Arrival]:
    """Return the workloads in a shuffled order, then some of them again, until so much is asked.

    Args:
        workload: the list.
        asked: what it asks for.
        capacity: thousandths of GPUs that the cluster has.
        share: GPUs asked for in the end, as a share of those there are.
        seed: of the shuffle and of what comes again.

    Raises:
        CaseError: nothing asks for GPUs, or the cluster has none.
    """
    return list(fill(workload, capacity, share, seed, asked.milli).arrivals)
