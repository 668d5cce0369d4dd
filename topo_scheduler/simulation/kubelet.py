"""One simulated kubelet for all nodes: it admits bound pods, runs and finishes them, and confirms their deletion.

The kubelet sums up requests as a real one does, so it rejects pods of an overbooked node. It uses the time of the event
loop and never polls, so on a loop with virtual time, days pass in a moment.

Annotations of a pod control its run: ``simulation.topology.scheduler/run-seconds`` is its duration,
``simulation.topology.scheduler/exit-code`` its exit code. A pod ends once; the kubelet ignores restart policies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.simulation.reconcile_loop import ReconcileLoop

from .apiserver import DeleteOptions, Key, ObjectVersion, StatusError, Store, StoreEvent
from .apiserver.objects import (
    Json,
    changed,
    condition,
    controller_of,
    is_deleting,
    is_finished,
    is_ready,
    parse_timestamp,
    spec,
    status,
    timestamp,
    with_condition,
)
from .controllers.nodes import tainted
from .fit import Amounts, Refusal, add, refusal, requests_of

_log = logging.getLogger(__name__)
RUN_SECONDS: Final = "simulation.topology.scheduler/run-seconds"
EXIT_CODE: Final = "simulation.topology.scheduler/exit-code"
_SIGTERM: Final = 143
_PODS_PER_SLICE: Final = 64
"""Pods processed in a row before the kubelet yields to the event loop."""

Refuse = Callable[[Json, Json], Refusal | None]


@dataclass(slots=True)
class _RunningPod:
    """An admitted pod, with the times on the clock of the event loop at which it starts, ends and stops."""

    requests: Amounts
    begin: float
    end: float | None = None
    stop: float | None = None


@dataclass(slots=True)
class _KubeletNode:
    """The keys of pods bound to a node, the admitted pods by uid, and the sum of their requests."""

    keys: dict[Key, None] = field(default_factory=dict)
    pods: dict[str, _RunningPod] = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    responsive: bool = True


class Kubelet(ReconcileLoop[Key]):
    """Runs the pods of every node of a store.

    ``run_seconds`` is the duration of Job pods without the annotation; None is for ever. ``start_seconds`` is the time
    that a pod takes to start, ``stop_seconds`` the time to end after a deletion request. ``refuse`` may reject a pod
    with a reason of its own, such as ``("UnexpectedAdmissionError", "no device left")``.
    """

    def __init__(
        self,
        store: Store,
        *,
        run_seconds: float | None = None,
        start_seconds: float = 0.0,
        stop_seconds: float = 0.0,
        refuse: Refuse | None = None,
    ) -> None:
        self.run_seconds = run_seconds
        self.start_seconds = start_seconds
        self.stop_seconds = stop_seconds
        self.refuse = refuse
        super().__init__(store, "kubelet", ("nodes", "pods"))
        self._nodes: dict[str, _KubeletNode] = {}
        self._addresses = 0

    # Event loop

    def _notice(self, table: str, event: StoreEvent) -> None:
        """Enqueue the pod or node of an event. The method must not write, since it runs within another write."""
        if table == "nodes" and event.before is None:
            self._enqueue(Key("", event.key.name))
        elif table == "pods":
            if event.after is None:
                self._forget(event.record)
            elif spec(event.after.obj).get("nodeName"):
                self._enqueue(event.key)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            due, self._due = self._due, {}
            for number, key in enumerate(due, 1):
                try:
                    if key.namespace:
                        self._tend(key)
                    else:
                        self._adopt(key.name)
                except Exception:  # a malformed pod must not stop the other pods
                    _log.exception("kubelet of %s", key)
                if number % _PODS_PER_SLICE == 0:
                    await asyncio.sleep(0)

    # Nodes

    def fail_node(self, name: str) -> None:
        """Make a node unresponsive: Ready is Unknown, with taints; its pods neither start, finish nor terminate."""
        self._node(name).responsive = False
        self._set_ready(name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def heal_node(self, name: str) -> None:
        """Make a node respond again, and process all that became due in the meantime."""
        self._node(name).responsive = True
        self._set_ready(name, "True", "KubeletReady", "kubelet is posting ready status")
        self._enqueue_all(self._node(name).keys)

    def used(self, name: str) -> Amounts:
        """Return the amounts in use on a node: CPU in thousandths, all others in whole units."""
        return {resource: amount for resource, amount in self._node(name).used.items() if amount}

    def _adopt(self, name: str) -> None:
        """Mark a new node as ready, unless it already has a Ready condition."""
        node = self._store.find("nodes", name)
        if node is not None and condition(node.obj, "Ready") is None:
            self._set_ready(name, "True", "KubeletReady", "kubelet is posting ready status")
        self._enqueue_all(self._node(name).keys)

    def _set_ready(self, name: str, ready: str, reason: str, message: str) -> None:
        moment = self._store.clock()
        ready_condition = {"type": "Ready", "status": ready, "reason": reason, "message": message}

        def updated(node: Json) -> Json:
            return changed(
                node, "status", conditions=with_condition(status(node).get("conditions"), ready_condition, moment)
            )

        self._store.modify("nodes", name, "", updated, subresource="status")
        self._store.modify("nodes", name, "", lambda node: tainted(node, timestamp(moment)))

    def _node(self, name: str) -> _KubeletNode:
        return self._nodes.setdefault(name, _KubeletNode())

    def _enqueue_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._enqueue(key)

    # Pods

    def _tend(self, key: Key) -> None:
        """Advance a bound pod, and set a timer for its next step."""
        record = self._store.find("pods", *key.address)
        name = spec(record.obj).get("nodeName") if record is not None else None
        if record is None or not name:  # deleted, or created again by its controller
            return
        node = self._node(name)
        node.keys[key] = None
        if not node.responsive:
            return
        pod = node.pods.get(record["metadata"]["uid"])
        if is_finished(record.obj):
            self._release(node, record)
            if is_deleting(record.obj):
                self._confirm(record)
        elif is_deleting(record.obj):
            self._terminate(record, pod)
        elif pod is None:
            self._admit(record, node)
        else:
            self._advance(record, pod)

    def _admit(self, record: ObjectVersion, state: _KubeletNode) -> None:
        """Admit or reject a pod. A pod that runs already was admitted before this kubelet started."""
        node = self._store.find("nodes", spec(record.obj)["nodeName"])
        if node is None:
            return
        running = status(record.obj).get("phase") == "Running"
        rejection = None if running else _invalid_annotations(record.obj) or refusal(record.obj, node.obj, state.used)
        if rejection is None and not running and self.refuse is not None:
            rejection = self.refuse(record.obj, node.obj)
        if rejection is not None:
            reason, message = rejection
            started = timestamp(self._store.clock())
            self._store.patch_status(
                "pods", record.key, phase="Failed", reason=reason, message=message, startTime=started
            )
            return
        pod = _RunningPod(requests_of(record.obj), begin=self._now() + self.start_seconds)
        state.pods[record["metadata"]["uid"]] = pod
        add(state.used, pod.requests)
        if running:
            since = parse_timestamp(status(record.obj)["startTime"])
            pod.end = self._end_of(record, (self._store.clock() - since).total_seconds())
        self._advance(record, pod)

    def _advance(self, record: ObjectVersion, pod: _RunningPod) -> None:
        """Start a pod, keep it ready or end it, whichever is due."""
        now = self._now()
        if status(record.obj).get("phase") != "Running":
            if now < pod.begin:
                self._set_timer(record.key, pod.begin)
                return
            pod.end = self._end_of(record)
            self._store.patch_status("pods", record.key, **self._running(record.obj))
        elif pod.end is not None and now >= pod.end:
            code = int((record["metadata"].get("annotations") or {}).get(EXIT_CODE, 0))
            self._store.patch_status("pods", record.key, **self._ended(record.obj, code))
        elif not is_ready(record.obj):
            self._store.patch_status("pods", record.key, **self._running(record.obj))
        elif pod.end is not None:
            self._set_timer(record.key, pod.end)

    def _terminate(self, record: ObjectVersion, pod: _RunningPod | None) -> None:
        """Terminate a pod that is being deleted, as failed. A pod that never ran is removed at once."""
        if pod is None or status(record.obj).get("phase") != "Running":
            self._confirm(record)
            return
        now = self._now()
        if pod.stop is None:
            grace = record["metadata"].get("deletionGracePeriodSeconds", 0)
            pod.stop = now + min(grace, self.stop_seconds)
        if now < pod.stop:
            self._set_timer(record.key, pod.stop)
        else:
            self._store.patch_status("pods", record.key, **self._ended(record.obj, _SIGTERM))

    def _confirm(self, record: ObjectVersion) -> None:
        """Confirm to the API server that a pod has terminated; finalizers may still keep the object."""
        try:
            self._store.delete("pods", *record.key.address, DeleteOptions(grace=0, uid=record["metadata"]["uid"]))
        except StatusError as error:
            if error.code not in (404, 409):
                raise

    def _end_of(self, record: ObjectVersion, ran_seconds: float = 0.0) -> float | None:
        """Return the loop time at which a pod ends that has run for ``ran_seconds``; None is never."""
        annotated = (record["metadata"].get("annotations") or {}).get(RUN_SECONDS)
        is_job_pod = (controller_of(record.obj) or {}).get("kind") == "Job"
        seconds = float(annotated) if annotated is not None else self.run_seconds if is_job_pod else None
        return None if seconds is None else self._now() + seconds - ran_seconds

    # Status of pods

    def _write(self, record: ObjectVersion, **fields: object) -> None:
        self._store.modify(
            "pods", *record.key.address, lambda obj: changed(obj, "status", **fields), subresource="status"
        )

    def _running(self, pod: Json) -> Json:
        moment = self._store.clock()
        start_time = status(pod).get("startTime") or timestamp(moment)
        return {
            "phase": "Running",
            "conditions": self._conditions(pod, "True"),
            "startTime": start_time,
            "podIP": status(pod).get("podIP") or self._address(),
            "containerStatuses": [
                {
                    **_container(container),
                    "ready": True,
                    "started": True,
                    "state": {"running": {"startedAt": start_time}},
                }
                for container in spec(pod)["containers"]
            ],
        }

    def _ended(self, pod: Json, code: int) -> Json:
        terminated = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": status(pod).get("startTime"),
            "finishedAt": timestamp(self._store.clock()),
        }
        return {
            "phase": "Failed" if code else "Succeeded",
            "conditions": self._conditions(pod, "False", "PodFailed" if code else "PodCompleted"),
            "containerStatuses": [
                {**_container(container), "ready": False, "started": False, "state": {"terminated": terminated}}
                for container in spec(pod)["containers"]
            ],
        }

    def _conditions(self, pod: Json, ready: str, reason: str | None = None) -> list[Json]:
        conditions: list[Json] = status(pod).get("conditions") or []
        reason_field = {"reason": reason} if reason else {}
        for condition_type, condition_status in (("Initialized", "True"), ("Ready", ready), ("ContainersReady", ready)):
            new_condition = {
                "type": condition_type,
                "status": condition_status,
                "lastProbeTime": None,
                **(reason_field if condition_status == "False" else {}),
            }
            conditions = with_condition(conditions, new_condition, self._store.clock())
        return conditions

    def _address(self) -> str:
        self._addresses += 1
        return f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}"

    # Bookkeeping

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _set_timer(self, key: Key, moment: float) -> None:
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_at(moment, self._enqueue, key)

    def _release(self, node: _KubeletNode, record: ObjectVersion) -> None:
        if (pod := node.pods.pop(record["metadata"]["uid"], None)) is not None:
            add(node.used, pod.requests, -1)

    def _forget(self, record: ObjectVersion) -> None:
        self._cancel_timer(record.key)
        if name := spec(record.obj).get("nodeName"):
            node = self._node(name)
            self._release(node, record)
            node.keys.pop(record.key, None)


def _invalid_annotations(pod: Json) -> Refusal | None:
    """Return a rejection if the annotations for the simulation are invalid."""
    annotations = pod["metadata"].get("annotations") or {}
    try:
        int(annotations.get(EXIT_CODE, 0))
        if float(annotations.get(RUN_SECONDS, 0)) >= 0:
            return None
    except ValueError:
        pass
    return "UnexpectedAdmissionError", f"{RUN_SECONDS} and {EXIT_CODE} must be numbers, and the former not negative"


def _container(container: Json) -> Json:
    return {"name": container["name"], "image": container.get("image", ""), "imageID": "", "restartCount": 0}
