"""ResourceClaims in the engine: devices are held, written, and only then pods are bound; nothing is given twice."""

from itertools import count

import msgspec
import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, driver, nodes_of, slice_of, taken
from topo_scheduler.api.devices import DeviceClass, ResourceClaim
from topo_scheduler.api.objects import PodResourceClaim
from topo_scheduler.api.reasons import Reason
from topo_scheduler.recording import checkpoint
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.instructions import Bind, BindOutcome, EmitEvent, WriteClaims
from topo_scheduler.scheduling.intake.device_claims import device_claims
from topo_scheduler.state.devices.claim_writes import AllocateClaim, ReleaseClaim, consumer
from topo_scheduler.state.devices.pod_claims import PodClaim, encoded
from topo_scheduler.state.operation_budget import OperationBudget, limited

TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 0]"
COSTLY = f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, {TEN}.all(e, a + b + c + d + e >= 0)))))"


def test_claims_are_written_before_the_bind() -> None:
    d = driver()
    pod = d.pod("p", asking(2))
    d.apply(pod)
    said = d.step()
    order = [type(instruction) for instruction in said if isinstance(instruction, Bind | WriteClaims)]
    assert order == [WriteClaims, Bind]
    (write,) = d.writes[0].writes
    assert isinstance(write, AllocateClaim)
    assert write.pod == consumer("p", pod.metadata.uid)


def test_the_event_about_the_bind_names_the_devices() -> None:
    d = driver()
    pod = d.pod("p", asking(2))
    d.run(pod)
    (text,) = d.told(pod, Reason.SCHEDULED)
    assert "; devices gpu-0, gpu-1)" in text


