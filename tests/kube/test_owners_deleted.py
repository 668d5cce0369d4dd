"""Owners that are deleted: known at once where they are watched, within seconds where they are not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from topo_scheduler.api.objects import ObjectMeta, PartialObject
from topo_scheduler.kube.connection.errors import KubeError
from topo_scheduler.kube.connection.resources import JOBS, Resource
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.kube.reading.discovery import KEPT_SECONDS
from topo_scheduler.kube.reading.halting import halted, with_spec
from topo_scheduler.kube.reading.owner_chains import Chain, Missing, Unconfirmed
from topo_scheduler.kube.reading.owners import NEEDED_SECONDS, TICK_SECONDS, UNANSWERED_MOST_SECONDS, OwnerDirectory
from topo_scheduler.simulation.apiserver import BreakWatch, Delay, Refuse, RequestInfo
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions

from .owner_objects import POD_TEMPLATE, controller_reference, create_object, create_ray_cluster, metadata_owned_by
from .virtual import now, virtual_time
from .world import World, eventually, running, world

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


@asynccontextmanager
async def following(
    w: World, changed: list[str] | None = None, *, needed: bool = True
) -> AsyncIterator[OwnerDirectory]:
    """A directory that follows Jobs and keeps what it asked for fresh."""
    changes = changed if changed is not None else []
    owners = OwnerDirectory(w.client, on_change=changes.append, needed=lambda uid: needed, clock=now)
    jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
    async with running(jobs.run(), owners.run()):
        await jobs.synced.wait()
        yield owners


def delete(w: World, kind: str, name: str, propagation: Any = "Background") -> None:
    w.server.store.delete(kind, name, "default", DeleteOptions(propagation=propagation))


def known_gone(owners: OwnerDirectory, pod: ObjectMeta) -> str:
    chain = owners.resolve(pod)
    return chain.gone if isinstance(chain, Chain) else ""


@virtual_time
async def test_a_watched_owner_that_is_deleted_is_gone_at_once_for_pods_that_wait() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        changed: list[str] = []
        async with following(w, changed) as owners:
            pod = metadata_owned_by(controller_reference(job))
            assert not (await owners.complete(pod)).gone
            delete(w, "jobs.batch", "train")
            await asyncio.sleep(1)
            assert changed == [job["metadata"]["uid"]]
            chain = owners.resolve(pod)
            assert isinstance(chain, Chain)
            assert (chain.owners, chain.gone) == ((), "Job train was deleted")


@pytest.mark.parametrize("propagation", ["Foreground", "Orphan"])
@virtual_time
async def test_an_owner_with_a_deletion_timestamp_is_being_deleted(propagation: str) -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        changed: list[str] = []
        async with following(w, changed) as owners:
            pod = metadata_owned_by(controller_reference(job))
            await owners.complete(pod)
            delete(w, "jobs.batch", "train", propagation)
            await asyncio.sleep(1)
            chain = owners.resolve(pod)
            assert isinstance(chain, Chain)
            assert chain.gone == "Job train is being deleted" and changed


@virtual_time
async def test_an_owner_that_is_not_watched_is_asked_for_again_when_one_below_it_is_deleted() -> None:
    """As a JobSet above a Job: the garbage collector deletes its Jobs one by one."""
    async with world() as w:
        ray = create_ray_cluster(w)
        job = create_object(w, "jobs.batch", "part-0", spec={"template": POD_TEMPLATE}, owner=ray)
        other = create_object(w, "jobs.batch", "part-1", spec={"template": POD_TEMPLATE}, owner=ray)
        changed: list[str] = []
        async with following(w, changed) as owners:
            for item in (job, other):
                assert not (await owners.complete(metadata_owned_by(controller_reference(item)))).gone
            delete(w, "rayclusters.ray.io", "ray")
            delete(w, "jobs.batch", "part-0")
            await asyncio.sleep(1)
            chain = owners.resolve(metadata_owned_by(controller_reference(other)))
            assert isinstance(chain, Chain)
            assert chain.gone == "RayCluster ray does not exist"
            assert ray["metadata"]["uid"] in changed


@virtual_time
async def test_an_owner_that_is_not_watched_is_known_to_be_gone_within_seconds() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        async with following(w) as owners:
            pod = metadata_owned_by(controller_reference(ray))
            assert not (await owners.complete(pod)).gone
            delete(w, "rayclusters.ray.io", "ray")
            await asyncio.sleep(NEEDED_SECONDS + TICK_SECONDS + 1)
            chain = owners.resolve(pod)
            assert isinstance(chain, Chain) and chain.gone == "RayCluster ray does not exist"
            w.server.requests.clear()
            await asyncio.sleep(300)
            gets = [entry for entry in w.server.requests if "rayclusters/ray" in entry.path]
            assert not gets, "a uid never comes back: it is not asked for again"


@virtual_time
async def test_what_nothing_waits_below_is_forgotten_when_it_is_deleted() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with following(w, needed=False) as owners:
            await owners.complete(metadata_owned_by(controller_reference(job)))
            delete(w, "jobs.batch", "train")
            await asyncio.sleep(1)
            assert len(owners) == 0


@virtual_time
async def test_owners_that_hang_delay_no_other_namespace() -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}})
        ray = create_ray_cluster(w)
        hung = []
        for number in range(50):
            obj = {"metadata": {"name": f"hung-{number}"}}
            hung.append(w.server.store.create("rayclusters.ray.io", obj, "hostile").obj)
        async with following(w) as owners:
            for item in hung:
                await owners.complete(metadata_owned_by(controller_reference(item), namespace="hostile"))
            pod = metadata_owned_by(controller_reference(ray))
            assert not (await owners.complete(pod)).gone
            w.server.faults.add(Delay(600.0), where=lambda info: "/namespaces/hostile/" in info.path)
            await asyncio.sleep(3 * NEEDED_SECONDS)
            delete(w, "rayclusters.ray.io", "ray")
            began = now()
            await eventually(lambda: known_gone(owners, pod), NEEDED_SECONDS + TICK_SECONDS + 1)
            assert now() > began, "not known before it was asked for"
            # Asked again less and less often, and 4 at once at most: 12 s each.
            w.server.requests.clear()
            await asyncio.sleep(600)
            assert 0 < len([entry for entry in w.server.requests if "/hostile/" in entry.path]) <= 4 * 600 / 10
            w.server.faults.clear()
            w.server.store.delete("rayclusters.ray.io", "hung-49", "hostile", DeleteOptions())
            await asyncio.sleep(UNANSWERED_MOST_SECONDS + 2 * TICK_SECONDS)
            chain = await owners.complete(metadata_owned_by(controller_reference(hung[49]), namespace="hostile"))
            assert chain.gone == "RayCluster hung-49 does not exist"


@virtual_time
async def test_an_owner_whose_definition_is_deleted_is_gone_with_it() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        changed: list[str] = []
        async with following(w, changed) as owners:
            pod = metadata_owned_by(controller_reference(ray))
            assert not (await owners.complete(pod)).gone
            w.server.store.delete(DEFINITIONS, "rayclusters.ray.io", "", DeleteOptions())
            await asyncio.sleep(NEEDED_SECONDS + TICK_SECONDS + 1)
            chain = owners.resolve(pod)
            assert isinstance(chain, Chain)
            text = "RayCluster ray: ray.io/v1 has no such kind any more, so it was deleted"
            assert (chain.owners, chain.gone) == ((), text)
            assert ray["metadata"]["uid"] in changed


@virtual_time
async def test_a_kind_that_was_never_served_is_not_gone_and_unconfirmed() -> None:
    """Its CustomResourceDefinition may come yet."""
    async with world() as w, following(w) as owners:
        thing = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "u", "controller": True}
        chain = await owners.complete(metadata_owned_by(thing))
        assert not chain.gone and chain.unconfirmed
        await asyncio.sleep(100)
        ray = create_ray_cluster(w)
        await asyncio.sleep(100)
        assert (await owners.complete(metadata_owned_by(controller_reference(ray)))).owners


@pytest.mark.parametrize("where", ["/apis/ray.io/v1", "rayclusters/ray"])
@virtual_time
async def test_an_aggregated_api_that_is_down_is_no_answer(where: str) -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        async with following(w) as owners:
            pod = metadata_owned_by(controller_reference(ray))
            before = await owners.complete(pod)
            w.server.faults.add(Refuse(503), where=lambda info: info.path.endswith(where))
            await asyncio.sleep(KEPT_SECONDS + 200)
            assert owners.resolve(pod) == before
            assert isinstance(await owners.confirm(pod, age=1, within=5), Unconfirmed)


def answers_404(where: str) -> Callable[[RequestInfo], bool]:
    return lambda info: info.path.endswith(where)


@pytest.mark.parametrize("where", ["", "/apis", "/apis/ray.io/v1", "rayclusters/ray"])
@virtual_time
async def test_a_load_balancer_that_answers_404_deletes_no_owner(where: str) -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        async with following(w) as owners:
            pod = metadata_owned_by(controller_reference(ray))
            before = await owners.complete(pod)
            w.server.faults.add(Refuse(404), where=answers_404(where))
            await asyncio.sleep(KEPT_SECONDS + 200)
            assert owners.resolve(pod) == before
            assert where == "/apis" or isinstance(await owners.confirm(pod, age=1, within=5), Unconfirmed)


@virtual_time
async def test_a_load_balancer_that_answers_404_deletes_no_watched_owner() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with following(w) as owners:
            pod = metadata_owned_by(controller_reference(job))
            before = await owners.complete(pod)
            w.server.faults.add(Refuse(404), verb="get")
            assert isinstance(await owners.confirm(pod, age=1, within=5), Unconfirmed)
            assert owners.resolve(pod) == before
            w.server.faults.clear()
            assert await owners.confirm(pod, age=1, within=5) == before


@virtual_time
async def test_an_owner_that_is_first_read_while_a_load_balancer_answers_404_is_open() -> None:
    async with world() as w:
        references = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "u", "controller": True},
            controller_reference(create_ray_cluster(w)),
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "map", "uid": "u", "controller": True},
        ]
        async with following(w) as owners:
            for reference in references:
                pod = metadata_owned_by(reference)
                rule = w.server.faults.add(Refuse(404))
                with pytest.raises(KubeError):
                    await owners.complete(pod)
                assert isinstance(owners.resolve(pod), Missing)
                w.server.faults.remove(rule)
                assert not isinstance(await owners.complete(pod), Missing)


@virtual_time
async def test_a_version_that_is_served_no_more_hides_no_owner() -> None:
    """The reference names the version that the pod's controller knew; the object is read as another."""
    async with world() as w:
        ray = create_ray_cluster(w)
        async with following(w) as owners:
            earlier = {**controller_reference(ray), "apiVersion": "ray.io/v1alpha1"}
            chain = await owners.complete(metadata_owned_by(earlier))
            assert [owner.name for owner in chain.owners] == ["ray"] and not chain.unconfirmed


