"""Pods that require close GPUs get them by resource claims, or stay pending with the reason."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DRIVER, Json, asking, slice_of
from tests.scheduling.extended_driver import ExtendedDriver, device_class
from tests.scheduling.linked_gpus import are_linked, best_ring, cluster, numbered_slice, numbers_of, running
from topo_scheduler.api.annotations import GPU_LOCALITY
from topo_scheduler.api.devices import CELSelector, DeviceClass, ResourceSlice, SelectorSource
from topo_scheduler.api.objects import Pod, PodClaimStatus, PodResourceClaim
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.devices import node_devices
from topo_scheduler.scheduling.devices.gpu_tables import shape_of

NVLINK = {"gpu-locality": "nvlink"}
Claim = list[list[tuple[int, tuple[int, ...]]]]
"""Alternatives of each request of a claim: how many GPUs, and of which numbers."""


def request(name: str, count: int = 1, numbers: Sequence[int] | None = None) -> Json:
    """Return a request for GPUs, of some numbers only."""
    chosen = [] if numbers is None else [{"cel": {"expression": among(numbers)}}]
    return {"name": name, "exactly": exactly(count) | {"selectors": chosen}}


def exactly(count: int) -> Json:
    return {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}


def among(numbers: Sequence[int]) -> str:
    return " || ".join(f"device.attributes['{DRIVER}'].number == {number}" for number in numbers) or "false"


def claim(*requests: Json, match: str = "") -> Json:
    constraints = [{"requests": [], "matchAttribute": f"{DRIVER}/{match}"}] if match else []
    return {"devices": {"requests": list(requests), "constraints": constraints}}


def with_claims(d: ExtendedDriver, pod: Pod, *specs: Json) -> Pod:
    """Give a pod several claims that were made for it."""
    for number, spec in enumerate(specs):
        name = f"{pod.metadata.name}-{number}"
        d.claim(name, spec, pod=pod)
        pod.spec.resource_claims.append(PodResourceClaim(f"c{number}", resource_claim_template_name="template"))
        pod.status.resource_claim_statuses.append(PodClaimStatus(f"c{number}", name))
    return pod


def class_of(numbers: Sequence[int]) -> DeviceClass:
    """Return the class that backs GPUs, for those of some numbers."""
    backing = device_class()
    return msgspec.structs.replace(
        backing,
        spec=msgspec.structs.replace(backing.spec, selectors=[SelectorSource(CELSelector(among(numbers)))]),
    )


def why(d: ExtendedDriver, pod: Pod) -> str:
    """Return the last message on a pod that stays pending."""
    assert d.run(pod) == {}
    d.settle(30)
    assert not pod.spec.node_name
    return d.told(pod, Reason.FAILED_SCHEDULING)[-1]


@pytest.mark.parametrize("annotations", [NVLINK, {"gpu-min-bandwidth": "90G"}])
@pytest.mark.parametrize("spec", [asking(2), claim(request("a"), request("b"))], ids=["a request", "two requests"])
def test_a_claim_gets_the_gpus_that_are_linked(annotations: dict[str, str], spec: Json) -> None:
    """Of the free devices 0, 5 and 6 only the last two are linked."""
    d = cluster("n")
    running(d, "other", (1, 2, 3, 4, 7))
    pod = d.pod("p", spec, annotations=annotations)
    assert d.run(pod) == {"p": "n"}
    assert numbers_of(d, pod) == {5, 6}


@pytest.mark.unrecorded
def test_the_fits_of_close_gpus_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs in use differ each time."""
    monkeypatch.setattr(node_devices, "MAX_KNOWN_FITS", 2)
    d = cluster("n")
    devices, entries = d.engine.world.around.devices, []
    assert devices is not None
    for gpu in range(6):
        running(d, f"other-{gpu}", (gpu,))
        pod = d.pod(f"p-{gpu}", asking(2), annotations=NVLINK)
        d.run(pod)
        d.delete(pod)
        d.drop_claim(f"p-{gpu}-claim")
        entries.append(max(len(fits.close_known) for fits in devices._fits.values()))
    assert max(entries) == 2


