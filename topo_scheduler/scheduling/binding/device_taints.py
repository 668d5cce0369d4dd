"""Pods that hold a device with a taint of effect NoExecute by their extended resources: they are evicted.

Kubernetes evicts pods for such taints too, but looks only at the claims that pods name themselves. A driver sets the
taint on devices that must not be used any more. So the scheduler evicts the pods that it placed, as carefully as it
moves pods off failed nodes: the taint must have lasted for ``recovery.debounce``, evictions keep to
``recovery.limits``, and none starts while most pools of the driver have tainted devices. In that case the driver is
more likely broken than the devices.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.devices import DeviceTaint, ResourceClaim
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.scheduling.devices.claim_query import is_tolerated
from topo_scheduler.scheduling.instructions import EmitEvent, EvictTainted, Instruction, LogWarning, PodRef
from topo_scheduler.scheduling.limit_shares import is_within_share
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.extended_resources import extended_claim_owner
from topo_scheduler.state.devices.pools import DeviceId
from topo_scheduler.state.operation_budget import limited

MIN_POOLS: Final = 3
"""Pools of a driver from which on the share of those with tainted devices counts."""
RETRY_SECONDS: Final = 60.0
"""Pause before an eviction that had no effect is requested again."""
LOOK_SECONDS: Final = 1.0
"""Pause between two looks at pods on tainted devices."""
HOUR_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Affected:
    """A pod on a tainted device. ``due``: when it is to be evicted, in seconds."""

    pod: PodRef
    device: DeviceId
    taint: DeviceTaint
    due: float


class DeviceTaints:
    """Evicts pods from tainted devices."""

    def __init__(self, scheduler: str, world: World, spec: RecoverySpec) -> None:
        self._scheduler = scheduler
        self._world = world
        self._spec = spec
        self._first_seen: dict[tuple[DeviceId, str, str], float] = {}
        self._requested: dict[str, tuple[str, float]] = {}
        """Pods whose eviction was requested: their namespace, and when."""
        self._recent: deque[tuple[float, str]] = deque()
        """When evictions began, and the namespaces of their pods."""
        self._changes = -1
        self._next: float | None = None
        self._held = ""

    def configure(self, spec: RecoverySpec) -> None:
        """Apply a changed configuration."""
        self._spec = spec
        self._changes = -1

    def next_due(self) -> float | None:
        """Return when to call `due` next if nothing changes before, in seconds."""
        return self._next

    def due(self, now: float) -> list[Instruction]:
        """Return the evictions that are due, with their events."""
        inventory = self._world.inventory
        changed = self._changes != inventory.evicting_changes
        if not changed and (self._next is None or now < self._next):
            return []
        self._changes = inventory.evicting_changes
        self._next = now + LOOK_SECONDS  # also if the next step fails
        with limited(None):  # of no single workload
            affected = self._affected(now)
        self._requested = {uid: known for uid, known in self._requested.items() if uid in affected}
        self._next = now + LOOK_SECONDS if affected else None
        out: list[Instruction] = []
        held = self._cut_off({item.device[0] for item in affected.values()})
        if held and held != self._held:
            out.append(LogWarning(held))
        self._held = held
        ripe = [item for item in affected.values() if item.due <= now]
        ripe.sort(key=lambda item: (item.due, item.pod.uid))
        if self._held or not ripe:
            return out
        return [*out, *self._evict(ripe, now)]

    def _evict(self, ripe: Sequence[_Affected], now: float) -> Iterator[Instruction]:
        while self._recent and self._recent[0][0] <= now - HOUR_SECONDS:
            self._recent.popleft()
        requested = Counter(namespace for namespace, _ in self._requested.values())
        recent = Counter(namespace for _, namespace in self._recent)
        for item in ripe:
            known, namespace = self._requested.get(item.pod.uid), item.pod.namespace
            if known is not None and now < known[1] + RETRY_SECONDS:
                continue
            if known is None and not self._may_begin(namespace, requested, recent):
                continue
            what_follows = "the pod stays, as recovery.dryRun is set" if self._spec.dry_run else "the pod is evicted"
            text = f"device {'/'.join(item.device)} has the taint {_written(item.taint)}; {what_follows}"
            self._requested[item.pod.uid] = namespace, now
            if known is None:
                self._recent.append((now, namespace))
                requested[namespace] += 1
                recent[namespace] += 1
                yield EmitEvent(item.pod, True, Reason.DEVICE_TAINTED, text)
            if not self._spec.dry_run:
                yield EvictTainted(item.pod, text)

    def _may_begin(self, namespace: str, requested: Counter[str], recent: Counter[str]) -> bool:
        """Return whether the limits allow an eviction: budgets may protect the pods of one namespace for ever."""
        limits = self._spec.limits
        return requested[namespace] < limits.per_namespace and all(
            counts.total() < limit or is_within_share(namespace, counts, 1, limit)
            for counts, limit in ((requested, limits.at_once), (recent, limits.per_hour))
        )

    # ------------------------------------------------------------ affected pods

    def _affected(self, now: float) -> dict[str, _Affected]:
        """Return the bound pods of this scheduler on tainted devices, by uid."""
        inventory, affected = self._world.inventory, dict[str, _Affected]()
        seen: dict[tuple[DeviceId, str, str], float] = {}
        for name, devices in inventory.evicting.items():
            if not inventory.is_current(name):
                continue
            for device, taints in devices.items():
                for key in inventory.users_of(device):
                    claim = inventory.claims.get(key)
                    if claim is None or (pod := self._holder(claim)) is None:
                        continue
                    for taint in taints:
                        mark = (device, taint.key, taint.value)
                        seen[mark] = self._first_seen.get(mark, now)
                        due = self._due(claim, device, taint, seen[mark])
                        known = affected.get(pod.uid)
                        if due < inf and (known is None or due < known.due):
                            affected[pod.uid] = _Affected(pod, device, taint, due)
        self._first_seen = seen
        return affected

    def _holder(self, claim: ResourceClaim) -> PodRef | None:
        """Return the pod for whose extended resources a claim is allocated, if this scheduler placed it and it runs."""
        uid = extended_claim_owner(claim)
        entry = self._world.ledger.get(uid) if uid else None
        if entry is None or entry.occupant is None or entry.assumed:
            return None
        occupant = entry.occupant
        if occupant.terminating or occupant.scheduler != self._scheduler:
            return None
        if occupant.namespace != claim.metadata.namespace:
            return None  # users can name any owner in their claims
        return PodRef(occupant.namespace, occupant.name, uid)

    def _due(self, claim: ResourceClaim, device: DeviceId, taint: DeviceTaint, seen: float) -> float:
        """Return when a pod is to be evicted for a taint, in seconds; infinite if its claim tolerates it."""
        results = claim.status.allocation.devices.results if claim.status.allocation is not None else []
        of_device = (result for result in results if (result.driver, result.pool, result.device) == device)
        tolerated = [
            entry
            for result in of_device
            for entry in result.tolerations
            if is_tolerated(entry, taint.key, taint.value, taint.effect)
        ]
        if any(entry.toleration_seconds is None for entry in tolerated):
            return inf
        due = seen + self._spec.debounce
        if not tolerated:
            return due
        added = seconds_of(taint.time_added)
        since = seen if added is None else min(seen, added - self._world.epoch)
        return max(due, since + max(0, min(entry.toleration_seconds or 0 for entry in tolerated)))

    def _cut_off(self, drivers: set[str]) -> str:
        """Return why no pod is evicted now, or an empty string."""
        inventory, share = self._world.inventory, self._spec.pause_above_not_ready_share
        for driver in sorted(drivers):
            total = inventory.pools_of_driver(driver)
            tainted = len(
                {
                    device[:2]
                    for name, devices in inventory.evicting.items()
                    if inventory.is_current(name)
                    for device in devices
                    if device[0] == driver
                }
            )
            if total >= MIN_POOLS and tainted > share * total:
                return (
                    f"{tainted} of {total} pools of driver {driver} have devices with a taint of effect NoExecute: the"
                    " scheduler evicts no pod for these taints meanwhile, as the driver may be at fault; check it (the"
                    " limit is recovery.pauseAboveNotReadyShare)"
                )
        return ""


def _written(taint: DeviceTaint) -> str:
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