# ---------------------------------------------------------------- confirmed


@virtual_time
async def test_confirming_asks_again_for_owners_that_are_watched_and_for_those_that_are_not() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        job = create_object(w, "jobs.batch", "part-0", spec={"template": POD_TEMPLATE}, owner=ray)
        async with following(w) as owners:
            pod = metadata_owned_by(controller_reference(job))
            before = await owners.complete(pod)
            w.server.requests.clear()
            confirmed = await asyncio.gather(*[owners.confirm(pod, age=1, within=5) for _ in range(64)])
            assert all(chain == before for chain in confirmed)
            assert w.asked("get", "rayclusters") == w.asked("get", "jobs") == 1
            delete(w, "rayclusters.ray.io", "ray")
            assert (await owners.confirm(pod, age=1, within=5)) == before, "answered less than a second ago"
            await asyncio.sleep(1.1)
            chain = await owners.confirm(pod, age=1, within=5)
            assert isinstance(chain, Chain) and chain.gone == "RayCluster ray does not exist"


@virtual_time
async def test_a_slow_answer_confirms_all_requests_made_before_it_arrived() -> None:
    """Or of the victims of one gang only the first is evicted, in vain, and again with each try."""
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with following(w) as owners:
            pod = metadata_owned_by(controller_reference(job))
            before = await owners.complete(pod)
            w.server.faults.add(Delay(4.0), verb="get")
            asking = []
            for _ in range(8):  # also by those that come while it is on its way
                asking.append(asyncio.create_task(owners.confirm(pod, age=1, within=5)))
                await asyncio.sleep(0.3)
            assert await asyncio.gather(*asking) == [before] * 8
            w.server.requests.clear()
            assert await owners.confirm(pod, age=1, within=5) == before
            assert w.asked("get", "jobs"), "an answer is as old as its request"


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
@virtual_time
async def test_confirming_is_ahead_of_a_watch_that_is_late(propagation: str) -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        changed: list[str] = []
        async with following(w, changed) as owners:
            pod = metadata_owned_by(controller_reference(job))
            await owners.complete(pod)
            w.server.faults.add(BreakWatch("silence"), verb="watch", resource="jobs")
            await asyncio.sleep(400)  # until the watch that was begun before has ended
            delete(w, "jobs.batch", "train", propagation)
            await asyncio.sleep(1)
            chain = owners.resolve(pod)
            assert isinstance(chain, Chain) and not chain.gone, "the watch is late"
            confirmed = await owners.confirm(pod, age=1, within=5)
            assert isinstance(confirmed, Chain) and confirmed.gone and confirmed == owners.resolve(pod)
            assert changed == [job["metadata"]["uid"]]


