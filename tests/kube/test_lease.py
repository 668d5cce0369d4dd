"""At no time do two lead; a leader that cannot renew stops in time; and a replica leads again soon after."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.delays import random_delays
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Unreachable
from topo_scheduler.kube.leading.lease import RUSH_SECONDS, boot_time
from topo_scheduler.simulation.apiserver import Delay, Disconnect, Refuse, Truncate
from topo_scheduler.simulation.apiserver.faults import Fault, FaultRule

from .lease_candidates import LEASES, Candidate, candidates, drifting_clock
from .virtual import now, virtual_time
from .world import eventually


@virtual_time
async def test_the_first_leads_and_the_next_takes_over_when_it_is_released() -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        task = t.start(a)
        await eventually(lambda: a.active)
        b = await t.add("b")
        await asyncio.sleep(60)
        assert a.holds()
        assert not b.active
        assert b.elector.leader == "a"
        task.cancel()
        await eventually(lambda: b.active, within=4.5)
        assert t.holder == "b"
        assert b.elector.transitions == 1
        assert b.elector.quiet_seconds() <= 0


@virtual_time
async def test_a_standby_reads_the_lease_once_a_second_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _, high: high)
    async with candidates() as t:
        a = await t.add("a", run=False)
        task = t.start(a)
        await eventually(lambda: a.active)
        b = await t.add("b")
        await asyncio.sleep(60.1)
        task.cancel()
        await eventually(lambda: b.active, within=1)


@virtual_time
async def test_a_leader_that_cannot_renew_stops_before_another_can_follow() -> None:
    async with candidates() as t:
        a, b = await t.add("a"), None
        await eventually(lambda: a.active)
        b = await t.add("b")
        await asyncio.sleep(30)
        cut = now()
        await a.server.go_away()
        await eventually(lambda: b.active, within=25)
        (_, ended), *_ = a.terms
        assert 7 < ended - cut <= 10.1
        assert now() - cut > 13, "the lease lasts 15 s from the last renewal"
        assert b.elector.quiet_seconds() <= 0, "the lease outlasts what the last leader sent"


@virtual_time
async def test_a_leader_that_lost_the_lease_contends_again(caplog: pytest.LogCaptureFixture) -> None:
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        await a.server.go_away()
        await eventually(lambda: not a.active, within=12)
        await asyncio.sleep(60)
        assert "not leading any more, no known replica is; contending again" in caplog.messages, "and not itself"
        assert not a.holds()
        await a.server.come_back()
        await eventually(lambda: a.active, within=5)
        assert len(a.terms) == 1


@virtual_time
async def test_once_a_lost_term_has_ended_what_it_left_is_collected_before_contending_again() -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        events: list[str] = []

        async def leads() -> None:
            events.append("begins")
            try:
                await asyncio.Event().wait()
            finally:
                events.append("ends")

        task = asyncio.create_task(a.elector.run(leads, lambda: events.append(f"lost, holds: {a.holds()}")))
        await eventually(lambda: events == ["begins"])
        await a.server.go_away()
        await asyncio.sleep(15)
        assert events == ["begins", "ends", "lost, holds: False"]
        await a.server.come_back()
        await eventually(lambda: len(events) == 4, within=20)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert events[3:] == ["begins", "ends"], "it ended its term by itself"


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(500),
        Refuse(429, retry_after=5),
        Refuse(409),
        Disconnect(),
        Disconnect(applied=True),
        Truncate(),
        Delay(60),
    ],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["update", "get"])
@virtual_time
async def test_renewals_that_fail_now_and_then_end_nothing(fault: Fault, verb: str) -> None:
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        for _ in range(5):
            a.server.faults.add(fault, verb=verb, resource="leases", times=2)
            await asyncio.sleep(20)
            a.server.faults.clear()
        assert a.active
        assert not a.terms


@virtual_time
async def test_two_requests_in_a_row_that_get_no_answer_do_not_end_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when one of several API servers fails, until the load balancer has noticed."""
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        client, lost = a.elector._client, 2
        request = client.request

        async def lose(*args: Any, timeout: float, **options: Any) -> bytes:
            nonlocal lost
            if not lost:
                return await request(*args, timeout=timeout, **options)
            lost -= 1
            await asyncio.sleep(timeout)
            raise Unreachable("no answer")

        monkeypatch.setattr(client, "request", lose)
        await asyncio.sleep(60)
        assert not lost
        assert a.active and not a.terms