def test_several_claims_of_a_pod_get_linked_gpus_together() -> None:
    d = cluster("n")
    running(d, "other", (1, 2, 3, 4, 7))
    pod = with_claims(d, make_pod("p", annotations=NVLINK), asking(1), asking(1))
    assert d.run(pod) == {"p": "n"}
    assert numbers_of(d, pod) == {5, 6}


def test_the_reason_says_how_many_free_gpus_are_linked() -> None:
    d = cluster("node-7")
    running(d, "other", (2, 3, 4, 5))
    message = why(d, d.pod("p", asking(4), annotations=NVLINK))
    assert "node-7 has 4 free GPUs but at most 2 are linked by NVLink" in message
    assert "1 node(s) had too few GPUs close to each other: 4 free GPUs but at most 2 are linked by NVLink." in message


def test_the_reason_says_that_the_claims_exclude_the_linked_gpus() -> None:
    """0 is linked to 1, but the second request accepts 5 and 6 only."""
    d = cluster("node-7")
    pod = d.pod("p", claim(request("a", numbers=[0]), request("b", numbers=[5, 6])), annotations=NVLINK)
    assert "node-7 has 3 free GPUs, but the claims allow no set of them that is linked by NVLink" in why(d, pod)


def test_a_pod_goes_to_the_node_whose_free_gpus_are_linked() -> None:
    d = cluster("a", "b")
    running(d, "x", (1, 2, 3, 4, 6, 7))
    running(d, "y", (1, 2, 4, 5, 6, 7))
    (linked_node,) = {"a", "b"} - {node for (node, gpu) in d.allocated() if gpu == "gpu-3"}
    pod = d.pod("p", asking(2), annotations=NVLINK)
    assert d.run(pod) == {"p": linked_node}


def test_a_shared_claim_that_is_allocated_counts() -> None:
    """The shared claim has GPU 0; 1 to 4 are linked to it, of which only 4 is free."""
    d = cluster("n")
    d.claim("shared", claim(request("a", numbers=[0])))
    assert d.run(d.sharing(make_pod("first"), "shared"))
    running(d, "other", (1, 2, 3))
    pod = d.pod("p", asking(1), annotations=NVLINK)
    pod.spec.resource_claims.append(PodResourceClaim("shared", resource_claim_name="shared"))
    assert d.run(pod) == {"p": "n"}
    assert numbers_of(d, pod) == {4}


def test_a_shared_claim_with_gpus_that_are_not_close_has_no_place_for_the_pod() -> None:
    d = cluster("node-7")
    d.claim("shared", claim(request("a", 2, [0, 5])))
    assert d.run(d.sharing(make_pod("first"), "shared"))
    pod = d.sharing(make_pod("p", annotations=NVLINK), "shared")
    assert "too few GPUs close to each other" in why(d, pod)


def test_a_pod_gets_a_later_alternative_if_only_that_is_close() -> None:
    d = cluster("n")
    running(d, "other", (2, 3, 4, 5))
    alternatives = [{"name": f"of-{count}", **exactly(count)} for count in (4, 3, 2)]
    pod = d.pod("p", claim({"name": "gpus", "firstAvailable": alternatives}), annotations=NVLINK)
    assert d.run(pod) == {"p": "n"}
    assert numbers_of(d, pod) in ({0, 1}, {6, 7})


@pytest.mark.parametrize("locality", ["any", "same-node"])
def test_a_pod_that_requires_one_node_gets_any_gpus(locality: str) -> None:
    d = cluster("n")
    running(d, "other", (1, 2, 3, 4, 6, 7))
    pod = d.pod("p", asking(2), annotations={"gpu-locality": locality})
    assert d.run(pod) == {"p": "n"}
    assert numbers_of(d, pod) == {0, 5}


