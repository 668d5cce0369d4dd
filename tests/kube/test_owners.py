"""From a pod up to the workload its user wrote, of whatever kind, and "not there" only when the server said so."""

import asyncio
import json
from typing import Any

import pytest

from topo_scheduler.kube.connection.errors import Unreachable
from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS
from topo_scheduler.kube.connection.resources import CRONJOBS, JOBS
from topo_scheduler.kube.connection.retrying import RIGHTS_SECONDS
from topo_scheduler.kube.reading.discovery import Discovery
from topo_scheduler.kube.reading.owner_chains import Chain, Missing, Unconfirmed
from topo_scheduler.kube.reading.owners import NEEDED_SECONDS, TICK_SECONDS, OwnerDirectory
from topo_scheduler.simulation.apiserver import Delay, Disconnect, EmbeddedAPIServer, Refuse, Truncate
from topo_scheduler.simulation.apiserver.faults import Fault

from .owner_objects import (
    POD_TEMPLATE,
    Json,
    controller_reference,
    create_object,
    create_ray_cluster,
    metadata_owned_by,
)
from .virtual import now, virtual_time
from .world import World, connected, running, world


def directory(w: World, changes: list[str] | None = None) -> OwnerDirectory:
    return OwnerDirectory(w.client, on_change=(changes if changes is not None else []).append, clock=now)


def made_up(**changes: Any) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u", "controller": True, **changes}


@virtual_time
async def test_a_pod_without_a_controller_has_no_owners() -> None:
    async with world() as w:
        assert directory(w).resolve(metadata_owned_by()) == Chain()
        assert directory(w).resolve(metadata_owned_by(made_up(controller=False))) == Chain()


@virtual_time
async def test_watched_kinds_are_climbed_without_a_request() -> None:
    async with world() as w:
        cron = create_object(
            w,
            "cronjobs.batch",
            "nightly",
            spec={"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": POD_TEMPLATE}}},
        )
        job = create_object(
            w,
            "jobs.batch",
            "nightly-1",
            owner=cron,
            spec={"parallelism": 4, "completions": 8, "template": POD_TEMPLATE},
        )
        owners = directory(w)
        jobs, crons = w.reflector(JOBS, owners.sink(JOBS)), w.reflector(CRONJOBS, owners.sink(CRONJOBS))  # type: ignore[arg-type]
        async with running(jobs.run(), crons.run()):
            await jobs.synced.wait()
            await crons.synced.wait()
            w.server.requests.clear()
            chain = owners.resolve(metadata_owned_by(controller_reference(job)))
            assert isinstance(chain, Chain)
            assert [(owner.kind, owner.api_version, owner.name) for owner in chain.owners] == [
                ("Job", "batch/v1", "nightly-1"),
                ("CronJob", "batch/v1", "nightly"),
            ]
            assert chain.owners[1].annotations == {"topology.scheduler/from": "nightly"}
            assert chain.owners[0].job is not None
            assert chain.owners[0].job.spec.parallelism == 4
            assert not w.server.requests


@virtual_time
async def test_any_served_kind_is_found_by_one_get() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        owners = directory(w)
        pod = metadata_owned_by(controller_reference(ray))
        assert isinstance(owners.resolve(pod), Missing)
        chains = await asyncio.gather(*[owners.complete(pod) for _ in range(50)])
        assert all(chain.owners[0].annotations == {"topology.scheduler/from": "ray"} for chain in chains)
        assert w.asked("get", "rayclusters") == 1
        another = create_ray_cluster(w, "ray-2")
        await owners.complete(metadata_owned_by(controller_reference(another)))
        assert sum(entry.path == "/apis/ray.io/v1" for entry in w.server.requests) == 1, "discovered once"


@virtual_time
async def test_an_owner_whose_watch_is_a_little_behind_is_waited_for() -> None:
    async with world() as w:
        owners = directory(w)
        jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
        async with running(jobs.run()):
            await jobs.synced.wait()
            await asyncio.sleep(1)
            job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
            began = now()
            assert (await owners.complete(metadata_owned_by(controller_reference(job)))).owners[0].name == "train"
            assert now() - began < 0.1
            assert w.asked("get", "jobs") == 0


