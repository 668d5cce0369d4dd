"""Every container of what talks to the API server has a row in the table of caps, and keeps to it."""

from dataclasses import replace
from typing import Any, Final

import pytest

from tests.bounds import SLACK_ENTRIES, bounds, check_containers
from tests.breaking.running import virtually
from tests.breaking.world import MIGRATIONS, Process, cluster, configured, owner_of
from tests.breaking.world import World as Cluster
from tests.e2e import objects
from topo_scheduler.api.objects import OwnerReference, PartialObject, Pod
from topo_scheduler.kube.connection.resources import DEPLOYMENTS, POD_METADATA, PODS
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.recovery.controller.handlers import UNKNOWN_NODES
from topo_scheduler.runtime.owner_confirmation import Existence
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions

from .virtual import now, virtual_time
from .world import View, eventually, running, world

PODS_OF_TEST = 300
SECTIONS: Final = {
    "term._conditions": "conditions",
    "term._owners": "owners",
    "term._owners._client": "client",
    "term.engine": "engine",
    "term.recovery.events": "events",
    "term.recovery._machine": "recovery",
    "term.recovery._pod_failures": "recovery.pod_failures",
}
"""What hangs at a term and has rows of its own."""
NAMESPACES: Final = 8
GANGS: Final = 24


def check(subject: object, root: str, pods: int, owners: int = 0) -> None:
    check_containers(subject, root, pods, 0, owners, (f"{root}._client",))


@virtual_time
async def test_events_and_conditions() -> None:
    async with world() as w:
        events = EventRecorder(w.client, "topo-scheduler", "topo-scheduler-0", clock=now, wall=now)
        conditions = ConditionWriter(w.client, clock=now, wall=now)
        pods = [w.create_pod(f"pod-{number}") for number in range(PODS_OF_TEST)]
        for round_ in range(3):
            for pod in pods:
                meta = pod.metadata
                regarding = ObjectReference("v1", "Pod", meta.namespace, meta.name, meta.uid)
                events.record(regarding, "Warning", "FailedScheduling", f"{round_} {'x' * 5000}", "Scheduling")
                conditions.set_unschedulable(pod, f"{round_} {'x' * 5000}")
            check(events, "events", PODS_OF_TEST)
            check(conditions, "conditions", PODS_OF_TEST)
            async with running(events.run()), running(conditions.run()):
                assert await events.flush(60)
                assert await conditions.flush(60)
            check(conditions, "conditions", PODS_OF_TEST)
        assert max(len(str(value)) for value in conditions._done.values()) < 100, "no message is kept"
        for pod in pods:
            conditions.forget(pod.metadata.uid)
        check(conditions, "conditions", 0)
        check(events, "events", 0)


@virtual_time
async def test_reflectors() -> None:
    async with world() as w:
        for number in range(PODS_OF_TEST):
            w.create_pod(f"pod-{number}")
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        async with running(reflector.run()):
            await reflector.synced.wait()
            check_containers(reflector, "reflector", PODS_OF_TEST, 0, 0, ("reflector._client", "reflector._sink"))
            for number in range(PODS_OF_TEST):
                w.remove_pod(f"pod-{number}")
            await eventually(lambda: not view.objects, within=60)
            check_containers(reflector, "reflector", 0, 0, 0, ("reflector._client", "reflector._sink"))


@virtual_time
async def test_owners() -> None:
    async with world() as w:
        directory = OwnerDirectory(w.client, clock=now)
        sink = directory.sink(DEPLOYMENTS)
        owners = []
        for number in range(PODS_OF_TEST):
            owner = PartialObject("apps/v1", "Deployment")
            owner.metadata.name, owner.metadata.namespace, owner.metadata.uid = f"d{number}", "default", f"u{number}"
            owner.metadata.annotations = {f"example.com/{n}": "x" * 5_000 for n in range(40)}
            owners.append(owner)
        sink.applied(owners)
        assert not any(owner.annotations for owner in directory._watched), "nothing reads these annotations"
        check(directory, "owners", 0, PODS_OF_TEST)
        for number in range(50):
            reference = OwnerReference(f"g{number}.made.up/v1", f"Kind{number}", "x", f"made-up-{number}", True)
            await directory.fetch("default", reference)
        check(directory, "owners", 0, PODS_OF_TEST + 50)
        sink.deleted([Deleted("default", owner.metadata.name, owner.metadata.uid) for owner in owners])
        check(directory, "owners", 0, 50)


# ---------------------------------------------------------------- a whole term


def check_term(it: Cluster, process: Process, *, over: bool = False) -> None:
    """Hold a term to its rows; once all is over, nothing about a pod, an owner or a Migration may be left."""
    kinds = ("pods", "jobs.batch", "namespaces", MIGRATIONS)
    pods, *others = (len(it.store.list(kind)) for kind in kinds)
    objects = 0 if over else pods + sum(others)
    skipped, slack = ((*SECTIONS, "term._namespaces"), 0) if over else ((), SLACK_ENTRIES)
    nodes = len(it.store.list("nodes"))
    check_containers(process.daemon.term, "term", pods, nodes, objects, skipped, SECTIONS, slack)


