"""Objects with any values, as a tenant may write them, through reflectors to an engine: none harms another tenant."""

import pytest

from .odd_scene import LONGEST_SECONDS, play

SEEDS = 45

pytestmark = pytest.mark.unrecorded


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """The first decisions of a process take longer."""
    for seed in range(3):
        play(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_objects_with_any_values_harm_no_others_and_leave_nothing(seed: int) -> None:
    scene = play(seed)
    assert not scene.faults
    assert scene.longest < 2 * LONGEST_SECONDS, scene.slow
