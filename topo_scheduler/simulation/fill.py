"""The GPU demand of a case, for the fill protocol of FGD's authors (`cases.transforms.fill`).

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 6.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.scheduling.intake.understand import understand
from topo_scheduler.simulation.cases.model import WorkloadCase
from topo_scheduler.simulation.virtual.objects import Owners
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.statistics.typical_pods import PodKind, Popular, kind_of, popular


@dataclass(frozen=True, slots=True)
class CaseDemand:
    """GPU demand of a case: thousandths of GPUs of each workload, and number of pods of each kind."""

    milli: tuple[int, ...]
    kinds: Mapping[PodKind, int]

    @property
    def typical(self) -> Popular:
        """Return the typical pods of the whole case."""
        return popular(self.kinds)


def demand_of(workload: WorkloadCase) -> CaseDemand:
    """Return the GPU demand of workloads as the scheduler computes it."""
    resources, milli, kinds = ResourceTable(GPU_RESOURCES), [], Counter[PodKind]()
    class_by_content: dict[object, PodClass] = {}
    for arrival in workload.arrivals:
        owners = Owners()
        owners.add(arrival.owners)
        total = 0
        for pod in arrival.pods:
            # Most pods of a list are equal to another pod; their class is computed once.
            key = (msgspec.json.encode((pod.spec, pod.metadata.annotations)), *arrival.owners)
            cls = class_by_content.get(key)
            if cls is None:
                cls = class_by_content[key] = understand(pod, owners.resolve(pod), resources, 0.0).member.cls
            total += 1000 * cls.gpus + cls.share
            kinds[kind_of(dict(cls.amounts), cls.models)] += 1
        milli.append(total)
    return CaseDemand(tuple(milli), kinds)
