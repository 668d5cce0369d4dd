"""From a decision to bound volumes: hold, write, wait; after that the pods are bound to their node.

This works as in kube-scheduler's VolumeBinder. A claim may wait for its first pod. For such a claim the scheduler
reserves an existing volume, or writes on the claim which node was selected. Then another component binds the claim:
Kubernetes' volume controller or a provisioner. The scheduler binds the pod once all of that is done and its node can
use the volumes. It binds the pods of a decision together: none before all of them have their volumes. If the volumes
do not come, it undoes the decision.

All of this state may be lost: after a restart the claims themselves show which node or volume was chosen for them.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.barrier import Activity, failure_of, internal_error
from topo_scheduler.scheduling.binding.waiting_decisions import EVENT_AFTER_SECONDS, OUTRANKED, WaitingDecisions
from topo_scheduler.scheduling.instructions import Bind, EmitEvent, Instruction, PrepareVolumes
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.volume_choice import obstacle_to, unfit, writes_for
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.decision import Seat
from topo_scheduler.state.storage.claim_annotations import SELECTED_NODE, is_bound
from topo_scheduler.state.storage.storage_objects import ClaimKey, ReserveVolume, VolumeChoice, VolumeWrite, belongs

UNANSWERED: Final = " (its write has not ended)"
"""Suffix of the uid of a deleted pod for which a write has not ended."""
MAX_CHECKED_PODS: Final = 500
"""Pods that one step looks at: thousands may share a claim that its owner deletes."""


@dataclass(slots=True)
class _WaitingVolumes:
    choices: tuple[VolumeChoice, ...]
    since: float
    until: float
    writing: bool
    problem: str = ""
    reported: bool = False

    @property
    def due(self) -> float:
        """When to look at it again if nothing changes, in seconds."""
        return self.until if self.reported else min(self.until, self.since + EVENT_AFTER_SECONDS)


class VolumeBinding:
    """Pods that have a node and wait for their volumes."""

    def __init__(self, around: FilterContext, timeout: float) -> None:
        self._around = around
        self._timeout = timeout
        self._decisions = WaitingDecisions()
        self._waiting: dict[str, _WaitingVolumes] = {}
        self._known: dict[str | ClaimKey, str] = {}
        """The resourceVersion since which the API server has the choice: by name of a volume, or by claim."""
        self._due: list[tuple[float, str]] = []
        """A heap of the pods that wait, and of some that did, by when to look at them."""
        self._unchecked: dict[str, None] = {}
        """Pods to look at in the next steps, as something changed or their time has come."""

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, seats: Sequence[Seat], binds: Sequence[Bind], now: float) -> list[Instruction]:
        """Hold the volumes of a decision; return its binds if it needs none, else what to write first.

        If a claim or volume is gone, nothing is written for any of its pods, and `check` returns them all as failed.
        """
        uids = [seat.uid for seat in seats if seat.volumes]
        if not uids:
            return list(binds)
        obstacles = self.obstacles(seats)
        self._decisions.put(seats, binds, uids)
        out: list[Instruction] = []
        for seat, bind in zip(seats, binds, strict=True):
            if seat.volumes:
                problem, writes = obstacles.get(seat.uid, ""), tuple[VolumeWrite, ...]()
                try:
                    writes = () if obstacles else self._begin(seat)
                except Exception as error:  # the next `check` fails its decision
                    problem = internal_error(error, Activity.OUTCOME)
                    out += _failure(bind, error)
                waiting = _WaitingVolumes(seat.volumes, now, now + self._timeout, bool(writes), problem)
                self._waiting[seat.uid] = waiting
                self._schedule(seat.uid, waiting)
                self._unchecked[seat.uid] = None
                if writes:
                    out.append(PrepareVolumes(bind.pod, writes))
        return out

    def obstacles(self, seats: Iterable[Seat]) -> dict[str, str]:
        """Return which pods of a decision can't get their volumes any more, by uid, and why."""
        storage = self._around.storage
        checked = ((seat.uid, obstacle_to(storage, choice)) for seat in seats for choice in seat.volumes)
        return {uid: obstacle for uid, obstacle in checked if obstacle}

    def _schedule(self, uid: str, waiting: _WaitingVolumes) -> None:
        heapq.heappush(self._due, (waiting.due, uid))
        if len(self._due) > 2 * len(self._waiting) + 64:  # mostly entries of pods that wait no more
            self._due = [(waiting.due, uid) for uid, waiting in self._waiting.items()]
            heapq.heapify(self._due)

    def _begin(self, seat: Seat) -> tuple[VolumeWrite, ...]:
        """Hold the volumes of one pod; return what to write, except what another pod has written."""
        storage = self._around.storage
        writes = []
        for choice in seat.volumes:
            if storage.choice_of(choice.claim) is not None:
                continue
            write = writes_for(storage, choice)
            if write is not None:
                writes.append(write)
            elif choice.volume:
                self._known[choice.volume] = storage.volumes[choice.volume].metadata.resource_version
            else:
                self._known[choice.claim] = storage.claims[choice.claim].metadata.resource_version
        storage.hold(seat.uid, seat.volumes)
        return tuple(writes)

    def written(self, uid: str, done: Iterable[tuple[VolumeWrite, str]], problem: str) -> None:
        """Record what was written for a pod, and why the rest was not.

        Args:
            uid: the pod.
            done: each write that succeeded, and the resourceVersion of its object after it.
            problem: why the rest was not written; empty if everything was.
        """
        storage = self._around.storage
        for write, version in done:
            storage.wrote(write, version)
            if storage.choice_of(write.claim) is not None:
                self._known[write.volume if isinstance(write, ReserveVolume) else write.claim] = version
        unanswered = storage.held_by(uid + UNANSWERED)
        if problem:
            held = (*storage.held_by(uid), *unanswered)
            self._abandon({c.claim: None for c in held if (c.volume or c.claim) not in self._known})
        storage.release(uid + UNANSWERED)
        self._forget(unanswered)
        waiting = self._waiting.get(uid)
        if waiting is not None:
            waiting.writing, waiting.problem = False, problem
            self._unchecked[uid] = None

    def release(self, uid: str) -> None:
        """Release what a pod held: it is bound, was deleted, or awaits a new decision."""
        storage = self._around.storage
        waiting = self._waiting.pop(uid, None)
        if waiting is not None and waiting.writing:
            storage.hold(uid + UNANSWERED, waiting.choices)  # until the result of the write is known
        held = storage.held_by(uid)
        storage.release(uid)
        self._forget(held)
        self._unchecked.pop(uid, None)
        self._decisions.release(uid)

    def _forget(self, choices: Iterable[VolumeChoice]) -> None:
        """Forget what is known of claims for which no pod holds anything."""
        for choice in choices:
            if self._around.storage.choice_of(choice.claim) is None:
                self._known.pop(choice.claim, None)
                self._known.pop(choice.volume, None)

    def _abandon(self, claims: Iterable[ClaimKey]) -> None:
        """Fail the pods that wait for a write of another pod which did not succeed."""
        for uid in [uid for claim in claims for uid in self._around.storage.users_of(claim)]:
            if (waiting := self._waiting.get(uid)) is not None:
                waiting.problem = "the volume could not be reserved for another pod that uses the same claim"
                self._unchecked[uid] = None

    def outrank(self, uids: Iterable[str]) -> None:
        """Let pods that wait give up their room: the next `check` undoes their decisions."""
        self._decisions.outrank(uids)

    def is_withheld(self, uid: str) -> bool:
        """Return whether the bind of a pod was not handed out yet because its decision waits for volumes."""
        return self._decisions.is_withheld(uid)

    # ------------------------------------------------------------ what came of it

    def check(self, now: float) -> tuple[list[Instruction], list[tuple[str, str]]]:
        """Return what to do by now, and the pods that will not get their volumes: uid and reason."""
        if not self._decisions:
            return [], []
        self._unchecked |= dict.fromkeys(self._around.storage.take_held_changes())
        out: list[Instruction] = []
        failed = dict.fromkeys(self._decisions.take_outranked(), f"binding volumes: {OUTRANKED}")
        for uid in self._take_unchecked(now):
            waiting, bind = self._waiting[uid], self._decisions.bind_of(uid)
            try:
                ready = self._ready(waiting, bind.node, now)
            except ClaimError as error:
                failed[uid] = f"binding volumes: {error}"
                continue
            except Exception as error:
                failed[uid] = f"binding volumes: {internal_error(error, Activity.OUTCOME)}"
                out += _failure(bind, error)
                continue
            if ready:
                del self._waiting[uid]
                self._decisions.ready(uid)
            elif not waiting.reported and now >= waiting.due:
                waiting.reported = True
                self._schedule(uid, waiting)
                out.append(self._tell(bind, waiting))
        lost = self._decisions.fail(failed)
        out += [bind for decision in self._decisions.take_complete() for bind in decision.binds.values()]
        return out, lost

    def _take_unchecked(self, now: float) -> list[str]:
        """Return the pods to look at in this step."""
        while self._due and self._due[0][0] <= now:
            self._unchecked[heapq.heappop(self._due)[1]] = None
        taken = list(islice(self._unchecked, MAX_CHECKED_PODS))
        for uid in taken:
            del self._unchecked[uid]
        return [uid for uid in taken if uid in self._waiting]

    def next_due(self) -> float | None:
        """Return when to call `check` next, if nothing happens before."""
        if not self._decisions:
            return None
        if self._decisions.outranked or self._unchecked:
            return 0.0
        return self._due[0][0] if self._due else None

    def _tell(self, bind: Bind, waiting: _WaitingVolumes) -> EmitEvent:
        text = f"waiting for volumes on node {bind.node}: persistentvolumeclaims not bound yet: {_names(waiting)}"
        return EmitEvent(bind.pod, False, Reason.WAITING_FOR_VOLUMES, text)

    def _ready(self, waiting: _WaitingVolumes, node: str, now: float) -> bool:
        if waiting.problem:
            raise ClaimError(waiting.problem)
        if waiting.writing:
            return False  # the write ends by itself, long before the timeout
        ready = all(self._bound(choice, node) for choice in waiting.choices)
        if not ready and now >= waiting.until:
            raise ClaimError(f"not bound within {self._timeout:g} s: persistentvolumeclaims {_names(waiting)}")
        return ready

    def _bound(self, choice: VolumeChoice, node: str) -> bool:
        """Return whether a claim has its volume for good.

        Raises:
            ClaimError: the claim will not get the volume that was chosen.
        """
        storage = self._around.storage
        name = choice.claim[1]
        claim = storage.claims.get(choice.claim)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            raise ClaimError(f'persistentvolumeclaim "{name}" was deleted')
        if choice.volume:
            chosen = storage.volumes.get(choice.volume)
            if chosen is None:
                raise ClaimError(f'persistentvolume "{choice.volume}" was deleted')
            if not self._is_reported(chosen.metadata, choice.volume):
                return False
            if not belongs(chosen, claim):
                raise ClaimError(f'ClaimRef got reset for pv "{choice.volume}"')
        elif not is_bound(claim):
            if not self._is_reported(claim.metadata, choice.claim):
                return False
            if claim.metadata.annotations.get(SELECTED_NODE) != choice.node:
                # A provisioner that can't make the volume removes the selected node: another node may work.
                raise ClaimError(f'provisioning failed for PVC "{name}"')
        if not is_bound(claim):
            return False
        volume = storage.volumes.get(claim.spec.volume_name)
        if volume is None:
            return False  # the watch has not reported it yet
        if choice.volume and claim.spec.volume_name != choice.volume:
            raise ClaimError(f'persistentvolumeclaim "{name}" was bound to {claim.spec.volume_name} meanwhile')
        row = self._around.nodes.row_of.get(node)
        if row is None:
            raise ClaimError(f"node {node} was deleted")
        if unfit(self._around, volume, row):
            raise ClaimError(f'pv "{volume.metadata.name}" node affinity doesn\'t match node "{node}"')
        return True

    def _is_reported(self, metadata: ObjectMeta, key: str | ClaimKey) -> bool:
        """Return whether the watch has reported an object as it is since a write, and not as it was before."""
        known = self._known.get(key)
        if known is None:
            return False
        version = metadata.resource_version
        return not (version.isdecimal() and known.isdecimal()) or int(version) >= int(known)


def _failure(bind: Bind, error: Exception) -> list[Instruction]:
    pod = bind.pod
    return failure_of(f"volumes of pod {pod.namespace}/{pod.name}", error, Activity.OUTCOME, namespace=pod.namespace)


def _names(waiting: _WaitingVolumes) -> str:
    return ", ".join(choice.claim[1] for choice in waiting.choices)
