"""Single GPUs: what is free follows from the pods there, in whatever order they came."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.state.nodes.gpu_shares import Devices, Holding

GPUS = 4

holdings = st.lists(
    st.builds(
        Holding,
        st.sampled_from([f"u{number}" for number in range(8)]),
        st.integers(1, 3),
        st.just(0),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    )
    | st.builds(
        Holding,
        st.sampled_from([f"u{number}" for number in range(8)]),
        st.just(0),
        st.sampled_from([100, 250, 500, 900]),
        st.lists(st.integers(0, 5), max_size=2).map(tuple),
    ),
    max_size=8,
    unique_by=lambda holding: holding.uid,
)


def counted(held: list[Holding], *, sharing: bool = True) -> Devices:
    devices = Devices(2)
    devices.sharing[1] = sharing
    devices.recount(1, GPUS, held)
    return devices


@given(holdings, st.randoms())
def test_the_order_in_which_pods_came_does_not_matter(held: list[Holding], random: object) -> None:
    first = counted(held)
    again = list(held)
    random.shuffle(again)  # type: ignore[attr-defined]
    second = counted(again)
    assert np.array_equal(first.free, second.free)
    assert np.array_equal(first.shared, second.shared)


@given(holdings)
def test_nothing_is_free_twice(held: list[Holding]) -> None:
    devices = counted(held)
    free = devices.free[1]
    assert ((free >= 0) & (free <= WHOLE_GPU)).all()
    assert devices.shared[1] <= GPUS
    assert (free == WHOLE_GPU).sum() + devices.shared[1] <= GPUS
    shares = sum(holding.share for holding in held)
    assert free.sum() >= GPUS * WHOLE_GPU - shares - WHOLE_GPU * sum(holding.gpus for holding in held)
    recorded = {at for holding in held if holding.gpus and _good(holding) for at in holding.indexes}
    assert all(free[at] == 0 for at in recorded)


def _good(holding: Holding) -> bool:
    return len(set(holding.indexes)) == len(holding.indexes) == holding.gpus and max(holding.indexes) < GPUS


def test_two_halves_share_one_gpu_and_a_whole_pod_takes_another() -> None:
    devices = counted([Holding("a", 0, 500, (2,)), Holding("b", 0, 500, (2,)), Holding("c", 1, 0, (0,))])
    assert devices.free[1].tolist() == [0, 1000, 0, 1000]
    assert devices.shared[1] == 1, "used up for whole pods, beside the one that is held whole"


def test_a_pod_without_recorded_gpus_holds_the_lowest_that_no_pod_recorded() -> None:
    devices = counted([Holding("z", 2, 0), Holding("a", 0, 300, (0,)), Holding("b", 1, 0, (1,))])
    assert devices.free[1].tolist() == [700, 0, 0, 0]
    devices = counted([Holding("b", 1, 0), Holding("a", 1, 0), Holding("share", 0, 400)])
    assert devices.free[1].tolist() == [0, 0, 600, 1000]


def test_records_that_make_no_sense_are_as_good_as_none() -> None:
    for indexes in [(7,), (0, 0), (0, 1, 2), ()]:
        assert counted([Holding("a", 2, 0, indexes)]).free[1].tolist() == [0, 0, 1000, 1000]
        assert counted([Holding("a", 0, 500, indexes if len(indexes) != 1 else (9,))]).free[1].tolist()[0] == 500


def test_where_nothing_is_shared_gpus_are_a_number() -> None:
    devices = counted([Holding("a", 2, 0, (2, 3))], sharing=False)
    assert (devices.count[1], devices.free[1].tolist()) == (0, [0])
    rows = np.array([0, 1], np.int64)
    assert devices.fit(rows, 500, rows + 4).tolist() == [0, 0]
    assert devices.fit_empty(rows, 500).tolist() == [0, 0]


def test_shares_stay_counted_when_a_node_no_longer_shares() -> None:
    devices = counted([Holding("a", 0, 500, (1,))])
    devices.sharing[1] = False
    assert devices.recount(1, GPUS, [Holding("a", 0, 500, (1,))]) == 0
    assert (devices.shared[1], devices.fit(np.array([1]), 500, np.array([3])).tolist()) == (1, [0]), (
        "but no more may come"
    )
    assert devices.recount(1, GPUS, []) == -1
    assert devices.count[1] == 0


def test_how_many_shares_fit_is_counted_gpu_by_gpu() -> None:
    devices = counted([Holding("a", 0, 600, (0,)), Holding("b", 0, 700, (1,))])
    rows = np.array([1], np.int64)
    two = np.array([2], np.int64)
    assert devices.fit(rows, 400, two).tolist() == [1 + 0 + 2 + 2]
    assert devices.fit(rows, 600, two).tolist() == [2]
    assert devices.fit(rows, 400, two - 1).tolist() == [1 + 0 + 2], "one is kept for a pod that is on its way"
    assert devices.fit(rows, 400, two - 2).tolist() == [1]
    assert devices.fit(rows, 400, two - 3).tolist() == [0], "others took more than there is"
    assert devices.fit_empty(rows, 400).tolist() == [8]


def test_a_row_that_is_cleared_and_a_table_that_grows() -> None:
    devices = counted([Holding("a", 0, 600, (0,))])
    devices.grow(4)
    assert devices.free.shape == (4, GPUS)
    assert devices.free[1].tolist() == [400, 1000, 1000, 1000]
    devices.clear(1)
    assert not devices.concerns(1)
    assert devices.concerns(1, share=500)
    assert devices.free[1].tolist() == [0] * GPUS
