"""A process that takes over knows what it needs from what the API server says, and from nothing else."""

import random

import pytest

from tests.helpers import controlled_by, make_pod, owner
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Pod


def gang(size: int = 4) -> list[Pod]:
    annotations = {"gang-name": "g", "gang-size": str(size)}
    return [make_pod(f"g-{n}", gpus=8, annotations=annotations, created=n) for n in range(size)]


LEAVES = {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4}


@pytest.mark.parametrize("seed", range(6))
def test_a_gang_that_was_being_bound_is_completed_next_to_what_was_written(seed: int) -> None:
    first = Driver(fabric(LEAVES))
    pods = gang()
    first.apply(*pods)
    first.step()
    shuffler = random.Random(seed)
    for uid in shuffler.sample(sorted(first.flight), 2):
        first.write(first.flight[uid])
    second = Driver(fabric(LEAVES))
    listed = shuffler.sample(pods, len(pods))
    second.apply(*listed)
    second.settle()
    assert len({pod.spec.node_name for pod in pods}) == 4
    assert len({pod.spec.node_name[:5] for pod in pods}) == 1
    assert sorted(pod.metadata.annotations["topology.scheduler/rank"] for pod in pods) == ["0", "1", "2", "3"]
    assert len(second.binds()) == 2


def test_nothing_is_bound_twice() -> None:
    first = Driver(fabric(LEAVES))
    pods = [*gang(), make_pod("single", gpus=8), make_pod("charged", annotations={"gpu-count": "8"})]
    first.run(*pods)
    second = Driver(fabric(LEAVES))
    second.apply(*pods)
    second.settle()
    assert second.binds() == []
    world, before = second.engine.world, first.engine.world
    assert {uid: (e.node, e.amounts) for uid, e in world.ledger.items()} == {
        uid: (e.node, e.amounts) for uid, e in before.ledger.items()
    }
    assert (world.nodes.requested == before.nodes.requested).all()


def test_a_lost_member_goes_next_to_those_the_last_process_placed() -> None:
    first = Driver(fabric(LEAVES))
    pods = gang()
    first.run(*pods)
    leaf = pods[0].spec.node_name[:5]
    second = Driver(fabric(LEAVES))
    second.apply(*pods[1:])
    late = gang()[0]
    second.run(late)
    assert late.spec.node_name[:5] == leaf
    assert (
        late.metadata.annotations["topology.scheduler/rank"] == pods[0].metadata.annotations["topology.scheduler/rank"]
    )


def test_a_gang_that_ran_whole_is_not_evicted_by_the_next_process() -> None:
    """Its pods bear the condition that says so."""
    first = Driver(fabric({"s1/l1": 3}))
    first.own(owner("ReplicaSet", "g"))
    by = controlled_by("ReplicaSet", "g")
    annotations = {"gang-name": "g", "gang-size": "3"}
    pods = [make_pod(f"g-{n}", gpus=8, annotations=annotations, owner=by) for n in range(3)]
    first.run(*pods)
    first.write_conditions()
    second = Driver(fabric({"s1/l1": 3}))
    second.own(owner("ReplicaSet", "g"))
    thief = make_pod("thief", gpus=8, scheduler="other", node=pods[0].spec.node_name)
    second.apply(thief, *pods[1:], make_pod("g-9", gpus=8, annotations=annotations, owner=by))
    second.step()
    second.step(60)
    assert second.evicted() == []


def test_replicas_of_the_last_process_are_kept_away_from() -> None:
    first = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    spread = owner("ReplicaSet", "web", {"placement-strategy": "distributed"})
    first.own(spread)
    pods = [make_pod(f"web-{n}", gpus=1, owner=controlled_by("ReplicaSet", "web")) for n in range(4)]
    first.run(pods[0])
    second = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    second.own(spread)
    second.apply(
        pods[0],
        make_pod("x", gpus=8, scheduler="o", node="s1-l2-1"),
        make_pod("y", gpus=7, scheduler="o", node="s1-l2-2"),
    )
    second.run(pods[1])
    assert {pod.spec.node_name[:5] for pod in pods[:2]} == {"s1-l1", "s1-l2"}


def test_pods_may_be_listed_before_nodes_and_owners() -> None:
    first = Driver(fabric(LEAVES))
    pods = gang()
    first.apply(*pods)
    first.step()
    first.answer(pods[0].metadata.uid)
    second = Driver()
    second.apply(*pods)
    second.nodes(*fabric(LEAVES))
    second.settle()
    assert len({pod.spec.node_name[:5] for pod in pods}) == 1
    assert len(second.binds()) == 3
