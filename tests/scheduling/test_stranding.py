"""Of places that are equal otherwise, that which leaves room for the gangs usually seen."""

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from tests.scheduling.gang_pods import annotated_gang
from tests.scheduling.planning import Small, gang, grid
from topo_scheduler.state.nodes.resources import GPU


def half_full() -> Driver:
    """Two leaves of which half is taken: 8 GPUs are free in the one, 4 in the other."""
    d = Driver([make_node("large", "s1/l1", gpus=16), make_node("small", "s1/l2", gpus=8)])
    d.apply(make_pod("busy-1", gpus=8, scheduler="other", node="large", phase="Running"))
    d.apply(make_pod("busy-2", gpus=4, scheduler="other", node="small", phase="Running"))
    return d


@pytest.mark.unrecorded
@pytest.mark.parametrize(("usual", "taken"), [(8, "small"), (4, "large"), (None, "large")])
def test_a_gang_leaves_room_for_the_gangs_usually_seen(usual: int | None, taken: str) -> None:
    """Where gangs of 8 are usual, one could still run in the large leaf; else the first in order is taken."""
    d = half_full()
    if usual is not None:
        d.engine.world.history.gangs.note(GPU, usual)
    members = annotated_gang(2, gpus=2, placement_strategy="consolidated")
    assert set(d.run(*members).values()) == {taken}


def test_gangs_that_are_placed_are_remembered() -> None:
    d = half_full()
    d.run(*annotated_gang(2, gpus=2))
    assert [size for size, _ in d.engine.world.history.gangs.sizes(GPU)] == [4]


def test_a_lost_member_that_is_placed_again_is_no_other_gang() -> None:
    d = half_full()
    members = annotated_gang(2, gpus=2)
    d.run(*members)
    d.delete(members[0])
    d.run(annotated_gang(2, gpus=2)[0])
    assert len(d.engine.world.history.gangs.sizes(GPU)) == 1


def test_of_pairs_of_leaves_that_is_taken_in_which_a_usual_gang_still_fits() -> None:
    """Free are 16, 14, 16 and 12 GPUs; 4 members of 3 GPUs go to the first leaf of a pair, 1 to the second.

    Of l2 and l3 the second has 13 GPUs left then, of l1 and l2 only 11: too few for the gangs of 12 that are usual.
    """
    small = Small(grid(1, 4, 2))
    for node, gpus in (("s1l2n2", 2), ("s1l4n1", 4)):
        small.hold(node, gpus=gpus)
    small.world.history.gangs.note(GPU, 12)
    assert small.leaves(gang(5, 3)) == ["s1/l2", "s1/l3"]
