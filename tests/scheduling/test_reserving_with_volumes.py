"""No node is held for a gang whose members can't all have volumes of their own there."""

import pytest

from tests.helpers import timestamp
from tests.scheduling.driver import reservations_by_name
from tests.scheduling.repair_moves import replicated_pod, run_on
from tests.scheduling.running_pods import with_duration
from tests.scheduling.storage import LOCAL, StorageDriver, claim, using, volume, zoned

pytestmark = pytest.mark.unrecorded


@pytest.mark.parametrize("volumes", [1, 2])
def test_nodes_are_held_for_a_gang_only_if_each_member_has_a_volume(volumes: int) -> None:
    d = StorageDriver(zoned("a", "a"))
    for number in range(volumes):
        d.tell(volume(f"v{number}", node="n1"))
    running = replicated_pod("ends", gpus=8)
    with_duration([running], "1800s")
    running.spec.restart_policy = "Never"
    run_on(d, running, on=["n1"])
    running.status.phase, running.status.start_time = "Running", timestamp(0)
    d.apply(running)
    members = [using(f"c{number}", name=f"g-{number}", gpus=4, gang=2) for number in range(2)]
    for number in range(2):
        d.tell(claim(f"c{number}", LOCAL))
    d.apply(*members)
    d.step()
    d.step(30.0)
    held = [set(reservation.nodes) for reservation in reservations_by_name(d).values()]
    assert held == ([{"n1"}] if volumes == 2 else [])