def delay_renewals(candidate: Candidate, *seconds: float) -> None:
    """Delay each request for the Lease by one of these times, chosen at random, whatever delayed it before."""
    candidate.server.faults.rules[:0] = random_delays(*seconds, resource="leases")


@pytest.mark.parametrize("begins", [0.0, 20.0], ids=["from the start", "in the middle of a term"])
@pytest.mark.parametrize("seconds", [(4.9,), (3.0, 3.5, 4.0, 4.5, 4.9), (0.0, 1.0, 2.0, 3.0, 4.9)], ids=str)
@virtual_time
async def test_answers_that_take_almost_half_of_the_renew_deadline_are_waited_for(
    seconds: tuple[float, ...], begins: float
) -> None:
    """Each renewal begins when the one before is answered, and counts from when it was sent."""
    async with candidates() as t:
        a, b = await t.add("a", run=False), await t.add("b", run=False)
        for candidate in (a, b):
            if not begins:
                delay_renewals(candidate, *seconds)
            t.start(candidate)
        await eventually(lambda: a.active or b.active, within=60)
        await asyncio.sleep(begins)
        for candidate in (a, b):
            if begins:
                delay_renewals(candidate, *seconds)
        await asyncio.sleep(600)
        assert (a.active, b.active) in ((True, False), (False, True))
        assert not a.terms and not b.terms


@virtual_time
async def test_answers_that_take_more_than_half_of_the_renew_deadline_end_the_term() -> None:
    """The next renewal can't be answered in time: the documented limit."""
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        delay_renewals(a, 5.2)
        await eventually(lambda: not a.active, within=20)


@pytest.mark.parametrize("fault", [Disconnect(applied=True), Delay(1e6)], ids=repr)
@virtual_time
async def test_a_renewal_that_is_lost_while_answers_are_slow_ends_nothing(fault: Fault) -> None:
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        delay_renewals(a, 2.0)  # 2 s until it is sent, 3.3 s of patience, and two more requests: 9.3 s
        for _ in range(5):
            await asyncio.sleep(60)
            lost = FaultRule(fault, verb="update", resource="leases", times=1)
            a.server.faults.rules.insert(0, lost)
        await asyncio.sleep(60)
        assert lost.struck
        assert a.active and not a.terms


@virtual_time
async def test_a_renewal_is_one_request_also_when_its_answer_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    """It is sent from the Lease as the last answer had it. Another attempt beside it begins after 3.3 s."""
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        delay_renewals(a, 3.0)
        await asyncio.sleep(10)
        a.server.requests.clear()
        await asyncio.sleep(60)
        assert {info.verb for info in a.server.requests} == {"update"}
        assert 19 <= len(a.server.requests) <= 21
        assert "lease" not in caplog.text.replace("lease released", "")
        delay_renewals(a, 4.0)
        await asyncio.sleep(20)
    assert caplog.text.count("no answer to a renewal of the lease yet") == 1


@virtual_time
async def test_how_long_a_renewal_took_is_reported() -> None:
    renewals: list[float] = []
    async with candidates() as t:
        a = await t.add("a", renewed=renewals.append)
        await eventually(lambda: a.active)
        await asyncio.sleep(10)
        assert renewals and max(renewals) < 0.1
        delay_renewals(a, 0.5)
        renewals.clear()
        await asyncio.sleep(10)
        assert renewals and min(renewals) >= 0.5


@pytest.mark.parametrize(
    "fault",
    [Refuse(500), Refuse(403), Refuse(409), Disconnect(), Disconnect(applied=True), Truncate(), Delay(1e6)],
    ids=repr,
)
@virtual_time
async def test_renewals_that_keep_failing_end_it_in_time(fault: Fault) -> None:
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        b = await t.add("b")
        await asyncio.sleep(20)
        failing = now()
        a.server.faults.add(fault, verb="update", resource="leases")
        a.server.faults.add(fault, verb="get", resource="leases")
        await eventually(lambda: b.active, within=60)
        assert a.terms[0][1] - failing <= 10.1


