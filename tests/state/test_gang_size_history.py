"""The sizes of the gangs that a cluster usually runs."""

from topo_scheduler.state.statistics.gang_sizes import MAX_SIZES, GangSizeHistory

GPU = 4


def test_the_more_recent_weigh_more() -> None:
    usual = GangSizeHistory()
    assert usual.sizes(GPU) == []
    usual.note(GPU, 8)
    usual.note(GPU, 16)
    (first, early), (second, late) = usual.sizes(GPU)
    assert (first, second) == (8, 16)
    assert 0 < early < late
    for _ in range(100):
        usual.note(GPU, 8)
    (_, early), (_, late) = usual.sizes(GPU)
    assert early > late


def test_gangs_of_another_resource_are_others() -> None:
    usual = GangSizeHistory()
    usual.note(0, 8)
    usual.note(GPU, 0)
    assert usual.sizes(GPU) == []
    assert [size for size, _ in usual.sizes(0)] == [8]


def test_only_so_many_are_remembered_and_the_lightest_go() -> None:
    usual = GangSizeHistory()
    for size in range(1, 40):
        usual.note(GPU, size)
        usual.note(GPU, 64)
    sizes = [size for size, _ in usual.sizes(GPU)]
    assert len(sizes) == MAX_SIZES
    assert 64 in sizes
    assert 39 in sizes
    assert 1 not in sizes


def test_the_same_gangs_give_the_same_weights() -> None:
    first, other = GangSizeHistory(), GangSizeHistory()
    for size in (8, 16, 8, 32, 4, 8):
        first.note(GPU, size)
        other.note(GPU, size)
    assert first.sizes(GPU) == other.sizes(GPU)
