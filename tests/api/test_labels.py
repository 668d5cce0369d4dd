"""The label families of FIELD.md: which level each label names."""

import pytest

from topo_scheduler.api.labels import FAMILIES, LEVELS, NETWORK_FAMILIES
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.state.topology.fabric import LevelReader

NVIDIA = "network.topology.nvidia.com/"
TOPOGRAPH = "fabric.topograph.run/tier-"
EKS = "topology.k8s.aws/network-node-layer-"


def place(labels: dict[str, str], config: FabricConfig | None = None) -> dict[str, str]:
    reader = LevelReader(config or FabricConfig())
    return {level: name for level, name in zip(reader.names, reader.read(labels), strict=True) if name is not None}


CASES = {
    "our own": (
        {
            "topology.scheduler/spine": "s",
            "topology.scheduler/leaf": "l",
            "topology.scheduler/core": "c",
            "topology.scheduler/fabric": "f",
        },
        {"fabric": "f", "core": "c", "spine": "s", "leaf": "l"},
    ),
    "topograph, two tiers": ({TOPOGRAPH + "0": "l", TOPOGRAPH + "1": "s"}, {"spine": "s", "leaf": "l"}),
    "topograph, tiers grow outwards": (
        {TOPOGRAPH + "0": "l", TOPOGRAPH + "1": "s", TOPOGRAPH + "2": "c", TOPOGRAPH + "3": "f"},
        {"fabric": "f", "core": "c", "spine": "s", "leaf": "l"},
    ),
    "topograph 0.3": (
        {NVIDIA + "core": "c", NVIDIA + "spine": "s", NVIDIA + "leaf": "l", NVIDIA + "accelerator": "a"},
        {"core": "c", "spine": "s", "leaf": "l"},
    ),
    "topograph 0.3 without a leaf": ({NVIDIA + "core": "c", NVIDIA + "spine": "s"}, {"core": "c", "spine": "s"}),
    "topograph 0.1": (
        {NVIDIA + "datacenter": "d", NVIDIA + "spine": "s", NVIDIA + "block": "b", NVIDIA + "accelerator": "a"},
        {"core": "d", "spine": "s", "leaf": "b"},
    ),
    "topograph 0.1 without a block": ({NVIDIA + "datacenter": "d", NVIDIA + "spine": "s"}, {"core": "d", "spine": "s"}),
    "GKE": (
        {
            "cloud.google.com/gce-topology-block": "b",
            "cloud.google.com/gce-topology-subblock": "sb",
            "cloud.google.com/gce-topology-host": "h",
        },
        {"spine": "b", "leaf": "sb"},
    ),
    "GKE, old": (
        {"topology.gke.io/cluster": "c", "topology.gke.io/rack": "r", "topology.gke.io/host": "h"},
        {"spine": "c", "leaf": "r"},
    ),
    "EKS, three layers, 1 on top": (
        {EKS + "1": "nn-1", EKS + "2": "nn-2", EKS + "3": "nn-3"},
        {"core": "nn-1", "spine": "nn-2", "leaf": "nn-3"},
    ),
    "EKS, four layers": (
        {EKS + "1": "nn-1", EKS + "2": "nn-2", EKS + "3": "nn-3", EKS + "4": "nn-4"},
        {"fabric": "nn-1", "core": "nn-2", "spine": "nn-3", "leaf": "nn-4"},
    ),
    "CoreWeave": (
        {
            "ib.coreweave.cloud/fabric": "f",
            "ib.coreweave.cloud/superpod": "sp",
            "ib.coreweave.cloud/leafgroup": "lg",
            "ib.coreweave.cloud/speed.current": "400G",
        },
        {"core": "f", "spine": "sp", "leaf": "lg"},
    ),
    "CoreWeave backend": (
        {"backend.coreweave.cloud/fabric": "f", "backend.coreweave.cloud/leafgroup": "lg"},
        {"core": "f", "leaf": "lg"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_family_names_the_levels_it_should(case: str) -> None:
    labels, levels = CASES[case]
    assert place(labels) == levels


@pytest.mark.parametrize("case", CASES)
def test_region_and_zone_stand_outside_of_any_family_when_asked_for(case: str) -> None:
    labels, levels = CASES[case]
    zones = {"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z"}
    assert place(labels | zones) == levels
    with_zones = FabricConfig(families=(*NETWORK_FAMILIES, "kubernetes"))
    assert place(labels | zones, with_zones) == levels | {"region": "r", "zone": "z"}


def test_levels_are_listed_from_the_outside_to_the_inside() -> None:
    assert LevelReader(FabricConfig()).names == LEVELS == ("region", "zone", "fabric", "core", "spine", "leaf")


def test_two_families_on_one_node_do_not_mix() -> None:
    labels = {"topology.scheduler/leaf": "ours", TOPOGRAPH + "0": "l", TOPOGRAPH + "1": "s", EKS + "1": "nn-1"}
    assert place(labels) == {"leaf": "ours"}
    assert place(labels, FabricConfig(families=("eks", "topograph"))) == {"core": "nn-1"}


def test_a_node_with_none_of_the_labels_has_no_place() -> None:
    assert place({"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z"}) == {}
    assert place({}) == {}


def test_an_empty_label_has_no_meaning() -> None:
    assert place({"topology.scheduler/spine": "s", "topology.scheduler/leaf": ""}) == {"spine": "s"}


def test_own_levels_replace_the_families_and_try_their_labels_in_order() -> None:
    config = FabricConfig.model_validate(
        {"levels": [{"name": "block", "labels": ["a/block", "b/block"]}, {"name": "rack", "labels": ["a/rack"]}]}
    )
    assert LevelReader(config).names == ("block", "rack")
    assert place({"b/block": "B", "a/rack": "R", "topology.scheduler/leaf": "no"}, config) == {
        "block": "B",
        "rack": "R",
    }
    assert place({"a/block": "A", "b/block": "B"}, config) == {"block": "A"}


def test_every_family_can_be_chosen_by_name() -> None:
    for name in FAMILIES:
        assert FabricConfig(families=(name,)).families == (name,)
