"""Judges nodes by pods that kubelets refuse, or that crash repeatedly.

A program that crashes is no reason to blame a node. So refusals and crashes of a workload on a node count only if
nothing similar happened to that workload on another node lately. Crashes count only if members of the same gang, or
pods of the same controller, run elsewhere without any restart. A node is failing if that holds for several workloads,
or if it refused many pods.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.annotations import GANG_ID
from topo_scheduler.api.durations import format_duration
from topo_scheduler.api.migrations import Cause
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import PodFailuresSpec
from topo_scheduler.api.text import counted
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.detection.node_health import NodeProblem
from topo_scheduler.scheduling.binding.refusals import KUBELET_REFUSALS

CRASHES: Final = "CrashLoopBackOff"
MAX_FAILING_PODS: Final = 10_000
"""Refused or crashing pods that are remembered; beyond them the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _PodFailure:
    """The failure of a pod. ``at`` is when it was last observed, in seconds."""

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


@dataclass(slots=True)
class PodFailures:
    """Pods of this scheduler, as evidence about nodes.

    ``scheduler_name`` identifies them, and ``epoch`` converts the times that are passed to seconds since the epoch.
    ``decided`` returns whether this process chose the node of a pod, by uid. Failures of other pods do not count: a
    tenant can put pods on nodes itself, with all marks that this scheduler leaves on the pods that it binds. So a new
    leader judges a node only by the pods that it places there. Healthy pods of a workload always count: they are
    evidence of the namespace about its own workload.
    """

    scheduler_name: str
    spec: PodFailuresSpec
    epoch: float
    decided: Callable[[str], bool] = lambda uid: True
    _failures: dict[str, _PodFailure] = field(default_factory=dict)
    _well: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Workload and node of pods that run without any restart, by uid."""
    _well_on: dict[str, Counter[str]] = field(default_factory=dict)
    _problems: dict[str, NodeProblem] = field(default_factory=dict)
    _stale: bool = False

    def configure(self, spec: PodFailuresSpec) -> None:
        """Apply a changed configuration."""
        self._stale |= spec != self.spec
        self.spec = spec

    # ------------------------------------------------------------ input

    def applied(self, pods: Iterable[Pod], now: float) -> None:
        """Handle pods that appeared or changed."""
        for pod in pods:
            if pod.spec.node_name and pod.spec.scheduler_name == self.scheduler_name:
                self._seen(pod, now)

    def deleted(self, uids: Iterable[str]) -> None:
        """Handle pods that are gone. Their failures are remembered for a while."""
        for uid in uids:
            self._not_well(uid)

    def _seen(self, pod: Pod, now: float) -> None:
        uid = pod.metadata.uid
        reason = _refused(pod) or _crashes(pod, self.spec.restarts)
        if reason:
            self._not_well(uid)
            failure = self._failures.get(uid)
            if failure is not None and failure.refused:
                return  # a refusal counts once, however often it is reported
            if not self.decided(uid):
                return
            refused = pod.finished
            # A kubelet may have refused the pod long ago.
            begun = seconds_of(pod.status.start_time or pod.metadata.creation_timestamp or "") or inf
            at = min(now, begun - self.epoch) if refused else now
            if at + self.spec.window > now:
                self._failures[uid] = _PodFailure(pod.spec.node_name, workload_of(pod), refused, pod.key, reason, at)
                if len(self._failures) > MAX_FAILING_PODS:
                    del self._failures[next(iter(self._failures))]
                self._stale = True
        elif _runs_well(pod):
            if self._failures.pop(uid, None) is not None:
                self._stale = True
            if uid not in self._well:
                workload = workload_of(pod)
                self._well[uid] = (workload, pod.spec.node_name)
                self._well_on.setdefault(workload, Counter())[pod.spec.node_name] += 1
                self._stale |= bool(self._failures)
        else:
            self._not_well(uid)

    def _not_well(self, uid: str) -> None:
        healthy = self._well.pop(uid, None)
        if healthy is not None:
            workload, node = healthy
            count_of_node = self._well_on[workload]
            count_of_node[node] -= 1
            if not count_of_node[node]:
                del count_of_node[node]
            if not count_of_node:
                del self._well_on[workload]
            self._stale |= bool(self._failures)

    # ------------------------------------------------------------ results

    def problems(self, now: float) -> dict[str, NodeProblem]:
        """Return the problems of nodes that their pods indicate, by name of the node."""
        expired = [uid for uid, failure in self._failures.items() if failure.at + self.spec.window <= now]
        for uid in expired:
            del self._failures[uid]
        if self._stale or expired:
            self._stale = False
            self._problems = dict(self._judged()) if self.spec.enabled else {}
        return self._problems

    def next_due(self) -> float | None:
        """Return when the result of `problems` may change without new input."""
        if not self.spec.enabled:
            return None
        return min((failure.at + self.spec.window for failure in self._failures.values()), default=None)

    def _judged(self) -> Iterator[tuple[str, NodeProblem]]:
        nodes_of: dict[str, set[str]] = {}
        for failure in self._failures.values():
            nodes_of.setdefault(failure.workload, set()).add(failure.node)
        by_node: dict[str, list[_PodFailure]] = {}
        for failure in self._failures.values():
            if len(nodes_of[failure.workload]) == 1 and (failure.refused or self._runs_elsewhere(failure)):
                by_node.setdefault(failure.node, []).append(failure)
        for node, failures in sorted(by_node.items()):
            refused = [failure for failure in failures if failure.refused]
            if len({failure.namespace for failure in failures}) < self.spec.namespaces:
                continue
            if (
                len({failure.workload for failure in failures}) >= self.spec.workloads
                or len(refused) >= self.spec.refusals
            ):
                yield node, self._problem(failures, refused)

    def _runs_elsewhere(self, failure: _PodFailure) -> bool:
        return any(node != failure.node for node in self._well_on.get(failure.workload, ()))

    def _problem(self, failures: Collection[_PodFailure], refused: Collection[_PodFailure]) -> NodeProblem:
        crashing = [failure for failure in failures if not failure.refused]
        within = f"within {format_duration(self.spec.window)}"
        if len({failure.workload for failure in refused}) >= len({failure.workload for failure in crashing}):
            return NodeProblem(Cause.REFUSED, f"refused {counted(len(refused), 'pod')} {within}", _named(refused))
        pods = counted(len(crashing), "pod", "that crashes there only", "that crash there only")
        return NodeProblem(Cause.CRASHING, f"has {pods}", _named(crashing))


def workload_of(pod: Pod) -> str:
    """Return a key of a pod's gang, or its controller, or of the pod itself."""
    controller = pod.metadata.controller
    own = controller.uid if controller is not None else pod.metadata.uid
    return f"{pod.metadata.namespace}/{pod.metadata.annotations.get(GANG_ID, '') or own}"


def _refused(pod: Pod) -> str:
    """Return the reason for which a kubelet refused a pod; empty if none did."""
    refused = pod.status.phase == "Failed" and pod.status.reason.startswith(KUBELET_REFUSALS)
    return pod.status.reason if refused else ""


def _crashes(pod: Pod, restarts: int) -> str:
    """Return the restarts of a container in a crash loop, as text; empty if there is none."""
    if pod.finished:
        return ""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting if status.state is not None else None
        if waiting is not None and waiting.reason == CRASHES and status.restart_count >= restarts:
            return f"{CRASHES}, {status.restart_count} restarts"
    return ""


def _runs_well(pod: Pod) -> bool:
    statuses = pod.status.container_statuses
    never_restarted = all(not status.restart_count for status in (*statuses, *pod.status.init_container_statuses))
    return pod.status.phase == "Running" and bool(statuses) and never_restarted


def _named(failures: Collection[_PodFailure]) -> tuple[str, ...]:
    ordered = sorted(failures, key=lambda failure: failure.pod)
    return tuple(f"{failure.pod} ({failure.reason})" for failure in ordered)
