"""Pods that their nodes refuse, or that crash there again and again: which nodes that speaks against.

A program that crashes is no reason to blame a node. So what happened to pods of a workload on a node counts only where
nothing of the kind happened to that workload on another node of late; of crashes only where members of the same gang,
or pods of the same controller, run elsewhere and never had to be started again. A node is failing when that is so for
several workloads, or when it refused many pods.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.api.annotations import GANG_ID
from topo_scheduler.api.durations import format_duration
from topo_scheduler.api.migrations import Cause
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import PodFailuresSpec
from topo_scheduler.api.words import few_of
from topo_scheduler.recovery.health import NodeProblem
from topo_scheduler.scheduling.binding.refusals import KUBELET_REFUSALS

CRASHES: Final = "CrashLoopBackOff"
MOST_TROUBLES: Final = 10_000
"""Pods of which it is remembered that they were refused or crash; beyond them the oldest are forgotten."""
NAMED: Final = 3
"""Pods that are named at most."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What happened to a pod. ``at`` when it was seen last, in seconds."""

    node: str
    workload: str
    refused: bool
    pod: str
    reason: str
    at: float

    @property
    def namespace(self) -> str:
        """Namespace of the pod."""
        return self.pod.partition("/")[0]


class PodTroubles:
    """Pods of ours, as far as they tell of nodes.

    ``scheduler_name`` tells them from those of others; ``epoch`` makes seconds since the epoch of the times that are
    passed; ``decided`` whether this process decided where a pod runs, by uid. What happens to others does not count: a
    tenant can put pods on nodes itself, with every mark that this scheduler leaves on those it binds. So a new leader
    learns of a node by the pods that it places there. That others of a workload run well counts for all: it is the
    namespace's own word on its own workload.
    """

    def __init__(
        self,
        scheduler_name: str,
        spec: PodFailuresSpec,
        epoch: float,
        decided: Callable[[str], bool] = lambda uid: True,
    ) -> None:
        self._decided = decided
        self._scheduler_name = scheduler_name
        self._epoch = epoch
        self._spec = spec
        self._troubles: dict[str, _Trouble] = {}
        self._well: dict[str, tuple[str, str]] = {}
        """Pods that run and never had to be started again: workload and node."""
        self._well_on: dict[str, Counter[str]] = {}
        self._found: dict[str, NodeProblem] = {}
        self._stale = False

    def configure(self, spec: PodFailuresSpec) -> None:
        """Take over a new configuration."""
        self._stale |= spec != self._spec
        self._spec = spec

    # ------------------------------------------------------------ facts in

    def applied(self, pods: Iterable[Pod], now: float) -> None:
        """Take over pods that appeared or changed."""
        for pod in pods:
            if pod.spec.node_name and pod.spec.scheduler_name == self._scheduler_name:
                self._seen(pod, now)

    def deleted(self, uids: Iterable[str]) -> None:
        """Pods are gone. What happened to them is not forgotten at once."""
        for uid in uids:
            self._not_well(uid)

    def _seen(self, pod: Pod, now: float) -> None:
        uid = pod.metadata.uid
        reason = _refused(pod) or _crashes(pod, self._spec.restarts)
        if reason:
            self._not_well(uid)
            known = self._troubles.get(uid)
            if known is not None and known.refused:
                return  # once is once, however often it is told
            if not self._decided(uid):
                return
            refused = pod.finished
            at = min(now, self._begun(pod) - self._epoch) if refused else now
            if at + self._spec.window > now:
                self._troubles[uid] = _Trouble(pod.spec.node_name, workload_of(pod), refused, pod.key, reason, at)
                if len(self._troubles) > MOST_TROUBLES:
                    del self._troubles[next(iter(self._troubles))]
                self._stale = True
        elif _runs_well(pod):
            if self._troubles.pop(uid, None) is not None:
                self._stale = True
            if uid not in self._well:
                workload = workload_of(pod)
                self._well[uid] = (workload, pod.spec.node_name)
                self._well_on.setdefault(workload, Counter())[pod.spec.node_name] += 1
                self._stale |= bool(self._troubles)
        else:
            self._not_well(uid)

    def _begun(self, pod: Pod) -> float:
        """Return when a kubelet refused a pod, in seconds since the epoch: it may have been long ago."""
        return seconds_of(pod.status.start_time or pod.metadata.creation_timestamp or "") or inf

    def _not_well(self, uid: str) -> None:
        known = self._well.pop(uid, None)
        if known is not None:
            workload, node = known
            here = self._well_on[workload]
            here[node] -= 1
            if not here[node]:
                del here[node]
            if not here:
                del self._well_on[workload]
            self._stale |= bool(self._troubles)

    # ------------------------------------------------------------ what follows

    def problems(self, now: float) -> dict[str, NodeProblem]:
        """Return what is wrong with nodes by what happened to pods there, by name of the node."""
        over = [uid for uid, one in self._troubles.items() if one.at + self._spec.window <= now]
        for uid in over:
            del self._troubles[uid]
        if self._stale or over:
            self._stale = False
            self._found = dict(self._judged()) if self._spec.enabled else {}
        return self._found

    def next_due(self) -> float | None:
        """Return when `problems` may answer otherwise, if nothing happens before."""
        if not self._spec.enabled:
            return None
        return min((one.at + self._spec.window for one in self._troubles.values()), default=None)

    def _judged(self) -> Iterator[tuple[str, NodeProblem]]:
        nodes_of: dict[str, set[str]] = {}
        for one in self._troubles.values():
            nodes_of.setdefault(one.workload, set()).add(one.node)
        by_node: dict[str, list[_Trouble]] = {}
        for one in self._troubles.values():
            if len(nodes_of[one.workload]) == 1 and (one.refused or self._runs_elsewhere(one)):
                by_node.setdefault(one.node, []).append(one)
        for node, found in sorted(by_node.items()):
            refused = [one for one in found if one.refused]
            if len({one.namespace for one in found}) < self._spec.namespaces:
                continue
            if len({one.workload for one in found}) >= self._spec.workloads or len(refused) >= self._spec.refusals:
                yield node, self._problem(found, refused)

    def _runs_elsewhere(self, one: _Trouble) -> bool:
        return any(node != one.node for node in self._well_on.get(one.workload, ()))

    def _problem(self, found: Collection[_Trouble], refused: Collection[_Trouble]) -> NodeProblem:
        crashing = [one for one in found if not one.refused]
        within = f"within {format_duration(self._spec.window)}"
        if len({one.workload for one in refused}) >= len({one.workload for one in crashing}):
            return NodeProblem(Cause.REFUSED, f"refused {len(refused)} pods {within}: {_named(refused)}")
        return NodeProblem(Cause.CRASHING, f"has {len(crashing)} pods that crash there only: {_named(crashing)}")


