"""Pods that appear, change and disappear: from the API server's view of them to members of workloads."""

from collections.abc import Callable, Iterable, Sequence

from topo_scheduler.api.annotations import GANG_SIZE, PREFERRED_DOMAIN, PREFERRED_LEVEL
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import ObjectMeta, OwnerReference, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import Activity, described, failure_of, guard
from topo_scheduler.scheduling.binding.outcomes import Outcomes, mark_placed
from topo_scheduler.scheduling.instructions import (
    BindOutcome,
    EmitEvent,
    Instruction,
    LogWarning,
    PodRef,
    ReadPod,
    reference,
)
from topo_scheduler.scheduling.intake.device_claims import watched_claim, watched_claims
from topo_scheduler.scheduling.intake.groups import controller_id, left_of, watched_api, watched_names
from topo_scheduler.scheduling.intake.leaving import Leaving
from topo_scheduler.scheduling.intake.outside import ENTERING_PODS, OutsidePods, said_outside
from topo_scheduler.scheduling.intake.pending import EmittedEvents, PendingPods, Siblings
from topo_scheduler.scheduling.intake.rereading import READ_SECONDS, Rereading
from topo_scheduler.scheduling.intake.substitutes import found_bound, gang_of, left_at, not_understood, take_over
from topo_scheduler.scheduling.intake.understand import Lineage, Understood, understand, waits_since
from topo_scheduler.scheduling.intake.unread import Unread
from topo_scheduler.scheduling.placing.model.second_tree import seen_fabric
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.ledger.ledger import LedgerEntry
from topo_scheduler.state.pods.constraints import profile_of
from topo_scheduler.state.pods.pod_groups import GroupKey, PodGroup, Serving
from topo_scheduler.state.pods.trimming import trimmed
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads, size_of
from topo_scheduler.state.statistics.run_times import finished_at

Resolve = Callable[[Pod], Lineage | None]
"""Returns a pod's owners, or None until all of them are known."""


