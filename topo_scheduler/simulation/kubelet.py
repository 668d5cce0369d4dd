"""One kubelet for all nodes: it admits pods that were bound, runs them, finishes them, and confirms their deletion.

It adds requests up as a real kubelet does, so a scheduler that overbooks a node sees its pods refused here. Time is
the event loop's, so that on a loop whose time is virtual days pass in a moment; nothing is ever polled.

A pod says itself what becomes of it: the annotation ``simulation.topology.scheduler/run-seconds`` is how long it
runs, and ``simulation.topology.scheduler/exit-code`` how it ends. It ends once: restart policies are not looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from .apiserver import APIError, DeleteOptions, Key, ObjectVersion, Store, StoreEvent
from .apiserver.objects import (
    Json,
    changed,
    condition,
    controller_of,
    is_deleting,
    is_finished,
    parse_timestamp,
    spec,
    status,
    timestamp,
    with_condition,
)
from .controllers.nodes import tainted
from .fit import Amounts, Refusal, add, refusal, requests_of
from .tending import Tending

_log = logging.getLogger(__name__)
RUN_SECONDS: Final = "simulation.topology.scheduler/run-seconds"
EXIT_CODE: Final = "simulation.topology.scheduler/exit-code"
_SIGTERM: Final = 143
_BREATH: Final = 64
"""Pods looked after in a row before others on the event loop get their turn."""

Refuse = Callable[[Json, Json], Refusal | None]


@dataclass(slots=True)
class _Pod:
    """A pod that was admitted, with the moments of the loop's clock at which something is due."""

    asked: Amounts
    begin: float
    end: float | None = None
    stop: float | None = None


@dataclass(slots=True)
class _KubeletNode:
    """What was bound to a node, what of it was admitted, and what that adds up to."""

    keys: dict[Key, None] = field(default_factory=dict)
    pods: dict[str, _Pod] = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    answers: bool = True


