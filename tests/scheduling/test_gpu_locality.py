"""What pods ask of the GPUs of a node by annotation: closeness, bandwidth, memory, architecture, MIG."""

from copy import deepcopy

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DeviceDriver, Json, slice_of
from tests.scheduling.driver import Driver
from tests.scheduling.running_pods import run_pod, with_priority
from topo_scheduler.api.annotations import DEVICE_SCORE, PREDICTED_GPUS
from topo_scheduler.api.devices import ResourceSlice
from topo_scheduler.api.objects import Container, Node, Pod, PodSpec, Quantity, ResourceRequirements
from topo_scheduler.api.reasons import Reason
from topo_scheduler.state.devices.node_hardware import LABELS_READ

V100 = "Tesla-V100-SXM2-16GB"
H100 = "NVIDIA-H100-80GB-HBM3"
L40S = "NVIDIA-L40S"
OWN_MIG = "neuronetes.io/mig-capable", "neuronetes.io/mig-config"
MI300X = "AMD-Instinct-MI300X-OAM"


def node(name: str, model: str, gpus: int = 8, **labels: str) -> Node:
    node_labels = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return make_node(name, "s1/l1", gpus=gpus, model=model, labels=node_labels)


def pod(name: str, gpus: int = 2, **asks: str) -> Pod:
    return make_pod(name, gpus=gpus, annotations={key.replace("_", "-"): value for key, value in asks.items()})


def why(d: Driver, pending: Pod) -> str:
    """Return the last message on a pod that stays pending."""
    d.apply(pending)
    d.settle()
    d.settle(30)
    assert not pending.spec.node_name
    return d.told(pending, Reason.FAILED_SCHEDULING)[-1]


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("asks", "places"),
    [
        ({"gpu_memory": "40Gi"}, {"h100", "l40s"}),
        ({"gpu_memory": "80Gi"}, {"h100"}),
        ({"gpu_architecture": "hopper"}, {"h100"}),
        ({"gpu_architecture": "Hopper, ada"}, {"h100", "l40s"}),
        ({"gpu_locality": "nvlink"}, {"h100", "v100"}),
        ({"gpu_min_bandwidth": "900G"}, {"h100"}),
        ({"gpu_min_bandwidth": "50G"}, {"h100", "v100"}),
        ({"gpu_locality": "same-node"}, {"h100", "l40s", "v100"}),
        ({"gpu_locality": "same-pcie-switch"}, {"v100"}),
    ],
)
def test_nodes_that_meet_a_request(asks: dict[str, str], places: set[str]) -> None:
    d = Driver([node("h100", H100), node("l40s", L40S), node("v100", V100)])
    pods = [pod(f"p{number}", 2, **asks) for number in range(12)]
    d.apply(*pods)
    d.settle()
    assert set(d.where(*pods).values()) == places


def test_every_reason_is_counted_once_and_in_order() -> None:
    d = Driver(
        [
            node("few", H100, 2),
            node("small", L40S),
            node("old", "NVIDIA-A100-SXM4-80GB"),
            make_node("unknown", "s1/l1", gpus=8),
        ]
    )
    message = why(d, pod("p", 4, gpu_memory="80Gi", gpu_architecture="hopper"))
    assert "1 node(s) had fewer GPUs" in message
    assert "1 node(s) had GPUs with less memory" in message
    assert "1 node(s) had GPUs of another architecture" in message
    assert "1 node(s) had GPUs of unknown memory" in message


def test_filters_apply_in_the_order_count_memory_architecture_mig() -> None:
    """Each node fails one filter more than the next one, and counts for the first of them."""
    d = Driver(
        [
            node("four", L40S, 2),
            *(node(f"three-{number}", L40S) for number in range(2)),
            *(node(f"two-{number}", "NVIDIA-A100-SXM4-80GB") for number in range(3)),
            *(node(f"one-{number}", H100) for number in range(4)),
        ]
    )
    message = why(d, pod("p", 4, gpu_memory="80Gi", gpu_architecture="hopper", mig_profile="1g.10gb"))
    assert "1 node(s) had fewer GPUs" in message
    assert "2 node(s) had GPUs with less memory" in message
    assert "3 node(s) had GPUs of another architecture" in message
    assert "4 node(s) had no such MIG devices" in message


# ---------------------------------------------------------------- free GPUs that are close


