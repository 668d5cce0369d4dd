"""A gang id that a tenant writes never meets the name under which pods that leave a gang are kept."""

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric_driver
from tests.scheduling.running_pods import run_pod, urgent_pod
from topo_scheduler.api.objects import Pod


def forged(d: Driver, namespace: str = "hostile") -> Pod:
    """A pod that its tenant bound, as if of the pods that leave a gang; some of that gang do leave."""
    going = make_pod(
        "going", node="s1-l1-1", namespace=namespace, annotations={"gang-id": f"{namespace}/a", "gang-minimum": "2"}
    )
    going.metadata.deletion_timestamp = timestamp(500)
    d.apply(going)
    d.apply(make_pod("comes", gpus=99, namespace=namespace, annotations={"gang-name": "a", "gang-size": "2"}))
    d.step()
    assert d.engine.workloads.of_pod(going.metadata.uid)
    pod = make_pod("forged", node="s1-l1-1", namespace=namespace, annotations={"gang-id": f"{namespace}/a (leaving)"})
    d.apply(pod)
    return pod


def test_a_pod_with_such_an_id_is_found_and_can_change() -> None:
    d = fabric_driver({"s1/l1": 1})
    pod = forged(d)
    d.apply(pod)
    d.step(1)
    assert d.engine.workloads.of_pod(pod.metadata.uid)
    d.delete(pod)
    d.step(1)
    assert all(pod.metadata.uid not in workload.members for workload in d.engine.workloads._by_id.values())


def test_the_preemption_of_other_pods_does_not_fail_by_it() -> None:
    d = fabric_driver({"s1/l1": 1})
    forged(d)
    run_pod(d, "low", "s1-l1-1")
    high = urgent_pod()
    d.run(high)
    assert d.preempted() == ["low"], d.told(high)
