"""However many pods stand below what a tenant edits, and however often: others do not notice, and no news is missed."""

from collections import Counter
from collections.abc import Callable
from itertools import count

from tests.helpers import Owner, controlled_by, in_group, make_group, make_pod
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import ObjectMeta, PartialObject, Pod
from topo_scheduler.scheduling.intake.rereading import CLOCK_EVERY_PODS
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
        assert d.resolved["hostile"] - before <= 2 * CLOCK_EVERY_PODS
        steps += 1
    assert d.resolved["hostile"] == PODS
    assert steps >= PODS // (2 * CLOCK_EVERY_PODS)


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
        assert d.resolved["hostile"] <= 2 * CLOCK_EVERY_PODS
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
