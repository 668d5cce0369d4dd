"""Whatever the API server does, nothing is lost and nothing is double, and the daemon stays up."""

import asyncio
import functools
from typing import Any, Literal

import pytest

from tests.delays import random_delays
from topo_scheduler.api.process import LeaderElection
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.runtime import term
from topo_scheduler.simulation.apiserver import BreakWatch, Disconnect, Refuse, Stray, Truncate

from . import objects
from .cluster import Cluster, leaves_of
from .conftest import StartReplica, Trouble
from .replica import SHORT_LEASE, Replica, configured

GANGS, MEMBERS, SINGLES = 4, 4, 6
ROOM = {"s1": [4] * 5, "s2": [4] * 5}
"""A leaf for each gang, even if every single pod stands in a leaf of its own."""
ROOM_FOR_TWO = {"s1": [4] * 10, "s2": [4] * 10}


async def submit(cluster: Cluster, first: int = 0) -> None:
    """Create the work: gangs of whole nodes and pods of one GPU; room is there for all of it at once."""
    for number in range(first, first + GANGS):
        await cluster.apply(objects.gang(f"gang{number}", MEMBERS))
    await cluster.apply(*(objects.pod(f"single{number}", 1) for number in range(first, first + SINGLES)))


async def all_placed(cluster: Cluster, first: int = 0, timeout: float = 40, *, events: bool = True) -> None:
    """All of it is bound, each gang in one leaf, and every pod has its event, if ``events``."""
    for number in range(first, first + GANGS):
        assert len(leaves_of(await cluster.wait_bound(f"gang{number}", MEMBERS, timeout))) == 1
    for number in range(first, first + SINGLES):
        (pod,) = await cluster.wait_bound(f"single{number}", 1, timeout)
        if events:
            await cluster.wait_note(pod, "Successfully assigned", reason="Scheduled", timeout=30)


BIND_FAULTS = {
    "429": Refuse(429, retry_after=1),
    "429 without Retry-After": Refuse(429),
    "500": Refuse(500),
    "503": Refuse(503),
    "409": Refuse(409),
    "lost before it was written": Disconnect(),
    "lost after it was written": Disconnect(applied=True),
    "answer truncated": Truncate(),
    "answered by another server": Stray(),
}


@pytest.mark.parametrize("fault", BIND_FAULTS.values(), ids=BIND_FAULTS.keys())
async def test_binds_that_fail_for_a_while(
    cluster: Cluster, trouble: Trouble, daemon: Replica, fault: Refuse | Disconnect | Truncate | Stray
) -> None:
    await cluster.add_fabric(ROOM)
    rule = trouble.faults.add(fault, verb="create", resource="pods/binding", times=12)
    await submit(cluster)
    await all_placed(cluster)
    assert rule.struck == 12
    assert daemon.alive