def test_the_closest_node_is_named_with_how_many_gpus_are_linked() -> None:
    """In the mesh of a DGX-1, GPUs 0 and 1 are linked, and 6 and 7, but neither pair with the other."""
    d = Driver([node("node-7", V100)])
    taken = make_pod("taken", gpus=4, node="node-7", annotations={PREDICTED_GPUS: "2,3,4,5"})
    d.apply(taken)
    message = why(d, pod("p", 4, gpu_locality="nvlink"))
    assert "node-7 has 4 free GPUs but at most 2 are linked by NVLink" in message
    assert "1 node(s) had too few GPUs close to each other: 4 free GPUs but at most 2 are linked by NVLink." in message


def test_a_node_without_links_says_so() -> None:
    d = Driver([node("node-7", L40S, 4)])
    message = why(d, pod("p", 4, gpu_locality="nvlink"))
    assert "node-7 has 4 free GPUs but at most 1 is linked by NVLink" in message


def test_what_is_not_known_does_not_count_as_close() -> None:
    d = Driver([node("node-7", "Some-Accelerator", 4)])
    message = why(d, pod("p", 2, gpu_locality="nvlink"))
    assert "1 node(s) had too few GPUs close to each other: it is not known which are linked by NVLink." in message


def test_the_node_is_chosen_whose_free_gpus_are_linked() -> None:
    """Both nodes have two free GPUs; only on one are they linked."""
    d = Driver([node("a", V100), node("b", V100)])
    d.apply(
        make_pod("x", gpus=6, node="a", annotations={PREDICTED_GPUS: "1,2,3,4,5,7"}),
        make_pod("y", gpus=6, node="b", annotations={PREDICTED_GPUS: "1,2,4,5,6,7"}),
    )
    asks = pod("p", 2, gpu_locality="nvlink")
    assert d.run(asks) == {"p": "b"}
    assert asks.metadata.annotations[PREDICTED_GPUS] == "0,3"


def test_a_forged_record_of_another_scheduler_does_not_count() -> None:
    d = Driver([node("a", V100, 8)])
    forged = make_pod("x", gpus=4, node="a", scheduler="other", annotations={PREDICTED_GPUS: "0,2,5,7"})
    d.apply(forged)
    assert free_gpus(d, "a") != 0b01011010
    assert free_gpus(d, "a").bit_count() == 4


def free_gpus(d: Driver, name: str) -> int:
    sets = d.engine.world.around.gpu_sets
    assert sets is not None
    return int(sets.free(np.array([d.engine.world.nodes.row_of[name]], np.int64))[0])


def test_records_are_read_back_after_a_restart() -> None:
    d = Driver([node("a", V100)])
    d.run(pod("z", 2, gpu_locality="nvlink"), leaves := pod("y", 3), pod("x", 1))
    d.delete(leaves)
    again = Driver([node("a", V100)])
    again.apply(*d.pods.values())
    assert free_gpus(again, "a") == free_gpus(d, "a")
    assert free_gpus(d, "a").bit_count() == 5


def test_a_pod_that_leaves_makes_room_again() -> None:
    d = Driver([node("a", V100, 4)])
    first, second = pod("first", 3, gpu_locality="nvlink"), pod("second", 2, gpu_locality="nvlink")
    d.run(first, second)
    assert d.where(first, second) == {"first": "a"}
    d.delete(first)
    d.settle(60)
    assert d.where(second) == {"second": "a"}


# ---------------------------------------------------------------- gangs, preferences, remedies


def test_each_pod_of_a_gang_gets_linked_gpus() -> None:
    """Tensor-parallel groups of four within a node, pipeline stages across nodes: two per node of NVSwitch."""
    d = Driver([node("a", H100), node("b", L40S), node("c", H100)])
    asks = {"gpu_locality": "nvlink", "gang_name": "g", "gang_size": "4"}
    gang = [pod(f"g-{number}", 4, **asks) for number in range(4)]
    assert sorted(d.run(*gang).values()) == ["a", "a", "c", "c"]
    chosen = [(member.spec.node_name, member.metadata.annotations[PREDICTED_GPUS]) for member in gang]
    assert len(set(chosen)) == 4
    for name in ("a", "c"):
        indexes = [index for where, text in chosen if where == name for index in text.split(",")]
        assert sorted(indexes) == [str(index) for index in range(8)]


