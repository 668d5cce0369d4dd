"""No move is planned for a gang whose members can't all have volumes of their own where it would go."""

import pytest

from tests.scheduling.repair_moves import REPAIR_ONLY, moves_by_pod, plan_moves, replicated_pod, run_on
from tests.scheduling.storage import LOCAL, StorageDriver, claim, using, volume, zoned

pytestmark = pytest.mark.unrecorded


@pytest.mark.parametrize("volumes", [1, 2])
def test_pods_move_for_a_gang_only_if_each_member_has_a_volume(volumes: int) -> None:
    d = StorageDriver(zoned("a", "a"), config=REPAIR_ONLY)
    d.engine.budgets_known()
    for number in range(volumes):
        d.tell(volume(f"v{number}", node="n1"))
    run_on(d, replicated_pod("moves", gpus=4), on=["n1"])
    members = [using(f"c{number}", name=f"g-{number}", gpus=4, gang=2, created=1) for number in range(2)]
    for number in range(2):
        d.tell(claim(f"c{number}", LOCAL))
    d.apply(*members)
    d.step()
    moves = moves_by_pod(d, plan_moves(d, members))
    assert moves == ({"moves": ("n1", "n2")} if volumes == 2 else None)