@pytest.mark.parametrize(
    ("seconds", "bind_timeout"),
    [
        pytest.param((0.3,), 5.0, id="0.3 s"),
        pytest.param((1.0, 1.5, 2.0, 2.5, 2.9), 5.0, id="1 to 3 s", marks=pytest.mark.slow),
        pytest.param((3.0, 3.6, 4.2, 4.8), 20.0, id="3 to 5 s", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
async def test_every_request_is_slow(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, seconds: tuple[float, ...], bind_timeout: float
) -> None:
    """Lists, watches, renewals, Bindings and events alike: all is placed once, and the Lease is not lost.

    No gang is rolled back, because its binds are as slow as anything else.
    """
    trouble.faults.rules += random_delays(*seconds)
    daemon = await start_replica(configured(election=LeaderElection(), bind_timeout=bind_timeout), wait=False)
    await daemon.wait_leading(120)
    await cluster.add_fabric(ROOM)
    await submit(cluster)
    await all_placed(cluster, timeout=60)
    assert sum(rule.struck for rule in trouble.faults.rules) > GANGS * MEMBERS + SINGLES
    lease = await cluster.api.get("leases", "topology-scheduler", "kube-system")
    assert lease["spec"]["leaseTransitions"] == 0
    events = await cluster.api.list("events")
    assert not [event for event in events if event.get("reason") == "GangRolledBack"]
    assert daemon.alive


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_a_bind_that_is_refused_for_good_is_reported_and_tried_again(
    cluster: Cluster, trouble: Trouble, daemon: Replica, code: int
) -> None:
    """Admission may say no to one pod today and yes to it later; its gang holds nothing meanwhile."""
    await cluster.add_fabric({"s1": [4, 4]})
    daemon.may_be_refused = True
    refused = trouble.faults.add(Refuse(code, message="not today"), verb="create", resource="pods/binding", times=3)
    await cluster.apply(objects.gang("team", 4))
    pods = await cluster.wait_bound("team", 4, 30)
    assert refused.struck == 3
    notes = [note for pod in pods for note in await cluster.notes(pod, "BindFailed")]
    assert any("not today" in note for note in notes), notes


HOWS: tuple[Literal["drop", "end", "expire", "truncate", "repeat", "silence"], ...] = (
    "drop", "end", "expire", "truncate", "repeat", "silence",
)  # fmt: skip


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches that say nothing for 3 s are dead: bookmarks come every second here."""
    monkeypatch.setattr(term, "Reflector", functools.partial(Reflector[Any], silence=3.0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", HOWS)
async def test_watches_that_break_in_the_middle(
    cluster: Cluster,
    trouble: Trouble,
    start_replica: StartReplica,
    how: Literal["drop", "end", "expire", "truncate", "repeat", "silence"],
) -> None:
    """Every watch breaks as pods come, and those that replace them break again after some events."""
    daemon = await start_replica()
    await cluster.add_fabric(ROOM)
    for resource in ("pods", "nodes", "jobs.batch"):  # on a busy machine one may be over just now, for its silence
        broken = functools.partial(trouble.break_watches, BreakWatch(how, after=3), resource)
        await cluster.wait_for(broken, 10, f"a watch of {resource} that can break")
    again = trouble.faults.add(BreakWatch(how, after=5), verb="watch", resource="pods", times=3)
    await submit(cluster)
    await all_placed(cluster)
    if how not in ("repeat", "silence"):
        assert again.struck
    assert daemon.alive


@pytest.mark.only("embedded")
@pytest.mark.usefixtures("impatient")
async def test_deletions_missed_while_a_watch_was_dead_are_noticed(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """A 410 after a gap: the list that follows lacks a pod, whose room is free, and has one more node."""
    await start_replica()
    await cluster.add_fabric({"s1": [2]})
    for node in ("s1-l1-1", "s1-l1-2"):
        await cluster.occupy(node)
    await cluster.apply(objects.gang("pair", 2), objects.pod("third", 8))
    (third,) = await cluster.wait_pods("third", 1)
    await cluster.wait_note(third, "0/2 nodes are available")
    away = [
        cluster.server.faults.add(Refuse(503), verb=verb, resource=resource)
        for verb in ("list", "watch")
        for resource in ("pods", "nodes")
    ]
    cluster.server.break_watches(BreakWatch("drop"))
    for node in ("s1-l1-1", "s1-l1-2"):
        cluster.server.store.delete("pods", f"held-{node}", "default")
    cluster.server.store.create("nodes", objects.node("late", spine="s1", leaf="l1", model="H100"))
    cluster.server.store.compact()
    for rule in away:
        cluster.server.faults.remove(rule)
    await cluster.wait_bound("pair", 2, 40)
    await cluster.wait_bound("third", 1)


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(429, retry_after=1), Truncate(), Disconnect()], ids=str)
async def test_lists_that_fail_while_it_starts(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, fault: Refuse | Truncate | Disconnect
) -> None:
    await cluster.add_fabric(ROOM)
    await submit(cluster)
    agent = "replicasets"  # only the daemon lists these here
    rules = [trouble.faults.add(fault, verb="list", resource=agent, times=3)]
    rules.append(trouble.faults.add(fault, verb="watch", resource="pods", times=2))
    await start_replica()
    await all_placed(cluster)


async def test_events_that_are_refused_for_a_while_come_later(
    cluster: Cluster, trouble: Trouble, daemon: Replica
) -> None:
    await cluster.add_fabric(ROOM)
    trouble.faults.add(Refuse(503), verb="create", resource="events", times=10)
    trouble.faults.add(Refuse(429, retry_after=1), verb="create", resource="events", times=3)
    await submit(cluster)
    await all_placed(cluster)


# A request that ends as the server goes away may leave its socket to the garbage collector: seen once.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(3.0, id="for seconds"),
        pytest.param(60.0, id="for a minute", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
async def test_the_api_server_goes_away(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, seconds: float
) -> None:
    """In the middle of placing; what was submitted before, and what is submitted after, is placed."""
    daemon = await start_replica(configured(election=SHORT_LEASE, bind_timeout=2.0))
    await cluster.add_fabric(ROOM_FOR_TWO)
    await submit(cluster)
    binding = trouble.faults.add(Refuse(503), verb="create", resource="pods/binding")
    await cluster.wait_for(lambda: binding.struck or _bound(cluster), 10, "the first bind")
    await trouble.go_away()
    trouble.faults.clear()
    await asyncio.sleep(seconds)
    assert daemon.alive
    await trouble.come_back()
    await submit(cluster, 10)
    # A bind that was on the wire then has no event if the term ended before its answer: see the test below.
    await all_placed(cluster, timeout=90, events=False)
    await all_placed(cluster, 10, timeout=90)
    assert daemon.alive


def _bound(cluster: Cluster) -> bool:
    return bool(cluster.recorder.bound)


async def test_an_owner_that_cannot_be_read_for_a_while_holds_its_pods_back(
    cluster: Cluster, trouble: Trouble, daemon: Replica
) -> None:
    """A controlled pod is not placed until its owners are known: its Job may ask for what the pod does not say."""
    rules = [trouble.faults.add(Refuse(503), verb=verb, resource="jobs") for verb in ("get", "list", "watch")]
    trouble.break_watches(BreakWatch("drop"), "jobs.batch")
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.job("held", 2, 4, {"gpu-count": "8", "gpu-model": "H300"}))
    await cluster.wait_pods("held", 2)

    async def none_bound() -> bool:
        return not any(pod["spec"].get("nodeName") for pod in await cluster.pods_of("held"))

    await cluster.holds_for(1.0, none_bound, "no pod of a Job that could not be read is placed")
    for rule in rules:
        trouble.faults.remove(rule)
    (pod, _) = await cluster.wait_pods("held", 2)
    await cluster.wait_note(pod, "4 node(s) had another GPU model", timeout=30)


@pytest.mark.only("real")
async def test_the_api_server_crashes_in_the_middle(cluster: Cluster, start_replica: StartReplica) -> None:
    """SIGKILL, and a start on the same etcd; binds on the wire are settled one way or the other.

    A server that has just started has not read its roles yet and answers 403 for a moment, to every client.
    """
    daemon = await start_replica(configured(election=SHORT_LEASE, bind_timeout=3.0))
    daemon.may_be_refused = True
    await cluster.add_fabric(ROOM_FOR_TWO)
    await submit(cluster)
    await cluster.wait_for(lambda: _bound(cluster), 10, "the first bind")
    await asyncio.to_thread(cluster.plane.restart, "kube-apiserver", grace=0)
    assert daemon.alive
    await submit(cluster, 10)
    # Of a bind that was on the wire when the lease ran out, the next term learns that it was written, not the writer.
    await all_placed(cluster, timeout=60, events=False)
    await all_placed(cluster, 10, timeout=60)