@virtual_time
async def test_clocks_that_are_hours_apart_do_not_matter() -> None:
    async with candidates() as t:
        a = await t.add("a", wall=lambda: 9e8 - now(), clock=drifting_clock(1.0, -5_000.0))
        await eventually(lambda: a.active)
        b = await t.add("b", wall=lambda: 4e9 + now(), clock=drifting_clock(1.0, 9_999.0))
        await asyncio.sleep(120)
        assert a.active
        assert not b.active
        await a.server.go_away()
        await eventually(lambda: b.active, within=25)


@virtual_time
async def test_clocks_that_run_at_different_rates_are_allowed_for() -> None:
    async with candidates() as t:
        slow = await t.add("slow", clock=drifting_clock(0.95), renew_deadline=14.5)
        await eventually(lambda: slow.active)
        fast = await t.add("fast", clock=drifting_clock(1.04), renew_deadline=14.5)
        await asyncio.sleep(20)
        await slow.server.go_away()
        await eventually(lambda: fast.active, within=25)


@virtual_time
async def test_the_right_to_lead_counts_from_the_sending_of_a_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        request = Client.request

        async def slow(self: Client, *args: Any, **options: Any) -> bytes:
            answer = await request(self, *args, **options)
            await asyncio.sleep(3)
            return answer

        monkeypatch.setattr(Client, "request", slow)
        task = t.start(a)
        await eventually(lambda: t.holder == "a")
        written = now()
        await a.server.go_away()
        await eventually(lambda: a.active)
        await eventually(lambda: not a.holds(), within=12)
        assert now() - written < 10.1
        task.cancel()


@virtual_time
async def test_part_of_the_lease_is_never_used() -> None:
    async with candidates() as t:
        usual = await t.add("a", run=False)
        assert usual.elector.hold_seconds == 10
        bold = await t.add("b", lease_duration=15, renew_deadline=14.9, run=False)
        assert bold.elector.hold_seconds == (15 - 3) * 0.9


@virtual_time
@pytest.mark.parametrize("jitter", [0.0, 0.3, 0.5, 0.7, 1.0])
async def test_a_standby_takes_over_when_the_lease_runs_out(monkeypatch: pytest.MonkeyPatch, jitter: float) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: low + jitter * (high - low))
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        b = await t.add("b")
        await asyncio.sleep(30)
        await a.server.go_away()
        await eventually(lambda: b.active, within=25)
        assert 15 <= now() - b.elector._observed_at <= 15 + RUSH_SECONDS + 0.2


@virtual_time
async def test_a_leader_that_was_suspended_knows_when_it_wakes() -> None:
    asleep = 0.0
    async with candidates() as t:
        a = await t.add("a", clock=lambda: now() + asleep)
        await eventually(lambda: a.active)
        assert a.holds()
        asleep = 3_600.0
        assert not a.holds(), "before the loop has had a turn"
        await eventually(lambda: a.terms, within=3)


@pytest.mark.parametrize("thief", ["thief", ""])
@virtual_time
async def test_a_lease_that_another_client_has_written_is_lost_at_once(thief: str) -> None:
    async with candidates() as t:
        a = await t.add("a", drain=1.0)
        await eventually(lambda: a.active)
        spec = {**t.lease["spec"], "holderIdentity": thief}
        t.store.modify(LEASES, "topo", "kube-system", lambda obj: {**obj, "spec": spec})
        await eventually(lambda: a.terms, within=2.5)
        if thief:
            assert a.elector.leader == thief
            assert not a.holds()


