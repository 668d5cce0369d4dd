"""The quota of pods that leave a node is kept for their replacements, as their seats are."""

import pytest

from tests.recovery.world import World
from topo_scheduler.api.recovery import RecoverySpec

CONFIG = "{quotas: [{namespaces: [default], hard: {gpus: 16}}]}"


@pytest.mark.parametrize("on_failure", ["replace", "restart-gang"])
def test_no_other_pod_takes_the_quota_of_a_gang_that_moves(on_failure: str) -> None:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 4}, CONFIG)
    world.gang("old", 2, said={"on-failure": on_failure})
    world.run()
    world.gang("young", 1, gpus=1)
    world.run()
    assert not world.nodes_of("young-"), "the quota is used up"
    world.controllers_stand = True
    world.fail(world.nodes_of("old-")["old-0"], ready="False")
    lost = list(world.pods.values())
    world.kubelets_dead.clear()
    world.run(60)
    deleted = [pod for pod in lost if pod.metadata.uid not in world.pods]
    assert deleted and not world.nodes_of("young-"), "it is kept for the replacements"
    for pod in deleted:
        world.replace(pod)
        world.tell_pod(pod.metadata.uid)
    world.run(10)
    assert len(world.nodes_of("old-")) == 2
    world.check()


def test_the_quota_of_pods_that_still_run_is_counted_once() -> None:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 4}, CONFIG)
    world.gang("old", 1)
    world.run()
    world.blocked = {"old-0"}
    world.request("away", "old-0")
    world.run(5)
    assert world.d.engine.preempting.replacements, "a seat is reserved, and the pod still runs"
    world.gang("young", 1)
    world.run(5)
    assert world.nodes_of("young-")
    world.check()


def test_the_quota_is_free_again_once_no_replacement_appears() -> None:
    world = World(RecoverySpec(enabled=True, reservation_timeout=60), {"s1/l1": 4}, CONFIG)
    world.gang("old", 2)
    world.run()
    world.gang("young", 1, gpus=1)
    world.run()
    world.controllers_stand = True
    world.request("away", "old-0")
    world.run(30)
    assert not world.nodes_of("young-")
    world.run(60)
    assert world.nodes_of("young-")
