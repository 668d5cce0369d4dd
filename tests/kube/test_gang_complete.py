"""The condition GangComplete is written behind the binds, soon, and again where it was refused."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.helpers import make_pod
from tests.kube.virtual import now, virtual_time
from tests.kube.world import world
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.runtime.bind_queue import BindQueue
from topo_scheduler.runtime.executor import Executor, Writers
from topo_scheduler.runtime.gang_marks import (
    DELAY_SECONDS,
    FAILING_MARKS_IN_FLIGHT,
    FIRST_PAUSE_SECONDS,
    LAST_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MARKS_IN_FLIGHT,
    MARKS_IN_FLIGHT_OF_NAMESPACE,
    PATIENCE_SECONDS,
    PENDING_MARKS_OF_NAMESPACE,
    GangMarks,
)
from topo_scheduler.scheduling.instructions import Bind, MarkComplete, PodRef
from topo_scheduler.simulation.apiserver import Delay, Refuse
from topo_scheduler.simulation.apiserver.faults import Fault

POD = PodRef("default", "p", "uid-p")


class Statuses:
    """Notes when marks are written; the first so many are refused."""

    def __init__(self, refused: int = 0) -> None:
        self.refused = refused
        self.written: list[float] = []

    async def mark_complete(self, *_: object, first: bool) -> bool:
        if self.refused:
            self.refused -= 1
            return False
        self.written.append(now())
        return True


def knowing(*pods: PodRef) -> Driver:
    driver = Driver(fabric({"s/l": 1}))
    driver.apply(*(make_pod(pod.name, namespace=pod.namespace, uid=pod.uid, gpus=1) for pod in pods))
    return driver


def an_executor(statuses: Statuses, tasks: list[asyncio.Task[None]], driver: Driver) -> Executor:
    fields = (*5 * (None,), statuses, *3 * (None,))
    writers = Writers(*cast("tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]", fields))

    async def confirm(_: object) -> str:
        return ""

    return Executor(
        driver.engine,
        writers,
        Metrics(Snapshot),
        name="topo-scheduler",
        workers=48,
        clock=lambda: 0.0,
        wall=lambda: 0.0,
        start=lambda work, name: tasks.append(asyncio.create_task(work, name=name)),
        changed=lambda: None,
        confirm=confirm,
    )


@pytest.mark.parametrize(
    ("binds_end", "written"),
    [(0.0, DELAY_SECONDS), (5.0, 5.0), (60.0, DELAY_SECONDS + PATIENCE_SECONDS)],
)
@virtual_time
async def test_marks_stand_back_behind_binds_for_some_seconds(binds_end: float, written: float) -> None:
    statuses, tasks = Statuses(), list[asyncio.Task[None]]()
    executor = an_executor(statuses, tasks, knowing(POD))
    began = now()
    executor.carry_out(Bind(POD, "node-1", {}, 0.0, 0.0))
    executor.carry_out(MarkComplete(POD))
    work = await executor._binds.take()
    await asyncio.sleep(binds_end)
    executor._binds.done(work, binds_end)
    await asyncio.gather(*tasks)
    assert [at - began for at in statuses.written] == [written]


@virtual_time
async def test_the_end_of_a_term_writes_marks_that_stand_back_while_its_last_binds_are_under_way() -> None:
    statuses, tasks = Statuses(), list[asyncio.Task[None]]()
    pods = [PodRef(f"n{number % 7}", f"p{number}", f"uid-{number}") for number in range(MARKS_IN_FLIGHT * 3)]
    executor = an_executor(statuses, tasks, knowing(POD, *pods))
    executor.carry_out(Bind(POD, "node-1", {}, 0.0, 0.0))
    await executor._binds.take()
    for pod in pods:
        executor.carry_out(MarkComplete(pod))
    await asyncio.sleep(2.0)  # behind the bind, which does not end
    assert statuses.written == []
    began = now()
    executor.drop_binds()
    await asyncio.sleep(0.1)
    assert len(statuses.written) == MARKS_IN_FLIGHT * 3
    await executor.finish_marks()
    executor.carry_out(MarkComplete(POD))  # what the last bind brought about
    await executor.finish_marks()
    assert [at - began for at in statuses.written] == [0.0] * (MARKS_IN_FLIGHT * 3) + [pytest.approx(0.1)]


@virtual_time
async def test_a_pod_that_the_engine_knows_is_marked_though_that_was_refused_and_one_that_it_does_not_is_not() -> None:
    for uid, written in ((POD.uid, 1), ("unknown", 0)):
        statuses, tasks = Statuses(refused=2), list[asyncio.Task[None]]()
        an_executor(statuses, tasks, knowing(POD)).carry_out(MarkComplete(PodRef("default", "p", uid)))
        await asyncio.gather(*tasks)
        assert len(statuses.written) == written and statuses.refused == 2 * (not written)


class Marks:
    """Marks of pods of several namespaces, of which some are refused or not answered."""

    def __init__(self, refused: Callable[[PodRef], bool] = lambda pod: False, takes: float = 0.0) -> None:
        self.refused = refused
        self.takes = takes
        self.gone: set[str] = set()
        self.attempts: list[tuple[float, str]] = []
        self.first: list[bool] = []
        self.written: set[str] = set()
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.tasks: list[asyncio.Task[None]] = []
        self.binds = BindQueue(48)
        self.marks = GangMarks(self.binds, self._write, lambda uid: uid not in self.gone, self._start)

    def _start(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    async def _write(self, pod: PodRef, first: bool) -> bool:
        self.attempts.append((now(), pod.uid))
        self.first.append(first)
        for name in (pod.namespace, ""):
            self.under_way[name] += 1
            self.most[name] = max(self.most[name], self.under_way[name])
        refused = self.refused(pod)
        try:
            await asyncio.sleep(self.takes if refused else 0.0)
        finally:
            for name in (pod.namespace, ""):
                self.under_way[name] -= 1
        if not refused:
            self.written.add(pod.uid)
        return not refused

    def put(self, namespace: str, count: int) -> None:
        for number in range(count):
            self.marks.put(PodRef(namespace, f"p{number}", f"{namespace}-{number}"))

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@virtual_time
async def test_a_mark_that_is_refused_is_tried_again_with_growing_pauses_until_it_is_written() -> None:
    marks = Marks(lambda pod: True)
    began = now()
    marks.put("a", 1)
    await asyncio.sleep(2_000)
    pauses = [FIRST_PAUSE_SECONDS * 2**number for number in range(6)] + [LONGEST_PAUSE_SECONDS] * 5
    assert [at - began for at, _ in marks.attempts] == [DELAY_SECONDS + sum(pauses[:n]) for n in range(len(pauses) + 1)]
    assert marks.first == [True] + [False] * len(pauses)
    marks.refused = lambda pod: False
    await asyncio.sleep(LONGEST_PAUSE_SECONDS)
    assert marks.written == {"a-0"} and not len(marks.marks)
    assert all(task.done() for task in marks.tasks), "nothing is left that runs"
    marks.put("a", 2)
    await asyncio.sleep(DELAY_SECONDS + 0.1)
    assert marks.written == {"a-0", "a-1"}, "it starts anew"


@virtual_time
async def test_a_mark_of_a_pod_that_is_gone_is_dropped() -> None:
    marks = Marks(lambda pod: True)
    marks.put("a", 3)
    await asyncio.sleep(DELAY_SECONDS + 1)
    marks.gone = {"a-0", "a-1", "a-2"}
    await asyncio.sleep(FIRST_PAUSE_SECONDS)
    assert len(marks.attempts) == 3 and not len(marks.marks) and all(task.done() for task in marks.tasks)


@pytest.mark.parametrize("takes", [0.0, 30.0], ids=["refused", "not answered"])
@virtual_time
async def test_namespaces_whose_marks_are_not_written_do_not_hold_up_those_of_others_however_many(takes: float) -> None:
    marks = Marks(lambda pod: pod.namespace.startswith("hostile"), takes=takes)
    for number in range(MARKS_IN_FLIGHT):
        marks.put(f"hostile{number}", 500)
    await asyncio.sleep(500)
    assert len(marks.marks), "older than those of the victim"
    marks.put("victim", 50)
    await asyncio.sleep(DELAY_SECONDS + 0.1)
    assert {f"victim-{number}" for number in range(50)} <= marks.written
    assert (
        marks.most["hostile0"] <= MARKS_IN_FLIGHT_OF_NAMESPACE
        and marks.most[""] <= MARKS_IN_FLIGHT + FAILING_MARKS_IN_FLIGHT
    )
    assert len(asyncio.all_tasks()) <= MARKS_IN_FLIGHT + FAILING_MARKS_IN_FLIGHT + 3, "what waits is no task"
    marks.refused = lambda pod: False
    await asyncio.sleep(2 * LONGEST_PAUSE_SECONDS)
    assert len(marks.written) == MARKS_IN_FLIGHT * 500 + 50 and not len(marks.marks), "none is forgotten"


@virtual_time
async def test_a_mark_that_failed_once_does_not_wait_for_thousands_of_those_that_fail_always() -> None:
    failing = {"victim"}
    marks = Marks(lambda pod: pod.namespace.startswith("hostile") or pod.namespace in failing, takes=10.0)
    for number in range(FAILING_MARKS_IN_FLIGHT):
        marks.put(f"hostile{number}", 1_000)
    await asyncio.sleep(60)
    marks.put("victim", 3)
    await asyncio.sleep(DELAY_SECONDS + 1)
    failing.clear()
    await asyncio.sleep(60)
    assert {f"victim-{number}" for number in range(3)} <= marks.written
    marks.refused = lambda pod: False
    await asyncio.sleep(2 * LONGEST_PAUSE_SECONDS)
    assert len(marks.written) == FAILING_MARKS_IN_FLIGHT * 1_000 + 3 and not len(marks.marks), "none is forgotten"
    assert not marks.marks._resting and not marks.marks._troubled


@virtual_time
async def test_one_pod_that_is_refused_for_good_keeps_no_other_of_its_namespace_from_being_marked() -> None:
    marks = Marks(lambda pod: pod.name == "p0")
    marks.put("a", 1_000)
    await asyncio.sleep(DELAY_SECONDS + 1)
    assert marks.written == {f"a-{number}" for number in range(1, 1_000)}
    await marks.end()


@virtual_time
async def test_marks_of_pods_that_came_and_went_while_none_was_answered_do_not_pile_up() -> None:
    marks = Marks(lambda pod: True, takes=30.0)
    for number in range(2_000):
        pods = [PodRef("a", f"p{number}-{rank}", f"uid-{number}-{rank}") for rank in range(2)]
        for pod in pods:
            marks.marks.put(pod)
        await asyncio.sleep(2.0)
        marks.gone |= {pod.uid for pod in pods}
    assert len(marks.marks) < 100
    await marks.end()


@virtual_time
async def test_of_marks_that_are_refused_so_many_wait_and_no_more() -> None:
    marks = Marks(lambda pod: True)
    marks.put("a", PENDING_MARKS_OF_NAMESPACE + 10)
    await asyncio.sleep(DELAY_SECONDS + 1)
    assert len(marks.marks) <= PENDING_MARKS_OF_NAMESPACE + MARKS_IN_FLIGHT_OF_NAMESPACE
    await marks.end()


@virtual_time
async def test_the_end_of_a_term_retries_refused_marks_once_and_waits_for_none_for_long() -> None:
    marks = Marks(lambda pod: pod.namespace == "a", takes=30.0)
    marks.put("a", 2)
    marks.put("b", 2)
    began = now()
    await marks.marks.finish()
    assert now() - began == LAST_SECONDS and marks.written == {"b-0", "b-1"}
    await asyncio.sleep(60)
    assert len(marks.attempts) == 4 and not len(marks.marks), "not tried again: the term is over"
    await marks.end()


@pytest.mark.parametrize("fault", [Refuse(403), Refuse(500), Delay(60.0), Refuse(404), Refuse(409)], ids=str)
@virtual_time
async def test_whether_the_condition_was_written_is_returned(fault: Fault) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        writes = PodStatusWriter(w.client)
        rule = w.server.faults.add(fault, resource="pods/status")
        assert await writes.mark_complete("default", "pod", pod.metadata.uid, 0.0) is False
        w.server.faults.remove(rule)
        assert await writes.mark_complete("default", "pod", pod.metadata.uid, 0.0)
        assert [condition.type for condition in w.pod("pod").status.conditions] == ["topology.scheduler/GangComplete"]
        assert not await writes.mark_complete("default", "gone", "uid", 0.0)