def test_a_gang_stays_pending_if_one_pod_would_have_no_linked_gpus() -> None:
    d = Driver([node("a", H100), node("b", L40S)])
    asks = {"gpu_locality": "nvlink", "gang_name": "g", "gang_size": "3"}
    gang = [pod(f"g-{number}", 4, **asks) for number in range(3)]
    assert d.run(*gang) == {}


def test_a_gang_of_different_pods_gets_linked_gpus_too() -> None:
    d = Driver([node("a", V100, 4), node("b", V100, 4)])
    asks = {"gang_name": "g", "gang_size": "3"}
    gang = [pod("g-0", 4, gpu_locality="nvlink", **asks), pod("g-1", 2, gpu_locality="nvlink", **asks)]
    gang.append(pod("g-2", 1, **asks))
    where = d.run(*gang)
    assert where["g-0"] != where["g-1"] == where["g-2"]


def test_preferred_requirements_exclude_no_node() -> None:
    d = Driver([node("a", L40S, 4), node("b", H100, 4)])
    asks = {"gpu_memory": "80Gi", "gpu_locality": "nvlink", "gpu_requirements": "preferred"}
    first, second = pod("first", 4, **asks), pod("second", 4, **asks)
    assert d.run(first) == {"first": "b"}
    assert d.run(second) == {"second": "a"}


@pytest.mark.parametrize(
    ("annotation", "value", "shown"),
    [
        ("gpu-architecture", "hopper,blackwell", "gpu-architecture blackwell,hopper"),
        ("gpu-locality", "nvlink", "gpu-locality nvlink"),
        ("gpu-min-bandwidth", "600G", "gpu-min-bandwidth"),
        ("gpu-memory", "80Gi", "gpu-memory"),
    ],
)
def test_a_remedy_names_the_annotation(annotation: str, value: str, shown: str) -> None:
    d = Driver([node("a", L40S, 4)])
    asks = pod("p", 4, **{annotation: value})
    why(d, asks)
    d.explain(60)
    (message,) = [text for text in d.told(asks) if "What would help" in text]
    assert f"(1) do without topology.scheduler/{shown}" in message


@pytest.mark.parametrize(("asks", "victims"), [({"gpu_locality": "nvlink"}, 0), ({"gpu_memory": "16Gi"}, 2)])
def test_no_pod_is_evicted_for_gpus_that_may_not_be_linked(asks: dict[str, str], victims: int) -> None:
    d = Driver([node("a", V100)])
    d.engine.budgets_known()
    for number in range(8):
        run_pod(d, f"low-{number}", "a", gpus=1)
    (urgent,) = with_priority([pod("urgent", 2, **asks)], 10)
    d.apply(urgent)
    d.step()
    assert len(d.preempted()) == victims


# ---------------------------------------------------------------- MIG


def mig(name: str, count: int = 7, whole: int = 0) -> Node:
    allocatable: dict[str, Quantity] = {"cpu": "64", "memory": "512Gi", "pods": 110, "nvidia.com/mig-1g.10gb": count}
    allocatable["nvidia.com/gpu"] = whole
    return make_node(name, "s1/l1", model=H100, allocatable=allocatable)


def test_a_profile_needs_limits_that_get_it() -> None:
    d = Driver([mig("mixed"), node("single", f"{H100}-MIG-1g.10gb", 7), node("whole", H100)])
    message = why(d, pod("none", 0, mig_profile="1g.10gb"))
    assert "set limits on nvidia.com/mig-1g.10gb, or on nvidia.com/gpu" in message


def test_whole_gpus_do_not_count_as_a_profile() -> None:
    d = Driver([mig("mixed"), node("single", f"{H100}-MIG-1g.10gb", 2), node("whole", H100)])
    pods = [pod(f"p{number}", 1, mig_profile="1g.10gb") for number in range(3)]
    assert set(d.run(*pods).values()) == {"single"}
    assert len(d.where(*pods)) == 2


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        (
            {"gpu_architecture": "h100"},
            "no node has GPUs of the architecture h100: there are ada-lovelace, hopper, volta.",
        ),
        ({"gpu_architecture": "sm_90, h100"}, "no node has GPUs of the architecture h100, sm-90: there are"),
        ({"gpu_memory": "400Gi"}, "no node has GPUs with 400Gi of memory: the largest have 80Gi."),
        ({"mig_profile": "1g.99gb"}, "no node offers MIG devices of the profile 1g.99gb: there are 1g.10gb."),
        ({"gpu_architecture": "hopper", "gpu_locality": "nvlink", "gpu_min_bandwidth": "2T"}, ""),
        ({"gpu_memory": "80Gi", "gpu_architecture": "volta"}, ""),
    ],
)
def test_what_no_node_has_at_all_is_named_with_what_there_is(asks: dict[str, str], expected: str) -> None:
    split = make_node("mig", "s1/l1", gpus=7, model=f"{H100}-MIG-1g.10gb", labels={"nvidia.com/mig.strategy": "single"})
    d = Driver([node("h100", H100), node("l40s", L40S), node("v100", V100), split])
    text = why(d, pod("p", 1 if "mig_profile" in asks else 2, **asks))
    assert expected in text
    assert bool(expected) == ("no node " in text), "what some node has is no typing error"


