"""Writes of resource claims: protected before they are allocated, once, and not by a former leader."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topo_scheduler.api.devices import DELETE_PROTECTION
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.connection.fence import Fence
from topo_scheduler.kube.writing.claim_requests import CLAIM_WRITES_IN_FLIGHT
from topo_scheduler.kube.writing.claims import ClaimWriter
from topo_scheduler.simulation.apiserver import Delay, Disconnect, Refuse, Stray
from topo_scheduler.state.devices.claim_writes import AllocateClaim, ProtectClaim, ReleaseClaim, consumer

from .stub import fault
from .virtual import virtual_time
from .world import Json, World, world
from .writable_objects import CLAIMS, KEY, made_claim


def now(w: World) -> Json:
    return dict(w.server.store.get(CLAIMS, "c", "default").obj)


def devices(claim: Json) -> list[str]:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [result["device"] for result in results]


def set_status(w: World, **status: Any) -> None:
    """Another client writes the status."""
    w.server.store.modify(CLAIMS, "c", "default", lambda obj: {**obj, "status": status}, subresource="status")


@virtual_time
async def test_a_claim_is_protected_then_allocated_and_reserved() -> None:
    async with world() as w:
        write = made_claim(w)
        done = await ClaimWriter(w.client).write([write])
        assert done.problem == ""
        assert now(w)["metadata"]["finalizers"] == ["a/b", DELETE_PROTECTION]
        assert devices(now(w)) == ["gpu-3"]
        assert now(w)["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": "uid-p"}]
        ((_, claim),) = done.done
        assert claim.metadata.resource_version == now(w)["metadata"]["resourceVersion"]


@virtual_time
async def test_a_claim_of_which_a_webhook_removes_the_finalizer_is_not_allocated() -> None:
    """Kubernetes would never deallocate it."""
    async with world() as w:
        write = made_claim(w)
        w.server.faults.add(Stray(json.dumps(now(w)).encode()), verb="patch", resource="resourceclaims")
        done = await ClaimWriter(w.client).write([write])
        assert "can't be written: an admission webhook changed what was to be written" in done.problem
        assert devices(now(w)) == []


@virtual_time
async def test_a_claim_without_requests_is_allocated() -> None:
    """The API server writes null for an empty list of them."""
    async with world() as w:
        done = await ClaimWriter(w.client).write([made_claim(w, {"devices": {"requests": None}})])
        assert done.problem == ""
        ((_, claim),) = done.done
        assert claim.spec.devices.requests == []


@virtual_time
async def test_an_allocated_claim_is_reserved_for_one_more_pod() -> None:
    async with world() as w:
        await ClaimWriter(w.client).write([made_claim(w)])
        uid = now(w)["metadata"]["uid"]
        second = AllocateClaim(KEY, uid, "1", (), None, (), consumer("q", "uid-q"))
        assert (await ClaimWriter(w.client).write([second])).problem == ""
        assert [entry["name"] for entry in now(w)["status"]["reservedFor"]] == ["p", "q"]


@virtual_time
async def test_a_claim_that_changed_but_is_free_is_allocated_as_it_is_now() -> None:
    async with world() as w:
        write = made_claim(w)
        w.annotate("c", "a", "b", kind=CLAIMS)
        assert (await ClaimWriter(w.client).write([write])).problem == ""
        assert devices(now(w)) == ["gpu-3"]
        assert now(w)["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize("times", [1, 3])
@virtual_time
async def test_conflicts_without_a_cause_are_overcome(times: int) -> None:
    async with world() as w:
        write = made_claim(w)
        w.server.faults.add(Refuse(409), verb="patch", resource="resourceclaims/status", times=times)
        assert (await ClaimWriter(w.client).write([write])).problem == ""
        assert devices(now(w)) == ["gpu-3"]


@virtual_time
async def test_conflicts_without_end_are_a_problem() -> None:
    async with world() as w:
        write = made_claim(w)
        w.server.faults.add(Refuse(409), verb="patch", resource="resourceclaims/status", times=9)
        assert 'resourceclaim "c" changed meanwhile' in (await ClaimWriter(w.client).write([write])).problem


@virtual_time
async def test_what_another_scheduler_allocated_is_left_alone() -> None:
    async with world() as w:
        write = made_claim(w)
        result = {"request": "gpus", "driver": "gpu.example.com", "pool": "n9", "device": "gpu-9"}
        set_status(w, allocation={"devices": {"results": [result]}})
        done = await ClaimWriter(w.client).write([write])
        assert 'resourceclaim "c" changed meanwhile' in done.problem
        assert done.done == []
        assert devices(now(w)) == ["gpu-9"]


@virtual_time
async def test_a_claim_made_again_under_the_same_name_is_not_the_one_that_was_meant() -> None:
    async with world() as w:
        write = made_claim(w)
        store = w.server.store
        store.remove(store.kind(CLAIMS), store.get(CLAIMS, "c", "default"))
        assert 'resourceclaim "c" can\'t be written' in (await ClaimWriter(w.client).write([write])).problem
        store.create(CLAIMS, {"metadata": {"name": "c"}, "spec": {}}, "default")
        assert "another one has its name" in (await ClaimWriter(w.client).write([write])).problem
        assert devices(now(w)) == []


@virtual_time
async def test_a_claim_that_is_protected_ahead_is_allocated_by_one_write() -> None:
    async with world() as w:
        write = made_claim(w)
        ahead = ProtectClaim(KEY, write.uid, write.version, write.finalizers)
        ((_, claim),) = (await ClaimWriter(w.client).write([ahead])).done
        assert now(w)["metadata"]["finalizers"] == ["a/b", DELETE_PROTECTION]
        assert devices(now(w)) == []
        meta = claim.metadata
        write = replace(write, version=meta.resource_version, finalizers=tuple(meta.finalizers))
        assert (await ClaimWriter(w.client).write([write])).problem == ""
        assert devices(now(w)) == ["gpu-3"]
        assert w.asked("patch", "resourceclaims") == 1


@virtual_time
async def test_a_claim_that_changed_is_not_protected_ahead() -> None:
    async with world() as w:
        write = made_claim(w)
        w.annotate("c", "a", "b", kind=CLAIMS)
        ahead = ProtectClaim(KEY, write.uid, write.version, write.finalizers)
        ((_, claim),) = (await ClaimWriter(w.client).write([ahead])).done
        assert claim.metadata.finalizers == ["a/b"] == now(w)["metadata"]["finalizers"]


@pytest.mark.parametrize("resource", ["resourceclaims", "resourceclaims/status"])
@virtual_time
async def test_a_write_of_which_the_answer_was_lost_counts(resource: str) -> None:
    async with world() as w:
        write = made_claim(w)
        w.server.faults.add(Disconnect(applied=True), verb="patch", resource=resource, times=1)
        done = await ClaimWriter(w.client).write([write])
        assert done.problem == ""
        assert devices(now(w)) == ["gpu-3"]
        assert len(now(w)["status"]["reservedFor"]) == 1


@virtual_time
async def test_a_release_leaves_neither_devices_nor_protection() -> None:
    async with world() as w:
        ((_, claim),) = (await ClaimWriter(w.client).write([made_claim(w)])).done
        meta = claim.metadata
        release = ReleaseClaim(KEY, meta.uid, meta.resource_version, tuple(meta.finalizers))
        for resource in ("resourceclaims", "resourceclaims/status"):
            w.server.faults.add(Disconnect(applied=True), verb="patch", resource=resource, times=1)
        done = await ClaimWriter(w.client).write([release])
        assert done.problem == ""
        assert devices(now(w)) == []
        assert not now(w).get("status", {}).get("reservedFor")
        assert now(w)["metadata"]["finalizers"] == ["a/b"]


@virtual_time
async def test_nothing_is_written_after_the_lease_has_ended() -> None:
    async with world() as w:
        write = made_claim(w)
        done = await ClaimWriter(w.client.fenced(Fence(lambda: 0.0))).write([write])
        assert "the lease has ended" in done.problem
        assert done.fenced
        assert now(w)["metadata"]["finalizers"] == ["a/b"] and w.asked("patch", "resourceclaims") == 0


@virtual_time
async def test_a_missing_right_to_allocate_is_named_though_the_server_calls_it_an_invalid_field() -> None:
    said = (
        'ResourceClaim.resource.k8s.io "c" is invalid: status.allocation: Forbidden: changing status.allocation or'
        ' status.reservedFor requires resource="resourceclaims/binding", verb="patch" permission'
    )
    async with world() as w:
        w.server.faults.add(Refuse(422, message=said), verb="patch", resource="resourceclaims/status")
        problem = (await ClaimWriter(w.client).write([made_claim(w)])).problem
        assert said in problem
        assert "(grant update and patch on resourceclaims, resourceclaims/status and resourceclaims/binding" in problem


@pytest.mark.internal_errors
@virtual_time
async def test_a_fault_in_a_write_is_the_problem_of_its_pod(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        write = made_claim(w)
        with monkeypatch.context() as patched:
            patched.setattr(ClaimWriter, "_write", fault)
            done = await ClaimWriter(w.client).write([write])
        assert not done.done and "internal error, please report it: KeyError" in done.problem
        assert "internal error in a write, please report it: claim default/c" in caplog.text
        assert (await ClaimWriter(w.client).write([write])).problem == ""


async def reserve(w: World, seconds: float, count: int, reserved: int = 0) -> tuple[list[str], float]:
    """Reserve a claim for several pods, each write taking so long; return the problems, and how long it took."""
    writer = ClaimWriter(w.client)
    await writer.write([made_claim(w)])
    uid = now(w)["metadata"]["uid"]
    known = tuple(consumer(f"r-{number}", f"uid-r-{number}") for number in range(reserved))
    w.server.faults.add(Delay(seconds), verb="patch", resource="resourceclaims/status", times=None)
    pods = [consumer(f"q-{number}", f"uid-{number}") for number in range(count)]
    began = asyncio.get_running_loop().time()
    results = await asyncio.gather(
        *(writer.write([AllocateClaim(KEY, uid, "1", (), None, known, pod)]) for pod in pods)
    )
    assert not writer._turns
    return [result.problem for result in results], asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("seconds", [0.1, 9.0])
@virtual_time
async def test_reservations_of_one_claim_that_wait_are_written_together(seconds: float) -> None:
    """One by one, those of a large gang took longer than each may wait, so that it was taken back again and again."""
    async with world() as w:
        problems, took = await reserve(w, seconds, 250)
        assert problems == [""] * 250
        assert took == pytest.approx(2 * seconds, abs=0.5)
        assert len(now(w)["status"]["reservedFor"]) == 251


@virtual_time
async def test_no_more_reservations_are_written_together_than_a_claim_can_have() -> None:
    async with world() as w:
        problems, took = await reserve(w, 1.0, 4, reserved=255)
        assert problems == [""] * 4
        assert took == pytest.approx(2.0, abs=0.5), "the first answer says how many there really are"


@virtual_time
async def test_reservations_do_not_wait_for_a_server_that_does_not_answer() -> None:
    async with world() as w:
        (first, *others), took = await reserve(w, 60.0, 3)
        assert "Timeout: request did not complete" in first
        assert set(others) == {'resourceclaim "c" can\'t be written: reservations for other pods are being written'}
        assert took < 40


@virtual_time
async def test_claims_that_are_read_after_a_conflict_take_slots_like_writes() -> None:
    async with world() as w:
        write, writer = made_claim(w), ClaimWriter(w.client)
        w.annotate("c", "a", "b", kind=CLAIMS)  # all writes get a conflict
        in_progress, peak = [0], [0]

        async def send(method: str, path: str, **options: Any) -> bytes:
            in_progress[0] += 1
            peak[0] = max(peak[0], in_progress[0])
            try:
                await asyncio.sleep(0.5)
                return await w.client.request(method, path, **options)
            finally:
                in_progress[0] -= 1

        writer._requests.client = cast("Client", SimpleNamespace(request=send))
        await asyncio.gather(*(writer.write([write]) for _ in range(200)))
        assert peak[0] == CLAIM_WRITES_IN_FLIGHT - reserved_of(CLAIM_WRITES_IN_FLIGHT)
        assert devices(now(w)) == ["gpu-3"]


@virtual_time
async def test_a_claim_that_can_not_be_read_after_a_conflict_is_read_again() -> None:
    async with world() as w:
        write = made_claim(w)
        w.annotate("c", "a", "b", kind=CLAIMS)
        w.server.faults.add(Refuse(503), verb="get", resource="resourceclaims", times=2)
        assert (await ClaimWriter(w.client).write([write])).problem == ""
        assert devices(now(w)) == ["gpu-3"]
