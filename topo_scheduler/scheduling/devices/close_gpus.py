"""What the GPUs must be like that a pod gets by claims on a node, as its annotations require, and how close."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.gpu_needs import GpuLocality, GpuNeeds, architecture_name, memory_text
from topo_scheduler.api.text import few_of
from topo_scheduler.scheduling.devices.allocator import DeviceCandidates
from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, DeviceQuery
from topo_scheduler.scheduling.devices.claimed_sets import text_of
from topo_scheduler.scheduling.devices.close_rule import NOWHERE, UNFIT, CloseRule, Places, close_rule
from topo_scheduler.scheduling.devices.gpu_closeness import closeness_text, name_of_links, too_few_close
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
from topo_scheduler.state.devices.gpus_of_devices import gpus_of_device
from topo_scheduler.state.devices.inventory import DeviceInventory, DevicesInUse
from topo_scheduler.state.devices.node_hardware import MEMORY_PERCENT, NodeGpus
from topo_scheduler.state.devices.pools import DeviceId, Pool, PublishedDevice
from topo_scheduler.state.operation_budget import charge


@dataclass(frozen=True, slots=True)
class CloseGpus:
    """What a pod requires on a node.

    Attributes:
        sets: the GPUs of nodes.
        row: the node.
        needs: what the GPUs of the pod must be like, and how close.
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
        places: dict[DeviceId, int | None] = {}
        for device in devices:
            if device.id not in known and not gpus_of_device(device.id[0], device, None, {}):
                places[device.id] = None
            elif self._is_right(device, gpus if device.id in whole else None):
                places[device.id] = known.get(device.id, NOWHERE)
            else:
                places[device.id] = UNFIT
        return places

    def _is_right(self, device: PublishedDevice, gpus: NodeGpus | None) -> bool:
        """Return whether a GPU or a part of one is as required; ``gpus`` says what its driver does not."""
        needs, memory_bytes = self.needs, gpus.memory_bytes if gpus is not None else 0
        if "memory" in device.capacity:
            memory_bytes = int(device.capacity["memory"].total.value)
        architecture = text_of(device, "architecture") or (gpus.architecture if gpus is not None else "")
        return (
            memory_bytes // MEMORY_PERCENT * 100 >= needs.memory_bytes
            and (not needs.architectures or architecture_name(architecture) in needs.architectures)
            and needs.mig_profile in ("", text_of(device, "profile"))
        )

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
                if index is not None and index >= 0 and candidate.device.id not in used.whole:
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

    def unfit_text(self) -> str:
        """Return that too few free devices are as required, without the name of the node."""
        needs = self.needs
        parts = [f"{memory_text(needs.memory_bytes)} of memory"] if needs.memory_bytes else []
        parts += [f"the architecture {few_of(needs.architectures)}"] if needs.architectures else []
        parts += [f"the MIG profile {needs.mig_profile}"] if needs.mig_profile else []
        return f"too few free devices have {' and '.join(parts)}"

    def shortage(self, rule: CloseRule) -> str:
        """Return why no devices are close enough, without the node's name: nodes with one reason count together."""
        gpus = self.sets.described(self.row)
        text = name_of_links(gpus.vendor if gpus is not None else "", closeness_text(self.needs))
        if gpus is None or rule.gpus is None:
            return f"it is not known which are {text}"
        if self.needs.bandwidth and not self.sets.tables.decides(gpus.hardware):
            return "the bandwidth of rings over its GPUs is not computed yet"
        if rule.is_possible:
            return f"{rule.usable.bit_count()} free GPUs, but the claims allow no set of them that is {text}"
        return too_few_close(rule.usable.bit_count(), rule.most, text)
