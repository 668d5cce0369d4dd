"""A server that has just started refuses every client until it has its roles: no write takes that as an answer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from topo_scheduler.api.objects import Status
from topo_scheduler.kube.connection.errors import api_error, lacks_rights, remedy
from topo_scheduler.kube.connection.resources import POD_METADATA
from topo_scheduler.kube.connection.retrying import RIGHTS_SECONDS
from topo_scheduler.kube.writing.binder import Binder, BindRequest, BindStatus
from topo_scheduler.kube.writing.claims import ClaimWriter
from topo_scheduler.kube.writing.evictions import EvictionStatus, Evictor
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.kube.writing.volumes import VolumeWriter
from topo_scheduler.runtime.owner_confirmation import Existence
from topo_scheduler.simulation.apiserver import Refuse

from .virtual import now, virtual_time
from .world import World, world
from .writable_objects import made_claim, made_volume

STARTING_SECONDS = 2.0
REFUSAL = 'pods "pod" is forbidden: User "topo" cannot create resource "pods/binding" in API group ""'


async def bind(w: World, *, dry_run: bool = False) -> bool:
    request = BindRequest("default", "pod", w.pod("pod").metadata.uid, "node-1")
    return (await Binder(w.client, clock=now).bind(request, dry_run=dry_run)).outcome is BindStatus.BOUND


async def dry_run_of_bind(w: World) -> bool:
    return await bind(w, dry_run=True)


async def evict(w: World, *, dry_run: bool = False) -> bool:
    uid = w.pod("pod").metadata.uid
    result = await Evictor(w.client).evict("default", "pod", uid, dry_run=dry_run)
    return result.outcome is EvictionStatus.EVICTED


async def dry_run_of_eviction(w: World) -> bool:
    return await evict(w, dry_run=True)


async def reserve_volume(w: World) -> bool:
    return not (await VolumeWriter(w.client).write(made_volume(w))).problem


async def allocate_claim(w: World) -> bool:
    return not (await ClaimWriter(w.client).write([made_claim(w)])).problem


async def nominate(w: World) -> bool:
    await PodStatusWriter(w.client).nominate("default", "pod", w.pod("pod").metadata.uid, "node-1")
    return w.pod("pod").status.nominated_node_name == "node-1"


async def mark_victim(w: World) -> bool:
    await PodStatusWriter(w.client).mark_preempted("default", "pod", w.pod("pod").metadata.uid, "why", 0.0)
    return any(condition.type == "DisruptionTarget" for condition in w.pod("pod").status.conditions)


async def confirm_pod(w: World) -> bool:
    return not await Existence(w.client, POD_METADATA, now).refusal("default", "pod", w.pod("pod").metadata.uid)


@pytest.mark.parametrize(
    "write",
    [
        bind,
        dry_run_of_bind,
        evict,
        dry_run_of_eviction,
        reserve_volume,
        allocate_claim,
        nominate,
        mark_victim,
        confirm_pod,
    ],
)
@virtual_time
async def test_a_write_succeeds_once_the_server_has_its_roles(write: Callable[[World], Awaitable[bool]]) -> None:
    async with world() as w:
        w.create_pod("pod")
        starting = w.server.faults.add(Refuse(403, message=REFUSAL))
        asyncio.get_running_loop().call_later(STARTING_SECONDS, w.server.faults.remove, starting)
        assert await write(w)
        assert starting.struck


@virtual_time
async def test_a_bind_does_not_hang_at_a_server_without_roles() -> None:
    async with world() as w:
        request = BindRequest("default", "pod", w.create_pod("pod").metadata.uid, "node-1")
        w.server.faults.add(Refuse(403, message=REFUSAL), resource="pods/binding")
        binder = Binder(w.client, clock=now)
        bind = asyncio.create_task(binder.bind(request))
        await asyncio.sleep(3.0)
        assert not await binder.hangs(request, 2.9)
        await bind


@pytest.mark.parametrize("timeout", [4.0, 20.0, 60.0])
@virtual_time
async def test_a_right_to_bind_that_is_missing_for_good_ends_the_bind(timeout: float) -> None:
    async with world() as w:
        request = BindRequest("default", "pod", w.create_pod("pod").metadata.uid, "node-1")
        w.server.faults.add(Refuse(403, message=REFUSAL), resource="pods/binding")
        result = await Binder(w.client, clock=now, timeout=timeout).bind(request)
        assert (result.outcome, result.message) == (BindStatus.REJECTED, f"{REFUSAL} (grant create on pods/binding)")
        assert min(RIGHTS_SECONDS, timeout / 2) <= result.latency < RIGHTS_SECONDS + 5.0


@virtual_time
async def test_a_bind_that_meets_a_server_without_roles_at_its_deadline_is_written_again() -> None:
    async with world() as w:
        request = BindRequest("default", "pod", w.create_pod("pod").metadata.uid, "node-1")
        outage = w.server.faults.add(Refuse(429), resource="pods/binding")

        def start() -> None:
            w.server.faults.remove(outage)
            w.server.faults.add(Refuse(403, message=REFUSAL), resource="pods/binding")

        asyncio.get_running_loop().call_later(16.0, start)
        assert (await Binder(w.client, clock=now, timeout=20.0).bind(request)).outcome is BindStatus.UNBOUND


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (
            'cannot create resource "pods/eviction" in API group "" in the namespace "a"',
            " (grant create on pods/eviction)",
        ),
        ('cannot list resource "jobs" in API group "batch" at the cluster scope', " (grant list on jobs.batch)"),
        (
            'cannot update resource "migrations/status" in API group "topology.scheduler" in the namespace "a"',
            " (grant update on migrations.topology.scheduler/status)",
        ),
        ('cannot get path "/healthz"', ""),
    ],
)
def test_the_right_to_grant_is_named(refused: str, expected: str) -> None:
    message = f'things "x" is forbidden: User "system:serviceaccount:kube-system:topo" {refused}'
    assert remedy(api_error(Status(403, "Forbidden", message))) == expected
    assert not remedy(api_error(Status(403, "Forbidden", DENIED + message)))


DENIED = 'admission webhook "tenant.example.com" denied the request: '
POLICY = "pods \"pod\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (REFUSAL, True),
        ('pods is forbidden: User "topo" cannot list resource "pods" in API group "" at the cluster scope', True),
        ('forbidden: User "topo" cannot get path "/healthz"', True),
        (DENIED + REFUSAL, False),
        ('admission webhook "tenant.example.com" denied the request and forbidden: User "topo" cannot', False),
        (POLICY + REFUSAL, False),
        ('pods "pod" is forbidden: exceeded quota: User "topo" cannot', False),
    ],
)
def test_text_of_an_admission_webhook_or_policy_is_no_refusal_by_rbac(message: str, expected: bool) -> None:
    assert lacks_rights(api_error(Status(403, "Forbidden", message))) is expected
