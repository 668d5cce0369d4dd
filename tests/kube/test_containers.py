"""Every container of what talks to the API server has a row in the table of caps, and keeps to it."""

from tests.bounds import check_containers
from topo_scheduler.api.objects import OwnerReference, PartialObject, Pod
from topo_scheduler.kube.connection.resources import DEPLOYMENTS, PODS
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference

from .virtual import now, virtual_time
from .world import View, eventually, running, world

PODS_OF_TEST = 300


def check(one: object, root: str, pods: int, owners: int = 0) -> None:
    check_containers(one, root, pods, 0, owners, (f"{root}._client",))


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
        kept = [one.annotations for one in directory._watched.values()]
        assert max(sum(map(len, one.values())) for one in kept) <= 16_384
        check(directory, "owners", 0, PODS_OF_TEST)
        for number in range(50):
            reference = OwnerReference(f"g{number}.made.up/v1", f"Kind{number}", "x", f"made-up-{number}", True)
            await directory.fetch("default", reference)
        check(directory, "owners", 0, PODS_OF_TEST + 50)
        sink.deleted([Deleted("default", one.metadata.name, one.metadata.uid) for one in owners])
        check(directory, "owners", 0, 50)