def test_no_device_is_given_twice_and_nodes_fill_up() -> None:
    d = driver()
    pods = [d.pod(f"p{number}", asking(1)) for number in range(20)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 16
    assert len(d.allocated()) == 16
    assert set(d.allocated().values()) == {1}


def test_a_gang_is_placed_by_its_devices_or_not_at_all() -> None:
    d = driver({"s1/l1": 2, "s1/l2": 4})
    pods = d.gang(4, asking(8), "big")
    d.run(*pods)
    assert {name.rpartition("-")[0] for name in nodes_of(pods)} == {"s1-l2"}
    more = d.gang(3, asking(8), "more")
    d.run(*more)
    assert not nodes_of(more)
    assert len(d.allocated()) == 32


def test_a_gang_whose_claims_cannot_be_written_is_bound_nowhere() -> None:
    d = driver()
    d.problem = "the API server said no"
    pods = d.gang(2, asking(8))
    d.apply(*pods)
    d.step()
    assert not d.flight
    assert not d.allocated()
    assert not d.engine.world.inventory.use_of([(DRIVER, "s1-l1-1", "gpu-0")]).whole
    assert any("allocating resource claims: the API server said no" in text for text in d.told())
    d.problem = ""
    d.settle(60)
    assert len(nodes_of(pods)) == 2


def test_an_allocation_of_an_earlier_process_is_released_first() -> None:
    d = driver()
    pod = d.pod("p", asking(2))
    claim = taken(d.claims["default", "p-claim"], "gone", "gpu-0")
    reserved = msgspec.structs.replace(claim.status, reserved_for=[consumer("p", pod.metadata.uid)])
    d.put_claim(msgspec.structs.replace(claim, status=reserved))
    d.run(pod)
    kinds = [type(write) for wanted in d.writes for write in wanted.writes]
    assert kinds == [ReleaseClaim, AllocateClaim]
    assert {pool for pool, _ in d.allocated()} == {pod.spec.node_name}


def test_a_release_that_fails_is_tried_again() -> None:
    d = driver()
    pod = d.pod("p", asking(2))
    d.put_claim(taken(d.claims["default", "p-claim"], "gone", "gpu-0"))
    d.problem = "not now"
    d.apply(pod)
    d.step()
    assert len(d.writes) == 1
    d.problem = ""
    d.writes.clear()
    d.settle(6)
    assert pod.spec.node_name


def test_devices_of_a_bind_that_was_rejected_are_chosen_again() -> None:
    d = driver()
    pod = d.pod("p", asking(8))
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    d.settle(30)
    assert pod.spec.node_name
    assert {pool for pool, _ in d.allocated()} == {pod.spec.node_name}
    assert len(d.allocated()) == 8


def test_a_deleted_pod_holds_nothing() -> None:
    d = driver({"s1/l1": 1})
    pod = d.pod("p", asking(8))
    d.apply(pod)
    d.step()
    d.flight.clear()
    d.delete(pod)
    d.drop_claim("p-claim")
    other = d.pod("q", asking(8))
    d.run(other)
    assert other.spec.node_name


def test_pods_that_share_a_claim_share_its_node() -> None:
    d = driver({"s1/l1": 3})
    d.claim("shared", asking(1))
    pods = [d.sharing(make_pod(f"p{number}"), "shared") for number in range(3)]
    d.run(*pods)
    assert len(nodes_of(pods)) == 3
    assert len(set(nodes_of(pods))) == 1
    assert len(d.claims["default", "shared"].status.reserved_for) == 3


def test_devices_are_released_also_if_their_claim_is_being_deleted() -> None:
    d = driver()
    pod = d.pod("p", asking(2))
    claim = taken(d.claims["default", "p-claim"], "s1-l1-1", "gpu-0")
    metadata = msgspec.structs.replace(claim.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    d.put_claim(msgspec.structs.replace(claim, metadata=metadata))
    d.run(pod)
    assert not d.allocated()


def test_a_device_that_another_scheduler_took_meanwhile_is_given_way_to() -> None:
    d = driver({"s1/l1": 1})
    pod = d.pod("p", asking(8))
    d.apply(pod)
    d.step()
    d.claim("theirs", asking(1))
    d.put_claim(taken(d.claims["default", "theirs"], "s1-l1-1", "gpu-3"))
    assert "gpu-3 went to another claim" in d.refused(pod.metadata.uid)
    d.settle(30)
    assert not pod.spec.node_name
    assert len(d.allocated()) == 1


def test_devices_that_become_free_wake_the_pods_that_wait() -> None:
    d = driver({"s1/l1": 1})
    first, second = d.pod("first", asking(8)), d.pod("second", asking(1))
    d.run(first)
    d.run(second)
    assert not second.spec.node_name
    d.drop_claim("first-claim")
    d.delete(first)
    d.settle()
    assert second.spec.node_name


@pytest.mark.parametrize("late", ["slice", "class", "claim"])
def test_what_comes_later_wakes_the_pods_that_wait(late: str) -> None:
    d = driver({"s1/l1": 1})
    wanted = asking(1, deviceClassName="later" if late == "class" else "gpu")
    pod = make_pod("p")
    if late == "slice":
        d.drop_slice("s1-l1-1-gpus")
    if late != "claim":
        d.claim("c", wanted)
    d.run(d.sharing(pod, "c"))
    assert not pod.spec.node_name
    if late == "slice":
        d.slices(slice_of("s1-l1-1"))
    elif late == "class":
        d.classes(msgspec.convert({"metadata": {"name": "later"}}, DeviceClass))
    else:
        d.claim("c", wanted)
    d.settle()
    assert pod.spec.node_name


def test_pods_that_were_read_before_the_lists_are_not_refused_after_them() -> None:
    d = driver(synced=False)
    pods = [d.pod(f"p{number}", asking(1), priority=number) for number in range(10)]
    d.apply(*pods)
    d.sync()
    d.clock = count(0.0).__next__  # so that one pod is read again in each step
    d.settle()
    for _ in range(20):
        d.settle(1)
    assert len(nodes_of(pods)) == 10
    assert not any("listed" in text for text in d.told())


def test_a_long_list_is_not_taken_for_a_refusal() -> None:
    d = driver(synced=False)
    pod, missing = d.pod("p", asking(1)), d.sharing(make_pod("q"), "missing")
    d.run(pod, missing)
    kinds = "deviceclasses.resource.k8s.io, resourceslices.resource.k8s.io, resourceclaims.resource.k8s.io"
    for waiting in (pod, missing):
        assert d.told(waiting)[-1] == f"Refused: {kinds} are still being listed"
    d.refuse("resourceslices")
    d.settle()
    for waiting in (pod, missing):
        assert d.told(waiting)[-1].startswith("Refused: resourceslices.resource.k8s.io can't be listed yet: grant")
    d.sync()
    d.settle()
    assert nodes_of([pod]) and "not found in namespace default" in d.told(missing)[-1]


def test_an_incomplete_generation_gives_nothing_and_other_nodes_are_served_on() -> None:
    d = driver()
    newer = slice_of("s1-l1-1", generation=2)
    newer.spec.pool.resource_slice_count = 2
    d.slices(newer)
    pods = [d.pod(f"p{number}", asking(8)) for number in range(2)]
    d.run(*pods)
    assert nodes_of(pods) == ["s1-l1-2"]
    messages = d.told(pods[0]) + d.told(pods[1])
    assert any(f"1 cannot allocate all claims: a pool of driver {DRIVER} is being updated" in text for text in messages)


def test_devices_with_taints_are_a_reason_of_their_own() -> None:
    d = driver()
    d.slices(slice_of("s1-l1-1", taints=[{"key": "broken", "effect": "NoSchedule"}]))
    pod = d.pod("p", asking(9))
    d.run(pod)
    (text,) = d.told(pod)
    assert "1 cannot allocate all claims: request gpus: the devices that match have taints that it does not" in text
    assert "1 cannot allocate all claims," in text or "1 cannot allocate all claims." in text


def test_a_device_that_is_named_twice_gives_nothing_and_other_nodes_are_served_on() -> None:
    d = driver()
    twice = slice_of("s1-l1-1")
    twice.spec.devices[1].name = "gpu-0"
    d.slices(twice)
    pods = [d.pod(f"p{number}", asking(8)) for number in range(2)]
    d.run(*pods)
    assert nodes_of(pods) == ["s1-l1-2"]
    (reason,) = {text for text in d.told(pods[0]) + d.told(pods[1]) if "cannot allocate" in text}
    assert f"a pool of driver {DRIVER} is invalid: device gpu-0 exists twice" in reason


def test_a_slice_that_can_not_be_read_leaves_the_others() -> None:
    d = driver()
    broken = slice_of("s1-l1-1", capacity={"memory": {"value": "lots"}})
    d.slices(broken)
    pod = d.pod("p", asking(8))
    d.run(pod)
    assert pod.spec.node_name == "s1-l1-2"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            asking(1, deviceClassName="none"),
            "cannot allocate all claims: request gpus: DeviceClass 'none' does not exist",
        ),
        (asking(1, selectors=[{"cel": {"expression": "device.attributes['x/y'].z == 1"}}]), "has no attribute z"),
        (asking(1, selectors=[{"cel": {"expression": "device.nonsense("}}]), "not understood"),
        (asking(1, selectors=[{"cel": {"expression": COSTLY}}]), "the selector takes more than 50,000 steps"),
        (asking(33), "asks for 33 devices, a claim gets 32 at most"),
        (asking(9), "2 cannot allocate all claims."),
        (
            asking(1, selectors=[{"cel": {"expression": "device.driver == 'other'"}}]),
            "2 cannot allocate all claims: request gpus: no device matches its class and selectors",
        ),
        ({"devices": {"requests": [{"name": "gpus"}]}}, "neither exactly nor firstAvailable"),
    ],
)
def test_what_can_not_be_allocated_is_a_reason_on_the_pod_and_others_go_on(
    spec: dict[str, object], reason: str
) -> None:
    d = driver()
    pod, other = d.pod("p", spec), d.pod("other", asking(1))
    d.run(pod, other)
    assert not pod.spec.node_name
    assert other.spec.node_name
    assert any(reason in text for text in d.told(pod)), d.told(pod)


