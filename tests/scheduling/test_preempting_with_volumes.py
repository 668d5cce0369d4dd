"""No pod is evicted for a gang whose members can't all have volumes of their own where it would go."""

import pytest

from tests.scheduling.storage import LOCAL, StorageDriver, claim, using, volume, zoned

pytestmark = pytest.mark.unrecorded


@pytest.mark.parametrize("volumes", [1, 2])
def test_pods_are_evicted_for_a_gang_only_if_each_member_has_a_volume(volumes: int) -> None:
    d = StorageDriver(zoned("a"))
    d.engine.budgets_known()
    for number in range(volumes):
        d.tell(volume(f"v{number}", node="n1"))
    low = using(name="low", gpus=8)
    d.run(low)
    assert low.spec.node_name == "n1"
    members = [using(f"c{number}", name=f"g-{number}", gpus=4, gang=2, created=1) for number in range(2)]
    for number, member in enumerate(members):
        d.tell(claim(f"c{number}", LOCAL))
        member.spec.priority = 5
    d.run(*members)
    d.step(60.0)
    assert d.preempted() == (["low"] if volumes == 2 else [])
    if volumes == 2:
        d.evict(low)
        d.settle()
        assert len(d.where(*members)) == 2
