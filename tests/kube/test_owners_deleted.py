"""Owners that are deleted: known at once where they are watched, within seconds where they are not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from topo_scheduler.kube.owners import NEEDED_SECONDS, TICK_SECONDS, Chain, OwnerDirectory
from topo_scheduler.kube.resources import JOBS
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions

from .test_owners import TEMPLATE, create, of, ray_cluster, reference
from .virtual import now, virtual_time
from .world import World, running, world


@asynccontextmanager
async def following(
    w: World, changed: list[str] | None = None, *, needed: bool = True
) -> AsyncIterator[OwnerDirectory]:
    """A directory that follows Jobs and keeps what it asked for fresh."""
    told = changed if changed is not None else []
    owners = OwnerDirectory(w.client, on_change=told.append, needed=lambda uid: needed, clock=now)
    jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
    async with running(jobs.run(), owners.run()):
        await jobs.synced.wait()
        yield owners


def delete(w: World, kind: str, name: str, propagation: Any = "Background") -> None:
    w.server.store.delete(kind, name, "default", DeleteOptions(propagation=propagation))


@virtual_time
async def test_a_watched_owner_that_is_deleted_is_gone_at_once_for_pods_that_wait() -> None:
    async with world() as w:
        job = create(w, "jobs.batch", "train", spec={"template": TEMPLATE})
        changed: list[str] = []
        async with following(w, changed) as owners:
            pod = of(reference(job))
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
        job = create(w, "jobs.batch", "train", spec={"template": TEMPLATE})
        changed: list[str] = []
        async with following(w, changed) as owners:
            pod = of(reference(job))
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
        ray = ray_cluster(w)
        job = create(w, "jobs.batch", "part-0", spec={"template": TEMPLATE}, owner=ray)
        other = create(w, "jobs.batch", "part-1", spec={"template": TEMPLATE}, owner=ray)
        changed: list[str] = []
        async with following(w, changed) as owners:
            for item in (job, other):
                assert not (await owners.complete(of(reference(item)))).gone
            delete(w, "rayclusters.ray.io", "ray")
            delete(w, "jobs.batch", "part-0")
            await asyncio.sleep(1)
            chain = owners.resolve(of(reference(other)))
            assert isinstance(chain, Chain)
            assert chain.gone == "RayCluster ray does not exist"
            assert ray["metadata"]["uid"] in changed


@virtual_time
async def test_an_owner_that_is_not_watched_is_known_to_be_gone_within_seconds() -> None:
    async with world() as w:
        ray = ray_cluster(w)
        async with following(w) as owners:
            pod = of(reference(ray))
            assert not (await owners.complete(pod)).gone
            delete(w, "rayclusters.ray.io", "ray")
            await asyncio.sleep(NEEDED_SECONDS + TICK_SECONDS + 1)
            chain = owners.resolve(pod)
            assert isinstance(chain, Chain) and chain.gone == "RayCluster ray does not exist"
            w.server.requests.clear()
            await asyncio.sleep(300)
            gets = [entry for entry in w.server.requests.entries if "rayclusters/ray" in entry.path]
            assert not gets, "a uid never comes back: it is not asked for again"


@virtual_time
async def test_what_nothing_waits_below_is_forgotten_when_it_is_deleted() -> None:
    async with world() as w:
        job = create(w, "jobs.batch", "train", spec={"template": TEMPLATE})
        async with following(w, needed=False) as owners:
            await owners.complete(of(reference(job)))
            delete(w, "jobs.batch", "train")
            await asyncio.sleep(1)
            assert len(owners) == 0