def test_limits_of_the_wrong_mig_strategy_are_corrected() -> None:
    d = Driver([node("single", f"{H100}-MIG-1g.10gb", 7)])
    asks = pod("p", 0, mig_profile="1g.10gb")
    asks.spec.containers[0].resources.requests["nvidia.com/mig-1g.10gb"] = 1
    text = why(d, asks)
    assert "nodes with the profile 1g.10gb offer it as nvidia.com/gpu: set the limits on that resource" in text
    d = Driver([mig("m")])
    text = why(d, pod("q", 1, mig_profile="1g.10gb"))
    assert "nodes with the profile 1g.10gb offer it as nvidia.com/mig-1g.10gb: set the limits" in text


def test_without_any_known_gpus_the_message_says_so() -> None:
    d = Driver([make_node("a", "s1/l1", gpus=8)])
    text = why(d, pod("p", 1, gpu_memory="40Gi", gpu_architecture="hopper", mig_profile="1g.10gb"))
    assert "the memory of no node's GPUs is known" in text
    assert "no node has GPUs of the architecture hopper: that of no node's GPUs is known" in text
    assert "no node offers MIG devices as a resource" in text


def test_a_preference_that_no_node_meets_is_no_reason() -> None:
    d = Driver([node("h100", H100)])
    text = why(d, pod("p", 9, gpu_architecture="h100", gpu_requirements="preferred"))
    assert "architecture" not in text


def test_limits_and_profile_must_name_the_same_devices() -> None:
    d = Driver([mig("mixed", whole=2)])
    whole = pod("whole", 1, mig_profile="1g.10gb")
    assert "1 node(s) had no such MIG devices" in why(d, whole)
    limits: dict[str, Quantity] = {"nvidia.com/mig-1g.10gb": 1}
    spec = PodSpec(containers=[Container("main", ResourceRequirements(limits, limits))])
    right = make_pod("right", annotations={"mig-profile": "1g.10gb"}, spec=deepcopy(spec))
    assert d.run(right) == {"right": "mixed"}
    wrong = make_pod("wrong", annotations={"mig-profile": "2g.20gb"}, spec=deepcopy(spec))
    assert "asks for 2g.20gb, and the limits of the pod for nvidia.com/mig-1g.10gb; make them equal" in why(d, wrong)


def test_a_profile_that_no_node_has_is_a_reason() -> None:
    d = Driver([node("whole", H100)])
    assert "1 node(s) had no such MIG devices" in why(d, pod("p", 1, mig_profile="1g.10gb"))


