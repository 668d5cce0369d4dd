"""Nominations and the condition of victims: the newest is written, and only on the pod that is meant."""

import asyncio

import pytest

from topo_scheduler.kube.writing.pod_status import MAX_EXPLAINED_PODS, PodStatusWriter
from topo_scheduler.simulation.apiserver import Delay, Refuse

from .virtual import virtual_time
from .world import world


@virtual_time
async def test_a_nomination_is_set_and_cleared() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        writes = PodStatusWriter(w.client)
        await writes.nominate("default", "pod", pod.metadata.uid, "node-1")
        assert w.pod("pod").status.nominated_node_name == "node-1"
        await writes.nominate("default", "pod", pod.metadata.uid, "")
        assert w.pod("pod").status.nominated_node_name == ""


@virtual_time
async def test_of_several_nominations_the_newest_stays() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Delay(0.5), resource="pods/status", times=1)
        writes = PodStatusWriter(w.client)
        async with asyncio.TaskGroup() as group:
            for node in ("a", "b", "c", ""):
                group.create_task(writes.nominate("default", "pod", pod.metadata.uid, node))
        assert w.pod("pod").status.nominated_node_name == ""


@virtual_time
async def test_a_pod_of_the_same_name_is_not_touched() -> None:
    async with world() as w:
        w.create_pod("pod")
        writes = PodStatusWriter(w.client)
        await writes.nominate("default", "pod", "another-uid", "node-1")
        await writes.nominate("default", "gone", "uid", "node-1")
        await writes.mark_preempted("default", "pod", "another-uid", "why", 0.0)
        assert w.pod("pod").status.nominated_node_name == ""
        assert not [condition for condition in w.pod("pod").status.conditions if condition.type == "DisruptionTarget"]


@virtual_time
async def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_raises_no_error() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        writes = PodStatusWriter(w.client)
        w.server.faults.add(Refuse(503), resource="pods/status", times=2)
        await writes.mark_preempted("default", "pod", pod.metadata.uid, "why", 0.0)
        (condition,) = [entry for entry in w.pod("pod").status.conditions if entry.type == "DisruptionTarget"]
        assert (condition.status, condition.reason, condition.message) == ("True", "PreemptionByScheduler", "why")
        w.server.faults.add(Refuse(403), resource="pods/status", times=1)
        await writes.nominate("default", "pod", pod.metadata.uid, "node-1")
        assert w.pod("pod").status.nominated_node_name == ""


@virtual_time
async def test_a_nomination_that_comes_after_the_binding_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(422, message="may not be set on pods that are already bound to a node"), times=1)
        await PodStatusWriter(w.client).nominate("default", "pod", pod.metadata.uid, "node-1")
        assert not caplog.records


@virtual_time
async def test_a_pod_whose_kubelet_is_dead_is_said_to_have_failed() -> None:
    async with world() as w:
        pod = w.create_pod("pod", finalizers=["batch.kubernetes.io/job-tracking"])
        w.create_pod("other")
        writes = PodStatusWriter(w.client)
        await writes.mark_failed("default", "pod", pod.metadata.uid)
        await writes.mark_failed("default", "other", "another-uid")
        await writes.mark_failed("default", "gone", "uid")
        assert w.server.store.get("pods", "pod", "default")["status"]["phase"] == "Failed"
        assert w.server.store.get("pods", "other", "default")["status"]["phase"] == "Pending"


@virtual_time
async def test_of_conditions_of_one_namespace_that_hang_so_many_wait_and_no_more() -> None:
    async with world() as w:
        writes = PodStatusWriter(w.client)
        w.server.faults.add(Delay(60.0), resource="pods/status")
        tasks = [
            asyncio.create_task(writes.mark_preempted("default", f"p{number}", f"uid-{number}", "why", 0.0))
            for number in range(MAX_EXPLAINED_PODS + 20)
        ]
        await asyncio.sleep(1)
        assert sum(task.done() for task in tasks) == 20
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        w.server.faults.clear()
        pod = w.create_pod("pod")
        await writes.mark_preempted("default", "pod", pod.metadata.uid, "why", 0.0)
        assert [condition.type for condition in w.pod("pod").status.conditions] == ["DisruptionTarget"]
