"""Node labels that the scheduler reads, and the predefined families of topology labels.

A *family* is the set of labels by which one tool describes the position of a node in the fabric. The position is read
from the first family of which the node has any label, so labels of two families on one node never mix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "topology.scheduler/"

LEVELS: Final = ("region", "zone", "fabric", "core", "spine", "leaf")
"""All levels of the predefined families, outermost first. A level whose labels no node has does not exist."""

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")
GPU_MODEL_LABELS: Final = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "neuronetes.io/gpu-type",
)
GPU_SHARING: Final = PREFIX + "gpu-sharing"
"""``"true"`` on nodes whose GPUs pods may share."""
BANDWIDTH_LABELS: Final = (PREFIX + "network-bandwidth",)
UNLABELLED: Final = "unlabelled"
"""Name of the child that nodes without a label for a level share under their known parent."""


@dataclass(frozen=True, slots=True)
class Family:
    """Labels of one tool: the key that names the domain of each level.

    ``markers`` are labels of which a node needs one for the family to apply. They distinguish it from another family
    with common keys. Without markers any of its keys is enough.
    """

    name: str
    keys: Mapping[str, str]
    markers: tuple[str, ...] = ()

    def applies(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels belongs to this family."""
        return any(key in labels for key in self.markers or self.keys.values())


_TOPOGRAPH = "fabric.topograph.run/tier-"
_NVIDIA = "network.topology.nvidia.com/"
_EKS = "topology.k8s.aws/network-node-layer-"
_GKE = "cloud.google.com/gce-topology-"
_GKE_OLD = "topology.gke.io/"
_COREWEAVE = "ib.coreweave.cloud/"

FAMILIES: Final[dict[str, tuple[Family, ...]]] = {
    "topology.scheduler": (
        Family("topology.scheduler", {level: PREFIX + level for level in ("fabric", "core", "spine", "leaf")}),
    ),
    "topograph": (
        Family(
            "topograph",
            {level: f"{_TOPOGRAPH}{tier}" for level, tier in (("fabric", 3), ("core", 2), ("spine", 1), ("leaf", 0))},
        ),
        Family(
            "topograph-0.3",
            {level: _NVIDIA + level for level in ("core", "spine", "leaf")},
            markers=(_NVIDIA + "core", _NVIDIA + "leaf"),
        ),
        Family(
            "topograph-0.1",
            {"core": _NVIDIA + "datacenter", "spine": _NVIDIA + "spine", "leaf": _NVIDIA + "block"},
        ),
    ),
    "eks": (
        Family(
            "eks-4",
            {level: f"{_EKS}{n}" for n, level in enumerate(("fabric", "core", "spine", "leaf"), 1)},
            markers=(f"{_EKS}4",),
        ),
        Family("eks", {level: f"{_EKS}{n}" for n, level in enumerate(("core", "spine", "leaf"), 1)}),
    ),
    "gke": (
        Family("gke", {"spine": f"{_GKE}block", "leaf": f"{_GKE}subblock"}),
        Family("gke-old", {"spine": f"{_GKE_OLD}cluster", "leaf": f"{_GKE_OLD}rack"}),
    ),
    "coreweave": (
        Family(
            "coreweave",
            {
                "core": f"{_COREWEAVE}fabric",
                "spine": f"{_COREWEAVE}superpod",
                "leaf": f"{_COREWEAVE}leafgroup",
            },
        ),
        Family(
            "coreweave-backend",
            {"core": "backend.coreweave.cloud/fabric", "leaf": "backend.coreweave.cloud/leafgroup"},
        ),
    ),
    "kubernetes": (
        Family(
            "kubernetes",
            {"region": "topology.kubernetes.io/region", "zone": "topology.kubernetes.io/zone"},
        ),
    ),
}
ACCELERATOR_LEVELS: Final[dict[str, tuple[str, ...]]] = {
    "accelerator-domain": (
        PREFIX + "accelerator-domain",
        "accelerator.topograph.run/domain",
        _NVIDIA + "accelerator",
        "ds.coreweave.com/nvlink.domain",
        "nvidia.com/gpu.clique",
    ),
    "accelerator-sub-domain": (PREFIX + "accelerator-sub-domain", "accelerator.topograph.run/sub-domain"),
}
"""Levels of accelerator domains (NVLink domains and similar), outermost first. Of several labels the first counts."""

RAIL_LABELS: Final = tuple(f"{PREFIX}leaf-rail-{rail}" for rail in range(16))
"""Labels with the leaf switch of a node's NIC on each rail, in rail-optimised fabrics."""

NETWORK_FAMILIES: Final = ("topology.scheduler", "topograph", "eks", "gke", "coreweave")
"""The default families, in order of precedence. If ``kubernetes`` is configured, its levels (region and zone) are added
outside those of the family that applies."""


def zone_family(names: tuple[str, ...]) -> Family | None:
    """Return the region/zone family when it is among the configured names."""
    return FAMILIES["kubernetes"][0] if "kubernetes" in names else None


def network_families(names: tuple[str, ...]) -> tuple[Family, ...]:
    """Return the families that describe a node's position in the network, in order of precedence."""
    return tuple(family for name in names if name != "kubernetes" for family in FAMILIES[name])
