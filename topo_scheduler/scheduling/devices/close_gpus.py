"""How close the GPUs must be that a pod gets by claims on a node, as its annotations require."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.gpu_needs import GpuLocality, GpuNeeds
from topo_scheduler.scheduling.devices.allocator import DeviceCandidates
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, DeviceQuery
from topo_scheduler.scheduling.devices.close_rule import NOWHERE, CloseRule, Places, close_rule
from topo_scheduler.scheduling.devices.gpu_closeness import closeness_text, name_of_links, too_few_close
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.state.devices.gpus_of_devices import gpus_of_device
from topo_scheduler.state.devices.inventory import DeviceInventory, DevicesInUse
from topo_scheduler.state.devices.pools import DeviceId, Pool
from topo_scheduler.state.operation_budget import charge


@dataclass(frozen=True, slots=True)
class CloseGpus:
    """What a pod requires on a node.

    Attributes:
        sets: the GPUs of nodes.
        row: the node.
        needs: how close the GPUs of the pod must be.
    """

    sets: GpuSets
    row: int
    needs: GpuNeeds

    @property
    def version(self) -> object:
        """A value that changes with what decides how close GPUs are."""
        return self.needs, *self.sets.version(self.row)

    def places(self, pools: Iterable[Pool]) -> dict[DeviceId, int | None]:
        """Return for each device of some pools which GPU it is or is a part of, or `NOWHERE`; None if it is no GPU."""
        gpus, claimed = self.sets.described(self.row), self.sets.claimed
        whole = [gpu.id for gpu in claimed.whole_gpus_of(self.row)] if claimed is not None else []
        known = claimed.gpu_of_each(self.row, gpus.count) if claimed is not None and gpus is not None else {}
        if self.needs.bandwidth or self.needs.locality == GpuLocality.NVLINK:
            known = {id_: known[id_] for id_ in whole if id_ in known}
        devices = [device for pool in pools if pool.usable for device in pool.devices]
        charge(1 + len(devices) // 2)
        return {
            device.id: known.get(device.id, NOWHERE if gpus_of_device(device.id[0], device, None, {}) else None)
            for device in devices
        }

    def held(self, places: Places, allocations: Iterable[Allocation]) -> tuple[int, ...]:
        """Return the GPUs of allocations, in order; `NOWHERE` for those of which nothing is known."""
        devices = {id_ for allocation in allocations for id_ in DeviceInventory.devices_of_allocation(allocation)}
        unknown = {id_: NOWHERE for id_ in devices - places.keys() if gpus_of_device(id_[0], None, None, {})}
        return tuple(sorted(index for id_ in devices if (index := unknown.get(id_, places.get(id_))) is not None))

    def rule(
        self,
        places: Places,
        held: tuple[int, ...],
        candidates: DeviceCandidates,
        claims: Sequence[ClaimQuery],
        used: DevicesInUse,
    ) -> CloseRule:
        """Return the rule for the search.

        Args:
            places: from `places`.
            held: GPUs that the pod has, from `held`.
            candidates: the devices of the node that match.
            claims: what the pod does not have yet.
            used: devices that are in use.
        """
        free = 0
        for query in (query for claim in claims for request in claim.requests for query in request):
            for candidate in candidates.of(query):
                index = places.get(candidate.device.id)
                if index is not None and index != NOWHERE and candidate.device.id not in used.whole:
                    free |= 1 << index
        gpus, tables = self.sets.described(self.row), self.sets.tables.of
        asked = self._least(candidates, claims)
        return close_rule(gpus, self.needs, tables, places, held, free, asked)

    def _least(self, candidates: DeviceCandidates, claims: Sequence[ClaimQuery]) -> int:
        """Return how many whole GPUs claims get at least."""
        claimed = self.sets.claimed
        whole = {gpu.id for gpu in claimed.whole_gpus_of(self.row)} if claimed is not None else set()

        def gets(query: DeviceQuery) -> int:
            are_whole = all(candidate.device.id in whole for candidate in candidates.of(query))
            return query.count if are_whole and not query.admin_access else 0

        return sum(min(map(gets, request)) for claim in claims for request in claim.requests)

    def shortage(self, rule: CloseRule) -> str:
        """Return why no devices obey a rule, without the name of the node: nodes with one reason count together."""
        gpus = self.sets.described(self.row)
        text = name_of_links(gpus.vendor if gpus is not None else "", closeness_text(self.needs))
        if gpus is None or rule.gpus is None:
            return f"it is not known which are {text}"
        if self.needs.bandwidth and not self.sets.tables.decides(gpus.hardware):
            return "the bandwidth of rings over its GPUs is not computed yet"
        if rule.is_possible:
            return f"{rule.usable.bit_count()} free GPUs, but the claims allow no set of them that is {text}"
        return too_few_close(rule.usable.bit_count(), rule.most, text)