@pytest.mark.parametrize(
    "written",
    [{"holderIdentity": ""}, {"holderIdentity": None}, {"leaseDurationSeconds": 1}, {"leaseDurationSeconds": -5}],
    ids=["emptied", "removed", "one second", "negative"],
)
@virtual_time
async def test_what_a_user_writes_on_the_lease_by_hand_never_makes_two_leaders(written: dict[str, Any]) -> None:
    def edit(obj: dict[str, Any]) -> dict[str, Any]:
        return {**obj, "spec": {**obj["spec"], **written}}

    async with candidates() as t:
        a, b = await t.add("a"), await t.add("b")
        await eventually(lambda: a.active or b.active)
        for cycle in range(12):
            await asyncio.sleep(2.5 + 0.35 * cycle)
            t.store.modify(LEASES, "topo", "kube-system", edit)
            for _ in range(400):
                assert not (a.elector.holds() and b.elector.holds())
                await asyncio.sleep(0.05)
        await eventually(lambda: a.active or b.active, within=20)


@virtual_time
async def test_what_others_write_on_the_lease_is_kept() -> None:
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        labels = {"team": "infra"}

        def label(obj: dict[str, Any]) -> dict[str, Any]:
            return {**obj, "metadata": {**obj["metadata"], "labels": labels}}

        t.store.modify(LEASES, "topo", "kube-system", label)
        await asyncio.sleep(10)
        assert a.active
        assert t.lease["metadata"]["labels"] == labels
        assert t.lease["spec"]["renewTime"] > t.lease["spec"]["acquireTime"]


@virtual_time
async def test_a_deleted_lease_is_written_again_by_its_leader_and_taken_by_no_other_replica() -> None:
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        b = await t.add("b")
        await asyncio.sleep(10)
        for _ in range(5):
            t.store.delete(LEASES, "topo", "kube-system")
            await asyncio.sleep(7)
        assert a.active
        assert not a.terms
        assert not b.active


@virtual_time
async def test_ending_finishes_what_is_under_way_then_releases() -> None:
    async with candidates() as t:
        a = await t.add("a", drain=30.0, run=False)
        task = t.start(a)
        await eventually(lambda: a.active)
        b = await t.add("b")
        task.cancel()
        await asyncio.sleep(29)
        assert a.holds(), "binds in flight may be tried again"
        assert t.holder == "a"
        assert not b.active
        await eventually(lambda: b.active, within=6)
        assert not a.holds()
        with pytest.raises(asyncio.CancelledError):
            await task


@virtual_time
async def test_a_body_that_ends_or_fails_releases_the_lease() -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)

        async def ends() -> None:
            assert a.holds()

        async def fails() -> None:
            raise RuntimeError("a bug")

        await a.elector.run(ends)
        assert t.holder == ""
        with pytest.raises(RuntimeError, match="a bug"):
            await a.elector.run(fails)
        assert t.holder == ""
        assert not a.holds()
        assert t.lease["spec"]["leaseTransitions"] == 1


@virtual_time
async def test_a_lease_that_cannot_be_released_expires() -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        task = t.start(a)
        await eventually(lambda: a.active)
        b = await t.add("b")
        await asyncio.sleep(5)
        a.server.faults.add(Delay(1e6))
        task.cancel()
        began = now()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() - began < 12
        await eventually(lambda: b.active, within=25)


@virtual_time
async def test_a_standby_says_once_for_whose_lease_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        await t.add("b")
        await asyncio.sleep(120)
        waits = [text for text in caplog.messages if text.startswith("waiting for the lease")]
        assert len(waits) == 1
        assert waits[0].endswith(", which a has")


