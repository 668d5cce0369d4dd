"""Every bind ends in an outcome that can be relied on, once, whatever the server or the network does."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.connection.fence import Fence
from topo_scheduler.kube.writing.binder import READS_IN_FLIGHT, Binder, BindRequest, BindResult, BindStatus
from topo_scheduler.simulation.apiserver import Delay, Disconnect, EmbeddedAPIServer, Refuse, Truncate
from topo_scheduler.simulation.apiserver.faults import Fault

from .stub import status, stubbed, success
from .virtual import now, virtual_time
from .world import World, connected, world

NOTES: Mapping[str, str] = {"topology.scheduler/rank": "3"}


def fail(w: World, fault: Fault, times: int | None = None) -> None:
    """Have a fault strike the binds."""
    w.server.faults.add(fault, verb="create", resource="pods/binding", times=times)


def request(w: World, name: str = "pod", node: str = "node-1", **changes: Any) -> BindRequest:
    uid = changes.pop("uid", w.pod(name).metadata.uid)
    return BindRequest("default", name, uid, node, **{"annotations": NOTES, **changes})


def binder(w: World, client: Client | None = None, **options: Any) -> Binder:
    return Binder(client or w.client, clock=now, **options)


async def bind(w: World, **changes: Any) -> BindResult:
    return await binder(w).bind(request(w, **changes))


@virtual_time
async def test_a_bind_is_one_request_and_carries_annotations_and_labels() -> None:
    async with world() as w:
        w.create_pod("pod", annotations={"own": "kept"})
        result = await bind(w, labels={"topology.scheduler/leaf": "leaf-1"})
        assert (result.outcome, result.message) == (BindStatus.BOUND, "")
        pod = w.pod("pod")
        assert pod.spec.node_name == "node-1"
        assert pod.metadata.annotations == {"own": "kept", **NOTES}
        assert pod.metadata.labels == {"topology.scheduler/leaf": "leaf-1"}
        assert len(w.server.requests) == 1


@virtual_time
async def test_a_dry_run_asks_admission_and_changes_nothing() -> None:
    async with world() as w:
        w.create_pod("pod")
        result = await binder(w).bind(request(w), dry_run=True)
        assert result.outcome is BindStatus.BOUND
        assert w.pod("pod").spec.node_name == ""


@virtual_time
async def test_a_pod_that_another_client_placed_is_taken() -> None:
    async with world() as w:
        w.create_pod("pod")
        assert (await bind(w, node="node-2", annotations={})).outcome is BindStatus.BOUND
        result = await bind(w)
        assert (result.outcome, result.message) == (BindStatus.TAKEN, "already assigned to node node-2")


@virtual_time
async def test_a_pod_on_our_node_with_other_devices_than_decided_is_taken() -> None:
    async with world() as w:
        w.create_pod("pod")
        assert (await bind(w, annotations={"topology.scheduler/rank": "7"})).outcome is BindStatus.BOUND
        assert (await bind(w)).outcome is BindStatus.TAKEN


@virtual_time
async def test_a_pod_of_the_same_name_that_came_later_is_not_bound() -> None:
    async with world() as w:
        w.create_pod("pod")
        meant = request(w)
        w.remove_pod("pod")
        w.create_pod("pod")
        result = await binder(w).bind(meant)
        assert (result.outcome, result.message) == (BindStatus.TAKEN, "the name belongs to another pod now")
        assert w.pod("pod").spec.node_name == ""


@virtual_time
async def test_a_pod_that_is_gone_or_going_is_gone() -> None:
    async with world() as w:
        w.create_pod("pod")
        meant = request(w)
        w.remove_pod("pod")
        assert (await binder(w).bind(meant)).outcome is BindStatus.GONE
        w.create_pod("ending", finalizers=["example.com/wait"])
        w.server.store.delete("pods", "ending", "default")
        assert (await bind(w, name="ending")).outcome is BindStatus.GONE


@virtual_time
async def test_a_pod_that_goes_while_it_is_looked_up_is_gone() -> None:
    async with world() as w:
        w.create_pod("pod")
        meant = request(w)
        fail(w, Refuse(409), times=1)
        w.remove_pod("pod")
        assert (await binder(w).bind(meant)).outcome is BindStatus.GONE


@pytest.mark.parametrize("dry_run", [False, True])
@virtual_time
async def test_a_webhook_that_answers_404_rejects_the_pod(dry_run: bool) -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Refuse(404, message="no such tenant"))
        result = await binder(w).bind(request(w), dry_run=dry_run)
        assert (result.outcome, result.message) == (BindStatus.REJECTED, "no such tenant")
        assert w.asked("create", "pods/binding") == 1


@virtual_time
async def test_a_webhook_that_names_the_pod_does_not_make_it_gone() -> None:
    details = {"name": "pod", "kind": "pods"}

    async def handler(asked: web.BaseRequest) -> web.StreamResponse:
        if asked.method == "POST":
            return status(404, "NotFound", 'pods "pod" not found', details=details)
        return web.json_response({"kind": "Pod", "metadata": {"name": "pod", "uid": "uid"}, "spec": {}})

    async with stubbed(handler) as client:
        result = await Binder(client, clock=now).bind(BindRequest("default", "pod", "uid", "node"))
        assert result.outcome is BindStatus.REJECTED


@pytest.mark.parametrize("dry_run", [False, True])
@virtual_time
async def test_where_a_load_balancer_answers_404_the_pod_is_bound_later(dry_run: bool) -> None:
    async with world() as w:
        w.create_pod("pod")
        rule = w.server.faults.add(Refuse(404, message="default backend"))
        attempt = asyncio.create_task(binder(w).bind(request(w), dry_run=dry_run))
        await asyncio.sleep(5)
        assert 3 < w.asked("create", "pods/binding") < 20
        w.server.faults.remove(rule)
        assert (await attempt).outcome is BindStatus.BOUND


@virtual_time
async def test_where_a_load_balancer_answers_only_404_the_bind_stays_open() -> None:
    async with world() as w:
        w.create_pod("pod")
        meant = request(w)
        w.server.faults.add(Refuse(404))
        result = await binder(w).bind(meant)
        assert result.outcome is BindStatus.UNBOUND
        assert "not settled within 10 s" in result.message


@pytest.mark.parametrize("resource", ["pods/binding", None])
@virtual_time
async def test_a_404_after_a_lost_answer_is_not_certain(resource: str | None) -> None:
    async with world() as w:
        w.create_pod("pod")
        meant = request(w)
        fail(w, Refuse(500), times=1)
        w.server.faults.add(Refuse(404), resource=resource)
        assert (await binder(w).bind(meant)).outcome is BindStatus.UNKNOWN


@virtual_time
async def test_a_withdrawn_bind_is_looked_up_until_the_api_server_itself_answers() -> None:
    async with world() as w:
        w.create_pod("pod")
        w.server.faults.add(Refuse(404), verb="get", resource="pods", times=5)
        assert (await binder(w).withdraw(request(w))).outcome is BindStatus.UNBOUND
        meant = request(w)
        w.remove_pod("pod")
        assert (await binder(w).withdraw(meant)).outcome is BindStatus.GONE


@virtual_time
async def test_a_gated_pod_is_rejected_and_not_tried_again() -> None:
    async with world() as w:
        spec = {"schedulingGates": [{"name": "quota"}], "containers": [{"name": "main", "image": "train"}]}
        w.server.store.create("pods", {"metadata": {"name": "pod"}, "spec": spec}, "default")
        assert (await bind(w)).outcome is BindStatus.REJECTED
        assert w.asked("create", "pods/binding") == 1


@pytest.mark.parametrize("code", [400, 403, 422])
@virtual_time
async def test_what_admission_says_is_final(code: int) -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Refuse(code, message="the webhook says no"))
        result = await bind(w)
        assert (result.outcome, result.message) == (BindStatus.REJECTED, "the webhook says no")
        assert w.asked("create", "pods/binding") == 1


@virtual_time
async def test_a_pod_that_etcd_cannot_store_with_its_node_is_refused() -> None:
    """The API server gives every error of its storage the code of a conflict."""
    message = 'Operation cannot be fulfilled on pods/binding "pod": etcdserver: request is too large'
    async with world() as w:
        w.create_pod("pod")
        fail(w, Refuse(409, message=message))
        result = await bind(w)
        assert (result.outcome, result.message) == (BindStatus.REJECTED, message)
        assert w.asked("create", "pods/binding") == 1


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(429),
        Refuse(429, retry_after=1),
        Refuse(500),
        Refuse(503),
        Refuse(409),
        Disconnect(),
        Disconnect(applied=True),
        Truncate(),
        Delay(1e6),
    ],
    ids=repr,
)
@virtual_time
async def test_what_passes_is_sat_out_and_the_pod_bound_once(fault: Fault) -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, fault, times=2)
        result = await bind(w)
        assert result.outcome is BindStatus.BOUND
        assert w.pod("pod").spec.node_name == "node-1"
        assert result.latency < 10


@virtual_time
async def test_a_lost_answer_is_looked_up_not_repeated() -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Disconnect(applied=True), times=1)
        assert (await bind(w)).outcome is BindStatus.BOUND
        assert (w.asked("create", "pods/binding"), w.asked("get", "pods")) == (1, 1)


@virtual_time
async def test_a_lost_answer_may_hide_that_another_was_faster() -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Disconnect(), times=1)

        w.server.faults.add(Delay(1.0), verb="get", times=1)
        ours = asyncio.create_task(bind(w))
        await asyncio.sleep(0.5)
        assert (await bind(w, node="node-9")).outcome is BindStatus.BOUND
        result = await ours
        assert (result.outcome, result.message) == (BindStatus.TAKEN, "already assigned to node node-9")


@virtual_time
async def test_a_busy_server_is_not_doubt() -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Refuse(429, retry_after=3))
        result = await bind(w)
        assert result.outcome is BindStatus.UNBOUND
        assert "not settled within 10 s" in result.message
        assert "429" in result.message
        assert result.latency <= 10


@pytest.mark.parametrize("asked", [6, 30])
@virtual_time
async def test_a_bind_that_is_or_becomes_urgent_is_repeated_after_a_second(asked: int) -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Refuse(503, retry_after=asked), times=2)
        began = now()
        result = await binder(w).bind(request(w), urgent=lambda: now() - began > 2.5)
        assert result.outcome is BindStatus.BOUND
        assert result.latency == pytest.approx(4, abs=0.1)


@virtual_time
async def test_a_pause_beyond_the_deadline_is_kept_until_the_deadline_unless_the_term_ends() -> None:
    """Otherwise the engine, which repeats such a bind after a second, would not let the API server rest at all."""
    async with world() as w:
        w.create_pod("pod")
        fail(w, Refuse(429, retry_after=30))
        subject = binder(w)
        result = await subject.bind(request(w))
        assert result.outcome is BindStatus.UNBOUND and "not settled within 10 s" in result.message
        assert result.latency == pytest.approx(10, abs=0.1)
        assert w.asked("create", "pods/binding") == 1
        ended = asyncio.create_task(subject.bind(request(w)))
        await asyncio.sleep(1)
        began = now()
        await subject.drain()
        assert (await ended).outcome is BindStatus.UNBOUND and now() - began < 0.1


@virtual_time
async def test_a_server_that_is_away_is_not_doubt() -> None:
    async with world() as w:
        w.create_pod("pod")
        meant = request(w)
        await w.server.go_away()
        result = await binder(w).bind(meant)
        assert result.outcome is BindStatus.UNBOUND
        assert 5 < result.latency <= 10


@pytest.mark.parametrize("fault", [Refuse(500), Disconnect(), Delay(1e6)], ids=repr)
@virtual_time
async def test_what_was_sent_and_never_answered_stays_unknown(fault: Fault) -> None:
    async with world() as w:
        w.create_pod("pod")
        w.server.faults.add(fault)
        result = await bind(w)
        assert result.outcome is BindStatus.UNKNOWN
        assert result.latency <= 10.2


@virtual_time
async def test_a_refusal_after_a_lost_answer_is_not_certain() -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Refuse(500), times=1)
        fail(w, Refuse(403), times=1)
        assert (await bind(w)).outcome is BindStatus.UNKNOWN


@virtual_time
async def test_a_replica_without_the_lease_sends_no_bind() -> None:
    async with world() as w:
        w.create_pod("pod")
        result = await binder(w, w.client.fenced(Fence(lambda: 0.0))).bind(request(w))
        assert result.fenced
        assert result.outcome is BindStatus.UNBOUND
        assert not w.server.requests


@virtual_time
async def test_leadership_is_asked_before_every_attempt() -> None:
    async with world() as w:
        w.create_pod("pod")
        left = iter([10.0, 10.0, 0.0])
        fail(w, Refuse(500))
        result = await binder(w, w.client.fenced(Fence(lambda: next(left, 0.0)))).bind(request(w))
        assert result.outcome is BindStatus.UNKNOWN, "the first attempt may have been written"
        assert w.asked("create", "pods/binding") == 1


@virtual_time
async def test_what_became_wrong_is_not_sent_again() -> None:
    async with world() as w:
        w.create_pod("pod")
        answers = iter(["", "node node-1 was cordoned"])
        fail(w, Refuse(429), times=1)
        result = await binder(w).bind(request(w), recheck=lambda: next(answers))
        assert (result.outcome, result.message) == (BindStatus.WITHDRAWN, "node node-1 was cordoned")
        assert w.asked("create", "pods/binding") == 1 and not w.pod("pod").spec.node_name


@virtual_time
async def test_what_may_have_been_written_is_not_withdrawn() -> None:
    async with world() as w:
        w.create_pod("pod")
        answers = iter(["", "node node-1 was cordoned"])
        fail(w, Refuse(500), times=1)
        result = await binder(w).bind(request(w), recheck=lambda: next(answers))
        assert result.outcome is BindStatus.UNKNOWN


@virtual_time
async def test_no_more_than_the_bound_are_under_way() -> None:
    at_once, peak = 0, 0

    async def handler(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal at_once, peak
        at_once += 1
        peak = max(peak, at_once)
        await asyncio.sleep(0.1)
        at_once -= 1
        return success(201)

    async with stubbed(handler) as client:
        subject = Binder(client, concurrency=5, clock=now)
        binds = [subject.bind(BindRequest("default", f"pod-{n}", "uid", "node")) for n in range(20)]
        tasks = [asyncio.create_task(each) for each in binds]
        await asyncio.sleep(0.05)
        assert subject.in_flight == 20
        await asyncio.wait(tasks)
        assert subject.in_flight == 0
        assert all(task.result().outcome is BindStatus.BOUND for task in tasks)
        assert peak == 5
        assert max(task.result().latency for task in tasks) < 0.2, "waiting for a slot is not part of it"


@virtual_time
async def test_a_drain_waits_for_the_answer_to_each_attempt_and_sends_nothing_more() -> None:
    async with world() as w:
        for name in ("slow", "refused", "queued", "later"):
            w.create_pod(name)
        w.server.faults.add(Delay(0.5), verb="create", resource="pods/binding", where=lambda info: info.name == "slow")
        w.server.faults.add(
            Refuse(429, retry_after=1),
            verb="create",
            resource="pods/binding",
            where=lambda info: info.name == "refused",
        )
        subject = binder(w, concurrency=2)
        slow, refused, queued = (
            asyncio.create_task(subject.bind(request(w, name=name))) for name in ("slow", "refused", "queued")
        )
        await asyncio.sleep(0.2)
        began = now()
        await subject.drain()
        assert now() - began == pytest.approx(0.3, abs=0.1), "a pause before another attempt ends at once"
        assert slow.result().outcome is BindStatus.BOUND
        for bind in (refused.result(), queued.result(), await subject.bind(request(w, name="later"))):
            assert bind.outcome is BindStatus.UNBOUND and "this term of leadership ends" in bind.message
        assert "429" in refused.result().message
        assert w.asked("create", "pods/binding") == 2


@virtual_time
async def test_an_attempt_that_hangs_while_draining_is_read_once_and_not_repeated() -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Delay(1e6))
        subject = binder(w, timeout=20.0)
        bind = asyncio.create_task(subject.bind(request(w)))
        await asyncio.sleep(1)
        await subject.drain()
        result = await bind
        assert result.outcome is BindStatus.UNKNOWN
        assert result.latency == pytest.approx(8.0, abs=0.2)
        assert w.asked("create", "pods/binding") == 1


@virtual_time
async def test_a_drain_does_not_wait_for_dry_runs() -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Delay(1e6))
        subject = binder(w)
        rehearsal = asyncio.create_task(subject.bind(request(w), dry_run=True))
        await asyncio.sleep(0.5)
        assert subject.in_flight == 0
        await asyncio.wait_for(subject.drain(), 0.1)
        assert (await rehearsal).outcome is BindStatus.UNBOUND


@virtual_time
async def test_a_cancelled_bind_is_not_in_flight() -> None:
    async with world() as w:
        w.create_pod("pod")
        fail(w, Delay(5))
        subject = binder(w)
        task = asyncio.create_task(subject.bind(request(w)))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait_for(subject.drain(), 1)
        assert subject.in_flight == 0


@virtual_time
async def test_expired_credentials_are_waited_for() -> None:
    answers: itertools.chain[Callable[[], web.Response]] = itertools.chain(
        [lambda: status(401, "Unauthorized")] * 2, itertools.repeat(lambda: success(201))
    )

    async def handler(_: web.BaseRequest) -> web.StreamResponse:
        return next(answers)()

    async with stubbed(handler) as client:
        result = await Binder(client, clock=now).bind(BindRequest("default", "pod", "uid", "node"))
        assert result.outcome is BindStatus.BOUND


@pytest.mark.parametrize("strange", [b"", b"ok", b"{}", b'{"status": "ok"}', b"[]"])
@virtual_time
async def test_an_answer_of_no_api_server_binds_nothing(strange: bytes) -> None:
    """A load balancer may answer everything with 200. The pod is neither bound by that, nor gone, nor another one."""
    answers: list[Callable[[], web.Response]] = [lambda: web.Response(body=strange)] * 5

    async def handler(_: web.BaseRequest) -> web.StreamResponse:
        return answers.pop()() if answers else success(201)

    async with stubbed(handler) as client:
        result = await Binder(client, clock=now).bind(BindRequest("default", "pod", "uid", "node"))
        assert result.outcome is BindStatus.BOUND
        assert not answers


@virtual_time
async def test_a_storm_of_faults_loses_nothing_and_doubles_nothing() -> None:
    async with world() as w:
        for number in range(60):
            w.create_pod(f"pod-{number}")
        for fault in (Refuse(429, retry_after=1), Refuse(500), Disconnect(), Disconnect(applied=True), Refuse(409)):
            fail(w, fault, times=25)
        w.server.faults.add(Refuse(500), verb="get", resource="pods", times=10)
        subject = binder(w, concurrency=10)
        results = await asyncio.gather(*[subject.bind(request(w, name=f"pod-{n}")) for n in range(60)])
        for number, result in enumerate(results):
            placed = w.pod(f"pod-{number}").spec.node_name == "node-1"
            assert result.outcome is BindStatus.UNKNOWN or placed == (result.outcome is BindStatus.BOUND)
        assert sum(result.outcome is BindStatus.BOUND for result in results) > 50


@virtual_time
async def test_two_schedulers_cannot_both_have_a_pod() -> None:
    async with EmbeddedAPIServer() as server, connected(server) as client, connected(server) as other_client:
        w = World(server, client)
        for number in range(40):
            w.create_pod(f"pod-{number}")
        fail(w, Disconnect(applied=True), times=20)
        first, second = Binder(client, clock=now), Binder(other_client, clock=now)
        wanted = [request(w, name=f"pod-{n}", annotations={"by": "1"}) for n in range(40)]
        others = [request(w, name=f"pod-{n}", annotations={"by": "2"}) for n in range(40)]
        pairs = [(first.bind(mine), second.bind(theirs)) for mine, theirs in zip(wanted, others, strict=True)]
        outcomes = [await asyncio.gather(*pair) for pair in pairs]
        for number, (mine, theirs) in enumerate(outcomes):
            assert {mine.outcome, theirs.outcome} == {BindStatus.BOUND, BindStatus.TAKEN}
            winner = w.pod(f"pod-{number}").metadata.annotations["by"]
            assert winner == ("1" if mine.outcome is BindStatus.BOUND else "2")


@virtual_time
async def test_few_pods_are_read_at_once_to_learn_whether_they_are_bound() -> None:
    """Each answer may have megabytes, and all binds of a namespace may be in doubt at once."""
    async with world() as w:
        w.create_pod("pod")
        in_progress, peak = [0], [0]

        async def read(path: str, name: str, **options: Any) -> bytes:
            in_progress[0] += 1
            peak[0] = max(peak[0], in_progress[0])
            await asyncio.sleep(1)
            in_progress[0] -= 1
            return await w.client.read(path, name, **options)

        reader = Binder(cast("Client", SimpleNamespace(read=read)), clock=now)
        looks = await asyncio.gather(*(reader._look(request(w), now() + 60) for _ in range(48)))
        assert looks == 48 * [(BindStatus.UNBOUND, "")]
        assert peak[0] == READS_IN_FLIGHT - reserved_of(READS_IN_FLIGHT)
