"""What is known of a node's GPUs from slices, labels and products, and what of them counts."""

from collections.abc import Iterable, Mapping

import pytest

from topo_scheduler.api.gpu_needs import GpuLocality, GpuNeeds, parse_gpu_bandwidth, parse_mig_profile
from topo_scheduler.scheduling.devices.gpu_closeness import is_close, knows_closeness, most_close
from topo_scheduler.scheduling.devices.plugin_choice import set_of
from topo_scheduler.state.devices.hardware import PciePath, largest_linked, linked, pair_bandwidth
from topo_scheduler.state.devices.node_hardware import FactSource, NodeGpus, PublishedGpu, describe
from topo_scheduler.state.devices.products import PRODUCTS, layout_of, product_of

GIB = 1 << 30
MODEL = "nvidia.com/gpu.product"
H100 = "NVIDIA-H100-80GB-HBM3"
OWN_MIG = "neuronetes.io/mig-capable", "neuronetes.io/mig-config"


def described(labels: Mapping[str, str], gpus: int = 8, *published: PublishedGpu) -> NodeGpus:
    node_gpus, complaints = describe(labels, {"nvidia.com/gpu": gpus}, published)
    assert node_gpus is not None
    assert not complaints
    return node_gpus


# ---------------------------------------------------------------- products


@pytest.mark.parametrize(
    ("model", "architecture", "gib"),
    [
        ("NVIDIA-H100-80GB-HBM3", "hopper", 80),
        ("nvidia-h100-mega-80gb", "hopper", 80),
        ("NVIDIA H100 PCIe", "hopper", 80),
        ("NVIDIA-H100-NVL", "hopper", 94),
        ("NVIDIA-H200", "hopper", 141),
        ("NVIDIA-A100-SXM4-40GB", "ampere", 40),
        ("nvidia-a100-80gb", "ampere", 80),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "ampere", 40),
        ("NVIDIA-B200", "blackwell", 180),
        ("NVIDIA-GB200", "blackwell", 186),
        ("NVIDIA-L40S-SHARED", "ada-lovelace", 48),
        ("Tesla-V100-SXM2-16GB", "volta", 16),
        ("nvidia-tesla-t4", "turing", 16),
        ("AMD_Instinct_MI300X_OAM", "cdna3", 192),
        ("MI355X", "cdna4", 288),
    ],
)
def test_products_are_known_by_any_spelling_of_their_names(model: str, architecture: str, gib: int) -> None:
    product = product_of(model)
    assert product is not None
    assert (product.architecture, product.memory_gib) == (architecture, gib)


@pytest.mark.parametrize("model", ["", "H1000", "NVIDIA-GeForce-RTX-4090", "Some-Accelerator"])
def test_other_names_are_no_product(model: str) -> None:
    assert product_of(model) is None


def test_a_product_is_found_by_its_own_words() -> None:
    for product in PRODUCTS:
        assert product_of("-".join(sorted(product.words))) == product


def test_a_board_with_a_switch_links_all_gpus_at_the_same_bandwidth() -> None:
    hardware = layout_of(product_of(H100), 8)
    assert {int(value) for value in pair_bandwidth(hardware).flatten()} == {0, 450_000}
    assert [gpu.numa_node for gpu in hardware.gpus] == [0] * 4 + [1] * 4


def test_the_hybrid_mesh_links_each_gpu_six_times() -> None:
    hardware = layout_of(product_of("Tesla-V100-SXM2-32GB"), 8)
    counts = [sum(link.count for link in hardware.links if index in (link.first, link.second)) for index in range(8)]
    assert counts == [6] * 8
    assert largest_linked(linked(hardware), 0xFF) == 8
    assert hardware.path(0, 1) is PciePath.SWITCH
    assert hardware.path(0, 4) is PciePath.SYSTEM


def test_gpus_on_pcie_have_no_links() -> None:
    hardware = layout_of(product_of("NVIDIA-L40S"), 8)
    assert largest_linked(linked(hardware), 0xFF) == 1


# ---------------------------------------------------------------- sources


def test_slices_win_over_labels_and_labels_over_products() -> None:
    published = tuple(
        PublishedGpu("", model="NVIDIA H100 80GB HBM3", memory_bytes=85_520 << 20, pcie_root=f"pci{index // 2}")
        for index in range(8)
    )
    gpus = described({MODEL: H100, "nvidia.com/gpu.memory": "81559"}, 8, *published)
    assert gpus.memory_bytes == 85_520 << 20
    assert dict(gpus.sources)["memory"] is FactSource.SLICES
    assert dict(gpus.sources)["architecture"] is FactSource.PRODUCT
    assert gpus.hardware.path(0, 1) is PciePath.SWITCH
    assert gpus.hardware.path(1, 2) is PciePath.NODE
    assert described({MODEL: H100, "nvidia.com/gpu.memory": "81559"}).memory_bytes == 81_559 << 20
    assert described({MODEL: H100}).memory_bytes == 80 * GIB