@pytest.mark.parametrize(
    ("locality", "gpus", "text"),
    [
        ("same-socket", {4, 5, 6}, ""),
        ("same-pcie-switch", set(), "at most 2 are below one PCIe switch"),
    ],
)
def test_sockets_and_switches(locality: str, gpus: set[int], text: str) -> None:
    """A DGX-1 has two GPUs on each switch, and four on each socket."""
    d = cluster("n")
    running(d, "other", (3, 7))
    running(d, "another", (0,))
    pod = d.pod("p", asking(3), annotations={"gpu-locality": locality})
    if gpus:
        assert d.run(pod) == {"p": "n"}
        assert numbers_of(d, pod) == gpus
    else:
        assert text in why(d, pod)


def test_a_gang_has_linked_gpus_for_each_member() -> None:
    d = cluster("n")
    running(d, "other", (1, 2))
    pods = d.gang(3, asking(2))
    for pod in pods:
        pod.metadata.annotations[GPU_LOCALITY] = "nvlink"
    assert len(d.run(*pods)) == 3
    assert all(are_linked(sorted(numbers_of(d, pod))) for pod in pods)


def test_extended_resources_obey_the_class_and_the_annotation() -> None:
    """GPUs 0 and 3 would be best, but the class has 1, 5 and 6 only."""
    d = cluster("n")
    d.classes(class_of((1, 5, 6)))
    pod = make_pod("p", gpus=2, annotations=NVLINK)
    assert d.run(pod) == {"p": "n"}
    assert are_linked(sorted(numbers_of(d, pod)))
    d = cluster("node-7")
    d.classes(class_of((0, 5)))
    assert "node-7 has 2 free GPUs but at most 1 is linked by NVLink" in why(
        d, make_pod("p", gpus=2, annotations=NVLINK)
    )


@pytest.mark.parametrize("annotations", [NVLINK, {"gpu-locality": "same-socket"}])
def test_unknown_hardware_does_not_count_as_close(annotations: dict[str, str]) -> None:
    d = ExtendedDriver([make_node("n", "s1/l1", gpus=0)], 8)
    item = msgspec.to_builtins(slice_of("n", 8, generation=2))
    for device in item["spec"]["devices"]:
        device["attributes"] = {"type": {"string": "gpu"}}
    d.slices(msgspec.convert(item, type(slice_of("n"))))
    assert "of those of n it is not known which are" in why(d, d.pod("p", asking(2), annotations=annotations))
    single = d.pod("one", asking(1), annotations=annotations)
    assert d.run(single) == {"one": "n"}


@pytest.mark.parametrize(("locality", "placed"), [("same-socket", True), ("same-pcie-switch", True), ("nvlink", False)])
def test_parts_of_gpus_are_as_close_as_their_gpus_and_have_no_links(locality: str, placed: bool) -> None:
    """A partition of each of GPUs 4 and 5, which are below one switch."""
    d = cluster("node-7")
    item = msgspec.to_builtins(numbered_slice("node-7"))
    counters = [{"name": f"gpu-{number}", "counters": {"memory": {"value": "8"}}} for number in range(8)]
    for number, device in enumerate(list(item["spec"]["devices"])):
        device["consumesCounters"] = [{"counterSet": f"gpu-{number}", "counters": {"memory": {"value": "8"}}}]
        part = {"counterSet": f"gpu-{number}", "counters": {"memory": {"value": "1"}}}
        attributes = {"type": {"string": "mig"}, "number": {"int": 10 + number}}
        item["spec"]["devices"].append({"name": f"part-{number}", "attributes": attributes, "consumesCounters": [part]})
    of_counters = {**item, "metadata": {"name": "counters"}}
    of_counters["spec"] = {**item["spec"], "devices": [], "sharedCounters": counters}
    for entry in (item, of_counters):
        entry["spec"]["pool"] = {"name": "node-7", "generation": 3, "resourceSliceCount": 2}
        d.slices(msgspec.convert(entry, ResourceSlice))
    d.classes(class_of(range(8)), device_class("part", resource=""))
    parts = request("a", 2, [14, 15])
    parts["exactly"]["deviceClassName"] = "part"
    pod = d.pod("p", claim(parts), annotations={"gpu-locality": locality})
    if placed:
        assert d.run(pod) == {"p": "node-7"}
    else:
        assert "the claims allow no set of them that is linked by NVLink" in why(d, pod)