@virtual_time
async def test_an_owner_whose_watch_is_far_behind_is_asked_for() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"parallelism": 3, "template": POD_TEMPLATE})
        (owner,) = (await directory(w).complete(metadata_owned_by(controller_reference(job)))).owners
        assert owner.job is not None
        assert owner.job.spec.parallelism == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "ConfigMap x does not exist"),
        ({"apiVersion": "missing.io/v1", "kind": "Thing"}, "Thing x: missing.io/v1 has no such kind"),
        ({"apiVersion": "v1", "kind": "Thing"}, "Thing x: v1 has no such kind"),
        ({"name": "../../secrets/x"}, "is not a name of the Kubernetes API"),
        ({"apiVersion": "../v1", "kind": "Thing"}, "is not a name of the Kubernetes API"),
    ],
)
@virtual_time
async def test_what_is_not_there_ends_the_chain_with_the_reason(changes: Json, reason: str) -> None:
    async with world() as w:
        owners = directory(w)
        pod = metadata_owned_by(made_up(**changes))
        chain = await owners.complete(pod)
        assert chain.owners == ()
        assert reason in chain.broken
        assert not chain.forbidden
        w.server.requests.clear()
        assert owners.resolve(pod) == chain
        assert not w.server.requests, "remembered"


@virtual_time
async def test_another_object_under_the_name_is_not_the_owner() -> None:
    async with world() as w:
        ray = controller_reference(create_ray_cluster(w))
        chain = await directory(w).complete(metadata_owned_by({**ray, "uid": "earlier"}))
        assert (chain.owners, chain.broken) == ((), "RayCluster ray was deleted, and another of this name was created")
        assert chain.gone == chain.broken


@pytest.mark.parametrize(
    "lie", [{"name": "other"}, {"kind": "CronJob"}, {"apiVersion": "ray.io/v1"}, {"namespace": "x"}]
)
@virtual_time
async def test_a_uid_borrowed_from_another_object_leads_nowhere(lie: Json) -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        owners = directory(w)
        assert (await owners.complete(metadata_owned_by(controller_reference(job)))).owners
        namespace = lie.pop("namespace", "default")
        chain = await owners.complete(metadata_owned_by({**controller_reference(job), **lie}, namespace=namespace))
        assert chain.owners == ()
        assert chain.broken


@virtual_time
async def test_a_borrowed_uid_hides_no_owner_from_the_pods_below_it() -> None:
    """The answer for a reference from another namespace, or by another name, is not the answer for the uid."""
    async with world() as w:
        ray = create_ray_cluster(w)
        owners = directory(w)
        for lie, namespace in (({}, "evil"), ({"name": "other"}, "default"), ({"kind": "CronJob"}, "default")):
            assert not (
                await owners.complete(metadata_owned_by({**controller_reference(ray), **lie}, namespace=namespace))
            ).owners
        assert [
            owner.name for owner in (await owners.complete(metadata_owned_by(controller_reference(ray)))).owners
        ] == ["ray"]


@virtual_time
async def test_a_circle_and_an_endless_chain_end() -> None:
    async with world() as w:
        create_ray_cluster(w)
        names = [f"ring-{number}" for number in range(12)]
        ring = [create_object(w, "rayclusters.ray.io", name) for name in names]
        for mine, above in zip(ring, ring[1:] + ring[:1], strict=True):

            def own(obj: Json, above: Json = above) -> Json:
                return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [controller_reference(above)]}}

            w.server.store.modify("rayclusters.ray.io", mine["metadata"]["name"], "default", own)
        chain = await directory(w).complete(metadata_owned_by(controller_reference(ring[0])))
        assert len(chain.owners) == 8
        assert "closes a circle, or is owner 9" in chain.broken


@virtual_time
async def test_a_missing_permission_is_said_once_and_kept_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with world(EmbeddedAPIServer(rbac=True)) as w:
        rays = [create_ray_cluster(w), create_ray_cluster(w, "ray-2")]
        w.server.store.create("serviceaccounts", {"metadata": {"name": "topo"}}, "default")
        path = "/api/v1/namespaces/default/serviceaccounts/topo/token"
        token = json.loads(await w.client.request("POST", path, body=b"{}", timeout=5))["status"]["token"]
        async with connected(w.server, token) as client:
            owners = OwnerDirectory(client, clock=now)
            for ray in rays:
                chain = await owners.complete(metadata_owned_by(controller_reference(ray)))
                assert chain.forbidden
                assert "grant the verb get on rayclusters.ray.io" in chain.broken
        assert sum("grant the verb get" in record.getMessage() for record in caplog.records) == 1


