"""What is decided and queued is not yet done: right before an eviction leaves, its reason is checked again."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from tests.evicting.eviction_scenes import eviction_scene, report_namespaces
from tests.kube.owner_objects import (
    POD_TEMPLATE,
    RAY_CLUSTER_DEFINITION,
    Json,
    create_object,
    create_ray_cluster,
)
from tests.kube.virtual import now, virtual_time
from tests.kube.world import World, world
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS
from topo_scheduler.runtime.evicting import EVICTIONS_OF_NAMESPACE, _Confirmation
from topo_scheduler.runtime.owner_confirmation import ANSWER_SECONDS, CONFIRMED_SECONDS, MAX_PODS
from topo_scheduler.scheduling.instructions import Bind, EvictionOutcome, MarkUnschedulable, PodRef, Preempt
from topo_scheduler.simulation.apiserver import Delay, Refuse
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions


def delete(w: World, kind: str, name: str, propagation: Any = "Background") -> None:
    w.server.store.delete(kind, name, "default", DeleteOptions(propagation=propagation))


@virtual_time
async def test_pods_are_evicted_for_a_gang_whose_owner_is_there() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        assert e.decide() == 2
        await e.settled()
        assert (e.evictions, e.running) == (2, 0)
        assert e.events.reasons == [Reason.PREEMPTED] * 2
        assert e.counted() == {"evicted": 2}


@virtual_time
async def test_an_eviction_that_is_queued_is_withdrawn_when_its_gang_is_deleted() -> None:
    """More than are in flight at once: the first hang, and the others are not sent at all."""
    size = EVICTIONS_OF_NAMESPACE + 24
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job, size, confirm=False) as e:
            w.server.faults.add(Delay(2.0), verb="create", resource="pods/eviction")
            assert e.decide() == size
            await asyncio.sleep(1)
            assert e.evictions == EVICTIONS_OF_NAMESPACE
            e.driver.disown(job["metadata"]["uid"])
            await e.settled()
            assert e.evictions == EVICTIONS_OF_NAMESPACE and e.running == size - EVICTIONS_OF_NAMESPACE


@virtual_time
async def test_owners_of_a_preemptor_that_do_not_answer_do_not_mark_the_namespace_of_its_victim() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        evictions = e.executor._evictions
        shares = evictions._for_others._shares

        async def confirm(_: PodRef) -> str:
            await asyncio.sleep(ANSWER_SECONDS)
            return ""

        evictions._confirm = confirm
        preempt = Preempt(PodRef("victim", "v", "v"), "n1", "to make room", PodRef("hostile", "p", "p"))

        async def evict(confirmed_at: float) -> None:
            async with evictions._slot(preempt, _Confirmation("", confirmed_at)):
                await asyncio.sleep(0.1)

        task = asyncio.create_task(evict(now() - 2 * CONFIRMED_SECONDS))
        await asyncio.sleep(HANGS_AFTER_SECONDS + 0.5)
        async with evictions._for_others.slot("other"):
            await asyncio.sleep(0.1)
        assert shares._held == {"victim": 1} and not shares.is_marked("victim")
        await task
        assert not shares._held


@virtual_time
async def test_owners_of_one_preemptor_that_are_gone_do_not_end_the_eviction_for_another() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        evictions = e.executor._evictions
        preempt = Preempt(PodRef("victim", "v", "v"), "n1", "to make room", PodRef("hostile", "p", "p"))
        async with AsyncExitStack() as slots:
            for _ in range(EVICTIONS_OF_NAMESPACE):
                await slots.enter_async_context(evictions._for_others.slot("victim"))
            confirmation = _Confirmation("job hostile/j was deleted", now())
            first = asyncio.create_task(evictions._request(preempt, confirmation, None))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(evictions._of_earlier("v"))
            await asyncio.sleep(0.1)
        assert (await first)[0] is EvictionOutcome.UNCONFIRMED
        assert await second is None, "it requests the eviction itself"


@virtual_time
async def test_an_eviction_that_is_tried_again_is_withdrawn_when_its_gang_is_deleted() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job, confirm=False) as e:
            w.server.faults.add(Refuse(500), verb="create", resource="pods/eviction")
            assert e.decide() == 2
            await asyncio.sleep(1)
            e.driver.disown(job["metadata"]["uid"])
            w.server.faults.clear()
            await e.settled()
            assert e.running == 2 and Reason.PREEMPTED not in e.events.reasons
            assert e.counted() == {"withdrawn": 2}


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
@pytest.mark.parametrize("kind", ["jobs.batch", "rayclusters.ray.io"])
@virtual_time
async def test_nothing_is_evicted_for_a_gang_whose_owner_was_deleted_a_moment_ago(kind: str, propagation: str) -> None:
    """Neither a watch nor a refresh has reported it yet."""
    async with world() as w:
        owner = (
            create_ray_cluster(w, "train")
            if "ray" in kind
            else create_object(w, kind, "train", spec={"template": POD_TEMPLATE})
        )
        async with eviction_scene(w, owner) as e:
            assert e.decide() == 2
            delete(w, kind, "train", propagation)
            await e.settled()
            assert (e.evictions, e.running) == (0, 2)
            assert e.decide() == 0, "its pods are left out"


def with_finalizers(obj: Json, finalizers: list[str]) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "finalizers": finalizers}}


@pytest.mark.parametrize("finalizers", [["kubernetes"], []], ids=["being deleted", "gone"])
@virtual_time
async def test_nothing_is_evicted_for_a_gang_whose_namespace_was_deleted_a_moment_ago(finalizers: list[str]) -> None:
    """Its owner is still there, and the watch of namespaces has not reported it yet."""
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        store = w.server.store
        if finalizers:
            store.modify("namespaces", "default", "", lambda obj: with_finalizers(obj, finalizers))
        assert e.decide() == 2
        store.delete("namespaces", "default", "", DeleteOptions())
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)
        assert e.decide() == 0, "its pods are left out"


@pytest.mark.parametrize("late", [False, True], ids=["answer first", "answer late"])
@virtual_time
async def test_a_namespace_that_was_deleted_during_a_preemption_and_created_again_is_scheduled(*, late: bool) -> None:
    """The watch may report it before the answer about the deleted one arrives."""
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        engine, store = e.driver.engine, w.server.store
        w.server.faults.add(Delay(1.0), where=lambda info: info.path.endswith("/namespaces/default"))
        assert e.decide() == 2
        stored = store.find("namespaces", "default")
        assert stored is not None
        store.remove(store.kind("namespaces"), stored)
        await asyncio.sleep(0.5)
        if not late:
            await e.settled()
            assert e.decide() == 0, "its pods are left out"
        engine.namespace_deleted("default")
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)
        store.create("namespaces", {"metadata": {"name": "default"}})
        report_namespaces(w, e.driver)
        assert e.decide() == 2


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
@virtual_time
async def test_nothing_is_evicted_for_a_gang_of_which_a_pod_was_deleted_a_moment_ago(again: bool) -> None:
    """The watch of pods is late; its owner is still there."""
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        assert e.decide() == 2
        delete(w, "pods", "ray-1")
        if again:
            w.create_pod("ray-1")
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)


@virtual_time
async def test_nothing_is_evicted_for_a_gang_whose_owner_may_not_be_read_any_more() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        w.server.faults.add(Refuse(403), verb="get", resource="rayclusters")
        assert e.decide() == 2
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("pods", "the scheduler may not read pod default/ray-0: {refusal} (grant get on pods)"),
        ("namespaces", "the scheduler may not read namespace default: {refusal} (grant get on namespaces)"),
        ("rayclusters", "RayCluster ray cannot be read: grant the verb get on rayclusters.ray.io"),
    ],
)
@virtual_time
async def test_a_permission_that_is_missing_before_an_eviction_is_named(
    resource: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = "ray.io" if resource == "rayclusters" else ""
    named = "rayclusters.ray.io" if group else resource
    refusal = f'{named} "x" is forbidden: User "topo" cannot get resource "{resource}" in API group "{group}"'
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        await asyncio.sleep(CONFIRMED_SECONDS + 0.1)
        w.server.faults.add(Refuse(403, message=refusal), verb="get", resource=resource)
        pod = PodRef("default", "ray-0", w.pod("ray-0").metadata.uid)
        began = now()
        reason = await e.executor._evictions._confirm(pod)
        assert reason == expected.format(refusal=refusal)
        assert now() - began <= ANSWER_SECONDS
        assert not e.driver.engine.arrivals.leaving.take_namespaces(), "it is not deleted"
    assert any(reason in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


@virtual_time
async def test_nothing_is_evicted_for_a_job_that_was_suspended_a_moment_ago() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job) as e:
            assert e.decide() == 2
            suspend = {"suspend": True}
            w.server.store.modify("jobs.batch", "train", "default", lambda obj: {**obj, "spec": obj["spec"] | suspend})
            await e.settled()
            assert (e.evictions, e.running) == (0, 2)


@pytest.mark.parametrize(("spec", "evictions"), [({"suspend": True}, 0), ({"suspend": False}, 2), ("odd", 2)])
@virtual_time
async def test_nothing_is_evicted_for_an_owner_that_was_suspended_a_moment_ago(spec: Any, evictions: int) -> None:
    """Its kind is not watched, and of it only the metadata is followed."""
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        assert e.decide() == 2
        w.server.store.modify("rayclusters.ray.io", "ray", "default", lambda obj: {**obj, "spec": spec})
        await e.settled()
        assert e.evictions == evictions


@virtual_time
async def test_nothing_is_evicted_for_a_deployment_that_was_scaled_to_nothing_a_moment_ago() -> None:
    async with world() as w:
        labels = {"matchLabels": {"app": "web"}}
        template = {"metadata": {"labels": {"app": "web"}}, **POD_TEMPLATE}
        owner = create_object(
            w, "replicasets.apps", "web", spec={"replicas": 2, "selector": labels, "template": template}
        )
        async with eviction_scene(w, owner) as e:
            assert e.decide() == 2
            none = {"replicas": 0}
            w.server.store.modify("replicasets.apps", "web", "default", lambda obj: {**obj, "spec": obj["spec"] | none})
            await e.settled()
            assert (e.evictions, e.running) == (0, 2)


@virtual_time
async def test_many_evictions_ask_once_for_each_pod() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w), 40) as e:
        w.server.requests.clear()
        assert e.decide() == 40
        await e.settled()
        assert e.evictions == 40
        assert w.asked("get", "pods") <= MAX_PODS


@virtual_time
async def test_nothing_is_evicted_while_no_answer_comes_for_the_namespace() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        w.server.faults.add(Delay(600.0), where=lambda info: info.path.endswith("/namespaces/default"))
        assert e.decide() == 2
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)
        w.server.faults.clear()
        await asyncio.sleep(100)
        assert e.decide() == 2
        await e.settled()
        assert (e.evictions, e.running) == (2, 0)


@pytest.mark.parametrize("kind", ["jobs.batch", "rayclusters.ray.io"])
@pytest.mark.parametrize("answered", ["", "/namespaces/default", "/pods/train-0", "/train"])
@virtual_time
async def test_a_load_balancer_that_answers_404_only_delays_an_eviction(kind: str, answered: str) -> None:
    async with world() as w:
        owner = (
            create_ray_cluster(w, "train")
            if "ray" in kind
            else create_object(w, kind, "train", spec={"template": POD_TEMPLATE})
        )
        async with eviction_scene(w, owner) as e:
            w.server.faults.add(Refuse(404), where=lambda info: info.path.endswith(answered))
            assert e.decide() == 2
            await e.settled()
            assert (e.evictions, e.running) == (0, 2)
            w.server.faults.clear()
            await asyncio.sleep(100)
            assert e.decide() == 2
            await e.settled()
            assert (e.evictions, e.running) == (2, 0)


@virtual_time
async def test_nothing_is_evicted_when_the_definition_of_the_owner_was_deleted() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        assert e.decide() == 2
        w.server.store.delete(
            "customresourcedefinitions.apiextensions.k8s.io", RAY_CLUSTER_DEFINITION["metadata"]["name"], ""
        )
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)


@virtual_time
async def test_nothing_is_evicted_while_the_owner_does_not_answer_and_the_gang_tries_again_later() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        w.server.faults.add(Delay(600.0), where=lambda info: "/rayclusters/" in info.path)
        assert e.decide() == 2
        began = now()
        await e.settled()
        assert now() - began == pytest.approx(ANSWER_SECONDS, abs=0.5)
        assert (e.evictions, e.running) == (0, 2)
        asked = 0
        for _ in range(60):
            await asyncio.sleep(1)
            asked += bool(e.decide())
            await e.settled()
        assert 1 <= asked <= 10, "after pauses that double"
        w.server.faults.clear()
        await asyncio.sleep(100)
        assert e.decide() == 2
        await e.settled()
        assert (e.evictions, e.running) == (2, 0)


@virtual_time
async def test_an_owner_that_does_not_answer_delays_no_other_eviction() -> None:
    size = EVICTIONS_OF_NAMESPACE
    async with (
        world() as w,
        eviction_scene(w, create_ray_cluster(w), size) as e,
        eviction_scene(w, create_ray_cluster(w, "other")) as other,
    ):
        w.server.faults.add(Delay(600.0), where=lambda info: info.path.endswith("/rayclusters/ray"))
        other.executor._evictions._for_others = e.executor._evictions._for_others
        assert e.decide() == size and other.decide() == 2
        began = now()
        await other.settled()
        assert other.evictions == 2 and now() - began < 1


@pytest.mark.parametrize("deleted", [0, 1], ids=["the first pod", "another pod"])
@pytest.mark.parametrize("asks", [False, True], ids=["before the request", "during the request"])
@virtual_time
async def test_nothing_is_evicted_for_a_gang_that_lost_a_pod_before_its_evictions_leave(
    deleted: int, asks: bool
) -> None:
    """Its owner was deleted too, and no watch has reported that yet."""
    async with world() as w, eviction_scene(w, create_ray_cluster(w), 3) as e:
        if asks:
            w.server.faults.add(Delay(0.5), verb="get", resource="rayclusters")
            w.server.faults.add(Delay(0.5), verb="get", resource="pods")
        else:
            delete(w, "rayclusters.ray.io", "ray")
        assert e.decide() == 3
        if asks:
            await asyncio.sleep(0.1)
        member = next(pod for pod in e.driver.pods.values() if pod.metadata.name == f"ray-{deleted}")
        e.driver.delete(member)
        await e.settled()
        assert (e.evictions, e.running) == (0, 3)
        assert e.decide() == 0, "the gang lacks a pod"
        assert not e.driver.engine.preempting.nominations


@pytest.mark.internal_errors
@virtual_time
async def test_an_instruction_that_raises_is_left_out_and_a_bind_is_requested_again() -> None:
    async with world() as w, eviction_scene(w, create_ray_cluster(w)) as e:
        engine, executor = e.driver.engine, e.executor
        e.decide()
        pod = next(pod for pod in e.driver.pods.values() if pod.metadata.name == "ray-0")
        reference = PodRef("default", "ray-0", pod.metadata.uid)
        executor.carry_out(MarkUnschedulable(reference, "no room", now()))  # the scene has no writer of conditions
        await e.settled()
        e.driver.delete(*(pod for pod in e.driver.pods.values() if "-low-" in pod.metadata.name))
        e.driver.now = now()
        bind = next(instruction for instruction in e.driver.step() if isinstance(instruction, Bind))
        executor._binds = cast("Any", None)
        executor.carry_out(bind)
        due = engine.next_due()
        assert due is not None
        e.driver.now = due
        assert bind in e.driver.step()