class Kubelet(Tending[Key]):
    """Runs the pods of every node of a store.

    ``run_seconds`` is how long the pod of a Job runs that doesn't say so itself (None is for ever), ``start_seconds``
    how long a pod takes to start, ``stop_seconds`` how long to end once it is to be deleted. ``refuse`` may turn a
    pod away for a reason of its own, such as ``("UnexpectedAdmissionError", "no device left")``.
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

    # Life

    def _notice(self, table: str, event: StoreEvent) -> None:
        """Remember whose turn it is: nothing is written within somebody else's write."""
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
                except Exception:  # one pod that cannot be understood must not stop the others
                    _log.exception("kubelet of %s", key)
                if number % _BREATH == 0:
                    await asyncio.sleep(0)

    # Nodes

    def fail_node(self, name: str) -> None:
        """Let a node fall silent: unknown, tainted as unreachable; its pods neither start, finish nor go."""
        self._node(name).answers = False
        self._say(name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def heal_node(self, name: str) -> None:
        """Let a node come back, with whatever became due in the meantime."""
        self._node(name).answers = True
        self._say(name, "True", "KubeletReady", "kubelet is posting ready status")
        self._enqueue_all(self._node(name).keys)

    def used(self, name: str) -> Amounts:
        """What is in use on a node: cpu in thousandths, everything else in whole units."""
        return {resource: amount for resource, amount in self._node(name).used.items() if amount}

    def _adopt(self, name: str) -> None:
        """A node that says nothing of itself is ready; one that says something is believed."""
        node = self._store.find("nodes", name)
        if node is not None and condition(node.obj, "Ready") is None:
            self._say(name, "True", "KubeletReady", "kubelet is posting ready status")
        self._enqueue_all(self._node(name).keys)

    def _say(self, name: str, ready: str, reason: str, message: str) -> None:
        moment = self._store.clock()
        new = {"type": "Ready", "status": ready, "reason": reason, "message": message}

        def said(node: Json) -> Json:
            return changed(node, "status", conditions=with_condition(status(node).get("conditions"), new, moment))

        self._store.modify("nodes", name, "", said, subresource="status")
        self._store.modify("nodes", name, "", lambda node: tainted(node, timestamp(moment)))

    def _node(self, name: str) -> _KubeletNode:
        return self._nodes.setdefault(name, _KubeletNode())

    def _enqueue_all(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._enqueue(key)

    # Pods

    def _tend(self, key: Key) -> None:
        """Do what a bound pod needs next, and come back when more is due."""
        record = self._store.find("pods", *key.address)
        if record is None:
            return
        node = self._node(spec(record.obj)["nodeName"])
        node.keys[key] = None
        if not node.answers:
            return
        pod = node.pods.get(record["metadata"]["uid"])
        if is_finished(record.obj):
            self._give_back(node, record)
            if is_deleting(record.obj):
                self._confirm(record)
        elif is_deleting(record.obj):
            self._wind_down(record, pod)
        elif pod is None:
            self._admit(record, node)
        else:
            self._advance(record, pod)

    def _admit(self, record: ObjectVersion, state: _KubeletNode) -> None:
        """Take a pod in, or turn it away. One that runs already was taken in before this kubelet came."""
        node = self._store.find("nodes", spec(record.obj)["nodeName"])
        if node is None:
            return
        running = status(record.obj).get("phase") == "Running"
        no = None if running else _nonsense(record.obj) or refusal(record.obj, node.obj, state.used)
        if no is None and not running and self.refuse is not None:
            no = self.refuse(record.obj, node.obj)
        if no is not None:
            reason, message = no
            started = timestamp(self._store.clock())
            self._write(record, phase="Failed", reason=reason, message=message, startTime=started)
            return
        pod = _Pod(requests_of(record.obj), begin=self._now() + self.start_seconds)
        state.pods[record["metadata"]["uid"]] = pod
        add(state.used, pod.asked)
        if running:
            since = parse_timestamp(status(record.obj)["startTime"])
            pod.end = self._end_of(record, (self._store.clock() - since).total_seconds())
        self._advance(record, pod)

    def _advance(self, record: ObjectVersion, pod: _Pod) -> None:
        """Start a pod, keep it ready, end it: whichever is due."""
        now = self._now()
        if status(record.obj).get("phase") != "Running":
            if now < pod.begin:
                self._come_back(record.key, pod.begin)
                return
            pod.end = self._end_of(record)
            self._write(record, **self._running(record.obj))
        elif pod.end is not None and now >= pod.end:
            code = int((record["metadata"].get("annotations") or {}).get(EXIT_CODE, 0))
            self._write(record, **self._ended(record.obj, code))
        elif (condition(record.obj, "Ready") or {}).get("status") != "True":
            self._write(record, **self._running(record.obj))
        elif pod.end is not None:
            self._come_back(record.key, pod.end)

    def _wind_down(self, record: ObjectVersion, pod: _Pod | None) -> None:
        """End a pod that is to be deleted, as failed: it was told to end. One that never ran just goes."""
        if pod is None or status(record.obj).get("phase") != "Running":
            self._confirm(record)
            return
        now = self._now()
        if pod.stop is None:
            grace = record["metadata"].get("deletionGracePeriodSeconds", 0)
            pod.stop = now + min(grace, self.stop_seconds)
        if now < pod.stop:
            self._come_back(record.key, pod.stop)
        else:
            self._write(record, **self._ended(record.obj, _SIGTERM))

    def _confirm(self, record: ObjectVersion) -> None:
        """Tell the API server that nothing is left of a pod; finalizers of others may keep the object."""
        try:
            self._store.delete("pods", *record.key.address, DeleteOptions(grace=0, uid=record["metadata"]["uid"]))
        except APIError as error:
            if error.code not in (404, 409):
                raise

    def _end_of(self, record: ObjectVersion, ran: float = 0.0) -> float | None:
        """When a pod that has run for so long will have run long enough."""
        own = (record["metadata"].get("annotations") or {}).get(RUN_SECONDS)
        of_job = (controller_of(record.obj) or {}).get("kind") == "Job"
        seconds = float(own) if own is not None else self.run_seconds if of_job else None
        return None if seconds is None else self._now() + seconds - ran

    # What a pod reports

    def _write(self, record: ObjectVersion, **fields: object) -> None:
        self._store.modify(
            "pods", *record.key.address, lambda obj: changed(obj, "status", **fields), subresource="status"
        )

    def _running(self, pod: Json) -> Json:
        moment = self._store.clock()
        begun = status(pod).get("startTime") or timestamp(moment)
        return {
            "phase": "Running",
            "conditions": self._conditions(pod, "True"),
            "startTime": begun,
            "podIP": status(pod).get("podIP") or self._address(),
            "containerStatuses": [
                {**_container(c), "ready": True, "started": True, "state": {"running": {"startedAt": begun}}}
                for c in spec(pod)["containers"]
            ],
        }

    def _ended(self, pod: Json, code: int) -> Json:
        end = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": status(pod).get("startTime"),
            "finishedAt": timestamp(self._store.clock()),
        }
        return {
            "phase": "Failed" if code else "Succeeded",
            "conditions": self._conditions(pod, "False", "PodFailed" if code else "PodCompleted"),
            "containerStatuses": [
                {**_container(c), "ready": False, "started": False, "state": {"terminated": end}}
                for c in spec(pod)["containers"]
            ],
        }

    def _conditions(self, pod: Json, ready: str, reason: str | None = None) -> list[Json]:
        conditions: list[Json] = status(pod).get("conditions") or []
        why = {"reason": reason} if reason else {}
        for kind, holds in (("Initialized", "True"), ("Ready", ready), ("ContainersReady", ready)):
            new = {"type": kind, "status": holds, "lastProbeTime": None, **(why if holds == "False" else {})}
            conditions = with_condition(conditions, new, self._store.clock())
        return conditions

    def _address(self) -> str:
        self._addresses += 1
        return f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}"

    # Bookkeeping

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _come_back(self, key: Key, moment: float) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(moment, self._enqueue, key)

    def _give_back(self, node: _KubeletNode, record: ObjectVersion) -> None:
        if (pod := node.pods.pop(record["metadata"]["uid"], None)) is not None:
            add(node.used, pod.asked, -1)

    def _forget(self, record: ObjectVersion) -> None:
        if timer := self._timers.pop(record.key, None):
            timer.cancel()
        if name := spec(record.obj).get("nodeName"):
            node = self._node(name)
            self._give_back(node, record)
            node.keys.pop(record.key, None)


def _nonsense(pod: Json) -> Refusal | None:
    """Refuse a pod whose annotations for the simulation cannot be read."""
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