@virtual_time
async def test_an_owner_that_may_not_be_read_any_more_is_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        pods = [metadata_owned_by(controller_reference(create_ray_cluster(w, name))) for name in ("ray", "ray-2")]
        changed: list[str] = []
        owners = OwnerDirectory(w.client, on_change=changed.append, needed=lambda uid: True, clock=now)
        before = [await owners.complete(pod) for pod in pods]
        async with running(owners.run()):
            w.server.faults.add(Refuse(403), verb="get", resource="rayclusters")
            await asyncio.sleep(NEEDED_SECONDS + TICK_SECONDS + RIGHTS_SECONDS + 1)
            for pod, chain in zip(pods, before, strict=True):
                current = await owners.complete(pod)
                assert [owner.annotations for owner in current.owners] == [owner.annotations for owner in chain.owners]
                assert "grant the verb get on rayclusters.ray.io" in current.complaint
                assert current.complaint == current.doubt and current.complaint.endswith("its last known state is used")
                assert not current.gone
            assert len(changed) == 2
            assert sum("its last known state is used" in record.getMessage() for record in caplog.records) == 1
            w.server.faults.clear()
            await asyncio.sleep(NEEDED_SECONDS + TICK_SECONDS + 1)
            assert [await owners.complete(pod) for pod in pods] == before


@virtual_time
async def test_an_owner_that_may_not_be_read_is_not_confirmed() -> None:
    """Whether it is watched, or asked for; and not one second later either."""
    async with world() as w:
        job = create_object(w, "jobs.batch", "job", spec={"template": POD_TEMPLATE}, owner=create_ray_cluster(w))
        owners = OwnerDirectory(w.client, clock=now)
        jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
        async with running(jobs.run()):
            await jobs.synced.wait()
            pod = metadata_owned_by(controller_reference(job))
            await owners.complete(pod)
            for kind in ("jobs", "rayclusters"):
                w.server.faults.add(Refuse(403), verb="get", resource=kind)
                for _ in range(2):
                    chain = await owners.confirm(pod, age=1, within=60)
                    assert isinstance(chain, Chain) and f"grant the verb get on {kind}" in chain.doubt
                w.server.faults.clear()
                await asyncio.sleep(1.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spec": {"suspend": True}}, "Job job is suspended (spec.suspend)"),
        ({"spec": {"parallelism": 0}}, "Job job has a parallelism of 0"),
        *(
            ({"status": {"conditions": [{"type": kind, "status": "True"}]}}, f"Job job has the condition {kind}")
            for kind in ("SuccessCriteriaMet", "Complete", "FailureTarget", "Failed")
        ),
        ({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}, ""),
        ({"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}, ""),
    ],
)
@virtual_time
async def test_a_job_that_runs_no_more_pods_takes_those_with_it_that_it_has(change: Json, reason: str) -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "job", spec={"template": POD_TEMPLATE})
        changed: list[str] = []
        owners = OwnerDirectory(w.client, on_change=changed.append, clock=now)
        jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
        async with running(jobs.run()):
            await jobs.synced.wait()
            pod = metadata_owned_by(controller_reference(job))
            assert not (await owners.complete(pod)).gone

            def merge(into: Json) -> None:
                for name, part in into.items():

                    def change_part(obj: Json, name: str = name, part: Json = part) -> Json:
                        return {**obj, name: {**obj.get(name, {}), **part}}

                    subresource = "status" if name == "status" else ""
                    w.server.store.modify("jobs.batch", "job", "default", change_part, subresource=subresource)

            merge(change)
            await asyncio.sleep(1)
            assert (await owners.complete(pod)).gone == reason
            assert bool(changed) == bool(reason)
            merge({"spec": {"suspend": False, "parallelism": 1}, "status": {"conditions": []}})
            await asyncio.sleep(1)
            assert not (await owners.complete(pod)).gone


@virtual_time
async def test_indexes_that_fail_for_good_are_news_and_of_them_only_the_number_is_kept() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "job", spec={"template": POD_TEMPLATE})
        changed: list[str] = []
        owners = OwnerDirectory(w.client, on_change=changed.append, clock=now)
        jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
        async with running(jobs.run()):
            await jobs.synced.wait()
            failed = {"failedIndexes": ",".join(map(str, range(1, 2_000, 2)))}
            w.server.store.modify(
                "jobs.batch", "job", "default", lambda obj: {**obj, "status": failed}, subresource="status"
            )
            await asyncio.sleep(1)
            (link,) = (await owners.complete(metadata_owned_by(controller_reference(job)))).owners
            assert changed == [job["metadata"]["uid"]]
            assert link.job is not None and link.job.status.failed_index_count == 1_000
            assert len(link.job.status.failed_indexes) < 10