# ---------------------------------------------------------------- what each GPU is like


def mixed_node(d: ExtendedDriver) -> None:
    """Publish an H100 of 80 GB, an A100 of 40 GB, and a MIG instance of the H100."""
    kinds = [("gpu", "Hopper", "81559Mi"), ("gpu", "Ampere", "40Gi"), ("mig", "Hopper", "9984Mi")]
    devices = [
        {
            "name": f"{kind}-{number}",
            "attributes": {
                "type": {"string": kind},
                "architecture": {"string": architecture},
                "profile": {"string": "1g.10gb" if kind == "mig" else ""},
            },
            "capacity": {"memory": {"value": memory}},
        }
        for number, (kind, architecture, memory) in enumerate(kinds)
    ]
    item = msgspec.to_builtins(slice_of("n", 1, generation=2))
    item["spec"]["devices"] = devices
    d.slices(msgspec.convert(item, ResourceSlice))
    d.step()


@pytest.mark.parametrize(
    ("annotations", "device"),
    [
        ({"gpu-memory": "80Gi"}, "gpu-0"),
        ({"gpu-memory": "40Gi", "gpu-architecture": "ampere"}, "gpu-1"),
        ({"gpu-architecture": "ampere"}, "gpu-1"),
        ({"mig-profile": "1g.10gb"}, "mig-2"),
        ({"gpu-memory": "10Gi", "mig-profile": "1g.10gb"}, "mig-2"),
    ],
)
def test_each_device_of_a_claim_is_as_required(annotations: dict[str, str], device: str) -> None:
    d = ExtendedDriver([make_node("n", "s1/l1", gpus=0)], 1)
    mixed_node(d)
    pod = d.pod("p", asking(1), annotations=annotations)
    assert d.run(pod) == {"p": "n"}
    assert d.devices_of("p-claim") == [device]


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"gpu-memory": "90Gi"}, "90Gi of memory"),
        ({"gpu-architecture": "blackwell"}, "the architecture blackwell"),
        ({"gpu-memory": "40Gi", "mig-profile": "1g.10gb"}, "40Gi of memory and the MIG profile 1g.10gb"),
        ({"gpu-architecture": "ampere", "gpu-locality": "same-socket"}, "the architecture ampere"),
    ],
)
def test_the_reason_says_what_no_device_has(annotations: dict[str, str], text: str) -> None:
    d = ExtendedDriver([make_node("n", "s1/l1", gpus=0)], 1)
    mixed_node(d)
    message = why(d, d.pod("p", asking(2), annotations=annotations))
    assert f"cannot allocate all claims: too few free devices have {text}" in message


def test_a_preferred_memory_excludes_no_device() -> None:
    d = ExtendedDriver([make_node("n", "s1/l1", gpus=0)], 1)
    mixed_node(d)
    annotations = {"gpu-memory": "90Gi", "gpu-requirements": "preferred"}
    assert d.run(d.pod("p", asking(2), annotations=annotations)) == {"p": "n"}


def test_labels_and_products_say_what_drivers_do_not() -> None:
    """The slices of the DGX-1 publish no memory; its product has 16 GB."""
    d = cluster("n")
    assert d.run(d.pod("p", asking(2), annotations={"gpu-memory": "16Gi", "gpu-architecture": "volta"})) == {"p": "n"}
    assert "too few free devices have 32Gi of memory" in why(
        d, d.pod("q", asking(2), annotations={"gpu-memory": "32Gi"})
    )