def submit(it: Cluster, name: str, gpus: int, **spec: Any) -> None:
    """Create gangs of two in all namespaces."""
    for number in range(GANGS):
        job = objects.gang(f"{name}-{number}", 2, gpus, namespace=f"team-{number % NAMESPACES}", **spec)
        job["spec"]["backoffLimit"] = 1_000
        it.store.create("jobs.batch", job)


def delete_all(it: Cluster, *kinds: str) -> None:
    """Delete all objects of some kinds, and what they own."""
    for kind in kinds:
        for record in list(it.store.list(kind)):
            options = DeleteOptions(propagation="Background")
            it.store.delete(kind, record.key.name, record.key.namespace, options)


def add_namespaces(it: Cluster) -> None:
    """Create the namespaces of `submit`, and its class of high priority."""
    for number in range(NAMESPACES):
        it.store.create("namespaces", {"metadata": {"name": f"team-{number}"}})
    it.store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})


@pytest.mark.timeout(300)
@virtually
async def test_a_term_while_gangs_come_preempt_move_and_go() -> None:
    async with cluster() as it:
        add_namespaces(it)
        process = it.start(configured())
        await it.leading()
        submit(it, "low", 2)
        await it.run(3)
        check_term(it, process)
        submit(it, "high", 1, priorityClassName="high")
        it.fail("s1-l1-1", "s1-l1-2")
        for _ in range(30):
            await it.run(1)
            check_term(it, process)
        assert process.daemon.term is not None
        assert process.daemon.term._owner_confirmation._pods._confirmed, "pods were preempted"
        assert it.phases(), "pods were moved"
        it.heal("s1-l1-1", "s1-l1-2")
        delete_all(it, "jobs.batch", MIGRATIONS)
        await it.run(60)
        assert not it.store.list("pods")
        check_term(it, process, over=True)
        await process.end()


@pytest.mark.timeout(300)
@virtually
async def test_a_term_while_migrations_come_and_go_with_recovery_on_and_off() -> None:
    async with cluster() as it:
        process = it.start(configured())
        await it.leading()
        term = process.daemon.term
        assert term is not None
        for number in range(80):
            it.gang(f"g{number}", 1, gpus=1)
        await it.until(lambda: it.whole())
        for number in range(80):
            (pod,) = (candidate["metadata"]["name"] for candidate in it.pods() if owner_of(candidate) == f"g{number}")
            it.request(f"m{number}", pod)
        await it.until(lambda: len(term.recovery._moved_owners) > 0)
        check_term(it, process)
        term.configure(configured(enabled=False))
        await it.run(10)
        check_term(it, process)
        assert term.recovery._answered
        delete_all(it, "jobs.batch", MIGRATIONS)
        await it.run(10)
        check_term(it, process, over=True)
        term.configure(configured())
        await it.run(10)
        check_term(it, process, over=True)
        await process.end()


@virtually
async def test_nodes_whose_deletion_kopf_missed_are_forgotten() -> None:
    async with cluster() as it:
        process = it.start(configured())
        await it.leading()
        await it.run(5)
        term = process.daemon.term
        assert term is not None and term.recovery._watcher is not None and term.recovery._machine is not None
        posted = term.recovery._watcher._last_posted
        (health, *_), known = posted.values(), set(posted)
        for number in range(2 * UNKNOWN_NODES):
            deleted = replace(health, name=f"gone-{number}", uid=f"gone-{number}")
            posted[deleted.name] = deleted
            term.recovery._machine.detection.seen(deleted, term.recovery.clock())
        it.fail("s1-l1-1")
        await it.run(60)
        assert set(posted) == known == term.recovery._machine.detection.names()
        check_term(it, process)
        await process.end()


@virtual_time
async def test_confirmations_of_pods_that_preempt() -> None:
    async with world() as w:
        existing = Existence(w.client, POD_METADATA, now)
        for number in range(1_010):
            pod = w.create_pod(f"pod-{number}")
            assert not await existing.refusal("default", pod.metadata.name, pod.metadata.uid)
        assert bounds("term")["term._owner_confirmation._pods._confirmed"].startswith("1,000 entries")
        assert 0 < len(existing._confirmed) <= 1_000
        assert not existing._asking


@virtual_time
async def test_statuses_of_pods() -> None:
    async with world() as w:
        statuses = PodStatusWriter(w.client)
        for number in range(3):
            meta = w.create_pod(f"pod-{number}").metadata
            named = meta.namespace, meta.name, meta.uid
            await statuses.nominate(*named, "node")
            await statuses.mark_preempted(*named, "preempted", 0.0)
            await statuses.mark_failed(*named)
        left = statuses._failing, statuses._writing, statuses._nodes, statuses._explaining
        assert not any(left), left