NO_ROLES_YET = Refuse(403, message='rays is forbidden: User "topo" cannot get resource "rayclusters"')


@virtual_time
async def test_a_server_that_has_not_read_its_roles_yet_hides_no_owner() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        w.server.faults.add(NO_ROLES_YET, verb="get", resource="rayclusters", times=3)
        chain = await directory(w).complete(metadata_owned_by(controller_reference(ray)))
        assert not chain.forbidden
        assert len(chain.owners) == 1


@virtual_time
async def test_a_missing_permission_is_named_though_each_caller_has_less_time_than_roles_may_take() -> None:
    async with world() as w:
        pod = metadata_owned_by(controller_reference(create_ray_cluster(w)))
        owners = directory(w)
        await owners.complete(pod)
        w.server.faults.add(NO_ROLES_YET, verb="get", resource="rayclusters")
        for _ in range(2):
            unconfirmed = await owners.confirm(pod, age=0.0, within=RIGHTS_SECONDS / 2)
            assert isinstance(unconfirmed, Unconfirmed)
            assert unconfirmed.reason == "RayCluster ray cannot be read: grant the verb get on rayclusters.ray.io"
        for _ in range(2):
            chain = await owners.confirm(pod, age=0.0, within=RIGHTS_SECONDS / 2)
            assert isinstance(chain, Chain)
            assert "grant the verb get on rayclusters.ray.io" in chain.doubt


@pytest.mark.parametrize("fault", [Refuse(429), Refuse(500), Disconnect(), Truncate()], ids=repr)
@virtual_time
async def test_no_answer_is_not_an_answer(fault: Fault) -> None:
    async with world() as w:
        pod = metadata_owned_by(controller_reference(create_ray_cluster(w)))
        w.server.faults.add(fault, times=3)
        owners = directory(w)
        assert (await owners.complete(pod)).owners, "sat out"
        await w.server.go_away()
        unknown = metadata_owned_by(made_up())
        with pytest.raises(Unreachable):
            await owners.complete(unknown)
        assert isinstance(owners.resolve(unknown), Missing), "still open"
        await w.server.come_back()
        assert (await owners.complete(unknown)).broken


@virtual_time
async def test_a_caller_that_gives_up_waiting_does_not_take_the_answer_from_others() -> None:
    async with world() as w:
        pod = metadata_owned_by(controller_reference(create_ray_cluster(w)))
        w.server.faults.add(Delay(2.0), verb="get", resource="rayclusters")
        owners = directory(w)
        first = asyncio.create_task(owners.complete(pod))
        second = asyncio.create_task(owners.complete(pod))
        await asyncio.sleep(1)
        first.cancel()
        assert (await second).owners


@virtual_time
async def test_changes_of_watched_owners_are_reported() -> None:
    async with world() as w:
        changes: list[str] = []
        job = create_object(w, "jobs.batch", "train", spec={"parallelism": 2, "template": POD_TEMPLATE})
        uid = job["metadata"]["uid"]
        owners = directory(w, changes)
        jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
        async with running(jobs.run()):
            await jobs.synced.wait()
            await asyncio.sleep(0.5)
            assert not changes
            w.annotate("train", "topology.scheduler/level", "leaf", kind="jobs.batch")
            await asyncio.sleep(0.5)
            assert changes == [uid]
            w.server.store.modify(
                "jobs.batch", "train", "default", lambda obj: {**obj, "spec": {**obj["spec"], "parallelism": 5}}
            )
            await asyncio.sleep(0.5)
            assert changes == [uid, uid]
            w.server.store.modify(
                "jobs.batch", "train", "default", lambda obj: {**obj, "status": {"active": 2}}, subresource="status"
            )
            await asyncio.sleep(0.5)
            assert changes == [uid, uid], "running pods do not matter"


