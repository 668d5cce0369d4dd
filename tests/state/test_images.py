"""Which images are on which nodes, whatever their names."""

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.objects import ContainerImage
from topo_scheduler.state.nodes.images import Images

IMAGES = st.lists(
    st.builds(ContainerImage, st.lists(st.sampled_from(["a", "b", "<none>:<none>"]), max_size=3), st.integers(1, 9)),
    max_size=3,
)


@given(st.lists(st.tuples(st.integers(0, 1), IMAGES), max_size=8))
def test_images_are_found_by_each_of_their_names(steps: list[tuple[int, list[ContainerImage]]]) -> None:
    images = Images()
    now: dict[int, list[ContainerImage]] = {}
    for row, reported in steps:
        images.put(row, reported)
        now[row] = reported
        wanted: dict[str, dict[int, int]] = {}
        for where, present in now.items():
            for image in present:
                for name in image.names:
                    wanted.setdefault(name, {})[where] = image.size_bytes
        assert images.sizes == wanted


def test_two_images_without_a_name_are_no_trouble() -> None:
    images = Images()
    images.put(0, [ContainerImage(["<none>:<none>"], 1), ContainerImage(["<none>:<none>"], 2)])
    images.put(0, [])
    assert not images.sizes
