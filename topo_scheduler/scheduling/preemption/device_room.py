"""How many pods with claims a node has devices for without some of its pods."""

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from topo_scheduler.scheduling.devices.claim_query import ClaimQuery, ClaimQueryError
from topo_scheduler.scheduling.devices.node_devices import NodeDevices, NodeFit
from topo_scheduler.scheduling.devices.pod_count import used_of
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidates
from topo_scheduler.scheduling.rules.device_claims import close_gpus
from topo_scheduler.state.devices.trial_use import DevicesOnTrial
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.classes import NO_LIMIT, PodClass

CHECK_OPERATIONS: Final = 60
"""Operations of one computation of a node's devices, apart from the search for them."""
_NONE: Final = NodeFit(0, 0)


@dataclass(frozen=True, slots=True)
class _Bound:
    """What limits the pods of a node without any search.

    ``free``: devices that no claim has. ``once`` and ``each``: devices that all pods together, and each of them, need
    at least. ``counts``: each device is for one claim, so that numbers of devices decide. ``most``: pods that fit if
    all devices were free.
    """

    free: int
    once: int
    each: int
    counts: bool
    most: int

    def members(self, freed: Int64) -> Int64:
        """Return the most pods that fit after some devices were freed (int64[sets])."""
        if not self.counts:
            return np.full(len(freed), self.most, np.int64)
        left = self.free - self.once + freed
        fits = left // self.each if self.each else np.where(left >= 0, NO_LIMIT, 0)
        return np.clip(fits, 0, self.most).astype(np.int64)


class DeviceRoom:
    """Devices for the claims of one class on a trial. Nothing but this may change the trial while it is used."""

    def __init__(self, trial: Trial, cls: PodClass, candidates: Candidates) -> None:
        """Set up.

        Raises:
            ValueError: the trial leaves devices as they are.
        """
        if trial.inventory is None or trial.devices is None:
            raise ValueError("a trial without devices")
        self._inventory: DevicesOnTrial = trial.inventory
        self._devices: NodeDevices = trial.devices
        self._claims = cls.claims
        self._close = partial(close_gpus, trial.gpu_sets, trial.planner.nodes, cls)
        self._uids = [pod.occupant.uid for pod in candidates.pods]
        held = (
            len({device for key in self._inventory.consumers.claims_of(uid) for device in self._of_claim(key)})
            for uid in self._uids
        )
        self.held: Int64 = np.fromiter(held, np.int64, len(self._uids))
        """int64[pods], devices of the claims that each candidate uses."""
        self.checks = 0
        """Computations so far."""
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}
        self._bounds: dict[int, _Bound] = {}
        self._least: tuple[int, int] | None = None

    def _of_claim(self, key: tuple[str, str]) -> list[tuple[str, str, str]]:
        return [] if key in self._inventory.freed else list(self._inventory.devices_of_claim(key))

    def fit(self, row: int, evicted: tuple[int, ...]) -> int:
        """Return how many pods a row has devices for without some candidates, given in ascending order."""
        evicted = tuple(number for number in evicted if self.held[number])
        key = row, evicted
        known = self._known.get(key)
        if known is None:
            charge(CHECK_OPERATIONS)
            self.checks += 1
            uids = [self._uids[number] for number in evicted]
            self._inventory.leave(uids)
            try:
                known = self._known[key] = self._fit(row).now
            finally:
                self._inventory.come_back(uids)
        return known

    def at_most(self, row: int, freed: Int64) -> Int64:
        """Return an upper bound of the pods that a row has devices for after some devices were freed (int64[sets])."""
        bound = self._bounds.get(row)
        if bound is None:
            bound = self._bounds[row] = self._bound(row)
        return bound.members(freed)

    def lack(self, row: int) -> int:
        """Return how many devices must come free at least, so that one pod fits on a row; 0 if that is not known."""
        bound = self._bounds.get(row)
        return max(0, bound.once + bound.each - bound.free) if bound is not None and bound.counts else 0

    def _fit(self, row: int) -> NodeFit:
        try:
            return self._devices.fit(self._claims, row, self._close(row))
        except ClaimQueryError:
            return _NONE

    def _bound(self, row: int) -> _Bound:
        fit = self._fit(row)
        if not fit.empty:
            return _Bound(0, 0, 0, counts=False, most=0)
        if not self._devices.claims_at(self._claims, row):  # the node offers the extended resources itself
            return _Bound(0, 0, 0, counts=False, most=fit.empty)
        pools = self._devices.pools_of(row)
        devices = [device for pool in pools if pool.usable for device in pool.devices]
        charge(1 + len(devices) // 2)
        if any(device.shared or device.counters for device in devices):
            return _Bound(0, 0, 0, counts=False, most=fit.empty)
        used = used_of(self._inventory, pools).whole
        free = sum(device.id not in used for device in devices)
        once, each = self._needs()
        return _Bound(free, once, each, counts=True, most=fit.empty)

    def _needs(self) -> tuple[int, int]:
        """Return how many devices all pods together, and each of them, take from others at least."""
        if self._least is None:
            needs = [0, 0]
            for claim, query in zip(self._claims, self._devices.queries(self._claims), strict=True):
                if claim.key is None or self._inventory.allocation_of(claim.key) is None:
                    needs[claim.key is None] += _least(query)
            self._least = needs[False], needs[True]
        return self._least


def _least(claim: ClaimQuery) -> int:
    """Return how many devices a claim takes from others at least."""
    return sum(
        min(0 if query.admin_access else max(1, query.count) for query in alternatives)
        for alternatives in claim.requests
    )