@pytest.mark.parametrize("own", [False, True])
def test_what_labels_say_of_mig_is_in_the_message(own: bool) -> None:
    capable, config = OWN_MIG if own else ("nvidia.com/mig.capable", "nvidia.com/mig.config")
    asks = pod("p", 1, mig_profile="1g.10gb")

    def message(*labels: dict[str, str]) -> str:
        nodes = [make_node(f"n{row}", "s1/l1", gpus=8, model=H100, labels=label) for row, label in enumerate(labels)]
        return why(Driver(nodes), deepcopy(asks))

    assert "MIG devices as a resource; by their labels no nodes are MIG-capable" in message({capable: "false"}, {})
    assert "MIG-capable" not in message({}), "no label says anything"
    text = message({capable: "true", config: "all-disabled"}, {capable: "false"})
    assert "as a resource; the nodes' MIG configurations are all-disabled; by their labels some nodes are" in text
    split = mig("mixed")
    split.metadata.labels |= {capable: "true", config: "all-1g.10gb"}
    other = why(Driver([split]), pod("q", 1, mig_profile="2g.20gb"))
    assert "there are 1g.10gb; the nodes' MIG configurations are all-1g.10gb; by their labels some" in other


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("asks", "message"),
    [
        ({"gpu_locality": "nearby"}, "'nearby' is not one of any, same-node, same-socket, same-pcie-switch, nvlink"),
        ({"gpu_min_bandwidth": "600Gb"}, "'600Gb' is in bits; write bytes per second, both directions together"),
        ({"gpu_min_bandwidth": "lots"}, "'lots' is not a bandwidth in bytes per second such as 600G or 600Gi"),
        ({"gpu_memory": "40"}, "'40' is less than 1 MiB; write a size with its unit, such as 40Gi"),
        ({"gpu_memory": "-1Gi"}, "'-1Gi' is not a size of memory such as 40Gi or 80G"),
        ({"gpu_architecture": " , "}, "' , ' has not 1 to 16 architectures, separated by commas"),
        ({"mig_profile": "1g"}, "'1g' is not a MIG profile such as 1g.10gb"),
        ({"gpu_requirements": "maybe"}, "'maybe' is not one of required, preferred"),
    ],
)
def test_a_value_that_cannot_be_read_names_annotation_and_remedy(asks: dict[str, str], message: str) -> None:
    d = Driver([node("a", H100)])
    text = why(d, pod("p", 2, **asks))
    assert message in text
    assert f"topology.scheduler/{next(iter(asks)).replace('_', '-')} on Pod default/p" in text


@settings(max_examples=80, deadline=None)
@given(
    labels=st.dictionaries(
        st.sampled_from(sorted(LABELS_READ)),
        st.one_of(st.text(max_size=12), st.integers().map(str), st.sampled_from([V100, f"{H100}-MIG-1g.10gb", "1e99"])),
    ),
    gpus=st.integers(0, 40),
)
def test_no_label_keeps_a_node_from_being_used(labels: dict[str, str], gpus: int) -> None:
    """Whatever labels say, pods without requests on GPUs run there, and others get a reason."""
    d = Driver([make_node("a", "s1/l1", gpus=gpus, labels=labels)])
    plain, asks = pod("plain", 0), pod("asks", 2, gpu_locality="nvlink", gpu_memory="1Gi", gpu_min_bandwidth="1G")
    assert d.run(plain) == {"plain": "a"}
    d.run(asks)
    assert asks.spec.node_name or d.told(asks, Reason.FAILED_SCHEDULING)


def test_contradictions_are_reported_once_with_node_and_label() -> None:
    labels = {"nvidia.com/gpu.memory": "40960", "nvidia.com/gpu.family": "ampere", "neuronetes.io/gpu-topology": "ring"}
    contradictory = make_node("a", "s1/l1", model=H100, labels=labels)
    d = Driver([contradictory])
    d.settle()
    d.nodes(make_node("a", "s1/l1", model=H100, labels={**labels, "other": "1"}))
    d.settle()
    complaints = [text for text in d.complaints() if text.startswith("node a: ")]
    assert len(complaints) == 3
    assert any("label nvidia.com/gpu.memory 40.0 GiB; 40.0 GiB counts" in text for text in complaints)
    assert any("label nvidia.com/gpu.family ampere; ampere counts" in text for text in complaints)
    assert any("label neuronetes.io/gpu-topology: 'ring' is not one of" in text for text in complaints)


# ---------------------------------------------------------------- score


