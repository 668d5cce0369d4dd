"""Reservations of workloads with claims: by the ends of the pods that have the devices, and these devices are kept."""

from tests.helpers import timestamp
from tests.scheduling.device_driver import DeviceDriver, asking, driver, nodes_of
from tests.scheduling.driver import configured, reservations_by_name
from tests.scheduling.running_pods import with_duration
from topo_scheduler.api.objects import Pod


def running_until(d: DeviceDriver, name: str, ends: float, count: int = 8) -> Pod:
    """Return a pod that has run since time 0 with some devices, with the second at which it should end."""
    pod = d.pod(name, asking(count), annotations={"expected-duration": f"{ends:g}s"})
    pod.spec.restart_policy = "Never"
    d.run(pod)
    assert pod.spec.node_name
    pod.status.phase, pod.status.start_time = "Running", timestamp(0)
    d.apply(pod)
    d.settle()
    return pod


def pending_gang(d: DeviceDriver, size: int = 2, count: int = 8) -> list[Pod]:
    """Return a gang that has waited long enough for a reservation."""
    pods = d.gang(size, asking(count), "large")
    d.apply(*pods)
    d.step()
    d.step(30)
    return pods


def end(d: DeviceDriver, pod: Pod) -> None:
    """A pod ends, and Kubernetes deletes its claim."""
    d.delete(pod)
    d.drop_claim(f"{pod.metadata.name}-claim")


def full() -> tuple[DeviceDriver, dict[str, Pod]]:
    """Return two leaves of two nodes whose devices are all in use."""
    d = driver({"s1/l1": 2, "s1/l2": 2})
    pods = [running_until(d, f"p{number}", 1800 * (number + 1)) for number in range(4)]
    return d, {pod.spec.node_name: pod for pod in pods}


def test_a_gang_gets_the_leaf_whose_devices_come_free_first() -> None:
    d, by_node = full()
    pending_gang(d)
    reservation = reservations_by_name(d)["large"]
    leaf = {node.rpartition("-")[0] for node in reservation.nodes}
    assert len(leaf) == 1
    ends = {node: 1800 * (int(pod.metadata.name[1:]) + 1) for node, pod in by_node.items()}
    by_leaf = [max(ends[node] for node in ends if node.startswith(name)) for name in ("s1-l1", "s1-l2")]
    assert reservation.start == min(by_leaf)
    assert reservation.device_gpus == 16
    assert len(reservation.devices) == 2


def test_devices_that_come_free_are_kept_and_pods_that_end_in_time_use_them() -> None:
    d, by_node = full()
    members = pending_gang(d)
    reservation = reservations_by_name(d)["large"]
    first, second = sorted(reservation.nodes, key=lambda node: by_node[node].metadata.name)
    end(d, by_node[first])
    d.settle(1)
    endless, short = d.pod("endless", asking(1)), d.pod("short", asking(1))
    with_duration([short], "60s")
    d.apply(endless, short)
    d.settle(1)
    assert not endless.spec.node_name, "its device is reserved"
    assert short.spec.node_name == first, "it ends before the gang can start"
    end(d, short)
    end(d, by_node[second])
    d.settle(1)
    assert set(nodes_of(members)) == set(reservation.nodes)
    assert not endless.spec.node_name


def test_a_reservation_whose_devices_others_took_is_made_again() -> None:
    d, by_node = full()
    pending_gang(d)
    reservation = reservations_by_name(d)["large"]
    node = min(reservation.nodes, key=lambda node: by_node[node].metadata.name)
    end(d, by_node[node])
    d.settle(1)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.run(urgent)
    assert urgent.spec.node_name == node
    d.step(60)
    held = reservations_by_name(d).get("large")
    assert held is None or urgent.metadata.uid in held.waits or node not in held.nodes


def test_reserved_devices_count_toward_the_largest_share_of_the_cluster() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 2})
    d.engine.configure(configured("{reservation: {maxGPUShare: 0.4}}"))
    for number in range(4):
        running_until(d, f"p{number}", 1800)
    pending_gang(d, 2, 8)
    assert not reservations_by_name(d), "16 of 32 devices are more than 40 %"