class Arrivals:
    """Keeps world and workloads in line with the API server. Reports events to emit, and workloads that changed."""

    def __init__(
        self,
        scheduler_name: str,
        world: World,
        workloads: Workloads,
        outcomes: Outcomes,
        attempts: Attempts,
        emitted: EmittedEvents,
        resolve: Resolve,
        pending_pods: PendingPods,
    ) -> None:
        self.siblings = Siblings()
        self._scheduler_name = scheduler_name
        self._world = world
        self._workloads = workloads
        self._outcomes = outcomes
        self._attempts = attempts
        self._emitted = emitted
        self._resolve = resolve
        self._pods = pending_pods
        self._unresolved: dict[str, Pod] = {}
        self._newly_unresolved: dict[str, None] = {}
        self._rereading = Rereading()
        self._changed_above: dict[str, dict[str, None]] = {}
        """Uids of owners, and keys of PodGroups, that changed, by namespace of the pods below to queue."""
        self.outside = OutsidePods()
        self.deciding = False
        """Whether the scheduler decides already. A pod found bound earlier was bound by an earlier process."""
        self._pending_elsewhere: dict[str, None] = {}
        """Pending pods of other schedulers, until the first decision."""
        workloads.listing()
        self.leaving = Leaving()
        self.unread: Unread[Pod] = Unread()
        """Pods whose handling raised; they are read again after a backoff."""
        self._speechless: dict[str, None] = {}
        self._touched: dict[str, None] = {}
        self.nominated: dict[str, None] = {}
        """Nominated pods that joined a workload since the last call of `take_nominated`."""
        self._out: list[Instruction] = []

    # ------------------------------------------------------------ what came of it

    def touch(self, workload: Workload) -> None:
        """Record that a workload changed: the next step updates its place in the queue."""
        self._touched[workload.id] = None

    def begin(self) -> None:
        """Note that all pods are listed and the first decision follows."""
        self._outcomes.partially_bound.begin()
        for workload in self._workloads.listed():
            self.touch(workload)
        self._world.inventory.consumers.all_listed(self._exists)
        self._pending_elsewhere.clear()

    def _exists(self, uid: str) -> bool:
        """Return whether a listed pod has not ended."""
        return (
            self._world.ledger.get(uid) is not None
            or self._workloads.of_pod(uid) is not None
            or self._pods.get(uid) is not None
            or uid in self.outside
            or uid in self._pending_elsewhere
        )

    def start_deciding(self) -> None:
        """Record that decisions start: a pod that is found bound from now on was not bound by an earlier process."""
        self.deciding = True

    def take_touched(self) -> Iterable[str]:
        """Return the ids of the workloads that changed since the last call."""
        touched, self._touched = self._touched, {}
        return touched

    def take_nominated(self) -> list[Pod]:
        """Return the nominated pods that joined a workload since the last call. Their owners may have been unknown."""
        nominated, self.nominated = self.nominated, {}
        return [pod for uid in nominated if (pod := self._pods.get(uid)) is not None]

    def take_out(self) -> list[Instruction]:
        """Return the instructions since the last call."""
        out, self._out = self._out, []
        return out

    @property
    def news(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._out or self._touched or self._speechless) or self._entering

    @property
    def _entering(self) -> bool:
        """Whether pods outside may be let in."""
        outside = self.outside.namespaces() if self.outside else ()
        return any(self._pods.has_room(namespace) for namespace in outside)

    @property
    def large_bytes(self) -> int:
        """Memory in bytes of the large pods read since `forget_large`, including those deleted since."""
        return self._pods.large_bytes

    def forget_large(self) -> None:
        """Count large pods from 0 again."""
        self._pods.large_bytes = 0

    def pending(self, uid: str) -> Pod | None:
        """Return a pod that is pending here, by uid."""
        return self._pods.get(uid)

    def below(self, owner: str) -> bool:
        """Return whether an owner has a pending pod below it."""
        return self._pods.has_below(owner)

    def rows_of_siblings(self, uid: str) -> list[int]:
        """Return the rows where bound pods of a pending pod's controller run, one entry for each pod."""
        pod, row_of = self._pods.get(uid), self._world.nodes.row_of
        controller = pod.metadata.controller if pod else None
        nodes = self.siblings.nodes(controller_id(pod, controller)) if pod and controller else []
        return sorted(row_of[node] for node in nodes if node in row_of)

    def has_bound_siblings(self, pod: Pod) -> bool:
        """Return whether other pods of a pending pod's controller are bound."""
        controller = pod.metadata.controller
        return controller is not None and controller_id(pod, controller) in self.siblings

    def unresolved(self) -> list[Pod]:
        """Return the pending pods whose owners are not all known."""
        return list(self._unresolved.values())

    def take_unresolved(self) -> list[Pod]:
        """Return the pods without known owners that were read since the last call."""
        uids, self._newly_unresolved = self._newly_unresolved, {}
        return [self._unresolved[uid] for uid in uids if uid in self._unresolved]

    def _drop_unresolved(self, uid: str) -> None:
        self._unresolved.pop(uid, None)
        self._newly_unresolved.pop(uid, None)

    @property
    def rereading(self) -> bool:
        """Whether `reread` has pods to read again."""
        return bool(self._rereading or self._changed_above)

    def reread_due(self) -> float | None:
        """Return when `reread` must be called next, 0 if at once; None if it has no pods to read."""
        times = [self._rereading.due(namespace) for namespace in self._changed_above]
        if (due := self._rereading.next_due()) is not None:
            times.append(due)
        return min(times, default=None)

    def is_stale(self, workload: Workload) -> bool:
        """Return whether an object above a pending member changed, and the member was not read again since."""
        return self.rereading and any(self._is_stale(member.uid) for member in workload.at(Stage.PENDING))

    def _is_stale(self, uid: str) -> bool:
        if uid in self._rereading or not self._changed_above:
            return uid in self._rereading
        pod = self._pods.get(uid)
        changed = self._changed_above.get(pod.metadata.namespace) if pod is not None else None
        return changed is not None and not changed.keys().isdisjoint(self._pods.above(uid))

    def why_gone(self, uid: str) -> str:
        """Return why a pending pod is about to be deleted, if it was not read again since; empty otherwise."""
        pod = self._pods.get(uid)
        if pod is None or not self._is_stale(uid):
            return ""
        return self._gone(pod, self._resolve(pod))

    def _gone(self, pod: Pod, lineage: Lineage | None) -> str:
        return self.leaving.why(pod.metadata.namespace, lineage.gone if lineage is not None else "")

    def withdraw(self, uid: str) -> None:
        """Withdraw a decided pod that is about to be deleted, if it was not read again since."""
        if (reason := self.why_gone(uid)) and (membership := self._workloads.of_pod(uid)) is not None:
            membership[1].withdrawn = reason

    # ------------------------------------------------------------ facts in

    def applied(self, pods: Iterable[Pod], now: float) -> None:
        """Record pods that appeared or changed, of this and other schedulers."""
        for pod in pods:
            try:
                self._applied(pod, now)
            except Exception as error:
                with guard(f"pod {pod.key}", self._out, Activity.UNDERSTANDING, namespace=pod.metadata.namespace):
                    self._not_understood(pod, error, now)

    def _applied(self, pod: Pod, now: float) -> None:
        self._pending_elsewhere.pop(pod.metadata.uid, None)
        if pod.finished:
            self._finished(pod, now)
            return
        self._world.inventory.consumers.appear(pod.metadata.uid)
        if pod.spec.node_name:
            self._bound(pod, now)
        elif pod.spec.scheduler_name == self._scheduler_name:
            if pod.metadata.deletion_timestamp or pod.spec.scheduling_gates:
                self.deleted(pod.metadata.uid, now)
            else:
                extensions = self._world.around.extensions
                self.understand(trimmed(pod, extensions.annotations, plugins=bool(extensions.plugins)), now)
        else:
            self.unread.drop(pod.metadata.uid)
            if not self.deciding:
                self._pending_elsewhere[pod.metadata.uid] = None

    def deleted(self, uid: str, now: float, *, succeeded: bool = False) -> None:
        """Forget a pod that was deleted or need not be placed any more. ``succeeded``: the pod has done its work."""
        workload = self._drop(uid, succeeded=succeeded)
        if workload is not None and (workload.speaker == uid or not workload.pending):
            # Not at once: all members of a large gang may be deleted one after the other, in order.
            self._speechless[workload.id] = None

    def _drop(self, uid: str, *, succeeded: bool = False) -> Workload | None:
        """Forget a pod; return the workload that it was a member of."""
        self.unread.drop(uid)
        self.leaving.drop(uid)
        self._pending_elsewhere.pop(uid, None)
        self._world.release(uid)
        # At once: if anything below raises, no member is left without its ledger entry.
        workload = self._workloads.leave(uid, succeeded=succeeded)
        if workload is not None:
            self.touch(workload)
        self._outcomes.forget(uid)
        self._pods.drop(uid)
        self._rereading.drop(uid)
        self.outside.drop(uid)
        self._drop_unresolved(uid)
        self.siblings.drop(uid)
        self._emitted.drop(uid)
        if workload is not None:
            self._outcomes.partially_bound.may_lack_marks(workload)
        return workload

    def _speak(self, workload: Workload, now: float) -> None:
        """Read the request of a workload from its next member, because the member it came from left."""
        waiting = workload.at(Stage.PENDING)
        if waiting and (pod := self._pods.get(waiting[0].uid)) is not None:
            self.understand(pod, now)
        self._describe(workload)

    def owner_changed(self, uid: str) -> None:
        """Record that an owner, or a PodGroup, appeared or changed: the pending pods below it are read again."""
        for namespace in self._pods.namespaces_below(uid):
            self._changed_above.setdefault(namespace, {})[uid] = None

    def claim_reallocated(self, key: ClaimKey) -> None:
        """Try pending pods again that share a claim which got devices or lost them: other nodes suit them now."""
        for pod in self._pods.below(watched_claim(key), key[0]):
            membership = self._workloads.of_pod(pod.metadata.uid)
            if membership is None or membership[1].stage is not Stage.PENDING:
                continue
            if any(claim.key == key for claim in membership[1].cls.claims):
                self.touch(membership[0])

    def reread(self, now: float, clock: Callable[[], float]) -> None:
        """Read again the pods above which something changed, for a few milliseconds."""

        def understand_again(uid: str) -> None:
            if (pod := self._pods.get(uid)) is not None:
                self.understand(pod, now)

        self._queue_changed(now, clock)
        self._rereading.read(understand_again, now, clock)

    def _queue_changed(self, now: float, clock: Callable[[], float]) -> None:
        """Queue the pods below objects that changed, for a few milliseconds: namespaces that do not rest, in turn."""
        began, changed = clock(), self._changed_above
        while changed and (namespace := next((name for name in changed if self._rereading.due(name) <= now), None)):
            owners = changed.pop(namespace)
            owner = next(iter(owners))
            del owners[owner]
            if owners:
                changed[namespace] = owners  # after the other namespaces
            with guard(f"pods below {owner}", self._out, Activity.UNDERSTANDING):
                self._rereading.put_below(self._pods.below(owner, namespace), namespace, now)
            if clock() - began > READ_SECONDS:
                break

    def follow_job(self, workload: Workload) -> list[Instruction]:
        """Reduce the size of a partially bound gang to the pods that its Job still makes; return what to mark.

        Its bound members are not read again when the Job changes. So without a pending member the gang would wait for
        indexes that have failed for good, for example, and be rolled back.
        """
        namespace, _, uid = workload.id.rpartition("/")  # as `controller_id` makes it
        if workload.pending or workload.group is not None or workload.request.gang_name or "/" in namespace:
            return []  # or it is no gang of a controller
        reference = OwnerReference("batch/v1", "Job", workload.name, uid, controller=True)
        lineage = self._resolve(Pod(ObjectMeta(workload.name, namespace, owner_references=[reference])))
        job = lineage.owners[0].job if lineage is not None and lineage.owners else None
        if job is None or (size := min(left_of(job), max(1, job.spec.parallelism))) >= workload.size:
            return []
        workload.size = size
        return self._outcomes.note_size(workload)

    def groups_applied(self, groups: Iterable[PodGroup]) -> None:
        """Record PodGroups that appeared or changed."""
        for group in groups:
            try:
                if self._world.groups.put(group):
                    self._describe(self._workloads.get(group.key.id))
                    self.owner_changed(group.key.id)
            except Exception as error:
                self._out += failure_of(
                    f"PodGroup {group.key.id}", error, Activity.OBJECT, namespace=group.key.namespace
                )

    def group_deleted(self, key: GroupKey, uid: str) -> None:
        """Forget a deleted PodGroup; pods that wait for one of its name continue to wait."""
        if self._world.groups.drop(key, uid):
            self.owner_changed(key.id)

    def groups_served(self, api: GroupApi, serving: Serving, requested_at: float) -> None:
        """Record whether the API server serves PodGroups of an API, as of a moment (``asked``, in seconds)."""
        self._world.groups.serve(api, serving, requested_at)
        self.owner_changed(watched_api(api))

    def understand(self, pod: Pod, now: float) -> None:
        """Read a pending pod, for the first time or again. A pod that can't be read is refused."""
        self._rereading.drop(pod.metadata.uid)
        try:
            self._understand(pod, now)
        except Exception as error:
            with guard(f"pod {pod.key}", self._out, Activity.UNDERSTANDING, namespace=pod.metadata.namespace):
                self._not_understood(pod, error, now)
        else:
            self.unread.drop(pod.metadata.uid)

    def _not_understood(self, pod: Pod, error: Exception, now: float) -> None:
        """Isolate one pod whose handling raised: a pending pod is refused, a pod with a node still holds it."""
        uid, why = pod.metadata.uid, described(error)
        self.unread.fail(uid, pod, now)
        if self._emitted.is_new(uid, Reason.SCHEDULER_ERROR, why):
            self._out += failure_of(f"pod {pod.key}", error, Activity.UNDERSTANDING, namespace=pod.metadata.namespace)
        membership = self._workloads.of_pod(uid)
        if pod.finished:
            self.deleted(uid, now)
        elif pod.spec.node_name:
            self._world.hold_place(pod)
            if membership is not None:
                self.touch(membership[0])
                if membership[1].stage is not Stage.BOUND:
                    membership[0].set_stage(membership[1], Stage.BOUND)
                    membership[1].node = pod.spec.node_name
                    self._outcomes.forget(uid)
        elif pod.spec.scheduler_name != self._scheduler_name:
            return  # it only has to be read again
        elif membership is None or membership[1].stage is Stage.PENDING:
            self._drop_unresolved(uid)
            if membership is not None:
                self.touch(membership[0])
            problem = f"internal error while its specification was read, please report it: {why}. It is read again"
            self.touch(self._workloads.join(*not_understood(pod, problem, now)))

    def _understand(self, pod: Pod, now: float) -> None:
        uid = pod.metadata.uid
        membership = self._workloads.of_pod(uid)
        if membership is not None and membership[1].stage is Stage.BOUND:
            return  # an older version of a pod that is bound
        if membership is None and self._stays_outside(pod):
            return
        pod = self._pods.with_known_parts(pod)
        controller = pod.metadata.controller
        lineage = self._resolve(pod)
        owners = lineage.owners if lineage is not None else ()
        above = [owner.uid for owner in owners] or ([controller.uid] if controller else [])
        above += [*watched_names(pod), *watched_claims(pod, self._world.inventory)]
        self._pods.put(pod, above)
        reason = self._gone(pod, lineage)
        if membership is not None and membership[1].stage is Stage.ASSUMED:
            membership[1].withdrawn = reason
            return  # the decision stands, unless the bind fails
        if reason:
            self._leave_out(pod, above, reason, now)
            return
        if lineage is None:
            self._unresolved[uid] = pod
            self._newly_unresolved[uid] = None
            return
        self._drop_unresolved(uid)
        self.leaving.drop(uid)
        since = membership[1].enqueued if membership is not None else waits_since(pod, self._world.epoch, now)
        understood = self._understood(pod, lineage, since)
        member, same = understood.member, False
        self._out += self._outcomes.claims.release_stale(reference(member), understood.stale)
        member.profile = profile_of(self._world.pod_index, pod)
        if member.problem:
            self._world.around.kinds.drop(uid)
        else:
            self._world.wanted(pod, dict(member.cls.amounts))
        if membership is not None:
            same = membership[1] == member and membership[0].id == understood.workload.id
            same = same and (not membership[0].speaks(member) or membership[0].has_same_request_as(understood.workload))
        if understood.workload.request.gang_name:
            understood.warnings += self._size_conflict(understood.workload, uid)
        workload = self._workloads.join(understood.workload, member)
        if membership is None and pod.status.nominated_node_name:
            self.nominated[uid] = None
        if workload.bound and not workload.complete:  # its size may now equal the number of members that run
            self._out += self._outcomes.note_size(workload)
        if not same:  # otherwise only its status changed, for instance by this scheduler's own condition
            if membership is not None:
                self.touch(
                    membership[0]
                )  # it may have left that one: the queue must know even if a warning below raises
            self.touch(workload)
        self._warn(member, understood.warnings, workload)

    def _size_conflict(self, wanted: Workload, uid: str) -> list[tuple[Reason, str]]:
        """Return a warning on a pod that asks for another size of its named gang than the pod that decides so far.

        None while that pod is to be read again: an owner of both may have changed.
        """
        own, known = wanted.request, self._workloads.get(wanted.id)
        if known is None or not own.gang_size or known.speaker == uid:
            return []
        speaker, other = known.members.get(known.speaker), known.request.gang_size
        if speaker is None or speaker.stage is not Stage.PENDING or not other or other == own.gang_size:
            return []
        if self._is_stale(known.speaker):
            return []
        message = (
            f"annotation {GANG_SIZE} is {own.gang_size} for this pod and {other} for another pod of gang {known.name};"
            " the first pending pod decides, so write the same on all"
        )
        return [(Reason.GROUP_CONFLICT, message)]

    def _understood(self, pod: Pod, lineage: Lineage, since: float) -> Understood:
        world = self._world
        permitted = world.claims.permitted
        extensions, bound = world.around.extensions, self._is_bound
        return understand(
            pod, lineage, world.resources, since, world.groups, extensions, permitted, bound, world.inventory
        )

    def _is_bound(self, id_: str) -> bool:
        """Return whether pods of a gang are bound, by their annotations."""
        workload = self._workloads.get(id_)
        return workload is not None and any(member.stage is Stage.BOUND for member in workload.members.values())

    def understand_all(self) -> None:
        """Read all pending pods again, because the configuration of what they may have has changed."""
        for pod in self._pods.all():
            if pod.metadata.uid not in self._unresolved:
                self._rereading.put(pod)

    def forget_backed(self) -> None:
        """Forget what bound pods request of resources that devices back, or that they backed when the pod was read.

        Their replacements may get devices now, or none any more. Plans read them again, as after a restart.
        """
        inventory, names = self._world.inventory, self._world.resources.names
        for workload in self._workloads:
            for member in workload.at(Stage.BOUND):
                backed = any(inventory.backing_class(names[column]) for column, _ in member.cls.amounts)
                if backed or any(claim.resources for claim in member.cls.claims):
                    self._world.kept_classes.gone(member.uid)
                    member.forget_request()
                    member.decided = False

    def resources_offered(self) -> None:
        """Read the refused pods again, because nodes offer a resource that none offered before."""
        for pod in self._pods.all():
            membership = self._workloads.of_pod(pod.metadata.uid)
            if membership is not None and membership[1].problem:
                self._rereading.put(pod)

    def _stays_outside(self, pod: Pod) -> bool:
        """Keep a pod outside while its namespace has too many pending pods; return whether it stays there."""
        namespace, uid = pod.metadata.namespace, pod.metadata.uid
        waits = self.outside.reads(namespace) and not self.outside.is_being_read(uid)
        full = self._pods.get(uid) is None and (waits or not self._pods.has_room(namespace))
        # A partially bound gang is completed first.
        if not full or (self.has_bound_siblings(pod) and self._pods.has_room(namespace, 2.0)):
            self.outside.drop(uid)
            return False
        if self.outside.put(pod):
            ref = PodRef(namespace, pod.metadata.name, uid)
            whole = self.outside.keeps_whole(uid)
            message = said_outside(namespace, self._pods.count(namespace), self._pods.limits, whole=whole)
            self._out.append(EmitEvent(ref, True, Reason.FAILED_SCHEDULING, message))
        return True

    def _let_in(self, now: float) -> None:
        for namespace in self.outside.namespaces() if self.outside else ():
            for _ in range(ENTERING_PODS):
                if not self._pods.has_room(namespace) or (pod := self.outside.take(namespace)) is None:
                    break
                if isinstance(pod, PodRef):
                    self._out.append(ReadPod(pod))
                else:
                    self.understand(pod, now)

    def _leave_out(self, pod: Pod, above: Sequence[str], why: str, now: float) -> None:
        """Stop scheduling a pod that is about to be deleted, but keep following its owners."""
        meta = pod.metadata
        if self.leaving.holds(meta.uid):
            return
        workload = self._drop(meta.uid)
        self._pods.put(pod, above)
        self.leaving.put(PodRef(meta.namespace, meta.name, meta.uid), why, now)
        if workload is not None and workload.speaker == meta.uid:
            self._speechless[workload.id] = None  # not at once, as in `deleted`

    def settle(self, now: float, clock: Callable[[], float]) -> None:
        """Let pods in where there is room, and read again the pods above which something changed.

        Reading again takes a few milliseconds at most; the rest follows in the next step.
        """
        self._let_in(now)
        if namespaces := self.leaving.take_namespaces():
            for pod in self._pods.of_namespaces(namespaces):
                self._rereading.put(pod)
        self.reread(now, clock)
        while self._speechless:
            id_, _ = self._speechless.popitem()
            if (workload := self._workloads.get(id_)) is not None:
                with guard(f"workload {workload.namespace}/{workload.name}", self._out, Activity.UNDERSTANDING):
                    self._speak(workload, now)

    def _bound(self, pod: Pod, now: float) -> None:
        created_there = self._created_there(pod)
        known = self._world.ledger.get(pod.metadata.uid)
        resized = known is not None and known.node == pod.spec.node_name
        changed, problems = self._world.bound(
            pod, created_there=created_there, believed=not (self.deciding and created_there)
        )
        self._out += [LogWarning(problem, pod.metadata.namespace) for problem in problems]
        self._pods.drop(pod.metadata.uid)
        self._rereading.drop(pod.metadata.uid)
        self.outside.drop(pod.metadata.uid)
        self._drop_unresolved(pod.metadata.uid)
        self.leaving.drop(pod.metadata.uid)
        if pod.spec.scheduler_name == self._scheduler_name:
            self._bound_ours(pod, now)
            left = self._workloads.leaves(pod.metadata.uid, left_at(pod)) if pod.metadata.deletion_timestamp else None
            if left is not None:
                self.touch(left)
        if changed:
            bound = not created_there or _was_bound(pod)  # pods of other schedulers were not seen pending
            self._out += self._outcomes.check_overdrawn(pod, now, resized=resized, bound=bound)
        self.unread.drop(pod.metadata.uid)

    def _created_there(self, pod: Pod) -> bool:
        """Return whether a pod was created with its node, so that no scheduler placed it.

        Any user that may create pods can do that, on any node, also on one that failed or never existed. While the
        scheduler decides, it saw every other pod pending before. Of pods from before that it only knows that a Binding
        sets the condition PodScheduled; on pods that are created with their node only their kubelet does.
        """
        uid = pod.metadata.uid
        if self.deciding:
            seen_pending = self._workloads.of_pod(uid) is not None or self._pods.get(uid) is not None
            return not seen_pending and uid not in self.outside and uid not in self._unresolved
        return not _was_bound(pod)

    def _bound_ours(self, pod: Pod, now: float) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        controller = pod.metadata.controller
        if controller is not None:
            self.siblings.put(controller_id(pod, controller), uid, node)
        membership = self._workloads.of_pod(uid)
        if membership is not None:
            workload, member = membership
            if member.node == node and member.stage is Stage.ASSUMED:
                self._out += self._outcomes.bind_finished(uid, BindOutcome.BOUND, "", now)
            elif member.node != node or member.stage is Stage.PENDING:
                # Bound elsewhere than this process assumed: by an earlier process, by hand, or as a webhook wanted it.
                if self.deciding:
                    self._out += self._outcomes.bound_elsewhere(workload, member, node, now)
                self._outcomes.forget(uid)
                workload.set_stage(member, Stage.BOUND)
                member.node, member.decided = node, False
                if workload.gang and not self.deciding:
                    workload.bound_earlier = workload.resumed = True
                self.touch(workload)
            if workload.gang and not self.deciding:
                # After this process had listed it, an earlier one may have bound it, or marked its gang complete.
                take_over(member, found_bound(pod, workload.id)[1])
                member.leaving = pod.metadata.deletion_timestamp is not None
            self._share_profile(member)
            self._out += self._outcomes.note_complete(workload, member)
            return
        if gang := gang_of(pod):
            fresh = not self._is_bound(gang)
            workload = self._workloads.join(*found_bound(pod, gang), describes=False)
            self.touch(workload)
            workload.bound_earlier = True
            workload.resumed |= not self.deciding
            member = workload.members[uid]
            self._share_profile(member)
            member.leaving = pod.metadata.deletion_timestamp is not None
            self._out += self._outcomes.note_complete(workload, member)
            self._describe(workload)
            if fresh and GroupKey.parse(gang) is not None:
                self.owner_changed(gang)  # pods that name its PodGroup were read before this one was found

    def _share_profile(self, member: Member) -> None:
        """Let a bound member have the profile of its entry, and its labels: these have a budget of memory."""
        entry = self._world.ledger.get(member.uid)
        if entry is None or member.stage is not Stage.BOUND:
            return
        member.profile = entry.profile
        if member.labels is not None:
            member.labels = entry.profile.labels if entry.profile is not None else None

    def learn(self, pod: Pod, now: float) -> None:
        """Read a pod that was found bound as if it had been seen pending; skip a pod that was read before."""
        uid, entry = pod.metadata.uid, self._world.ledger.get(pod.metadata.uid)
        membership = self._workloads.of_pod(uid)
        ours = pod.spec.scheduler_name == self._scheduler_name
        if not ours or entry is None or entry.assumed:
            return
        if membership is not None and membership[1].cls.amounts:
            if (lineage := self._resolve(pod)) is not None:
                membership[1].withdrawn = self._gone(pod, lineage)
            return
        try:
            self._learn(pod, membership, entry, now)
        except Exception as error:
            self._out += failure_of(f"pod {pod.key}", error, Activity.UNDERSTANDING, namespace=pod.metadata.namespace)

    def _learn(self, pod: Pod, membership: tuple[Workload, Member] | None, entry: LedgerEntry, now: float) -> None:
        lineage = self._resolve(pod)
        if lineage is None:
            return
        understood = self._understood(pod, lineage, now)
        member, wanted = understood.member, understood.workload
        _, made_up = found_bound(pod, "")
        member.stage, member.node, member.problem = Stage.BOUND, entry.node, ""
        take_over(member, made_up)
        member.bandwidth, member.profile = made_up.bandwidth, entry.profile
        member.decided = membership is not None and membership[1].decided
        member.leaving = pod.metadata.deletion_timestamp is not None
        member.withdrawn = self._gone(pod, lineage)
        if membership is not None and membership[0].id != wanted.id:
            # It belongs to the gang with which it was placed, whatever its annotations say by now.
            wanted.id, wanted.gang = membership[0].id, membership[0].gang
        wanted.bound_earlier = membership is None or membership[0].bound_earlier
        workload = self._workloads.join(wanted, member)
        self._share_profile(member)
        self._world.kept_classes.read(member)
        self._out += self._outcomes.note_complete(workload, member)

    def _describe(self, workload: Workload | None) -> None:
        """Apply its PodGroup to a gang that was found bound or has no pending member; mark the group if placed."""
        if workload is None or not (workload.bound_earlier or not workload.pending):
            return
        if (key := GroupKey.parse(workload.id)) is None:
            return
        group = self._world.groups.get(key)
        if group is None or group.problem:
            return
        fresh = workload.group is None
        workload.group, workload.size, workload.disruption_mode = group, group.minimum, group.disruption_mode
        if fresh and workload.bound >= group.minimum:
            self._out += mark_placed(workload)
        self._out += self._outcomes.note_size(workload)

    def _finished(self, pod: Pod, now: float) -> None:
        uid = pod.metadata.uid
        if pod.spec.node_name and self._outcomes.awaits(uid):
            self._bound(pod, now)  # it ended before its bind was answered
        entry = self._world.release(uid)
        self.unread.drop(uid)  # the entry is from the time when it ran
        if pod.spec.scheduler_name == self._scheduler_name:
            membership = self._workloads.of_pod(uid)
            cls = membership[1].cls if membership and membership[1].decided and membership[1].cls.amounts else None
            size = size_of(membership[0]) if membership else 0
            self._world.ended(pod, entry, cls, now, size)
            if not self.deciding and pod.status.phase == "Succeeded" and (gang := gang_of(pod)):
                self._outcomes.partially_bound.succeeded(gang, finished_at(pod))
            self.deleted(uid, now, succeeded=pod.status.phase == "Succeeded")

    def _warn(self, member: Member, warnings: Sequence[tuple[Reason, str]], workload: Workload) -> None:
        wanted = workload.request.preferred_domain
        if wanted and len(self._world.nodes):
            _, wrong = self._attempts.preferred_leaves(wanted, seen_fabric(workload, self._world.layout))
            if wrong:
                warnings = [*warnings, (Reason.DOMAIN_UNKNOWN, f"annotation {PREFERRED_DOMAIN}: {wrong}")]
        level = workload.request.preferred_level
        if level and len(self._world.nodes) and level not in self._world.layout.every_level:
            warning = f"annotation {PREFERRED_LEVEL}: no node has a label for a level called {level}; it was ignored"
            warnings = [*warnings, (Reason.DOMAIN_UNKNOWN, warning)]
        for reason, message in warnings:
            if self._emitted.is_new(member.uid, reason, message):
                self._out.append(EmitEvent(reference(member), True, reason, message))

    def placed(self, decision: Decision) -> None:
        """Record where the pods of a decision will run."""
        for seat in decision.seats:
            pod = self._pods.get(seat.uid)
            if pod is not None and (controller := pod.metadata.controller) is not None:
                self.siblings.put(controller_id(pod, controller), seat.uid, seat.node)

    def bound_at_last(self, uid: str) -> None:
        """Record that a pod need not be placed any more: it is bound, or was deleted."""
        self._pods.drop(uid)
        self._rereading.drop(uid)

    def not_bound(self, uid: str) -> None:
        """Record that a decided pod was not bound: the next step reads it again, with its present owners.

        Not at once: the binds of a gang may fail together, and it may have thousands of members.
        """
        self.siblings.drop(uid)
        if (pod := self._pods.get(uid)) is not None:
            self._rereading.put(pod)


def _was_bound(pod: Pod) -> bool:
    """Return whether a Binding, or later the kubelet, set the condition PodScheduled of a pod."""
    return any(condition.type == "PodScheduled" and condition.status == "True" for condition in pod.status.conditions)
