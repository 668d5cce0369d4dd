"""In-tree volumes as their CSI drivers see them (``k8s.io/csi-translation-lib``): Google's and Amazon's disks.

Azure and Cinder disks, Portworx and vSphere volumes are not translated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.selectors import NodeSelectorTerm, Requirement
from topo_scheduler.api.storage import PersistentVolume
from topo_scheduler.state.pods.profiles import Disk

MIGRATED: Final = "storage.alpha.kubernetes.io/migrated-plugins"
"""Annotation of a CSINode: the in-tree plugins whose volumes its drivers serve."""
ZONE: Final = "topology.kubernetes.io/zone"
BETA_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
BETA_REGION: Final = "failure-domain.beta.kubernetes.io/region"


@dataclass(frozen=True, slots=True)
class InTreePlugin:
    """An in-tree plugin, the driver that replaced it, and that driver's label for zones."""

    name: str
    driver: str
    topology_key: str


GCE: Final = InTreePlugin("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone")
AWS: Final = InTreePlugin("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone")
PROVISIONERS: Final[Mapping[str, str]] = {
    GCE.name: GCE.driver,
    AWS.name: AWS.driver,
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/azure-file": "",
    "kubernetes.io/vsphere-volume": "",
}
"""The driver that provisions for an in-tree plugin, empty where volume limits do not count it."""


def plugin_of(volume: PersistentVolume) -> InTreePlugin | None:
    """Return the plugin of an in-tree volume."""
    if volume.spec.gce_persistent_disk is not None:
        return GCE
    return AWS if volume.spec.aws_elastic_block_store is not None else None


def handle_of(volume: PersistentVolume) -> tuple[str, str]:
    """Return driver and handle of a volume, empty if no CSI driver counts it."""
    if volume.spec.csi is not None:
        return volume.spec.csi.driver, volume.spec.csi.volume_handle
    if (gce := volume.spec.gce_persistent_disk) is not None:
        zone = volume.metadata.labels.get(BETA_ZONE) or volume.metadata.labels.get(ZONE, "")
        return GCE.driver, _gce_handle(zone, gce.pd_name)
    if (aws := volume.spec.aws_elastic_block_store) is not None:
        return AWS.driver, _aws_handle(aws.volume_id)
    return "", ""


def inline_handle(disk: Disk) -> tuple[str, str]:
    """Return driver and handle of an inline disk of a pod, empty if no CSI driver counts it."""
    (name,) = disk.names if len(disk.names) == 1 else ("",)
    if disk.kind == "gce":
        return GCE.driver, _gce_handle("", name)
    return (AWS.driver, _aws_handle(name)) if disk.kind == "aws" else ("", "")


def _gce_handle(zone: str, name: str) -> str:
    zones = zone.split("__")
    if len(zones) == 1:
        return f"projects/UNSPECIFIED/zones/{zone or 'UNSPECIFIED'}/disks/{name}"
    regions = {part.rpartition("-")[0] for part in zones if part.count("-") == 2}
    if len(regions) != 1 or any(part.count("-") != 2 for part in zones):
        return ""  # no such disk can exist
    return f"projects/UNSPECIFIED/regions/{regions.pop()}/disks/{name}"


def _aws_handle(name: str) -> str:
    return name.rpartition("/")[2] if name.startswith("aws://") else name


def translated_terms(volume: PersistentVolume, plugin: InTreePlugin) -> tuple[NodeSelectorTerm, ...] | None:
    """Return the node affinity of an in-tree volume on nodes whose driver serves it, None for any node.

    Raises:
        ValueError: its zones are not in a single region, so its driver can't serve it.
    """
    if plugin is GCE and not handle_of(volume)[1]:
        raise ValueError(f"could not translate volume {volume.metadata.name} to CSI: its zones are not of one region")
    affinity = volume.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    zone, region = _labels_used(volume, terms)
    if any(requirement.key == zone and requirement.values for term in terms for requirement in term.match_expressions):
        terms = _renamed(terms, zone, plugin.topology_key)
    elif zone in volume.metadata.labels:
        zones = sorted({part.strip() for part in volume.metadata.labels[zone].split("__")} - {""})
        zone_requirement = Requirement(plugin.topology_key, "In", tuple(zones))
        if zones:
            terms = tuple(
                NodeSelectorTerm((*term.match_expressions, zone_requirement), term.match_fields)
                for term in terms or (NodeSelectorTerm(),)
            )
    if region == BETA_REGION:
        terms = _renamed(terms, region, REGION)
    return terms if terms or (affinity and affinity.required) else None


def _labels_used(volume: PersistentVolume, terms: tuple[NodeSelectorTerm, ...]) -> tuple[str, str]:
    keys = {requirement.key for term in terms for requirement in term.match_expressions}
    for names in (keys, volume.metadata.labels.keys()):
        for zone, region in ((ZONE, REGION), (BETA_ZONE, BETA_REGION)):
            if zone in names:
                return zone, region
    return ZONE, REGION


def _renamed(terms: tuple[NodeSelectorTerm, ...], old: str, new: str) -> tuple[NodeSelectorTerm, ...]:
    return tuple(
        NodeSelectorTerm(
            tuple(
                Requirement(new, requirement.operator, requirement.values) if requirement.key == old else requirement
                for requirement in term.match_expressions
            ),
            term.match_fields,
        )
        for term in terms
    )