# ---------------------------------------------------------------- against all allocations


requests = st.builds(
    lambda count, numbers: (count, tuple(sorted(numbers))),
    st.integers(1, 3),
    st.one_of(st.just(set(range(8))), st.sets(st.integers(0, 7), min_size=1, max_size=6)),
)
asks = st.one_of(
    st.sampled_from([{"gpu-locality": value} for value in ("nvlink", "same-socket", "same-pcie-switch", "same-node")]),
    st.sampled_from([{"gpu-min-bandwidth": value} for value in ("24G", "50G", "90G", "100G")]),
    st.just({"gpu-locality": "same-socket", "gpu-min-bandwidth": "50G"}),
)


def ways(taken: set[int], specs: list[Claim], match: bool) -> set[frozenset[int]]:
    """Return all sets of GPUs that a pod may get, with any alternative of each request."""
    sets = {frozenset[int]()}
    for asked in specs:
        got = {(before, frozenset[int]()) for before in sets}
        for alternatives in asked:
            got = {
                (before, inside | set(chosen))
                for before, inside in got
                for count, numbers in alternatives
                for chosen in combinations(sorted(set(numbers) - taken - before - inside), count)
            }
        sets = {before | inside for before, inside in got if not (match and len({gpu // 4 for gpu in inside}) > 1)}
    return sets


def is_close(pairs: tuple[tuple[int, ...], ...], gpus: frozenset[int], annotations: dict[str, str]) -> bool:
    """Return whether GPUs of a DGX-1 are as close as required."""
    chosen = tuple(sorted(gpus))
    if len(chosen) < 2:
        return True
    locality = annotations.get("gpu-locality", "any")
    if locality == "nvlink" and not are_linked(chosen):
        return False
    if locality == "same-socket" and len({gpu // 4 for gpu in chosen}) > 1:
        return False
    if locality == "same-pcie-switch" and len({gpu // 2 for gpu in chosen}) > 1:
        return False
    bandwidth = int(annotations.get("gpu-min-bandwidth", "0G").removesuffix("G")) * 500
    return best_ring(pairs, chosen) >= bandwidth


def written(asked: Claim, match: bool) -> Json:
    def device_request(number: int, alternatives: list[tuple[int, tuple[int, ...]]]) -> dict[str, Any]:
        if len(alternatives) == 1:
            return request(f"r{number}", *alternatives[0])
        subs = [
            {"name": f"s{sub}", **request("", *alternative)["exactly"]} for sub, alternative in enumerate(alternatives)
        ]
        return {"name": f"r{number}", "firstAvailable": subs}

    return claim(*(device_request(number, entry) for number, entry in enumerate(asked)), match="half" if match else "")


@settings(max_examples=60, deadline=None)
@given(
    taken=st.sets(st.integers(0, 7), max_size=5),
    specs=st.lists(
        st.lists(st.lists(requests, min_size=1, max_size=2), min_size=1, max_size=2), min_size=1, max_size=2
    ),
    annotations=asks,
    match=st.booleans(),
)
def test_a_pod_has_a_place_if_and_only_if_some_allocation_is_close(
    taken: set[int], specs: list[Claim], annotations: dict[str, str], match: bool
) -> None:
    d = cluster("n")
    if taken:
        running(d, "other", sorted(taken))
    hardware = d.engine.world.hardware.of(0)
    assert hardware is not None
    pairs = shape_of(hardware.hardware).pairs
    close = {gpus for gpus in ways(taken, specs, match) if is_close(pairs, gpus, annotations)}
    pod = with_claims(d, make_pod("p", annotations=annotations), *(written(asked, match) for asked in specs))
    placed = d.run(pod)
    event("placed" if placed else "pending")
    assert bool(placed) == bool(close)
    if placed:
        assert frozenset(numbers_of(d, pod)) in close
