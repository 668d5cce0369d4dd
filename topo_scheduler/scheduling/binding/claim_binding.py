"""From a decision to allocated claims: hold the devices, write, wait; after that volumes and binds follow.

The scheduler binds the pods of a decision together: none before the claims of all are allocated. If a claim can't be
allocated, it undoes the decision. What was written already is then found with the pending pods, and released before
they are decided again. So a scheduler that restarts in between cleans up in the same way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from topo_scheduler.api.devices import DELETE_PROTECTION, Allocation, ResourceClaim
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.barrier import Activity, failure_of, internal_error
from topo_scheduler.scheduling.binding.claim_protection import ClaimProtection
from topo_scheduler.scheduling.binding.partially_bound_gangs import ROLL_BACK_AFTER_SECONDS
from topo_scheduler.scheduling.binding.waiting_decisions import EVENT_AFTER_SECONDS, OUTRANKED, WaitingDecisions
from topo_scheduler.scheduling.instructions import Bind, EmitEvent, Instruction, PodRef, WriteClaims
from topo_scheduler.state.decision import Seat
from topo_scheduler.state.devices.claim_writes import (
    AllocateClaim,
    ClaimChoice,
    ClaimWrite,
    CreateClaim,
    DeleteClaim,
    ProtectClaim,
    ReleaseClaim,
    consumer,
)
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory
from topo_scheduler.state.devices.overdrawn import is_overdrawn

RELEASE_AGAIN_SECONDS: Final = ROLL_BACK_AFTER_SECONDS / 3
"""Pause before a release that failed is repeated: a partially bound gang is to be completed before it is rolled back.
"""
CONDITIONS_TIMEOUT_SECONDS: Final = 600.0
"""How long a pod waits for the binding conditions of its devices, as in kube-scheduler."""
MAX_UNPROTECTED_PODS: Final = 20_000
"""Unschedulable pods whose claims may be waiting for the finalizer; those of others get it when they are allocated."""
MAX_PROTECTED_PODS: Final = 16
"""Pods whose claims get the finalizer at once, before they have a decision."""


@dataclass(slots=True)
class _WaitingPod:
    choices: tuple[ClaimChoice, ...]
    since: float
    asked: bool = False
    written: bool = False
    problem: str = ""
    reported: bool = False

    @property
    def until(self) -> float:
        """Until when it waits, in seconds."""
        return self.since + CONDITIONS_TIMEOUT_SECONDS

    @property
    def due(self) -> float:
        """When there is something to do for it even if nothing happens before, in seconds."""
        return self.since + EVENT_AFTER_SECONDS if self.written and not self.reported else self.until

    def allocates(self, key: ClaimKey) -> bool:
        """Return whether the pod allocates a claim that other pods may wait for."""
        return not self.problem and any(choice.key == key and choice.allocation is not None for choice in self.choices)


@dataclass(slots=True)
class _Write:
    """Writes for a pod without a result yet; ``undone``: the decision that they belong to does not stand any more."""

    keys: tuple[ClaimKey, ...]
    undone: bool = False


@dataclass(frozen=True, slots=True)
class CheckedClaims:
    """What came of claims.

    Attributes:
        instructions: what to write next, and events.
        allocated: the decisions whose claims are all allocated.
        failed: pods that won't get their claims: uid and reason.
        resting: pods of decisions that now wait for binding conditions, which others report. They can give up their
            room. Each is named once.
    """

    instructions: Sequence[Instruction] = ()
    allocated: Sequence[tuple[list[Seat], list[Bind]]] = ()
    failed: Sequence[tuple[str, str]] = ()
    resting: Sequence[str] = ()


_NOTHING: Final = CheckedClaims()


class ClaimBinding:
    """Decided pods whose claims are not allocated yet."""

    def __init__(self, inventory: DeviceInventory) -> None:
        self._inventory = inventory
        self._decisions = WaitingDecisions()
        self._waiting: dict[str, _WaitingPod] = {}
        self._open: dict[str, None] = {}
        """Those of them to look at when claims change: all but those whose write is under way, which may be many."""
        self._releasing: dict[ClaimKey, None] = {}
        """Claims of which a write that releases them is under way."""
        self.release_due: dict[ClaimKey, float] = {}
        """When to release claims again, after a failure or because their write may come late."""
        self._writes: dict[str, _Write] = {}
        """Writes under way by pod, one at a time: a result says only whose it is."""
        self._unprotected: dict[str, tuple[PodRef, tuple[ClaimKey, ...]]] = {}
        """Unschedulable pods whose claims have no finalizer yet."""
        self._protecting: dict[str, tuple[ClaimKey, ...]] = {}
        """Claims of pods for which the finalizer is being written."""
        self._changed = False
        self.protection = ClaimProtection(inventory)

    def __len__(self) -> int:
        return len(self._waiting)

    # ------------------------------------------------------------ decisions

    def hold(self, seats: Sequence[Seat], binds: Sequence[Bind], now: float) -> list[Instruction] | None:
        """Hold the devices of a decision; return what to write, after which `check` returns its pods.

        None if no pod has claims.
        """
        waiting: dict[str, None] = {}
        for seat in seats:
            if seat.claims:
                waiting[seat.uid] = None
        if not waiting:
            return None
        self._decisions.put(seats, binds, waiting)
        for seat in seats:
            if seat.claims:
                self.reserve(seat)
                self._waiting[seat.uid] = _WaitingPod(seat.claims, now)
                self._open[seat.uid] = None
        return [write for uid in waiting for write in self._ask(self._decisions.bind_of(uid).pod, self._waiting[uid])]

    def reserve(self, seat: Seat) -> None:
        """Keep other decisions from taking the devices of a pod."""
        allocations = {choice.key: self._allocation(choice) for choice in seat.claims}
        self._inventory.hold(
            seat.uid, {key: allocation for key, allocation in allocations.items() if allocation is not None}
        )

    def _allocation(self, choice: ClaimChoice) -> Allocation | None:
        return choice.allocation or self._inventory.allocation_of(choice.key)

    def release(self, uid: str) -> None:
        """Forget a pod: it is bound, was deleted, or awaits a new decision.

        A write that is under way may still allocate its devices. No other pod gets them before the result is known.
        """
        write = self._writes.get(uid)
        if write is not None and uid in self._waiting:
            write.undone = True
            self._inventory.hold(_late(uid), self._inventory.held_by(uid))
            self._inventory.unsettled |= dict.fromkeys(write.keys)
            self._release_again(write.keys, 0.0)
        self._inventory.release(uid)
        self._waiting.pop(uid, None)
        self._open.pop(uid, None)
        if self._decisions.release(uid):
            self._changed = True

    def outrank(self, uids: Iterable[str]) -> None:
        """Let pods that wait give up their room: the next `check` undoes their decisions."""
        self._decisions.outrank(uids)
        self._changed = True

    def is_withheld(self, uid: str) -> bool:
        """Return whether the bind of a pod was not handed out yet because its decision waits for claims."""
        return self._decisions.is_withheld(uid)

    def contested(self, uid: str) -> str:
        """Return which device of a decided pod another claim has too, or what it consumes; or an empty string."""
        for key, allocation in self._inventory.held_by(uid).items():
            for result in allocation.devices.results:
                if result.admin_access:
                    continue
                device = (result.driver, result.pool, result.device)
                if result.share_id is None and any(other != key for other in self._inventory.users_of(device)):
                    return "/".join(device)
                if is_overdrawn(self._inventory, device):
                    return f"{'/'.join(device)}, or a part of what it consumes,"
        return ""

    # ------------------------------------------------------------ writes and their results

    def release_stale(self, pod: PodRef, releases: Sequence[ClaimWrite]) -> list[Instruction]:
        """Return the writes that take back allocations of decisions that were not carried out."""
        wanted = tuple(
            release
            for release in releases
            if release.key not in self._releasing and release.key not in self.release_due
        )
        if not wanted or pod.uid in self._writes:
            return []
        self._releasing |= {release.key: None for release in wanted}
        return [self._write(pod, wanted)]

    def protect(self, pod: PodRef, keys: tuple[ClaimKey, ...]) -> None:
        """Note an unschedulable pod, so that its claims get their finalizer while it waits."""
        if keys and len(self._unprotected) < MAX_UNPROTECTED_PODS and any(map(self._is_unprotected, keys)):
            self._unprotected.setdefault(pod.uid, (pod, keys))

    def protect_next(self) -> list[Instruction]:
        """Return the next writes of finalizers. There are none while decided pods wait for their claims."""
        out: list[Instruction] = []
        while self._unprotected and not self._waiting and len(self._protecting) < MAX_PROTECTED_PODS:
            uid = next(iter(self._unprotected))
            pod, keys = self._unprotected.pop(uid)
            under_way = {key for claims in self._protecting.values() for key in claims}
            missing = tuple(key for key in keys if self._is_unprotected(key) and key not in under_way)
            if missing and uid not in self._writes:
                self._protecting[uid] = missing
                out.append(self._write(pod, tuple(map(self._protection, missing))))
        return out

    def _is_unprotected(self, key: ClaimKey) -> bool:
        claim = self._inventory.claims.get(key)
        return (
            claim is not None
            and claim.status.allocation is None
            and claim.metadata.deletion_timestamp is None
            and DELETE_PROTECTION not in claim.metadata.finalizers
        )

    def _protection(self, key: ClaimKey) -> ProtectClaim:
        metadata = self._inventory.claims[key].metadata
        return ProtectClaim(key, metadata.uid, metadata.resource_version, tuple(metadata.finalizers))

    def _write(self, pod: PodRef, writes: tuple[ClaimWrite, ...]) -> Instruction:
        self._writes[pod.uid] = _Write(tuple(write.key for write in writes))
        return WriteClaims(pod, writes)

    def written(self, uid: str, done: Iterable[tuple[ClaimWrite, ResourceClaim]], problem: str, now: float) -> None:
        """Record what was written for a pod.

        Args:
            uid: the pod.
            done: each write that succeeded, and its claim after it.
            problem: why the rest was not written; empty if everything was.
            now: seconds.
        """
        for write, claim in done:
            if isinstance(write, DeleteClaim):
                # The watch reports when it is gone. Look again: the claim may not have been listed when this was asked.
                self._release_again([write.key], now + RELEASE_AGAIN_SECONDS)
                continue
            self._keep(write, claim)
            if isinstance(write, ReleaseClaim):
                self._releasing.pop(write.key, None)
                self.release_due.pop(write.key, None)
        self._changed = True
        self.protection.written(uid)
        own = self._writes.pop(uid, None)
        self._protecting.pop(uid, None)
        waiting = self._waiting.get(uid)
        if waiting is not None:
            self._open[uid] = None
        if own is None:
            return
        if own.undone:
            self._inventory.release(_late(uid))
            for key in own.keys:
                self._inventory.unsettled.pop(key, None)
            self._release_again(own.keys, now)
        elif waiting is not None and waiting.asked and not waiting.written:
            waiting.written, waiting.problem = True, problem
        else:
            failed = [key for key in own.keys if key in self._releasing or key in self.release_due]
            self._release_again(failed, now + RELEASE_AGAIN_SECONDS)

    def _keep(self, write: ClaimWrite, claim: ResourceClaim) -> None:
        """Keep a claim as it is after a write, unless the watch has reported meanwhile that it was deleted."""
        known = self._inventory.claims.get(write.key)
        if known is not None and known.metadata.uid == claim.metadata.uid:
            claim = msgspec.structs.replace(claim, spec=known.spec)  # it never changes, and is cut to its caps
        elif not isinstance(write, CreateClaim):
            return
        self._inventory.put(self._inventory.claims, write.key, claim)

    def _release_again(self, keys: Iterable[ClaimKey], at: float) -> None:
        for key in keys:
            self._releasing.pop(key, None)
            self.release_due[key] = at

    def take_due(self, now: float) -> list[ClaimKey]:
        """Return the claims whose release failed and is to be tried again."""
        due = [key for key, at in self.release_due.items() if at <= now]
        for key in due:
            del self.release_due[key]
        return due

    def next_due(self) -> float | None:
        """Return when to call `check` and `take_due` next, if nothing happens before."""
        times = list(self.release_due.values())
        times += [0.0] if self._changed and self._open else self._deadlines()
        return min(times, default=None)

    def _deadlines(self) -> list[float]:
        """Return when to look at pods that no write is under way for. The others wait for its result."""
        return [self._waiting[uid].due for uid in self._open if uid not in self._writes]

    def claims_changed(self) -> None:
        """Note that claims changed: devices of decided pods may be ready."""
        self._changed = True

    def check(self, now: float) -> CheckedClaims:
        """Return what came of the claims of decided pods."""
        if not self._decisions or not (self._changed or any(due <= now for due in self._deadlines())):
            return _NOTHING
        self._changed = False
        out: list[Instruction] = []
        resting: list[str] = []
        failed = dict.fromkeys(self._decisions.take_outranked(), f"allocating resource claims: {OUTRANKED}")
        for uid in list(self._open):
            waiting = self._waiting[uid]
            if not waiting.asked:
                out += self._ask(self._decisions.bind_of(uid).pod, waiting)
                if not waiting.asked and now >= waiting.until:
                    waiting.problem = "another pod that shares a claim did not allocate it in time"
            if waiting.problem:
                failed[uid] = f"allocating resource claims: {waiting.problem}"
            elif waiting.written:
                try:
                    problem = self._not_ready(uid, waiting)
                except Exception as error:
                    problem = f"!{internal_error(error, Activity.OUTCOME)}"
                    out += _failure(self._decisions.bind_of(uid).pod, error)
                if problem and (now >= waiting.until or problem.startswith("!")):
                    failed[uid] = f"allocating resource claims: {problem.removeprefix('!')}"
                elif problem:
                    resting += self._decisions.rest(uid)
                    if not waiting.reported and now - waiting.since >= EVENT_AFTER_SECONDS:
                        waiting.reported = True
                        out.append(_tell(self._decisions.bind_of(uid), problem))
                else:
                    del self._waiting[uid], self._open[uid]
                    self._decisions.ready(uid)
        lost = self._decisions.fail(failed)
        allocated = [
            ([seat for seat in decision.seats if seat.uid in decision.binds], list(decision.binds.values()))
            for decision in self._decisions.take_complete()
        ]
        return CheckedClaims(out, allocated, lost, resting)

    def _ask(self, pod: PodRef, waiting: _WaitingPod) -> list[Instruction]:
        """Return the writes of a pod, unless a claim that it shares is still being allocated for another pod."""
        try:
            return self._writes_of(pod, waiting)
        except Exception as error:  # the next `check` fails its decision
            return [*self._fail(waiting, internal_error(error, Activity.OUTCOME)), *_failure(pod, error)]

    def _writes_of(self, pod: PodRef, waiting: _WaitingPod) -> list[Instruction]:
        writes: list[ClaimWrite] = []
        if pod.uid in self._writes:
            return []
        for choice in waiting.choices:
            if choice.made is not None and choice.allocation is not None:
                entry = consumer(pod.name, pod.uid)
                writes.append(CreateClaim(choice.key, choice.made, choice.allocation, entry))
                continue
            claim = self._inventory.claims.get(choice.key)
            if claim is None or claim.metadata.uid != choice.uid:
                return self._fail(waiting, f'resourceclaim "{choice.key[1]}" was deleted')
            allocated = claim.status.allocation is not None
            if allocated and not self._has_chosen(pod.uid, choice.key, claim):
                return self._fail(waiting, f'resourceclaim "{choice.key[1]}" got other devices meanwhile')
            if allocated and any(entry.uid == pod.uid for entry in claim.status.reserved_for):
                continue
            if not allocated and choice.allocation is None:
                if self._is_allocated_soon(pod.uid, choice.key):
                    return []
                return self._fail(
                    waiting, f'resourceclaim "{choice.key[1]}" was not allocated for the pod that shares it'
                )
            writes.append(
                AllocateClaim(
                    choice.key,
                    choice.uid,
                    claim.metadata.resource_version,
                    tuple(claim.metadata.finalizers),
                    None if allocated and choice.allocation is None else choice.allocation,
                    tuple(claim.status.reserved_for),
                    consumer(pod.name, pod.uid),
                )
            )
        waiting.asked = True
        if not writes:
            waiting.written = self._changed = True
            return []
        self._open.pop(pod.uid, None)
        return [self._write(pod, tuple(writes))]

    def _fail(self, waiting: _WaitingPod, problem: str) -> list[Instruction]:
        waiting.asked, waiting.problem = True, problem
        self._changed = True
        return []

    def _is_allocated_soon(self, uid: str, key: ClaimKey) -> bool:
        """Return whether another decided pod will allocate a claim: it is its turn, or its bind is tried first."""
        others = [other for other in self._inventory.holders_of(key) if other != uid]
        return any(other not in self._waiting or self._waiting[other].allocates(key) for other in others)

    def _has_chosen(self, uid: str, key: ClaimKey, claim: ResourceClaim) -> bool:
        """Return whether a claim has the devices with which a pod was decided."""
        chosen = self._inventory.held_by(uid).get(key)
        return chosen is not None and _devices(chosen) == _devices(claim.status.allocation)

    def _not_ready(self, uid: str, waiting: _WaitingPod) -> str:
        """Return which binding condition is missing, with ``!`` before it if it will never come."""
        for choice in waiting.choices:
            claim = self._inventory.claims.get(choice.key)
            if claim is None or claim.status.allocation is None or not self._has_chosen(uid, choice.key, claim):
                return f'!resourceclaim "{choice.key[1]}" lost its devices'
            conditions = {
                (status.driver, status.pool, status.device, entry.type)
                for status in claim.status.devices
                for entry in status.conditions
                if entry.status == "True"
            }
            for result in claim.status.allocation.devices.results:
                device = (result.driver, result.pool, result.device)
                for name in result.binding_failure_conditions:
                    if (*device, name) in conditions:
                        return f"!device {'/'.join(device)} reports {name}"
                for name in result.binding_conditions:
                    if (*device, name) not in conditions:
                        return f"device {'/'.join(device)} does not report {name}"
        return ""


def _tell(bind: Bind, problem: str) -> EmitEvent:
    return EmitEvent(bind.pod, False, Reason.WAITING_FOR_DEVICES, f"waiting for devices on node {bind.node}: {problem}")


def _failure(pod: PodRef, error: Exception) -> list[Instruction]:
    return failure_of(
        f"resource claims of pod {pod.namespace}/{pod.name}", error, Activity.OUTCOME, namespace=pod.namespace
    )


def _late(uid: str) -> str:
    """Return what holds the devices of an undone decision until the result of its write is known."""
    return f"late write {uid}"


def _devices(allocation: Allocation | None) -> list[tuple[str, str, str, str]]:
    results = allocation.devices.results if allocation is not None else ()
    return [(result.request, result.driver, result.pool, result.device) for result in results]
