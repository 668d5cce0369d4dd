"""However many pods stand below what a tenant edits, and however often: others do not notice, and no news is missed."""

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from tests.helpers import Owner, controlled_by, in_group, make_group, make_pod
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import ObjectMeta, PartialObject, Pod
from topo_scheduler.scheduling.intake import rereading
from topo_scheduler.scheduling.intake.rereading import (
    MAX_NAMESPACES,
    ORDINARY_SECONDS,
    PODS_A_SECOND,
    PODS_AFTER_REST,
    PODS_AT_ONCE,
    ReadPace,
    Rereading,
)
from topo_scheduler.scheduling.intake.understand import Lineage

PODS = 400


class Slow(Driver):
    """Each look at the clock is after the time of a step; how often owners are resolved is counted by namespace."""

    def __init__(self, nodes: int = 4, config: Configuration | None = None) -> None:
        self.resolved: Counter[str] = Counter()
        super().__init__(fabric({"s/l1": nodes}), config)

    def slow_down(self) -> None:
        """From here on each step ends as early as it may."""
        ticks = count()
        self.clock = lambda: float(next(ticks))

    def _resolve(self, pod: Pod) -> Lineage | None:
        self.resolved[pod.metadata.namespace] += 1
        return super()._resolve(pod)


def below(uid: str, pods: int, namespace: str, gpus: int = 9) -> list[Pod]:
    return [
        make_pod(f"{uid}-{at}", gpus=gpus, namespace=namespace, owner=controlled_by("ReplicaSet", uid, uid))
        for at in range(pods)
    ]


def attacked(change: Callable[[Slow], None], make: Callable[[], list[Pod]]) -> Slow:
    d = Slow(config=configured())
    d.own(Owner("ReplicaSet", "mine", "victims", "mine"))
    d.own(Owner("ReplicaSet", "theirs", "hostile", "theirs"))
    d.serve(GroupApi.VOLCANO)
    d.apply(*make())
    d.settle()
    d.slow_down()
    d.resolved.clear()
    change(d)
    return d


def test_pods_below_an_edited_owner_are_read_a_few_in_a_step_each_once_however_often_it_is_edited() -> None:
    def edited(d: Slow) -> None:
        for _ in range(50):
            d.engine.owner_changed("theirs", d.now)

    d = attacked(edited, lambda: below("theirs", PODS, "hostile"))
    assert d.resolved["hostile"] == 0
    steps = 0
    while d.engine.arrivals.rereading:
        before = d.resolved["hostile"]
        d.step()
        assert d.resolved["hostile"] - before <= 2
        steps += 1
    assert d.resolved["hostile"] == PODS
    assert steps >= PODS // 2


def test_pods_of_another_namespace_do_not_wait_for_them() -> None:
    d = attacked(
        lambda d: d.engine.owner_changed("theirs", d.now),
        lambda: below("theirs", PODS, "hostile"),
    )
    (pod,) = below("mine", 1, "victims", gpus=1)
    d.chains.pop("mine")
    d.apply(pod)
    d.own(Owner("ReplicaSet", "mine", "victims", "mine"))
    for _ in range(4):
        d.step()
    assert pod.metadata.uid in d.flight
    assert d.engine.arrivals.rereading


def test_a_podgroup_and_a_namespace_with_thousands_of_pods_are_taken_over_in_parts() -> None:
    def members() -> list[Pod]:
        return [in_group(make_pod(f"m-{at}", gpus=9, namespace="hostile"), "g", GroupApi.VOLCANO) for at in range(PODS)]

    def edited(d: Slow) -> None:
        d.groups(make_group("g", PODS, namespace="hostile", api=GroupApi.VOLCANO))

    def deleting(d: Slow) -> None:
        meta = ObjectMeta(name="hostile", deletion_timestamp="2026-01-01T00:00:00Z")
        d.engine.namespaces_applied([PartialObject(metadata=meta)])

    for change in (edited, deleting):
        d = attacked(change, members)
        d.resolved.clear()
        d.step()
        assert d.resolved["hostile"] <= 2
        while d.engine.arrivals.rereading:
            d.step()
        assert d.resolved["hostile"] >= PODS


def test_nothing_below_a_deleted_owner_is_placed_before_the_news_was_taken_over() -> None:
    d = Slow(nodes=0)
    d.own(Owner("ReplicaSet", "theirs", "hostile", "theirs"))
    pods = below("theirs", PODS, "hostile", gpus=1)
    d.apply(*pods)
    d.settle()
    d.slow_down()
    d.disown("theirs")
    d.nodes(*fabric({"s/l1": PODS}))
    for _ in range(2 * PODS):
        d.now += 0.2
        d.step()
    assert not d.engine.arrivals.rereading
    assert not d.flight


def test_the_next_step_is_due_at_once_while_pods_are_left() -> None:
    d = attacked(lambda d: d.engine.owner_changed("theirs", d.now), lambda: below("theirs", PODS, "hostile"))
    d.step()
    due = d.engine.next_due()
    assert due is not None and due <= d.now


