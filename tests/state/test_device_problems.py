"""Bad input of drivers and other schedulers: each problem names the object, the field and the remedy."""

import pytest

from tests.state.device_objects import (
    DRIVER,
    Json,
    claim,
    gpu,
    inventory_of,
    mig_counters,
    mig_gpu,
    mig_slices,
    put,
    slice_of,
)
from topo_scheduler.state.devices.device_survey import all_problems
from topo_scheduler.state.devices.pool_problems import LASTING, DeviceProblem, ProblemKind
from topo_scheduler.state.devices.pools import gather_pools

UNREADABLE = gpu(1, capacity={"memory": {"value": "lots"}})


def the_problem(*objects: Json) -> DeviceProblem:
    (problem,) = all_problems(inventory_of(*objects))
    return problem


def test_pools_in_order_have_no_problems() -> None:
    whole = slice_of("n1", map(gpu, range(8)))
    assert not all_problems(inventory_of(whole, *mig_slices("n2", 2), claim("c", "n1", "gpu-0"), claim("idle")))


def test_a_field_that_cannot_be_read() -> None:
    problem = the_problem(slice_of("n1", [gpu(0), UNREADABLE]))
    assert problem.kind is ProblemKind.UNREADABLE
    assert problem.about == f"ResourceSlice n1-{DRIVER}"
    assert problem.text.startswith("spec.devices[1].capacity[memory].value: 'lots' is not a quantity")
    assert "no device of pool n1 is allocated; report it to the vendor" in problem.text


@pytest.mark.parametrize(
    ("device", "field"),
    [
        ({"attributes": {"nics": {"strings": ["mlx5_0", "mlx5_1"]}}}, "attributes[nics], a list"),
        (
            {"nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "4"}}},
            "nodeAllocatableResourceMappings (feature gate DRANodeAllocatableResources)",
        ),
    ],
)
def test_a_device_of_a_feature_that_is_off_by_default_is_not_allocated(device: Json, field: str) -> None:
    """Claims that another scheduler gave it keep it."""
    objects = [slice_of("n1", [gpu(0), gpu(1, **device)]), claim("c", "n1", "gpu-1")]
    problem = the_problem(*objects)
    assert problem.kind is ProblemKind.UNSUPPORTED
    assert problem.about == f"ResourceSlice n1-{DRIVER}: spec.devices[1]"
    assert problem.text.startswith(f"device gpu-1 has {field}")
    assert "it is never allocated; turn the gate off" in problem.text
    (pool,) = gather_pools(inventory_of(*objects).slices_of("n1"), lambda _: [], lambda _: True)
    assert [pool_device.id[2] for pool_device in pool.devices] == ["gpu-0"]


@pytest.mark.parametrize(
    ("device", "field"),
    [
        ({"capacity": {"m": {"value": "1", "requestPolicy": {"default": "x"}}}}, "capacity[m].requestPolicy.default"),
        (
            {"capacity": {"m": {"value": "1", "requestPolicy": {"validRange": {"min": "0", "step": "x"}}}}},
            "capacity[m].requestPolicy.validRange.step",
        ),
        (
            {"capacity": {"m": {"value": "1", "requestPolicy": {"validValues": ["1", "x"]}}}},
            "capacity[m].requestPolicy.validValues",
        ),
        (
            {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "x"}}}]},
            "consumesCounters[0].counters[c]",
        ),
    ],
)
def test_each_quantity_is_named_by_its_field(device: Json, field: str) -> None:
    problem = the_problem(slice_of("n1", [gpu(0, **device)]))
    assert problem.text.startswith(f"spec.devices[0].{field}: 'x' is not a quantity")


def test_counters_that_cannot_be_read() -> None:
    bad = {"name": "s", "counters": {"c": {"value": "-1"}}}
    assert the_problem(slice_of("n1", counters=[bad])).text.startswith(
        "spec.sharedCounters[0].counters[c]: '-1' is negative"
    )


def test_a_pool_with_fewer_slices_than_it_announces() -> None:
    problem = the_problem(slice_of("n1", [gpu(0)], slices=2))
    assert problem.kind is ProblemKind.INCOMPLETE
    assert problem.about == f"ResourceSlice n1-{DRIVER}: spec.pool.resourceSliceCount"
    assert "generation 1 of pool n1 has 1 of 2 slices" in problem.text
    assert f"check driver {DRIVER} on that node" in problem.text


def test_slices_that_announce_different_numbers() -> None:
    problem = the_problem(slice_of("n1", [gpu(0)], name="a", slices=2), slice_of("n1", [gpu(1)], name="b", slices=3))
    assert problem.about.startswith("ResourceSlice a, b")
    assert "announces 2 and 3 slices" in problem.text