def test_a_pod_that_names_a_claim_twice_gets_its_devices_once() -> None:
    d = driver()
    d.claim("c", asking(1))
    pod = make_pod("p")
    pod.spec.resource_claims = [PodResourceClaim(name, resource_claim_name="c") for name in ("a", "b")]
    d.run(pod)
    assert pod.spec.node_name
    assert len(d.allocated()) == 1
    d.delete(pod)


def test_a_claim_of_another_pod_is_refused() -> None:
    d = driver()
    owner, thief = d.pod("owner", asking(1)), make_pod("thief")
    d.with_claim(thief, asking(1))
    thief.status.resource_claim_statuses[0].resource_claim_name = "owner-claim"
    d.run(thief, owner)
    assert not thief.spec.node_name
    assert owner.spec.node_name
    assert any('resourceclaim "owner-claim" was not created for this pod' in text for text in d.told(thief))


def test_a_pod_waits_for_the_binding_conditions_of_its_devices() -> None:
    d = DeviceDriver(
        [make_node("n1", "s1/l1", gpus=0)], bindingConditions=["ready"], bindingFailureConditions=["failed"]
    )
    pod = d.pod("p", asking(1))
    d.apply(pod)
    d.step()
    assert d.allocated()
    assert not d.flight
    claim = d.claims["default", "p-claim"]
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results
    device = {
        "driver": DRIVER,
        "pool": "n1",
        "device": result.device,
        "conditions": [{"type": "ready", "status": "True"}],
    }
    status = msgspec.to_builtins(claim.status) | {"devices": [device]}
    d.put_claim(msgspec.convert(msgspec.to_builtins(claim) | {"status": status}, ResourceClaim))
    d.settle()
    assert pod.spec.node_name == "n1"


