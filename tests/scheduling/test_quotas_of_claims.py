"""Devices of claims count as GPUs toward quotas and shares: once, for the namespace of the claim."""

from typing import Any

import msgspec
import pytest

from tests.helpers import make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, nodes_of, slice_of, taken
from tests.scheduling.driver import configured, fabric
from topo_scheduler.api.devices import ResourceSlice
from topo_scheduler.state.devices.gpus_of_devices import gpus_of_device
from topo_scheduler.state.devices.slice_reader import read_slice

QUOTA = "{quotas: [{namespaces: [default], hard: {gpus: 10}}]}"


def limited(config: str = QUOTA, leaves: dict[str, int] | None = None) -> DeviceDriver:
    """Return a driver of two nodes of eight devices each, whose namespace has a quota."""
    d = DeviceDriver(fabric(leaves or {"s1/l1": 2}, gpus=0))
    d.engine.configure(configured(config))
    d.engine.budgets_known()
    return d


def test_devices_of_claims_count_toward_the_quota() -> None:
    d = limited()
    pods = [d.pod(f"p{number}", asking(4)) for number in range(3)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 2
    (waiting,) = [pod for pod in pods if not pod.spec.node_name]
    assert "Quota of namespace default: 8 of 10 gpus in use, 4 more asked." in d.told(waiting)[0]


def test_a_gang_counts_with_all_its_claims() -> None:
    d = limited()
    members = d.gang(2, asking(6))
    d.run(*members)
    assert not nodes_of(members)
    assert not d.allocated()


def test_a_shared_claim_counts_once() -> None:
    d = limited()
    d.claim("shared", asking(8))
    pods = [d.sharing(make_pod(f"p{number}"), "shared") for number in range(3)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 3
    more = d.pod("more", asking(2))
    d.run(more)
    assert more.spec.node_name, "8 and 2 are 10"


def test_what_another_scheduler_allocated_counts_too() -> None:
    d = limited()
    d.claim("foreign", asking(8))
    d.put_claim(taken(d.claims["default", "foreign"], "s1-l1-1", *(f"gpu-{number}" for number in range(8))))
    pod = d.pod("p", asking(4))
    d.run(pod)
    assert not pod.spec.node_name


def test_a_quota_that_has_more_left_wakes_the_pods_that_it_refused() -> None:
    d = limited()
    first, second = d.pod("first", asking(8)), d.pod("second", asking(8))
    d.run(first)
    d.run(second)
    assert not second.spec.node_name
    d.delete(first)
    d.drop_claim("first-claim")
    d.settle(1)
    assert second.spec.node_name


def test_no_pod_is_evicted_for_one_that_its_quota_refuses() -> None:
    d = limited()
    lows = [d.pod(f"low-{number}", asking(5)) for number in range(2)]
    d.run(*lows)
    for pod in lows:
        pod.status.phase = "Running"
    d.apply(*lows)
    urgent = d.pod("urgent", asking(8), priority=10)
    d.apply(urgent)
    d.step(1)
    assert d.preempted() == []


def test_a_quota_of_a_domain_counts_the_devices_of_its_nodes() -> None:
    config = "{quotas: [{namespaces: [default], domain: s1, hard: {gpus: 4}}]}"
    d = limited(config, {"s1/l1": 1, "s2/l1": 1})
    pods = [d.pod(f"p{number}", asking(4)) for number in range(4)]
    d.run(*pods)
    assert sorted(node[:2] for node in nodes_of(pods)) == ["s1", "s2", "s2"]
    (refused,) = [pod for pod in pods if not pod.spec.node_name]
    assert d.told(refused)


# ---------------------------------------------------------------- what counts as how much of a GPU


def read(devices: list[dict[str, Any]], driver: str = DRIVER, counters: list[dict[str, Any]] | None = None) -> Any:
    spec = {
        "driver": driver,
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
        "sharedCounters": counters or [],
    }
    return read_slice(msgspec.convert({"metadata": {"name": "n"}, "spec": spec}, ResourceSlice))


MIG_COUNTERS = {"multiprocessors": {"value": "132"}, **{f"memory-slice-{n}": {"value": "1"} for n in range(8)}}


@pytest.mark.parametrize(
    ("driver", "device", "expected"),
    [
        (DRIVER, {}, 1000),
        ("nic.example.com", {}, 0),
        ("accelerators.example.com", {"attributes": {"type": {"string": "gpu"}}}, 1000),
        ("gpu.nvidia.com", {"attributes": {"type": {"string": "mig"}, "profile": {"string": "2g.20gb"}}}, 286),
    ],
)
def test_a_device_counts_by_its_driver_and_type(driver: str, device: dict[str, Any], expected: int) -> None:
    (parsed,) = read([{"name": "d", **device}], driver).devices
    assert gpus_of_device(driver, parsed, None, {}) == expected


def test_a_partition_counts_by_the_largest_part_of_its_counters() -> None:
    consumed = {"multiprocessors": {"value": "16"}, "memory-slice-3": {"value": "1"}}
    device = {"name": "mig", "consumesCounters": [{"counterSet": "gpu-0", "counters": consumed}]}
    (parsed,) = read([device]).devices
    counters = {("gpu-0", name): int(counter["value"]) for name, counter in MIG_COUNTERS.items()}
    assert gpus_of_device(DRIVER, parsed, None, counters) == 125, (
        "one of eight memory slices, 16 of 132 multiprocessors"
    )


def test_a_share_counts_by_the_largest_part_of_a_capacity() -> None:
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    (parsed,) = read([device]).devices
    assert gpus_of_device(DRIVER, parsed, {"memory": 20 * 2**30}, {}) == 250


@pytest.mark.parametrize("consumed", [{}, {"memory": 0}, {"gone": 1}])
def test_a_share_that_consumes_nothing_counts_as_a_device(consumed: dict[str, int]) -> None:
    """Kubernetes counts ``<class>.deviceclass.resource.k8s.io/devices`` so: one for each device of a request."""
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    (parsed,) = read([device]).devices
    assert gpus_of_device(DRIVER, parsed, consumed, {}) == 1000


def test_shares_without_limits_do_not_evade_a_quota() -> None:
    d = limited("{quotas: [{namespaces: [default], hard: {gpus: 2}}]}", {"s1/l1": 1})
    item = msgspec.to_builtins(slice_of("s1-l1-1", 1, generation=2))
    policy = {"default": "0", "validValues": ["0"]}
    for device in item["spec"]["devices"]:
        device |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}}}
    d.slices(msgspec.convert(item, ResourceSlice))
    assert len(d.run(*[d.pod(f"p{number}", asking(1)) for number in range(4)])) == 2


def test_shares_of_namespaces_count_devices() -> None:
    d = limited("{}")
    d.run(d.pod("p", asking(8)))
    assert d.engine.world.accounts.share("default") == 500_000


def test_a_slice_that_is_gone_offers_nothing() -> None:
    d = limited("{}")
    d.run(d.pod("p", asking(8)))
    d.drop_slice("s1-l1-2-gpus")
    d.slices(slice_of("s1-l1-1", 16, generation=2))
    assert d.engine.world.accounts.share("default") == 500_000