def test_slices_of_two_generations() -> None:
    old, new = slice_of("n1", [gpu(0)], name="old"), slice_of("n1", [gpu(0)], name="new", generation=2)
    problem = the_problem(old, new)
    assert problem.kind is ProblemKind.OUTDATED
    assert problem.about == "ResourceSlice old: spec.pool.generation"
    assert "pool n1 has generation 2, so slices of older ones are ignored" in problem.text


def test_a_device_that_is_named_twice() -> None:
    problem = the_problem(
        slice_of("n1", [gpu(0), gpu(1)], name="a", slices=2), slice_of("n1", [gpu(1)], name="b", slices=2)
    )
    assert problem.kind is ProblemKind.DUPLICATE
    assert problem.about == "ResourceSlice b: spec.devices[0].name"
    assert problem.text.startswith("device gpu-1 exists in ResourceSlice a too; no device of pool n1 is allocated")


def test_a_counter_set_that_is_named_twice() -> None:
    sets = [mig_counters(0), mig_counters(0)]
    problem = the_problem(
        slice_of("n1", mig_gpu(0), name="a", slices=2), slice_of("n1", counters=sets, name="b", slices=2)
    )
    assert problem.kind is ProblemKind.DUPLICATE
    assert problem.about == "ResourceSlice b: spec.sharedCounters[1].name"


@pytest.mark.parametrize(
    ("set_", "counters", "said"),
    [
        ("other", {"compute": {"value": "1"}}, "consumes counter compute of set other, which does not exist"),
        ("gpu-0-set", {"tensor": {"value": "1"}}, "consumes counter tensor of set gpu-0-set, which does not exist"),
        ("gpu-0-set", {"compute": {"value": "9"}}, "consumes 9 of counter compute of set gpu-0-set, which has 7"),
    ],
)
def test_counters_that_contradict(set_: str, counters: Json, said: str) -> None:
    device = gpu(0, consumesCounters=[{"counterSet": set_, "counters": counters}])
    problem = the_problem(
        slice_of("n1", [device], name="a", slices=2),
        slice_of("n1", counters=[mig_counters(0)], name="b", slices=2),
    )
    assert problem.kind is ProblemKind.CONTRADICTION
    assert problem.about == "ResourceSlice a: spec.devices[0].consumesCounters"
    assert said in problem.text


def test_a_driver_that_vanishes_while_claims_have_its_devices() -> None:
    problem = the_problem(slice_of("n2", [gpu(0)]), claim("c", "n1", "gpu-0", "gpu-1"), claim("d", "n2", "gpu-0"))
    assert problem.kind is ProblemKind.GONE
    assert problem.about == f"pool n1 of driver {DRIVER}"
    assert "no ResourceSlice publishes gpu-0, gpu-1 any more; claims default/c have them" in problem.text


def test_one_device_that_vanishes() -> None:
    problem = the_problem(slice_of("n1", [gpu(0)]), claim("c", "n1", "gpu-0", "gpu-7"))
    assert problem.kind is ProblemKind.GONE
    assert "publishes gpu-7 any more" in problem.text


def test_a_device_that_two_claims_have() -> None:
    problem = the_problem(slice_of("n1", [gpu(0)]), claim("c", "n1", "gpu-0"), claim("d", "n1", "gpu-0"))
    assert problem.kind is ProblemKind.TAKEN_TWICE
    assert problem.about == f"device gpu-0 of pool n1 of driver {DRIVER}"
    assert "allocated to 2 claims (default/c, default/d)" in problem.text


def test_claims_of_pods_that_have_ended_and_keep_their_devices() -> None:
    inventory = inventory_of(
        slice_of("n1", map(gpu, range(8))),
        claim("ended", "n1", "gpu-0", "gpu-1", pods=["ended"]),
        claim("shared", "n1", "gpu-2", pods=["ended", "runs"]),
        claim("unused", "n1", "gpu-3"),
    )
    assert not all_problems(inventory)
    inventory.consumers.depart("uid-ended")
    (problem,) = all_problems(inventory)
    assert problem.kind is ProblemKind.LEFT
    assert problem.kind in LASTING, "usual for a moment"
    assert problem.about == f"pool n1 of driver {DRIVER}"
    assert problem.text.startswith("claims default/ended are allocated for pods that have ended")
    assert "kube-controller-manager" in problem.text
    put(inventory, claim("ended", "n1", "gpu-0", "gpu-1", pods=["runs"]))
    assert not all_problems(inventory)