@virtual_time
async def test_an_owner_that_hangs_is_not_confirmed_and_delays_no_other() -> None:
    async with world() as w:
        rays = [create_ray_cluster(w, name) for name in ("hung", "ray")]
        async with following(w) as owners:
            for ray in rays:
                await owners.complete(metadata_owned_by(controller_reference(ray)))
            w.server.faults.add(Delay(600.0), where=lambda info: info.path.endswith("/hung"))
            began = now()
            hung = [
                asyncio.create_task(owners.confirm(metadata_owned_by(controller_reference(rays[0])), age=1, within=5))
                for _ in range(40)
            ]
            assert isinstance(
                await owners.confirm(metadata_owned_by(controller_reference(rays[1])), age=1, within=5), Chain
            )
            assert now() - began < 1
            assert all(isinstance(answer, Unconfirmed) for answer in await asyncio.gather(*hung))
            assert now() - began == pytest.approx(5, abs=0.5)


@virtual_time
async def test_a_borrowed_uid_is_not_confirmed_and_ends_no_owner() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with following(w) as owners:
            borrowed = metadata_owned_by({**controller_reference(job), "name": "other"})
            chain = await owners.confirm(borrowed, age=0, within=5)
            assert isinstance(chain, Chain) and chain.unconfirmed
            assert not (await owners.complete(metadata_owned_by(controller_reference(job)))).gone