# ---------------------------------------------------------------- a namespace that never stops


def test_a_namespace_reads_many_at_once_and_a_share_in_the_long_run() -> None:
    pace, now = ReadPace(), 100.0
    for _ in range(PODS_AT_ONCE):
        assert pace.due("hostile") <= now
        pace.take("hostile", now)
    assert pace.due("victims") == 0
    begin, read = now, 0
    while now < begin + 10:
        now = pace.due("hostile")
        while pace.due("hostile") <= now:
            pace.take("hostile", now)
            read += 1
    assert 10 * PODS_A_SECOND <= read <= 10 * PODS_A_SECOND + 2 * PODS_AFTER_REST
    for number in range(2 * MAX_NAMESPACES):
        pace.take(f"n{number}", now)
    assert len(pace._shares) == MAX_NAMESPACES


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Return a driver in which the hostile namespace has used its share, and pods of it wait to be read again."""
    monkeypatch.setattr(rereading, "PODS_AT_ONCE", PODS + PODS // 10)
    d = Slow(nodes=0)
    d.own(Owner("ReplicaSet", "theirs", "hostile", "theirs"))
    d.own(Owner("ReplicaSet", "mine", "victims", "mine"))
    d.apply(*below("theirs", PODS, "hostile", gpus=1), *below("mine", PODS, "victims"))
    d.settle()
    for _ in range(2):
        d.engine.owner_changed("theirs", d.now)
        read_what_is_due(d)
    return d


def read_what_is_due(d: Slow) -> None:
    while (due := d.engine.arrivals.reread_due()) is not None and due <= d.now:
        d.step()


@pytest.mark.unrecorded
def test_a_resting_namespace_delays_no_other_and_makes_no_step_due(resting: Slow) -> None:
    d = resting
    due = d.engine.next_due()
    assert d.engine.arrivals.rereading and due is not None and due > d.now
    d.resolved.clear()
    d.engine.owner_changed("mine", d.now)
    read_what_is_due(d)
    assert d.resolved == {"victims": PODS}


@pytest.mark.unrecorded
def test_pods_of_a_resting_namespace_are_not_placed_until_what_changed_is_known(resting: Slow) -> None:
    d = resting
    d.disown("theirs")
    d.nodes(*fabric({"s/l1": PODS}))
    d.step()
    assert d.engine.arrivals.rereading
    for _ in range(20):
        d.now += 0.1
        read_what_is_due(d)
    assert d.engine.arrivals.reread_due() is None
    assert not d.flight


@pytest.mark.unrecorded
def test_edits_of_a_resting_namespace_make_no_step_due(resting: Slow) -> None:
    """Queueing thousands of pods takes long, too, and each may be below dozens of objects."""
    d = resting
    for _ in range(3):
        d.engine.owner_changed("theirs", d.now)
        due = d.engine.next_due()
        assert due is not None and due > d.now
        d.step()
    d.resolved.clear()
    d.engine.owner_changed("mine", d.now)
    read_what_is_due(d)
    assert d.resolved == {"victims": PODS}


@pytest.mark.unrecorded
def test_pods_that_are_only_queued_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereading, "PODS_AT_ONCE", 2 * PODS + 1)
    monkeypatch.setattr(rereading, "QUEUED_PODS_PER_READ", 1)
    d = Slow(nodes=0)
    owners = [Owner("ReplicaSet", "theirs", "hostile", "theirs"), Owner("Deployment", "top", "hostile", "top")]
    d.own(*owners)
    d.apply(*below("theirs", PODS, "hostile"))
    d.settle()
    d.resolved.clear()
    d.engine.owner_changed("theirs", d.now)
    read_what_is_due(d)
    assert d.resolved["hostile"] == PODS
    d.engine.owner_changed("theirs", d.now)
    d.engine.owner_changed("top", d.now)
    read_what_is_due(d)
    assert d.resolved["hostile"] == PODS
    (workload, *_) = d.engine.workloads
    assert d.engine.arrivals.is_stale(workload)
    d.now += 1
    read_what_is_due(d)
    assert not d.engine.arrivals.rereading


def test_pods_that_take_long_to_read_count_as_several() -> None:
    """Those with dozens of claims and hundreds of terms take a hundred times as long as others."""
    queue, now = Rereading(), 0.0

    def read() -> None:
        nonlocal now
        now += 100 * ORDINARY_SECONDS

    for number in range(2_000):
        queue.put(make_pod(f"p-{number}", namespace="hostile"))
    for _ in range(2_000):
        queue.read(lambda _: read(), 0.0, lambda: now)
    left = len(queue)
    assert 2_000 - left == PODS_AT_ONCE // 100
    queue.read(lambda _: read(), 1.0, lambda: now)
    assert len(queue) < left