def workload_of(pod: Pod) -> str:
    """Return what tells the gang of a pod from others, or its controller, or itself."""
    controller = pod.metadata.controller
    own = controller.uid if controller is not None else pod.metadata.uid
    return f"{pod.metadata.namespace}/{pod.metadata.annotations.get(GANG_ID, '') or own}"


def _refused(pod: Pod) -> str:
    """Return why a kubelet refused a pod, empty where it didn't."""
    refused = pod.status.phase == "Failed" and pod.status.reason.startswith(KUBELET_REFUSALS)
    return pod.status.reason if refused else ""


def _crashes(pod: Pod, restarts: int) -> str:
    """Return how often a container of a pod was started again that crashes time after time, empty where none does."""
    if pod.finished:
        return ""
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = one.state.waiting if one.state is not None else None
        if waiting is not None and waiting.reason == CRASHES and one.restart_count >= restarts:
            return f"{CRASHES}, {one.restart_count} restarts"
    return ""


def _runs_well(pod: Pod) -> bool:
    statuses = pod.status.container_statuses
    never_restarted = all(not one.restart_count for one in (*statuses, *pod.status.init_container_statuses))
    return pod.status.phase == "Running" and bool(statuses) and never_restarted


def _named(found: Collection[_Trouble]) -> str:
    ordered = sorted(found, key=lambda one: one.pod)
    return few_of([f"{one.pod} ({one.reason})" for one in ordered], NAMED)