@virtual_time
async def test_fetched_owners_are_kept_fresh_while_they_are_used_and_then_dropped() -> None:
    async with world() as w:
        changes: list[str] = []
        ray = create_ray_cluster(w)
        pod = metadata_owned_by(controller_reference(ray))
        owners = directory(w, changes)
        async with running(owners.run()):
            await owners.complete(pod)
            w.annotate("ray", "topology.scheduler/level", "leaf", kind="rayclusters.ray.io")
            await asyncio.sleep(70)
            assert changes == [ray["metadata"]["uid"]]
            chain = owners.resolve(pod)
            assert isinstance(chain, Chain)
            assert chain.owners[0].annotations["topology.scheduler/level"] == "leaf"
            w.server.faults.add(Refuse(500))
            w.server.requests.clear()
            await asyncio.sleep(200)
            assert owners.resolve(pod) == chain, "a refresh that fails changes nothing"
            assert len(w.server.requests) <= 4 * 4, "and is not repeated at once"
            w.server.faults.clear()
            for _ in range(3):
                await asyncio.sleep(300)
                owners.resolve(pod)
            assert len(owners) == 1
            await asyncio.sleep(700)
            assert len(owners) == 0


@virtual_time
async def test_an_owner_of_a_pending_pod_is_kept_fresh_though_no_decision_resolves_it() -> None:
    """A pending pod is not tried again by itself: the corrected annotation must be noticed hours later."""
    async with world() as w:
        changes: list[str] = []
        ray = create_ray_cluster(w)
        uid = ray["metadata"]["uid"]
        waiting = {uid}
        owners = OwnerDirectory(w.client, on_change=changes.append, needed=waiting.__contains__, clock=now)
        async with running(owners.run()):
            await owners.complete(metadata_owned_by(controller_reference(ray)))
            await asyncio.sleep(7200)
            w.annotate("ray", "topology.scheduler/level", "leaf", kind="rayclusters.ray.io")
            await asyncio.sleep(70)
            assert changes == [uid]
            waiting.clear()
            await asyncio.sleep(700)
            assert len(owners) == 0


@virtual_time
async def test_a_kind_that_comes_later_is_found_later() -> None:
    async with world() as w:
        changes: list[str] = []
        owners = directory(w, changes)
        thing = made_up(apiVersion="ray.io/v1", kind="RayCluster", name="ray")
        assert (await owners.complete(metadata_owned_by(thing))).broken
        ray = create_ray_cluster(w)
        discovery = Discovery(w.client, clock=now)
        assert await discovery.find("ray.io/v1", "Other") is None
        assert (await discovery.find("ray.io/v1", "RayCluster")) is not None
        async with running(owners.run()):
            await asyncio.sleep(140)
        assert (await owners.complete(metadata_owned_by(controller_reference(ray)))).owners


async def hanging_owner(w: World, owners: OwnerDirectory) -> asyncio.Task[Any]:
    """Start to read the owner of a pod in the namespace ``slow``, for which there is no answer."""
    w.server.faults.add(Delay(60.0), where=lambda info: info.namespace == "slow")
    pod = metadata_owned_by(made_up(kind="ConfigMap"), namespace="slow")
    task = asyncio.create_task(owners.complete(pod))
    await asyncio.sleep(HANGS_AFTER_SECONDS + 1)
    assert not task.done()
    return task


@virtual_time
async def test_an_answer_from_the_cache_of_kinds_does_not_show_that_the_api_server_answers() -> None:
    async with world() as w:
        owners = directory(w)
        nothing = made_up(apiVersion="made.up/v1", kind="Nothing")
        assert (await owners.complete(metadata_owned_by(nothing))).broken
        task = await hanging_owner(w, owners)
        asked = len(w.server.requests)
        assert (await owners.complete(metadata_owned_by({**nothing, "uid": "another"}))).broken
        chain = await owners.confirm(metadata_owned_by(nothing), age=0.0, within=5.0)
        assert isinstance(chain, Chain) and chain.broken
        assert len(w.server.requests) == asked, "the kind is known not to be served"
        assert not owners._slots._shares._hung and not owners._confirmations._shares._hung
        await owners.complete(metadata_owned_by(made_up()))
        assert owners._slots._shares.is_marked("slow"), "the API server answered"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual_time
async def test_a_refresh_that_fails_does_not_show_that_the_api_server_answers() -> None:
    async with world() as w:
        owners, ray = directory(w), create_ray_cluster(w)
        await owners.complete(metadata_owned_by(controller_reference(ray)))
        w.server.faults.add(Refuse(503), where=lambda info: "/rayclusters" in info.path)
        task = await hanging_owner(w, owners)
        ((key, fetched),) = owners._fetched.items()
        await owners._refresh(key)
        assert fetched.unanswered == 1
        assert not owners._slots._shares._hung
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual_time
async def test_the_bulk_of_kubectl_apply_is_not_kept() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        w.annotate("ray", "kubectl.kubernetes.io/last-applied-configuration", "x" * 9_999, kind="rayclusters.ray.io")
        (owner,) = (await directory(w).complete(metadata_owned_by(controller_reference(ray)))).owners
        assert owner.annotations == {"topology.scheduler/from": "ray"}


