"""After an eviction for a workload was refused, no victim is evicted before dry runs show that all of them could be."""

import asyncio
import logging

import pytest

from tests.evicting.eviction_scenes import EvictionScene, eviction_scene
from tests.kube.owner_objects import POD_TEMPLATE, create_object
from tests.kube.virtual import virtual_time
from tests.kube.world import world
from topo_scheduler.simulation.apiserver import Delay, Refuse
from topo_scheduler.simulation.apiserver.faults import Fault
from topo_scheduler.simulation.apiserver.requests import RequestInfo

LEAF, LEAVES = 8, 3
TOO_LARGE = "etcdserver: request is too large"
NO_DRY_RUN = 'admission webhook "w.example.com" does not support dry run'
DENIED = 'admission webhook "w.example.com" denied the request: "w" does not support dry run'


def one_of_each_leaf(info: RequestInfo) -> bool:
    """Whether a request is about the first victim of a leaf."""
    return info.name.endswith(tuple(f"-low-{leaf * LEAF}" for leaf in range(LEAVES)))


def only_its_dry_run_succeeds(info: RequestInfo) -> bool:
    """Whether a request is such an eviction, and no dry run."""
    return one_of_each_leaf(info) and not info.dry_run


async def rounds(e: EvictionScene, count: int) -> None:
    """Decide again and again, longer than any pause between two searches for victims."""
    for _ in range(count):
        e.decide()
        await e.settled()
        await asyncio.sleep(5)


@pytest.mark.parametrize(
    "fault",
    [Refuse(403), Refuse(400, message=DENIED), Delay(600.0)],
    ids=["refuses", "refuses as if it knew no dry runs", "hangs"],
)
@virtual_time
async def test_a_gang_of_which_a_victim_in_each_leaf_stays_evicts_the_others_of_one_leaf_only(fault: Fault) -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job, LEAF, nodes=LEAF * LEAVES) as e:
            w.server.faults.add(fault, verb="create", resource="pods/eviction", where=one_of_each_leaf)
            await rounds(e, 12)
            assert LEAF * LEAVES - LEAF < e.running < LEAF * LEAVES, "only before the first refusal"
            assert w.asked("create", "pods/eviction") > LEAF * 2, "dry runs"
            w.server.faults.clear()
            running = e.running
            await rounds(e, 12)
            assert e.running in (LEAF * (LEAVES - 1), running - LEAF), "all victims of one leaf"
            assert e.counted()["evicted"] >= LEAF


@pytest.mark.parametrize("fault", [Refuse(500, message=TOO_LARGE), Delay(600.0)], ids=["refuses", "hangs"])
@virtual_time
async def test_a_victim_whose_dry_run_alone_succeeds_is_tried_before_the_others_of_its_leaf(fault: Fault) -> None:
    """A dry run does not reach etcd. So the others of one leaf are evicted before that is known, and no more."""
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        of_tenant = range(0, LEAF * LEAVES, LEAF)
        async with eviction_scene(w, job, LEAF, nodes=LEAF * LEAVES, of_tenant=of_tenant) as e:
            w.server.faults.add(fault, verb="create", resource="pods/eviction", where=only_its_dry_run_succeeds)
            await rounds(e, 40)
            assert e.running > LEAF * (LEAVES - 1), "only before the first refusal"
            assert w.asked("create", "pods/eviction") > LEAF * 2, "it goes on searching"


@virtual_time
async def test_while_the_eviction_of_a_doubted_victim_hangs_no_other_victim_of_its_leaf_waits_for_it() -> None:
    """They are given up at once: the workload may choose them again, and then needs dry runs of its own for them."""
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        of_tenant = range(0, LEAF * LEAVES, LEAF)
        async with eviction_scene(w, job, LEAF, nodes=LEAF * LEAVES, of_tenant=of_tenant) as e:
            w.server.faults.add(Delay(600.0), verb="create", resource="pods/eviction", where=only_its_dry_run_succeeds)
            for _ in range(6):
                e.decide()
                await asyncio.sleep(5)
            assert 0 < sum(not task.done() for task in e.tasks) <= LEAVES, "no more than the evictions that hang"


@virtual_time
async def test_a_webhook_without_dry_runs_does_not_end_preemption() -> None:
    """The first eviction is refused; then each dry run is answered by the API server itself, and the rest as usual."""
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job, LEAF, nodes=LEAF * 2) as e:
            w.server.faults.add(Refuse(403), verb="create", resource="pods/eviction", times=1)
            await rounds(e, 1)
            w.server.faults.add(Refuse(400, message=NO_DRY_RUN), verb="create", resource="pods/eviction", times=LEAF)
            await rounds(e, 6)
            assert e.running <= LEAF


@virtual_time
async def test_refusals_of_evictions_and_of_dry_runs_are_logged_in_the_words_of_the_api_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job) as e:
            w.server.faults.add(Refuse(403, message="not on Sundays"), verb="create", resource="pods/eviction")
            await rounds(e, 4)
    refusals = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for request in ("its eviction", "a dry run of its eviction"):
        assert any(line.endswith(f"the API server refused {request}: not on Sundays") for line in refusals), refusals


@virtual_time
async def test_evictions_that_are_not_refused_need_no_dry_run() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job, LEAF, nodes=LEAF * 2) as e:
            await rounds(e, 1)
            assert (e.evictions, e.running) == (LEAF, LEAF)


@virtual_time
async def test_dry_runs_that_wait_for_a_slot_do_not_count_as_unanswered() -> None:
    """All victims are of one namespace: four dry runs at once, and eight rounds of them take longer than one may."""
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        size = 4 * LEAF
        async with eviction_scene(w, job, size) as e:
            w.server.faults.add(Refuse(403), verb="create", resource="pods/eviction", times=1)
            await rounds(e, 1)
            assert e.running >= size - LEAF
            w.server.faults.add(Delay(0.5), verb="create", resource="pods/eviction")
            await rounds(e, 12)
            assert e.running == 0
            assert e.counted()["failed"] == 1


@pytest.mark.unrecorded
@virtual_time
async def test_what_a_workload_requests_later_does_not_wait_for_dry_runs_of_its_earlier_victims() -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job, LEAF, nodes=LEAF * 2) as e:
            w.server.faults.add(Refuse(403), verb="create", resource="pods/eviction", times=1)
            await rounds(e, 1)
            w.server.faults.add(Delay(600.0), verb="create", resource="pods/eviction", times=1)
            assert e.decide() > 0
            await asyncio.sleep(0.5)
            (id_,) = (claim.workload for claim in e.driver.engine.preempting._claims.expired(1e9))
            claim = e.driver.engine.preempting._claims.get(id_)
            assert claim is not None
            e.driver.engine.preempting._claims.clear(claim)  # as for a workload of higher priority that took its place
            e.driver.engine.preempting._turns.again[id_] = 0.0
            assert e.decide() > 0
            await asyncio.sleep(1)
            assert e.running <= LEAF
