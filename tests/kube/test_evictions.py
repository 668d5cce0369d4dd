"""An eviction removes the pod that was meant, or reports the reason."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from topo_scheduler.kube.connection.retrying import RIGHTS_SECONDS
from topo_scheduler.kube.writing.binder import Binder, BindRequest
from topo_scheduler.kube.writing.evictions import EvictionStatus, Evictor
from topo_scheduler.simulation.apiserver import Disconnect, Refuse
from topo_scheduler.simulation.apiserver.faults import Fault

from .stub import status, stubbed
from .virtual import now, virtual_time
from .world import world

BUDGET = {"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods"}]}


@virtual_time
async def test_a_pod_is_evicted() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid, grace=0)
        assert result.outcome is EvictionStatus.EVICTED
        assert not w.versions()


@virtual_time
async def test_a_running_pod_gets_the_time_it_is_given() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        await Binder(w.client, clock=now).bind(BindRequest("default", "pod", pod.metadata.uid, "node-1"))
        await Evictor(w.client).evict("default", "pod", pod.metadata.uid, grace=7)
        assert w.server.store.get("pods", "pod", "default")["metadata"]["deletionGracePeriodSeconds"] == 7


@virtual_time
async def test_a_dry_run_evicts_nothing() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid, dry_run=True)
        assert result.outcome is EvictionStatus.EVICTED
        assert "pod" in w.versions()


@virtual_time
async def test_only_the_pod_that_was_meant_is_evicted() -> None:
    async with world() as w:
        w.create_pod("pod")
        for name in ("pod", "missing"):
            result = await Evictor(w.client).evict("default", name, "another-uid")
            assert result.outcome is EvictionStatus.GONE
        assert "pod" in w.versions()


@virtual_time
async def test_a_webhook_that_answers_404_refuses_the_eviction() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(404, message="no such tenant"), resource="pods/eviction")
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid)
        assert (result.outcome, result.message) == (EvictionStatus.FAILED, "no such tenant")
        assert w.asked("create", "pods/eviction") == 1


@virtual_time
async def test_a_pod_that_is_being_deleted_is_gone_where_its_eviction_is_refused() -> None:
    async with world() as w:
        pod = w.create_pod("pod", finalizers=["example.com/wait"])
        w.server.store.delete("pods", "pod", "default")
        w.server.faults.add(Refuse(404), resource="pods/eviction")
        evictor = Evictor(w.client)
        assert (await evictor.evict("default", "pod", pod.metadata.uid)).outcome is EvictionStatus.GONE
        forced = await evictor.evict("default", "pod", pod.metadata.uid, grace=0)
        assert forced.outcome is EvictionStatus.FAILED


@virtual_time
async def test_where_a_load_balancer_answers_404_the_pod_is_evicted_later() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(404), times=8)
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid)
        assert result.outcome is EvictionStatus.EVICTED
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(404))
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid)
        assert result.outcome is EvictionStatus.FAILED
        assert w.asked("create", "pods/eviction") < 30


NO_ROLES_YET = 'pods "pod" is forbidden: User "topo" cannot create resource "pods/eviction" in API group ""'


@virtual_time
async def test_a_refusal_by_rbac_passes_when_the_server_has_loaded_its_roles() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(403, message=NO_ROLES_YET), times=4)
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid)
        assert result.outcome is EvictionStatus.EVICTED


@virtual_time
async def test_a_refusal_by_rbac_that_lasts_is_reported() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(403, message=NO_ROLES_YET), resource="pods/eviction")
        began = now()
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid)
        assert (result.outcome, result.message) == (
            EvictionStatus.FAILED,
            f"{NO_ROLES_YET} (grant create on pods/eviction)",
        )
        assert RIGHTS_SECONDS <= now() - began < RIGHTS_SECONDS + 5.0


@pytest.mark.parametrize(
    "message",
    [
        f'admission webhook "tenant.example.com" denied the request: {NO_ROLES_YET}',
        f"pods \"pod\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {NO_ROLES_YET}",
        'pods "pod" is forbidden: exceeded quota: User "topo" cannot create',
    ],
)
@virtual_time
async def test_a_refusal_by_admission_is_answered_at_once(message: str) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(403, message=message), resource="pods/eviction")
        began = now()
        assert (await Evictor(w.client).evict("default", "pod", pod.metadata.uid)).outcome is EvictionStatus.FAILED
        assert now() - began < 0.1 and w.asked("create", "pods/eviction") == 1


@virtual_time
async def test_a_disruption_budget_is_answered_at_once() -> None:
    async def handler(_: object) -> object:
        return status(429, "TooManyRequests", "Cannot evict pod", details=BUDGET)

    async with stubbed(handler) as client:  # type: ignore[arg-type]
        began = now()
        result = await Evictor(client).evict("default", "pod", "uid")
        assert (result.outcome, result.message) == (
            EvictionStatus.BLOCKED,
            "Cannot evict pod. The disruption budget web needs 2 healthy pods",
        )
        assert now() - began < 0.1


@pytest.mark.parametrize(
    "fault", [Refuse(429), Refuse(500), Refuse(409), Disconnect(), Disconnect(applied=True)], ids=repr
)
@virtual_time
async def test_what_passes_is_sat_out(fault: Fault) -> None:
    async with world() as w:
        pod = w.create_pod("pod", finalizers=["example.com/wait"])
        w.server.faults.add(fault, verb="create", resource="pods/eviction", times=3)
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid)
        assert result.outcome is EvictionStatus.EVICTED
        assert w.pod("pod").metadata.deletion_timestamp


@virtual_time
async def test_a_slot_is_held_while_a_request_is_under_way_and_not_between_attempts() -> None:
    held: list[float] = []

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        began = now()
        try:
            yield
        finally:
            held.append(now() - began)

    async with world() as w:
        pod = w.create_pod("pod")
        # Pauses are random from zero on; these are at least as long as the server asks.
        w.server.faults.add(Refuse(500, retry_after=1), verb="create", resource="pods/eviction", times=3)
        began = now()
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid, slot=slot)
        assert result.outcome is EvictionStatus.EVICTED
        assert len(held) == 4 and now() - began >= sum(held) + 3


@pytest.mark.parametrize("code", [403, 429, 500])
@virtual_time
async def test_what_does_not_pass_is_a_failure_in_the_servers_words(code: int) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(code, message="no"))
        result = await Evictor(w.client).evict("default", "pod", pod.metadata.uid)
        assert (result.outcome, result.message) == (EvictionStatus.FAILED, "no")