@virtual_time
async def test_a_lease_that_lasts_long_is_waited_for_with_its_time_and_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also after it was deleted: that does not prove that its holder is gone."""
    caplog.set_level("INFO")
    async with candidates() as t:
        spec = {"holderIdentity": "old-pod_abc", "leaseDurationSeconds": 100_000, "leaseTransitions": 1}
        t.store.create(LEASES, {"metadata": {"name": "topo", "namespace": "kube-system"}, "spec": spec})
        await t.add("b")
        await asyncio.sleep(130)
        waits = [text for text in caplog.messages if "waiting for the lease" in text]
        remedy = "If no such replica runs any more, delete the Lease and restart this replica"
        assert [remedy in text for text in waits] == [True] * 3
        assert "which old-pod_abc has: taking it 3600 s from now, unless it is renewed." in waits[0]
        assert "which old-pod_abc has and does not renew: taking it 35" in waits[1]
        t.store.delete(LEASES, "topo", "kube-system")
        await asyncio.sleep(2)
        (deleted,) = [text for text in caplog.messages if "had when it was deleted" in text]
        assert ": taking it 34" in deleted and remedy in deleted
        restarted = await t.add("c")
        await eventually(lambda: restarted.active)


@virtual_time
async def test_an_api_server_that_is_away_is_logged_once_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        await a.server.go_away()
        t.start(a)
        await asyncio.sleep(120)
        assert sum("cannot contend" in record.getMessage() for record in caplog.records) == 1
        await a.server.come_back()
        await eventually(lambda: a.active, within=5)


@virtual_time
async def test_a_lease_that_is_forbidden_is_logged_with_the_rule_that_lacks(caplog: pytest.LogCaptureFixture) -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        message = 'leases "topo" is forbidden: User "x" cannot get resource "leases" in API group'
        a.server.faults.add(Refuse(403, message=message))
        t.start(a)
        await asyncio.sleep(60)
        (line,) = [text for text in caplog.messages if "cannot contend" in text]
        assert line.endswith(
            " (grant create on leases.coordination.k8s.io in namespace kube-system, and get and update on the"
            " one called topo: the Role lists it under resourceNames)"
        )


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (
            Refuse(403, message='leases "topo" is forbidden: User "x" cannot update resource "leases" in API group'),
            "the API server refused (grant create on leases.coordination.k8s.io in namespace kube-system, and get and",
        ),
        (
            Refuse(401, message="Unauthorized"),
            "the API server refused (it does not accept the credentials of this process: check its token, or the",
        ),
        (Refuse(503), "check the API server, and whether this process gets its CPU time"),
    ],
    ids=["no right", "no valid token", "busy"],
)
@virtual_time
async def test_a_replica_whose_renewals_are_refused_says_what_is_missing(
    refusal: Refuse, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        a.server.faults.add(refusal)
        await eventually(lambda: not a.active, within=60)
        (line,) = [text for text in caplog.messages if "so this replica stops leading" in text]
        assert expected in line


@virtual_time
async def test_writes_that_a_webhook_delays_too_long_are_logged_with_the_limit_and_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    remedy = (
        " (each write of the lease must be answered within 5 s: if an admission webhook for leases.coordination.k8s.io"
        " takes longer, exclude namespace kube-system from it by its namespaceSelector, or lower its timeoutSeconds)"
    )
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        a.server.faults.add(Delay(7.0), verb="update", resource="leases")
        await asyncio.sleep(120)
        stops = [text for text in caplog.messages if "stops leading" in text]
        assert stops and all(text.endswith(remedy) for text in stops)
        contends = [text for text in caplog.messages if "cannot contend" in text]
        assert contends and all(text.endswith(remedy) for text in contends)


@virtual_time
async def test_reads_of_the_lease_that_are_late_are_no_fault_of_a_webhook(caplog: pytest.LogCaptureFixture) -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        a.server.faults.add(Delay(7.0), verb="get", resource="leases")
        t.start(a)
        await asyncio.sleep(60)
        (line,) = [text for text in caplog.messages if "cannot contend" in text]
        assert line.endswith("no answer within 5.0 s")


@virtual_time
async def test_an_acquisition_whose_answer_is_lost_is_one_acquisition() -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        a.server.faults.add(Disconnect(applied=True), verb="create", resource="leases", times=1)
        task = t.start(a)
        await eventually(lambda: a.active, within=6)
        assert a.elector.transitions == 0
        assert a.elector.found_none
        assert a.elector.quiet_seconds() > 8, "there may have been a lease before"
        task.cancel()
        b = await t.add("b", run=False)
        b.server.faults.add(Disconnect(applied=True), verb="update", resource="leases", times=1)
        t.start(b)
        await eventually(lambda: b.active, within=12)
        assert b.elector.transitions == 1
        assert b.elector.quiet_seconds() <= 0


@virtual_time
async def test_of_many_candidates_one_leads() -> None:
    async with candidates() as t:
        for name in "abcdef":
            await t.add(name)
        await asyncio.sleep(30)
        assert sum(candidate.active for candidate in t.candidates) == 1


@virtual_time
async def test_a_leader_that_takes_its_own_lease_again_waits_for_what_it_had_sent() -> None:
    """Its last writes were still allowed at the end of its term, and may be on their way for as long as ever."""
    async with candidates() as t:
        a = await t.add("a")
        await eventually(lambda: a.active)
        await asyncio.sleep(20)
        a.server.faults.add(Refuse(500), resource="leases")
        ended = now() + a.elector.left()
        await eventually(lambda: not a.active, within=12)
        a.server.faults.clear()
        await eventually(lambda: a.active, within=2)
        assert a.elector.quiet_seconds() > 1
        assert now() + a.elector.quiet_seconds() == pytest.approx(ended + a.elector.fence.flight_seconds)


@pytest.mark.parametrize(("lease", "renew", "retry"), [(10, 10, 2), (15, 2, 2), (15, 2.4, 2), (15, 10, 0)])
@virtual_time
async def test_durations_that_cannot_work_are_refused(lease: float, renew: float, retry: float) -> None:
    async with candidates() as t:
        with pytest.raises(ValueError, match="leaseDuration > renewDeadline"):
            await t.add("a", lease_duration=lease, renew_deadline=renew, retry_period=retry, run=False)


@pytest.mark.parametrize(("retry", "longest"), [(2.0, 7.2), (5.0, 6.75)])
@virtual_time
async def test_a_write_leaves_time_to_try_again_but_no_more_than_a_quarter_of_the_lease(
    retry: float, longest: float
) -> None:
    async with candidates() as t:
        a = await t.add("a", retry_period=retry)
        await eventually(lambda: a.active)
        assert a.elector.left() == pytest.approx(10, abs=0.01)
        assert a.elector.fence.deadline(60) == pytest.approx(longest, abs=0.01)


def test_the_clock_moves_on() -> None:
    assert boot_time() <= boot_time()


@virtual_time
async def test_what_a_leader_notes_on_the_lease_is_read_by_the_next_and_takes_nothing_from_others() -> None:
    async with candidates() as t:
        a = await t.add("a", run=False)
        task = t.start(a)
        await eventually(lambda: a.active)
        assert a.elector.noted("example.com/kept") == ""

        def annotate(obj: dict[str, Any]) -> dict[str, Any]:
            return {**obj, "metadata": {**obj["metadata"], "annotations": {"example.com/theirs": "stays"}}}

        t.store.modify(LEASES, "topo", "kube-system", annotate)
        a.elector.note("example.com/kept", "one")
        await asyncio.sleep(5)
        a.elector.note("example.com/kept", "one,two")
        await asyncio.sleep(5)
        assert t.lease["metadata"]["annotations"] == {"example.com/theirs": "stays", "example.com/kept": "one,two"}
        task.cancel()
        b = await t.add("b")
        await eventually(lambda: b.active, within=5)
        assert b.elector.noted("example.com/kept") == "one,two"
        await asyncio.sleep(5)
        assert t.lease["metadata"]["annotations"]["example.com/kept"] == "one,two"


@pytest.mark.parametrize("answer", [b"{}", b'{"status": "ok"}'])
@virtual_time
async def test_an_answer_that_is_no_lease_renews_nothing_and_makes_no_leader(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """A load balancer whose backend is another server answers everything with 200, or only the writes."""
    request, strange = Client.request, {"GET": False, "PUT": False, "POST": False}

    async def answered(self: Client, method: str, path: str, **options: Any) -> bytes:
        if strange[method] and self is victim:
            return answer
        return await request(self, method, path, **options)

    async with candidates() as t:
        a, b = await t.add("a"), await t.add("b", run=False)
        victim = a.elector._client
        monkeypatch.setattr(Client, "request", answered)
        await eventually(lambda: a.active)
        t.start(b)
        await asyncio.sleep(20)
        strange["PUT"] = True
        await eventually(lambda: not a.active, within=12)
        await eventually(lambda: b.active, within=10)
        strange.update(GET=True, POST=True)
        await asyncio.sleep(30)
        assert b.active
        assert len(a.terms) == 1