@virtual_time
async def test_invented_kinds_cost_one_request_together() -> None:
    async with world() as w:
        owners = directory(w)
        w.server.requests.clear()
        pods = [
            metadata_owned_by(
                made_up(apiVersion=f"made{number}.up/v1", kind=f"Kind{number}", uid=f"u{number}"), namespace="hostile"
            )
            for number in range(4000)
        ]
        chains = await asyncio.gather(*[owners.complete(pod) for pod in pods])
        assert all("has no such kind" in chain.broken for chain in chains)
        assert [entry.path for entry in w.server.requests] == ["/apis"]


@virtual_time
async def test_a_group_that_appears_is_found_soon() -> None:
    async with world() as w:
        owners = directory(w)
        assert (
            "no such kind"
            in (await owners.complete(metadata_owned_by(made_up(apiVersion="ray.io/v1", kind="RayCluster")))).broken
        )
        ray = create_ray_cluster(w)
        await asyncio.sleep(11)
        assert (await owners.complete(metadata_owned_by(controller_reference(ray)))).owners


@virtual_time
async def test_one_namespace_with_many_owners_does_not_hold_up_the_others() -> None:
    async with world() as w:
        owners = directory(w)
        ray = create_ray_cluster(w)
        await owners.complete(metadata_owned_by(controller_reference(ray)))
        w.server.faults.add(Delay(1.0), where=lambda info: "/namespaces/" in info.path)
        hostile = [
            asyncio.create_task(
                owners.complete(metadata_owned_by(made_up(uid=f"u{number}", name=f"n{number}"), namespace="hostile"))
            )
            for number in range(400)
        ]
        await asyncio.sleep(0.5)
        began = now()
        another = create_ray_cluster(w, "ray-2")
        assert (await owners.complete(metadata_owned_by(controller_reference(another)))).owners
        assert now() - began < 3, "400 owners of another namespace need 100 s"
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        assert not len(owners._slots)
        assert not owners._slots._shares._held


@virtual_time
async def test_a_group_whose_server_hangs_does_not_hold_up_other_groups() -> None:
    async with world() as w:
        ray = create_ray_cluster(w)
        owners = directory(w)
        w.server.faults.add(Delay(60.0), where=lambda info: info.path == "/apis/batch/v1")
        stuck = asyncio.create_task(
            owners.complete(metadata_owned_by(made_up(apiVersion="batch/v1", kind="Thing", uid="stuck")))
        )
        await asyncio.sleep(0.5)
        began = now()
        assert (await owners.complete(metadata_owned_by(controller_reference(ray)))).owners
        assert now() - began < 3
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)


@virtual_time
async def test_owners_that_no_pod_needs_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.kube.reading.fetched_owners.MAX_FETCHED_OWNERS", 50)
    async with world() as w:
        needed = {f"u{number}" for number in range(10)}
        owners = OwnerDirectory(w.client, needed=needed.__contains__, clock=now)
        for number in range(200):
            await owners.complete(metadata_owned_by(made_up(uid=f"u{number}", name=f"n{number}")))
        assert len(owners) <= 51
        assert needed <= {owner.reference.uid for _, owner in owners._fetched.items()}


@virtual_time
async def test_an_owner_beyond_the_cap_in_bytes_counts_as_one_that_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        ray, owners = create_ray_cluster(w, "whole"), directory(w)
        pod = metadata_owned_by(controller_reference(ray))
        await owners.complete(pod)
        monkeypatch.setattr("topo_scheduler.kube.reading.owner_reader.MAX_ANSWER_BYTES", 50)
        confirmed = await owners.confirm(pod, age=0.0, within=5.0)
        assert isinstance(confirmed, Chain) and [owner.name for owner in confirmed.owners] == ["whole"]
        assert "RayCluster whole has more than 50 bytes as JSON; create it with fewer" in confirmed.doubt
        unknown = await directory(w).complete(pod)
        assert not unknown.owners and unknown.forbidden and unknown.complaint.endswith("create it with fewer")
