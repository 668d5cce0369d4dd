"""A new leader completes a gang with claims that the last one bound by half."""

import copy

from tests.scheduling.device_driver import DeviceDriver, asking
from tests.scheduling.driver import fabric
from topo_scheduler.scheduling.binding.partially_bound_gangs import ROLL_BACK_AFTER_SECONDS
from topo_scheduler.scheduling.instructions import BindOutcome

NODES = fabric({"s1/l1": 3}, gpus=0)


def test_a_release_that_fails_once_does_not_end_the_gang() -> None:
    """The devices of the second pod are those of a decision of the last leader: they are released first."""
    first = DeviceDriver(NODES, 4)
    pods = first.gang(2, asking(1))
    first.apply(*pods)
    first.step()
    first.answer(pods[0].metadata.uid, BindOutcome.BOUND)
    d = DeviceDriver(NODES, 4)
    d.now = first.now
    for claim in first.claims.values():
        d.put_claim(copy.deepcopy(claim))
    d.apply(*first.pods.values())
    d.problem = "the server is overloaded"
    d.step()
    d.problem = ""
    due = d.engine.next_due()
    assert due is not None
    assert due < d.now + ROLL_BACK_AFTER_SECONDS
    d.settle(due - d.now)
    assert d.evicted() == []
    assert all(pod.spec.node_name for pod in pods)
