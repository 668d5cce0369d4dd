"""Gangs of which some binds fail: repaired beside the others, or rolled back."""

from tests.helpers import controlled_by, make_node, make_pod, owner
from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import BindOutcome


def test_a_member_whose_bind_failed_is_placed_again_beside_the_others() -> None:
    d = Driver(fabric({"s1/l1": 4, "s2/l1": 4}))
    pods = gang(3)
    d.apply(*pods)
    d.step()
    leaf = d.flight[pods[0].metadata.uid].node[:5]
    d.answer(pods[0].metadata.uid)
    d.answer(pods[1].metadata.uid, BindOutcome.REJECTED)
    d.answer(pods[2].metadata.uid)
    d.step(1)
    (bind,) = d.flight.values()
    assert bind.pod.uid == pods[1].metadata.uid
    assert bind.node[:5] == leaf
    assert bind.node not in (pods[0].spec.node_name, pods[2].spec.node_name)
    d.settle()
    assert sorted(pod.metadata.annotations["topology.scheduler/rank"] for pod in pods) == ["0", "1", "2"]


def partially_bound(d: Driver, pods: list[Pod], *, taken: bool = True) -> None:
    """One bind of the gang fails, and what it would need is taken at the same moment."""
    d.apply(*pods)
    d.step()
    for pod in pods[1:]:
        d.answer(pod.metadata.uid)
    node = d.flight[pods[0].metadata.uid].node
    d.answer(pods[0].metadata.uid, BindOutcome.REJECTED)
    if taken:
        d.apply(make_pod("thief", gpus=8, scheduler="other", node=node))
    d.step(1)


def test_a_gang_that_can_not_be_completed_is_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    partially_bound(d, pods)
    assert d.evicted() == []
    assert d.engine.next_due() == 5, "seconds after its bind failed"
    d.step(3.9)
    assert d.evicted() == []
    d.step(0.1)
    assert sorted(d.evicted()) == ["g-1", "g-2"]
    (message,) = {m for pod in pods for m in d.told(pod, Reason.ROLLED_BACK)}
    assert "2 of 3 members were bound" in message


def test_a_gang_is_not_given_up_while_a_bind_is_on_its_way() -> None:
    # Its one bind is refused, and long afterwards the other one lands: only then is it partially bound.
    d = Driver(fabric({"s1/l1": 2}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(2, controlled=True)
    d.apply(*pods)
    d.step()
    node = d.flight[pods[0].metadata.uid].node
    d.answer(pods[0].metadata.uid, BindOutcome.REJECTED)
    d.apply(make_pod("thief", gpus=8, scheduler="other", node=node))
    d.step(11)
    assert d.evicted() == []
    due = d.engine.next_due()
    assert due is None or due > d.now, "nothing to do until it lands"
    d.answer(pods[1].metadata.uid)
    d.step(5)
    assert d.evicted() == ["g-1"]


def test_a_gang_of_bare_pods_is_rolled_back_too_and_an_event_asks_to_create_them_again() -> None:
    """A gang is whole or gone; the half of one would hold its GPUs for ever."""
    d = Driver(fabric({"s1/l1": 3}))
    pods = gang(3)
    partially_bound(d, pods)
    d.step(5)
    assert sorted(d.evicted()) == ["g-1", "g-2"]
    (text,) = d.told(pods[1], Reason.ROLLED_BACK)
    assert text.endswith("This pod has no controller: create it again.")


def test_a_gang_that_found_room_again_is_not_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    partially_bound(d, pods)
    d.step(1)
    d.nodes(make_node("s1-l1-9", "s1/l1"))
    d.step(1)
    assert pods[0].metadata.uid in d.flight
    d.step(60)
    assert d.evicted() == [], "its last bind is on its way, however slow"
    d.settle()
    assert all(pod.spec.node_name for pod in pods)


def test_a_gang_of_which_one_member_is_refused_for_good_is_rolled_back() -> None:
    # Admission says no to one of them whatever node it is to have: the others must not hold theirs for ever.
    d = Driver(fabric({"s1/l1": 4}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    d.apply(*pods)
    d.step()
    for _ in range(100):
        for uid in list(d.flight):
            refused = uid == pods[0].metadata.uid
            d.answer(uid, BindOutcome.REJECTED if refused else BindOutcome.BOUND)
        d.step(0.1)
        if d.evicted():
            break
    assert sorted(d.evicted()) == ["g-1", "g-2"]
    assert 5 <= d.now < 5.2
    tries = [bind for bind in d.binds() if bind.pod.name == "g-0"]
    assert len(tries) >= 2, "not at the first refusal"


def test_a_gang_that_gets_on_is_not_rolled_back_however_long_it_takes() -> None:
    d = Driver(fabric({"s1/l1": 8}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(8, controlled=True)
    d.apply(*pods)
    d.step()
    for number, pod in enumerate(pods):
        # Every second one finds its node taken the first time.
        if number % 2:
            d.answer(pod.metadata.uid, BindOutcome.REJECTED)
        else:
            d.answer(pod.metadata.uid)
        d.step(1.4)
    d.settle(1)
    d.settle(10)
    assert all(pod.spec.node_name for pod in pods)
    assert d.evicted() == []


def test_a_gang_that_was_rolled_back_starts_again() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    partially_bound(d, pods)
    d.step(5)
    d.delete(*pods[1:])
    again = gang(3, controlled=True)[1:]
    d.apply(*again)
    d.step()
    assert d.flight == {}
    d.nodes(make_node("s1-l1-9", "s1/l1"))
    d.step(4)
    assert d.flight == {}, "it pauses for five seconds"
    d.step(2)
    d.step()
    assert len(d.flight) == 3, "once all of them were tried with dryRun"
    d.step(60)
    d.settle()
    assert sorted(d.evicted()) == ["g-1", "g-2"], "once"


def test_a_gang_that_ran_whole_is_never_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    d.run(*pods)
    lost = pods[0].spec.node_name
    d.delete(pods[0])
    d.apply(make_pod("thief", gpus=8, scheduler="other", node=lost))
    late = make_pod(
        "g-9", gpus=8, owner=controlled_by("ReplicaSet", "g"), annotations={"gang-name": "g", "gang-size": "3"}
    )
    d.apply(late)
    d.step()
    d.step(60)
    assert d.evicted() == []
    assert "near the 2 members of this gang that run" in d.told(late)[0]


def test_a_member_deleted_while_the_gang_is_being_bound_does_not_leave_half_of_it() -> None:
    # Its successor finds its place taken: no bind failed, and still the gang can't be completed.
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    d.apply(*pods)
    d.step()
    node = d.flight.pop(pods[0].metadata.uid).node
    d.delete(pods[0])
    d.apply(make_pod("thief", gpus=8, scheduler="other", node=node))
    for pod in pods[1:]:
        d.answer(pod.metadata.uid)
    d.apply(gang(3, controlled=True)[0])
    d.step()
    d.step(5)
    assert sorted(d.evicted()) == ["g-1", "g-2"]