def suspend(w: World, name: str, value: bool) -> None:
    w.server.store.modify("rayclusters.ray.io", name, "default", lambda obj: {**obj, "spec": {"suspend": value}})


@virtual_time
async def test_pods_of_a_suspended_owner_that_is_not_watched_are_about_to_go_until_it_is_resumed() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        suspend(w, "ray", True)
        changed: list[str] = []
        async with following(w, changed) as owners:
            pod = metadata_owned_by(controller_reference(ray))
            assert (await owners.complete(pod)).gone == "RayCluster ray is suspended (spec.suspend)"
            await asyncio.sleep(60)
            suspend(w, "ray", False)
            assert known_gone(owners, pod), "the client reads it again when the scheduler checks a pod below it"
            await eventually(lambda: not known_gone(owners, pod), within=1)
            assert changed == [ray["metadata"]["uid"]]
            suspend(w, "ray", True)
            await eventually(lambda: bool(known_gone(owners, pod)), within=NEEDED_SECONDS + TICK_SECONDS)
            suspend(w, "ray", False)
            await asyncio.sleep(2 * TICK_SECONDS + 1)
            assert not known_gone(owners, pod), "no pod has to be read"


@virtual_time
async def test_a_suspended_owner_is_asked_for_a_few_times_a_second_at_most_however_many_pods_are_below_it() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        suspend(w, "ray", True)
        async with following(w) as owners:
            pod = metadata_owned_by(controller_reference(ray))
            await owners.complete(pod)
            before = w.asked("get", "rayclusters")
            for _ in range(2_000):
                owners.resolve(pod)
                await asyncio.sleep(0.005)
            assert w.asked("get", "rayclusters") - before <= 10


@pytest.mark.parametrize(
    ("kind", "spec", "why"),
    [
        ("PyTorchJob", {"runPolicy": {"suspend": True}}, "PyTorchJob x is suspended (spec.runPolicy.suspend)"),
        ("PyTorchJob", {"runPolicy": {"suspend": False}, "suspend": True}, ""),
        ("PyTorchJob", {"runPolicy": [True]}, ""),
        ("PyTorchJob", {}, ""),
    ],
)
def test_training_jobs_say_elsewhere_that_they_are_suspended(kind: str, spec: Any, why: str) -> None:
    resource = with_spec(Resource("kubeflow.org", "v1", "pytorchjobs", kind, PartialObject))
    assert resource is not None
    item = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    assert halted(resource, Codec(resource).one(msgspec.json.encode(item))) == why