def test_a_contradiction_names_both_sources_and_what_counts() -> None:
    _, complaints = describe({MODEL: H100, "nvidia.com/gpu.memory": "40960"}, {"nvidia.com/gpu": 8})
    assert complaints == [
        "the name of its product says that the memory of its GPUs is 80.0 GiB, and label nvidia.com/gpu.memory"
        " 40.0 GiB; 40.0 GiB counts"
    ]


def test_the_model_of_slices_counts_where_a_label_names_another_product() -> None:
    """A label may be of GPUs that were in the node before. Its suffix for shared and split GPUs stays."""
    published = [PublishedGpu(f"gpu-{index}", model="NVIDIA H100 80GB HBM3") for index in range(8)]
    gpus, complaints = describe({MODEL: "NVIDIA-A100-SXM4-80GB"}, {}, published)
    assert gpus is not None
    assert (gpus.model, gpus.architecture) == ("NVIDIA H100 80GB HBM3", "hopper")
    assert int(pair_bandwidth(gpus.hardware)[0, 1]) == 450_000
    assert complaints == [
        f"label {MODEL} says that the model of its GPUs is 'NVIDIA-A100-SXM4-80GB', and its ResourceSlices"
        " 'NVIDIA H100 80GB HBM3'; 'NVIDIA H100 80GB HBM3' counts"
    ]
    shared, _ = describe({MODEL: "NVIDIA-A100-SXM4-80GB-SHARED"}, {}, published)
    assert shared is not None and shared.shared_by_time
    split, _ = describe({MODEL: "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, {}, published)
    assert split is not None and (split.mig_strategy, split.mig_profiles) == ("single", ("1g.10gb",))
    same = described({MODEL: H100}, 8, *published)
    assert same.model == H100


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.memory": "much"},
        {"nvidia.com/gpu.memory": "0"},
        {"nvidia.com/gpu.count": "-1"},
        {"nvidia.com/gpu.count": "9" * 20},
        {"neuronetes.io/gpu-topology": "ring"},
        {"neuronetes.io/gpu-memory": "80Qi"},
        {"nvidia.com/gpu.memory": str(1 << 53)},
        {"nvidia.com/gpu.count": "64"},
    ],
)
def test_what_cannot_be_read_is_reported_and_the_rest_used(labels: dict[str, str]) -> None:
    gpus, complaints = describe({MODEL: H100, **labels}, {"nvidia.com/gpu": 8})
    assert len(complaints) == 1
    assert gpus is not None
    assert gpus.architecture == "hopper"


def test_the_labels_of_neuronetes_are_enough() -> None:
    labels = {"type": "Custom-1", "memory": "48Gi", "count": "4", "topology": "nvswitch"}
    gpus = described({f"neuronetes.io/gpu-{key}": value for key, value in labels.items()}, 4)
    assert (gpus.model, gpus.memory_bytes, gpus.count) == ("Custom-1", 48 * GIB, 4)
    assert is_close(gpus, GpuNeeds(GpuLocality.NVLINK), 0xF)


