"""Owners of pods are kept without what nothing reads, and large ones have a budget of memory for each namespace."""

import asyncio
import logging

import pytest

from topo_scheduler.api.objects import Job, JobStatus, ObjectMeta
from topo_scheduler.kube.connection.resources import DEPLOYMENTS, JOBS
from topo_scheduler.kube.reading import watched_owners
from topo_scheduler.kube.reading.owner_chains import Chain, ChainLink, Missing, owner_of
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.watched_owners import WatchedOwners

from .owner_objects import POD_TEMPLATE, controller_reference, create_object, metadata_owned_by
from .virtual import now, virtual_time
from .world import running, world

LEVEL = "topology.scheduler/required-level"


def job(number: int, namespace: str = "hostile", characters: int = 4_000) -> Job:
    annotations = {f"topology.scheduler/a{part}": "x" * (characters // 4) for part in range(4)}
    meta = ObjectMeta(
        name=f"j{number}", namespace=namespace, uid=f"{namespace}-{number}", labels={"a": "b"}, annotations=annotations
    )
    return Job(meta)


def link(number: int, namespace: str = "hostile", characters: int = 4_000) -> ChainLink:
    return owner_of(JOBS, job(number, namespace, characters))


def test_of_an_owner_only_the_annotations_are_kept_that_are_read() -> None:
    large = job(1, characters=60_000)
    large.metadata.annotations |= {LEVEL: "leaf", "example.com/a": "x" * 9_000, "example.com/plugin": "y"}
    owner = owner_of(JOBS, large, ["example.com/plugin"])
    assert owner.annotations[LEVEL] == "leaf"
    assert sum(len(name) + len(value) for name, value in owner.annotations.items()) <= 8_192
    assert "example.com/a" not in owner.annotations
    assert owner.job is not None
    assert owner.job.metadata.annotations is owner.annotations
    assert not owner.job.metadata.labels
    plain = job(2)
    plain.metadata.annotations = {LEVEL: "leaf", "example.com/a": "x", "example.com/plugin": "y"}
    assert owner_of(JOBS, plain, ["example.com/plugin"]).annotations == {LEVEL: "leaf", "example.com/plugin": "y"}
    assert JobStatus() == owner.job.status


def test_large_owners_of_a_namespace_have_a_budget_and_others_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched_owners, "MAX_OWNER_BYTES_OF_NAMESPACE", 5 * 4_000 + 5 * 1_000)
    owners = WatchedOwners()
    with caplog.at_level(logging.WARNING):
        assert [owners.put(link(number)) for number in range(10)] == [True] * 5 + [False] * 5
    (record,) = caplog.records
    assert "namespace hostile: annotations of its Jobs, Deployments and other owners" in record.getMessage()
    assert owners.put(link(1, "victim"))
    assert all(owners.put(link(number, characters=800)) for number in range(20, 200)), "ordinary ones are always kept"
    assert owners.put(link(3)), "it is known already"
    owners.pop("hostile-3")
    assert owners.put(link(9))
    for owner in list(owners):
        owners.pop(owner.uid)
    assert not owners._memory.bytes_of("hostile")


@virtual_time
async def test_an_owner_beyond_the_budget_is_read_when_a_pod_needs_it_and_kept_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watched_owners, "MAX_OWNER_BYTES_OF_NAMESPACE", 10)
    monkeypatch.setattr(watched_owners, "ORDINARY_OWNER_CHARACTERS", 10)
    async with world() as w:
        changes: list[str] = []
        train = create_object(w, "jobs.batch", "train", spec={"parallelism": 2, "template": POD_TEMPLATE})
        uid = train["metadata"]["uid"]
        pod = metadata_owned_by(controller_reference(train))
        owners = OwnerDirectory(w.client, on_change=changes.append, needed=lambda uid: True, clock=now)
        jobs = w.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
        async with running(jobs.run(), owners.run()):
            await jobs.synced.wait()
            await asyncio.sleep(0.5)
            assert isinstance(owners.resolve(pod), Missing)
            chain = await owners.complete(pod)
            assert chain.owners[0].annotations == {"topology.scheduler/from": "train"}
            w.annotate("train", LEVEL, "leaf", kind="jobs.batch")
            await asyncio.sleep(0.5)
            assert changes == [uid]
            known = owners.resolve(pod)
            assert isinstance(known, Chain)
            assert known.owners[0].annotations[LEVEL] == "leaf"
            w.server.store.delete("jobs.batch", "train", "default")
            await asyncio.sleep(6)
            deleted = owners.resolve(pod)
            assert isinstance(deleted, Chain)
            assert deleted.deleted


def test_an_owner_that_grows_beyond_the_budget_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_owners, "MAX_OWNER_BYTES_OF_NAMESPACE", 10)
    changes: list[str] = []
    owners = OwnerDirectory(None, on_change=changes.append)  # type: ignore[arg-type]  # nothing is requested
    sink = owners.sink(DEPLOYMENTS)
    sink.applied([job(1, characters=100)])
    assert len(owners._watched) == 1
    sink.applied([job(1, characters=4_000)])
    assert changes == ["hostile-1"]
    assert len(owners._watched) == 0


def test_changes_of_an_owner_that_lost_its_room_are_still_reported_if_pods_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watched_owners, "MAX_OWNER_BYTES", 10_000)
    changes: list[str] = []
    owners = OwnerDirectory(None, on_change=changes.append, needed=lambda uid: True)  # type: ignore[arg-type]
    sink = owners.sink(DEPLOYMENTS)
    for number in range(2):
        sink.applied([job(number, characters=4_000)])
    sink.applied([job(9, "victim", characters=4_000)])
    kept = {owner.uid for owner in owners._watched}
    assert "victim-9" in kept
    assert "hostile-1" not in kept
    assert len(owners) == 3
    changed = job(1, characters=4_000)
    changed.metadata.annotations[LEVEL] = "leaf"
    sink.applied([changed])
    assert changes == ["hostile-1"]