def test_claims_that_take_too_long_to_search_delay_no_other_pod() -> None:
    d = driver({"s1/l1": 4}, gpus=16)
    requests = [
        {
            "name": f"r{number}",
            "exactly": {
                "deviceClassName": "gpu",
                "allocationMode": "ExactCount",
                "count": 2,
                "selectors": [{"cel": {"expression": f"device.attributes['{DRIVER}'].numa != {number + 100}"}}],
            },
        }
        for number in range(9)
    ]
    hostile = d.pod("hostile", {"devices": {"requests": requests}})
    other = d.pod("other", asking(16))
    d.run(hostile, other)
    assert not hostile.spec.node_name
    assert other.spec.node_name


def test_a_claim_that_kubernetes_makes_at_once_is_waited_for_without_an_event() -> None:
    d = driver()
    pods = d.gang(2, asking(1), "quick")
    made = [pod.status.resource_claim_statuses for pod in pods]
    for pod in pods:
        pod.status.resource_claim_statuses = []
    d.apply(*pods)
    said = d.step() + d.step(1)
    assert not said
    for pod, statuses in zip(pods, made, strict=True):
        pod.status.resource_claim_statuses = statuses
    d.run(*pods)
    assert len(nodes_of(pods)) == 2


def test_a_claim_that_kubernetes_does_not_make_is_reported() -> None:
    d = driver()
    pod = d.pod("p", asking(1))
    pod.status.resource_claim_statuses = []
    d.apply(pod)
    d.step()
    notes = [instruction.message for instruction in d.step(6) if isinstance(instruction, EmitEvent)]
    assert len(notes) == 1
    assert "waiting for Kubernetes to create a ResourceClaim from template template" in notes[0]


def test_an_allocated_claim_is_shared_although_its_class_is_gone() -> None:
    d = driver()
    d.claim("shared", asking(1))
    d.run(d.sharing(make_pod("first"), "shared"))
    d.drop_class("gpu")
    second, other = d.sharing(make_pod("second"), "shared"), d.pod("other", asking(1))
    d.run(second, other)
    assert second.spec.node_name
    assert not other.spec.node_name


@pytest.mark.unrecorded
def test_a_checkpoint_holds_devices_but_no_compiled_selectors() -> None:
    d = driver()
    d.run(d.pod("p", asking(2)), d.pod("q", asking(9)))
    resolve = d.engine.arrivals._resolve
    loaded = checkpoint.load(checkpoint.dump(d.engine, resolve, ""), resolve, Extensions())
    assert loaded.world.inventory.claims == d.engine.world.inventory.claims


def test_the_claims_of_a_bound_pod_are_known_to_recovery_after_a_restart() -> None:
    d = driver()
    pod = d.pod("p", asking(2))
    pending = device_claims(pod, d.engine.world.inventory)
    d.run(pod)
    assert pod.spec.node_name
    d.engine.outcomes.claims.release(pod.metadata.uid)
    read = device_claims(pod, d.engine.world.inventory)
    assert read.claims == pending.claims
    assert (read.problem, read.stale) == ("", [])


def test_a_claim_that_was_made_for_a_pod_and_deleted_needs_a_new_pod() -> None:
    d = driver()
    pod = d.pod("p", asking(1))
    d.drop_claim("p-claim")
    d.run(pod)
    assert not d.told(pod), "its watch may only be late"
    d.settle(6)
    assert any(
        '"p-claim" does not exist, or its watch has not reported it yet; if it was deleted' in text
        for text in d.told(pod)
    )


def test_shares_of_devices_with_many_capacities_are_charged_for_each() -> None:
    """A request reads all of them, and what each earlier share took of all of them."""
    names = [f"c{number}" for number in range(16)]
    d = DeviceDriver(
        [make_node("n1", "s1/l1", gpus=0)],
        2,
        allowMultipleAllocations=True,
        capacity={name: {"value": "40", "requestPolicy": {"default": "1"}} for name in names},
    )
    shares = [{**asking()["devices"]["requests"][0], "name": f"r{number}"} for number in range(32)]
    d.claim("shares", {"devices": {"requests": shares}})
    world = d.engine.world
    assert world.around.devices is not None
    claim = PodClaim(encoded(world.inventory.claims["default", "shares"].spec))
    budget = OperationBudget(1_000_000)
    with limited(budget):
        assert world.around.devices.fit((claim,), 0).now
    assert budget.spent > len(names) * 32 * 32
