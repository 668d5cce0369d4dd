"""What nominated pods and replacements will hold counts for the quotas of their namespace."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.device_driver import DeviceDriver, asking
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.objects import Pod

CLUSTER = "{quotas: [{namespaces: [default], hard: {gpus: 8}}]}"
DOMAIN = "{quotas: [{namespaces: [default], domain: s1, hard: {gpus: 8}}]}"


def preempting(config: str) -> tuple[Driver, Pod, Pod]:
    """Return a driver, a pod that waits for a whole node, and its victim, which is ending; another node has room."""
    d = Driver(fabric({"s1/l1": 2}), configured(config))
    d.engine.budgets_known()
    victim = make_pod("victim", namespace="others", gpus=8, node="s1-l1-1", phase="Running")
    stays = make_pod("stays", namespace="others", gpus=4, node="s1-l1-2", phase="Running", priority=9)
    d.apply(victim, stays)
    waits = make_pod("waits", gpus=8, priority=5)
    d.run(waits)
    d.evict(victim, vanish=False)
    assert d.nominated() == {"waits": "s1-l1-1"}
    return d, waits, victim


@pytest.mark.parametrize("config", [CLUSTER, DOMAIN])
def test_no_pod_takes_the_quota_of_one_for_which_another_was_evicted(config: str) -> None:
    d, waits, victim = preempting(config)
    late = make_pod("late", gpus=4, priority=5, created=1)
    d.run(late)
    assert not late.spec.node_name
    assert "8 of 8 gpus in use or promised to nominated pods, 4 more asked" in d.told(late)[-1]
    d.delete(victim)
    d.settle()
    assert d.where(waits) == {"waits": "s1-l1-1"}


def test_a_pod_of_higher_priority_takes_it_and_one_of_another_namespace_does_not_care() -> None:
    d, _, _ = preempting(CLUSTER)
    higher = make_pod("higher", gpus=2, priority=6, created=1)
    other = make_pod("other", namespace="free", gpus=2, priority=5, created=1)
    assert len(d.run(higher, other)) == 2


def test_pods_are_tried_again_when_the_promise_ends() -> None:
    d, waits, _ = preempting(CLUSTER)
    late = make_pod("late", gpus=4, priority=5, created=1)
    d.run(late)
    d.delete(waits)
    d.settle()
    assert late.spec.node_name == "s1-l1-2"


def test_devices_that_are_promised_count_as_gpus() -> None:
    d = DeviceDriver(
        fabric({"s1/l1": 2}, gpus=0), config=configured("{quotas: [{namespaces: [default], hard: {gpus: 4}}]}")
    )
    d.engine.budgets_known()
    victim = make_pod("victim", namespace="others", cpu="60", node="s1-l1-1", phase="Running")
    stays = make_pod("stays", namespace="others", cpu="40", node="s1-l1-2", phase="Running", priority=9)
    d.apply(victim, stays)
    waits = d.pod("waits", asking(4), cpu="50", priority=5)
    d.run(waits)
    assert d.preempted() == ["victim"]
    late = d.pod("late", asking(2), priority=5, created=1)
    d.run(late)
    assert "4 of 4 gpus in use or promised to nominated pods, 2 more asked" in d.told(late)[-1]
    d.evict(victim)
    d.settle()
    assert d.where(waits, late) == {"waits": "s1-l1-1"}
