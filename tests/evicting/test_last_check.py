"""What is decided and queued is not yet done: right before an eviction leaves, its reason is looked at again."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.helpers import Owner, make_node, make_pod
from tests.kube.test_owners import CRD, TEMPLATE, create, ray_cluster, reference
from tests.kube.virtual import now, virtual_time
from tests.kube.world import World, world
from tests.observability.test_metrics import samples
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import OwnerReference, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.writing.evictions import Evictor
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.runtime.executor import EVICTIONS_OF_NAMESPACE, Executor, Writers
from topo_scheduler.runtime.owner_confirmation import ANSWER_SECONDS, MOST_PODS, OwnerConfirmation
from topo_scheduler.scheduling.instructions import Preempt
from topo_scheduler.simulation.apiserver import Delay, Refuse
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions

Json = dict[str, Any]


@dataclass
class Events:
    """Takes events, and keeps their reasons."""

    reasons: list[str] = field(default_factory=list)

    def record(self, regarding: object, kind: str, reason: str, note: str, action: str, *, more: bool = False) -> None:
        """As of an EventRecorder."""
        self.reasons.append(reason)


@dataclass
class Evicting:
    """A cluster of one full node a victim, an engine that would preempt, and an executor that writes to a server."""

    world: World
    driver: Driver
    executor: Executor
    events: Events
    tasks: list[asyncio.Task[None]]

    def decide(self) -> int:
        """Have the engine take a step, and start what it wants; return how many evictions that are."""
        self.driver.said.clear()
        self.driver.now = now()
        self.driver.step()
        wanted = [one for one in self.driver.said if isinstance(one, Preempt)]
        for instruction in wanted:
            self.executor.carry_out(instruction)
        return len(wanted)

    async def settled(self) -> None:
        """Wait until everything that was started has ended."""
        await asyncio.gather(*self.tasks)

    @property
    def evictions(self) -> int:
        """Evictions that reached the server."""
        return self.world.asked("create", "pods/eviction")

    def counted(self) -> dict[str, float]:
        """Return how many preemptions a scrape shows, by outcome."""
        name = "topology_scheduler_preemption_victims_total"
        seen = samples(self.executor._metrics)
        return {dict(labels)["outcome"]: value for (one, labels), value in seen.items() if one == name}

    @property
    def running(self) -> int:
        """Victims that are not being deleted."""
        pods = self.world.server.store.list("pods")
        return sum("deletionTimestamp" not in pod["metadata"] for pod in pods if "-low-" in pod["metadata"]["name"])


@asynccontextmanager
async def evicting(w: World, owner: Json, size: int = 2, confirm: bool = True) -> AsyncIterator[Evicting]:
    """A gang of ``size`` pods below ``owner`` that would preempt as many."""
    d = Driver([make_node(f"n{n}", f"s1/l{n // 8}") for n in range(size)])
    d.now = now()
    d.engine.budgets_known()
    name, victims = owner["metadata"]["name"], []
    for n in range(size):
        uid = w.create_pod(f"{name}-low-{n}", finalizers=["example.com/wait"]).metadata.uid
        victims.append(make_pod(f"{name}-low-{n}", uid=uid, gpus=8, node=f"n{n}", scheduler="other", phase="Running"))
    d.apply(*victims)
    uid = owner["metadata"]["uid"]
    d.own(Owner(owner["kind"], owner["metadata"]["name"], uid=uid))
    members = _members(owner, size)
    for member in members:
        member.metadata.uid = w.create_pod(member.metadata.name).metadata.uid
    d.apply(*members)

    def changed(uid: str) -> None:
        chain = owners.resolve(_members(owner, 1)[0].metadata)
        if gone := getattr(chain, "gone", ""):
            d.now = now()
            d.disown(uid, gone)

    owners = OwnerDirectory(w.client, on_change=changed, needed=lambda uid: True, clock=now)
    await owners.complete(_members(owner, 1)[0].metadata)
    tasks: list[asyncio.Task[None]] = []
    events = Events()

    def start(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.create_task(work, name=name))

    async def nothing(_: object) -> str:
        return ""

    writers = Writers(
        *cast("tuple[Any, Any, Any]", (None, None, None)),
        Evictor(w.client),
        PodStatusWriter(w.client),
        *cast("tuple[Any, Any, Any]", (events, None, None)),
    )
    asked = OwnerConfirmation(d.engine, owners, w.client, now)
    executor = Executor(
        d.engine,
        writers,
        Metrics(Snapshot),
        name="topo-scheduler",
        clock=now,
        wall=now,
        start=start,
        changed=lambda: None,
        confirm=asked.of_pending if confirm else nothing,
    )
    try:
        yield Evicting(w, d, executor, events, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _members(owner: Json, size: int) -> list[Pod]:
    found = reference(owner)
    return [
        make_pod(
            f"{found['name']}-{n}",
            gpus=8,
            owner=OwnerReference(found["apiVersion"], found["kind"], found["name"], found["uid"], True),
            priority=10,
            annotations={"gang-name": "train", "gang-size": str(size)},
        )
        for n in range(size)
    ]


def delete(w: World, kind: str, name: str, propagation: Any = "Background") -> None:
    w.server.store.delete(kind, name, "default", DeleteOptions(propagation=propagation))


@virtual_time
async def test_pods_are_evicted_for_a_gang_whose_owner_is_there() -> None:
    async with world() as w, evicting(w, ray_cluster(w)) as e:
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
        job = create(w, "jobs.batch", "train", spec={"template": TEMPLATE})
        async with evicting(w, job, size, confirm=False) as e:
            w.server.faults.add(Delay(2.0), verb="create", resource="pods/eviction")
            assert e.decide() == size
            await asyncio.sleep(1)
            assert e.evictions == EVICTIONS_OF_NAMESPACE
            e.driver.disown(job["metadata"]["uid"])
            await e.settled()
            assert e.evictions == EVICTIONS_OF_NAMESPACE and e.running == size - EVICTIONS_OF_NAMESPACE


@virtual_time
async def test_an_eviction_that_is_tried_again_is_withdrawn_when_its_gang_is_deleted() -> None:
    async with world() as w:
        job = create(w, "jobs.batch", "train", spec={"template": TEMPLATE})
        async with evicting(w, job, confirm=False) as e:
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
        owner = ray_cluster(w, "train") if "ray" in kind else create(w, kind, "train", spec={"template": TEMPLATE})
        async with evicting(w, owner) as e:
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
    async with world() as w, evicting(w, ray_cluster(w)) as e:
        store = w.server.store
        if finalizers:
            store.modify("namespaces", "default", "", lambda obj: with_finalizers(obj, finalizers))
        assert e.decide() == 2
        store.delete("namespaces", "default", "", DeleteOptions())
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)
        assert e.decide() == 0, "its pods are left out"


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
@virtual_time
async def test_nothing_is_evicted_for_a_gang_of_which_a_pod_was_deleted_a_moment_ago(again: bool) -> None:
    """The watch of pods is late; its owner is still there."""
    async with world() as w, evicting(w, ray_cluster(w)) as e:
        assert e.decide() == 2
        delete(w, "pods", "ray-1")
        if again:
            w.create_pod("ray-1")
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)


@virtual_time
async def test_nothing_is_evicted_for_a_gang_whose_owner_may_not_be_read_any_more() -> None:
    async with world() as w, evicting(w, ray_cluster(w)) as e:
        w.server.faults.add(Refuse(403), verb="get", resource="rayclusters")
        assert e.decide() == 2
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)


@virtual_time
async def test_nothing_is_evicted_for_a_job_that_was_suspended_a_moment_ago() -> None:
    async with world() as w:
        job = create(w, "jobs.batch", "train", spec={"template": TEMPLATE})
        async with evicting(w, job) as e:
            assert e.decide() == 2
            suspend = {"suspend": True}
            w.server.store.modify("jobs.batch", "train", "default", lambda obj: {**obj, "spec": obj["spec"] | suspend})
            await e.settled()
            assert (e.evictions, e.running) == (0, 2)


@pytest.mark.parametrize(("spec", "evictions"), [({"suspend": True}, 0), ({"suspend": False}, 2), ("odd", 2)])
@virtual_time
async def test_nothing_is_evicted_for_an_owner_that_was_suspended_a_moment_ago(spec: Any, evictions: int) -> None:
    """Its kind is not watched, and of it only the metadata is followed."""
    async with world() as w, evicting(w, ray_cluster(w)) as e:
        assert e.decide() == 2
        w.server.store.modify("rayclusters.ray.io", "ray", "default", lambda obj: {**obj, "spec": spec})
        await e.settled()
        assert e.evictions == evictions


@virtual_time
async def test_nothing_is_evicted_for_a_deployment_that_was_scaled_to_nothing_a_moment_ago() -> None:
    async with world() as w:
        labels = {"matchLabels": {"app": "web"}}
        template = {"metadata": {"labels": {"app": "web"}}, **TEMPLATE}
        owner = create(w, "replicasets.apps", "web", spec={"replicas": 2, "selector": labels, "template": template})
        async with evicting(w, owner) as e:
            assert e.decide() == 2
            none = {"replicas": 0}
            w.server.store.modify("replicasets.apps", "web", "default", lambda obj: {**obj, "spec": obj["spec"] | none})
            await e.settled()
            assert (e.evictions, e.running) == (0, 2)


@virtual_time
async def test_many_evictions_ask_once_for_each_pod() -> None:
    async with world() as w, evicting(w, ray_cluster(w), 40) as e:
        w.server.requests.clear()
        assert e.decide() == 40
        await e.settled()
        assert e.evictions == 40
        assert w.asked("get", "pods") <= MOST_PODS


@virtual_time
async def test_nothing_is_evicted_while_nobody_answers_for_the_namespace() -> None:
    async with world() as w, evicting(w, ray_cluster(w)) as e:
        w.server.faults.add(Delay(600.0), where=lambda info: info.path.endswith("/namespaces/default"))
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
    async with world() as w, evicting(w, ray_cluster(w)) as e:
        assert e.decide() == 2
        w.server.store.delete("customresourcedefinitions.apiextensions.k8s.io", CRD["metadata"]["name"], "")
        await e.settled()
        assert (e.evictions, e.running) == (0, 2)


@virtual_time
async def test_nothing_is_evicted_while_the_owner_does_not_answer_and_the_gang_tries_again_later() -> None:
    async with world() as w, evicting(w, ray_cluster(w)) as e:
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
    async with world() as w, evicting(w, ray_cluster(w), size) as e, evicting(w, ray_cluster(w, "other")) as other:
        w.server.faults.add(Delay(600.0), where=lambda info: info.path.endswith("/rayclusters/ray"))
        other.executor._evictions = e.executor._evictions
        assert e.decide() == size and other.decide() == 2
        began = now()
        await other.settled()
        assert other.evictions == 2 and now() - began < 1