@pytest.mark.parametrize(
    ("major", "minor", "architecture"),
    [("8", "0", "ampere"), ("8", "9", "ada-lovelace"), ("7", "5", "turing"), ("7", "", "volta"), ("9", "0", "hopper")],
)
def test_the_compute_capability_decides_the_architecture(major: str, minor: str, architecture: str) -> None:
    gpus = described({MODEL: "Custom-1", "nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor})
    assert gpus.architecture == architecture
    assert dict(gpus.sources)["architecture"] is FactSource.LABELS


def test_the_label_of_amd_counts_gpus() -> None:
    gpus, complaints = describe({"amd.com/gpu.product-name": "MI300X", "amd.com/gpu.count": "4"}, {"amd.com/gpu": 8})
    assert gpus is not None
    assert (gpus.count, complaints) == (4, [])


@pytest.mark.parametrize(
    ("topology", "linked_to_first", "paired_with_first"),
    [
        ("nvswitch", 8, range(1, 8)),
        ("xgmi", 8, range(1, 8)),
        ("nvlink", 8, range(1, 8)),
        ("hybrid-mesh", 8, (1, 2, 3, 4)),
        ("pcie", 1, ()),
    ],
)
def test_the_label_of_the_topology_links_gpus(
    topology: str, linked_to_first: int, paired_with_first: Iterable[int]
) -> None:
    gpus = described({MODEL: "Custom-1", "neuronetes.io/gpu-topology": topology})
    assert gpus.links_known
    pairs = linked(gpus.hardware)
    assert largest_linked(pairs, 0xFF) == linked_to_first
    assert [other for other in range(1, 8) if is_close(gpus, GpuNeeds(GpuLocality.NVLINK), set_of((0, other)))] == list(
        paired_with_first
    )


def test_nvlink_keeps_the_mesh_of_a_known_product_and_hybrid_mesh_its_bandwidth() -> None:
    known = described({MODEL: "Tesla-V100-SXM2-32GB"})
    named = described({MODEL: "Tesla-V100-SXM2-32GB", "neuronetes.io/gpu-topology": "nvlink"})
    assert named.hardware == known.hardware
    mesh = described({MODEL: "Custom-1", "neuronetes.io/gpu-topology": "hybrid-mesh"})
    assert mesh.hardware.links == known.hardware.links


@pytest.mark.parametrize(("capable", "config"), [("nvidia.com/mig.capable", "nvidia.com/mig.config"), OWN_MIG])
@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_labels_of_mig_are_read(capable: str, config: str, text: str, value: bool) -> None:
    gpus = described({MODEL: H100, capable: text, config: "all-1g.10gb"})
    assert (gpus.mig_capable, gpus.mig_config) == (value, "all-1g.10gb")
    assert described({MODEL: H100}).mig_capable is None


def test_amd_counts_memory_in_gib() -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
    gpus, complaints = describe(labels, {"amd.com/gpu": 8})
    assert gpus is not None
    assert not complaints
    assert (gpus.memory_bytes, gpus.vendor) == (192 * GIB, "amd")


def test_nodes_that_differ_only_in_uuids_are_one_kind() -> None:
    first, other = (
        describe({MODEL: H100}, {"nvidia.com/gpu": 8}, [PublishedGpu("", memory_bytes=80 * GIB)] * 8)[0]
        for _ in range(2)
    )
    assert first == other
    assert hash(first) == hash(other)


def test_mig_is_known_by_strategy() -> None:
    single = described({MODEL: f"{H100}-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}, 7)
    mixed, _ = describe({MODEL: H100}, {"nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-2g.20gb": 3})
    assert mixed is not None
    assert (single.mig_strategy, single.mig_profiles) == ("single", ("1g.10gb",))
    assert (mixed.mig_strategy, mixed.mig_profiles) == ("mixed", ("1g.10gb+me", "2g.20gb"))


def test_devices_of_mig_have_no_links_and_are_not_counted_as_gpus() -> None:
    single = described({MODEL: f"{H100}-MIG-1g.10gb", "nvidia.com/gpu.count": "56"}, 56)
    assert (single.count, single.architecture) == (0, "hopper")


def test_where_some_gpus_are_split_only_what_holds_for_all_is_known() -> None:
    offered = {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14}
    switched, _ = describe({MODEL: H100, "nvidia.com/gpu.count": "8"}, offered)
    assert switched is not None
    assert knows_closeness(switched, GpuNeeds(GpuLocality.NVLINK))
    assert not knows_closeness(switched, GpuNeeds(GpuLocality.SAME_SOCKET))


# ---------------------------------------------------------------- closeness


@pytest.mark.parametrize(
    ("model", "locality", "chosen", "close"),
    [
        (H100, GpuLocality.NVLINK, (0, 7), True),
        (H100, GpuLocality.SAME_SOCKET, (0, 3), True),
        (H100, GpuLocality.SAME_SOCKET, (3, 4), False),
        ("NVIDIA-A100-SXM4-80GB", GpuLocality.SAME_PCIE_SWITCH, (2, 3), True),
        ("NVIDIA-A100-SXM4-80GB", GpuLocality.SAME_PCIE_SWITCH, (1, 2), False),
        ("Tesla-V100-SXM2-32GB", GpuLocality.NVLINK, (0, 5), False),
        ("Tesla-V100-SXM2-32GB", GpuLocality.NVLINK, (0, 1, 5), True),
    ],
)
def test_which_gpus_are_close(model: str, locality: GpuLocality, chosen: tuple[int, ...], close: bool) -> None:
    assert is_close(described({MODEL: model}), GpuNeeds(locality), set_of(chosen)) is close


def test_how_many_are_close_at_most_is_that_of_all_sets() -> None:
    """Against all subsets of all sets of free GPUs, for each locality and with bandwidth."""
    for model in (H100, "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-32GB"):
        gpus = described({MODEL: model})
        for needs in (*map(GpuNeeds, GpuLocality), GpuNeeds(bandwidth=40_000), GpuNeeds(GpuLocality.NVLINK, 50_000)):
            close = [chosen for chosen in range(256) if is_close(gpus, needs, chosen)]
            for free in range(0, 256, 7):
                largest = max(chosen.bit_count() for chosen in close if not chosen & ~free)
                assert most_close(gpus, needs, free) == largest, (model, needs, free)


# ---------------------------------------------------------------- values of annotations


@pytest.mark.parametrize(("text", "mb"), [("600G", 300_000), ("600GB/s", 300_000), ("600Gi", 322_123), ("1T", 500_000)])
def test_bandwidth_is_read_as_vendors_state_it(text: str, mb: int) -> None:
    assert parse_gpu_bandwidth(text) == mb


@pytest.mark.parametrize(
    ("text", "profile"), [("1g.10gb", "1g.10gb"), ("1G.10GB.ME", "1g.10gb+me"), ("1g.24gb+me.all", "1g.24gb+me.all")]
)
def test_profiles_are_read_as_nvidia_writes_them(text: str, profile: str) -> None:
    assert parse_mig_profile(text) == profile