def test_the_score_of_devices_is_reported_by_name() -> None:
    d = Driver([node("a", V100)])
    d.run(pod("p", 4, gpu_locality="nvlink"))
    (decision,) = d.decisions()
    assert decision.score is not None
    added = dict(decision.score.added)
    # Four GPUs of one board of the mesh, of eight; one of 64 CPUs.
    assert added["device-topology"] == 10 * (40 + 40 + 12)
    assert added["device-resources"] == 500
    assert added["device-balance"] == 10 * (100 - (50 - 1))
    assert added["device"] == 10 * ((40 * 92 + 35 * 50 + 25 * 51) // 100)
    (bind,) = d.binds()
    assert bind.annotations[DEVICE_SCORE] == (
        "total=67,topology=92,base=40,nvlink=40,same-socket=12,same-pcie-switch=0,resources=50,balance=51"
    )


@pytest.mark.parametrize(
    ("model", "topology"),
    [
        ("NVIDIA-A100-SXM4-80GB", "topology=100,base=40,nvlink=40,same-socket=12,same-pcie-switch=8"),
        (L40S, "topology=40,base=40,nvlink=0,same-socket=0,same-pcie-switch=0"),
        (V100, "topology=60,base=40,nvlink=0,same-socket=12,same-pcie-switch=8"),
    ],
)
def test_gpus_below_one_pcie_switch_get_its_bonus(model: str, topology: str) -> None:
    """Two links join GPUs 0 and 3 of a DGX-1, and one link GPUs 0 and 1, which are below one switch."""
    d = Driver([node("a", model)])
    if model == V100:
        d.apply(make_pod("x", gpus=6, node="a", annotations={PREDICTED_GPUS: "2,3,4,5,6,7"}))
    d.run(pod("p", 2, gpu_locality="same-pcie-switch", gpu_requirements="preferred"))
    (bind,) = d.binds()
    assert topology in bind.annotations[DEVICE_SCORE]


def test_each_member_of_a_gang_has_the_score_of_its_gpus() -> None:
    d = Driver([node("a", V100), node("b", V100)])
    gang = [pod(f"g-{number}", 8, gang_name="g", gang_size="2", gpu_locality="nvlink") for number in range(2)]
    d.run(*gang, pod("plain", 0))
    scores = {bind.pod.name: bind.annotations.get(DEVICE_SCORE, "") for bind in d.binds()}
    assert all(scores[f"g-{number}"].startswith("total=") for number in range(2))
    assert not scores["plain"]


def test_the_node_with_the_better_links_wins_where_the_rest_is_equal() -> None:
    """Free are 0, 1, 2, 3 on one node, all linked; on the other 0, 3, 4, 7, of which none has more than two links."""
    for names in (("a", "b"), ("b", "a")):
        d = Driver([node(name, V100) for name in sorted(names)])
        mesh, ring = names
        d.apply(
            make_pod("x", gpus=4, node=mesh, annotations={PREDICTED_GPUS: "4,5,6,7"}),
            make_pod("y", gpus=4, node=ring, annotations={PREDICTED_GPUS: "1,2,5,6"}),
        )
        assert d.run(pod("p", 4, gpu_locality="nvlink")) == {"p": mesh}


def test_pods_without_such_requests_have_no_score_of_devices() -> None:
    d = Driver([node("a", H100)])
    asks = pod("p", 4)
    d.run(asks)
    (decision,) = d.decisions()
    assert decision.score is not None
    assert [name for name, _ in decision.score.added] == ["fragmentation"]
    assert PREDICTED_GPUS not in asks.metadata.annotations


# ---------------------------------------------------------------- slices


def sliced(memory: str, **attributes: Json) -> ResourceSlice:
    return slice_of(
        "a", 4, attributes={"type": {"string": "gpu"}, **attributes}, capacity={"memory": {"value": memory}}
    )


def test_slices_that_come_and_go_change_what_is_known() -> None:
    d = DeviceDriver([make_node("a", "s1/l1", gpus=4)], gpus=0)
    asks = pod("p", 1, gpu_memory="80Gi")
    assert d.run(asks) == {}
    d.slices(sliced("81559Mi"))
    d.settle(300)
    assert d.where(asks) == {"p": "a"}
    d.drop_slice("a-gpus")
    late = pod("late", 1, gpu_memory="80Gi")
    assert d.run(late) == {}


@pytest.mark.parametrize("memory", ["1e30", "0", "12Ei"])
def test_a_slice_without_a_sensible_size_says_nothing_of_memory(memory: str) -> None:
    d = DeviceDriver([make_node("a", "s1/l1", gpus=4, model=H100)], gpus=0)
    d.slices(sliced(memory, architecture={"string": "Hopper"}))
    asks = pod("p", 1, gpu_memory="80Gi", gpu_architecture="hopper")
    assert d.run(asks) == {"p": "a"}


def test_slices_of_two_generations_count_by_the_newest() -> None:
    d = DeviceDriver([make_node("a", "s1/l1", gpus=4)], gpus=0)
    old, new = sliced("40Gi"), sliced("80Gi")
    new = msgspec.structs.replace(new, metadata=msgspec.structs.replace(new.metadata, name="a-new"))
    pool = msgspec.structs.replace(new.spec.pool, generation=2)
    d.slices(old, msgspec.structs.replace(new, spec=msgspec.structs.replace(new.spec, pool=pool)))
    asks = pod("p", 1, gpu_memory="80Gi")
    assert d.run(asks) == {"p": "a"}
