"""Random storage: claims in every state of their life, volumes with affinity, limits, disks that must not be shared."""

import random
from collections.abc import Sequence
from typing import Any

from .choices import (
    BETA_ZONE,
    NAMESPACES,
    REGION,
    REGIONS,
    ZONE,
    ZONES,
    Json,
    chance,
    label_selector,
    node_selector_term,
)

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
DRIVERS = ("disk.example.com", "share.example.com")
GCE, EBS = "pd.csi.storage.gke.io", "ebs.csi.aws.com"
CLASSES = ("immediate", "delayed", "delayed-share", "local", "modeless")
STATES = (
    ("bound",) * 14
    + ("delayed",) * 8
    + ("local",) * 6
    + ("bound-exclusive",) * 6
    + ("in-tree",) * 3
    + ("immediate", "prebound", "no-volume", "lost", "deleting", "no-class", "unknown-class", "modeless")
)


class Storage:
    """The storage of one snapshot. Claims are made as pods ask for them, and shared by many."""

    def __init__(self, rng: random.Random, node_names: Sequence[str]) -> None:
        self._rng = rng
        self._node_names = node_names
        self._sizes = iter(range(1, 10_000))
        self._claims: dict[str, list[str]] = {}
        self._share_of_disks = rng.choice((0.05, 0.2, 0.7))
        self.objects: dict[str, list[Json]] = {
            "pvs": [],
            "pvcs": [],
            "storageClasses": self._classes(),
            "csiNodes": [self._csi_node(name) for name in node_names if chance(rng, 0.8)],
            "csiDrivers": [
                {"metadata": {"name": driver}, "spec": {"storageCapacity": chance(rng, 0.4)}}
                for driver in DRIVERS
                if chance(rng, 0.7)
            ],
            "csiStorageCapacities": [self._capacity(index) for index in range(rng.randint(0, 4))],
            "volumeAttachments": [],
        }
        for namespace in sorted(set(NAMESPACES)):
            self._claims[namespace] = [self._claim(namespace, f"claim-{index}") for index in range(rng.randint(3, 7))]
        for _ in range(rng.randint(0, 4)):
            self._local_volume()
        for volume in self.objects["pvs"]:
            if chance(rng, 0.1):
                self._attachment(volume["metadata"]["name"])

    def volume(self, pod: Json, name: str) -> Json:
        """A volume for a pod: mostly a claim, sometimes a disk of its own or a claim made for it."""
        rng, namespace = self._rng, pod["metadata"]["namespace"]
        if chance(rng, self._share_of_disks):
            return {"name": name, **disk(rng)}
        kind = rng.random()
        if kind < 0.8:
            claims = self._claims[namespace]
            claim = rng.choice(claims) if chance(rng, 0.98) else rng.choice(("missing", "missing", ""))
            return {"name": name, "persistentVolumeClaim": {"claimName": claim}}
        if kind < 0.95:
            return self._ephemeral(pod, name)
        return {"name": name, rng.choice(("emptyDir", "configMap")): {}}

    def _classes(self) -> list[Json]:
        rng = self._rng
        classes: list[Json] = [
            {"metadata": {"name": "immediate"}, "provisioner": DRIVERS[0], "volumeBindingMode": "Immediate"},
            {"metadata": {"name": "delayed"}, "provisioner": DRIVERS[0], "volumeBindingMode": "WaitForFirstConsumer"},
            {"metadata": {"name": "delayed-share"}, "provisioner": DRIVERS[1]},
            {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"},
            {"metadata": {"name": "modeless"}, "provisioner": DRIVERS[0]},
        ]
        classes[2]["volumeBindingMode"] = classes[3]["volumeBindingMode"] = "WaitForFirstConsumer"
        if chance(rng, 0.15):
            classes[1]["provisioner"] = "kubernetes.io/gce-pd"
        if chance(rng, 0.5):
            expressions = [{"key": ZONE, "values": rng.sample(ZONES, rng.randint(1, 2))}]
            terms: list[Json] = [{"matchLabelExpressions": expressions}]
            if chance(rng, 0.2):
                terms.append({"matchLabelExpressions": [{"key": REGION, "values": [rng.choice(REGIONS)]}]})
            if chance(rng, 0.1):
                terms = [{}]
            if chance(rng, 0.05):
                expressions[0]["values"] = []
            classes[2]["allowedTopologies"] = terms
        return classes

    def _csi_node(self, name: str) -> Json:
        rng = self._rng
        drivers: list[Json] = []
        for driver in (*DRIVERS, GCE, EBS):
            if chance(rng, 0.8):
                csi_driver: Json = {"name": driver, "nodeID": name, "topologyKeys": []}
                if chance(rng, 0.8):
                    csi_driver["allocatable"] = {"count": rng.choice((0, 1, 1, 2, 3))} if chance(rng, 0.95) else {}
                drivers.append(csi_driver)
        node: Json = {"metadata": {"name": name}, "spec": {"drivers": drivers}}
        if chance(rng, 0.5):
            node["metadata"]["annotations"] = {MIGRATED_PLUGINS: "kubernetes.io/gce-pd,kubernetes.io/aws-ebs"}
        return node

    def _capacity(self, index: int) -> Json:
        rng = self._rng
        capacity: Json = {
            "metadata": {"name": f"capacity-{index}", "namespace": "default"},
            "storageClassName": rng.choice(("delayed", "delayed-share")),
            "capacity": rng.choice(("2Gi", "100Gi", "0")),
        }
        if chance(rng, 0.3):
            capacity["maximumVolumeSize"] = rng.choice(("1Gi", "50Gi"))
        if chance(rng, 0.8):
            capacity["nodeTopology"] = {"matchLabels": {ZONE: rng.choice(ZONES)}} if chance(rng, 0.8) else {}
        return capacity

    def _claim(self, namespace: str, name: str, state: str | None = None, **metadata: Any) -> str:
        """Add a claim, and the volume it is bound to if its state asks for one."""
        rng = self._rng
        state = state or rng.choice(STATES)
        claim: Json = {
            "metadata": {"name": name, "namespace": namespace, "uid": f"pvc-{namespace}-{name}", **metadata},
            "spec": {
                "accessModes": [rng.choice(("ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany"))],
                "resources": {"requests": {"storage": rng.choice(("1Gi", "2Gi", "5Gi"))}},
                "storageClassName": state if state in CLASSES else "delayed",
            },
            "status": {"phase": "Pending"},
        }
        if state in ("bound", "bound-exclusive", "in-tree", "no-volume", "prebound", "lost", "deleting"):
            self._bind(claim, state)
        if state == "delayed":
            claim["spec"]["storageClassName"] = rng.choice(("delayed", "delayed-share"))
        if state in ("delayed", "local"):
            self._unbound(claim)
        if state == "no-class":
            del claim["spec"]["storageClassName"]
        if state == "unknown-class":
            claim["spec"]["storageClassName"] = "unknown"
        self.objects["pvcs"].append(claim)
        return name

    def _bind(self, claim: Json, state: str) -> None:
        volume = f"volume-{next(self._sizes)}"
        claim["spec"]["volumeName"] = volume
        claim["status"]["phase"] = "Lost" if state == "lost" else "Bound"
        if state != "prebound":
            claim["metadata"].setdefault("annotations", {})[BIND_COMPLETED] = "yes"
        if state == "bound-exclusive":
            claim["spec"]["accessModes"] = ["ReadWriteOncePod"]
        if state == "deleting":
            claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if state != "no-volume":
            self._bound_volume(volume, claim, state == "in-tree")

    def _unbound(self, claim: Json) -> None:
        rng = self._rng
        if chance(rng, 0.25):
            selected = rng.choice(self._node_names) if chance(rng, 0.9) else "gone"
            claim["metadata"].setdefault("annotations", {})[SELECTED_NODE] = selected
        if chance(rng, 0.1):
            claim["metadata"].setdefault("annotations", {})[BETA_CLASS] = rng.choice(CLASSES)
        if chance(rng, 0.1):
            claim["spec"]["selector"] = label_selector(rng, {"kind": ("fast", "slow")})
        if chance(rng, 0.08):
            claim["spec"]["volumeMode"] = rng.choice(("Block", "Filesystem"))
        if chance(rng, 0.05):
            claim["spec"]["volumeAttributesClassName"] = rng.choice(("gold", ""))
        if chance(rng, 0.05):
            del claim["spec"]["resources"]
        if chance(rng, 0.2):
            self._local_volume(claim)

    def _bound_volume(self, name: str, claim: Json, in_tree: bool) -> None:
        rng = self._rng
        source: Json = {"csi": {"driver": rng.choice(DRIVERS), "volumeHandle": rng.choice((name, name, "shared"))}}
        if in_tree:
            ebs = rng.choice((f"vol-{name}", f"aws://{ZONES[0]}/vol-{name}", name))
            source = rng.choice(({"gcePersistentDisk": {"pdName": name}}, {"awsElasticBlockStore": {"volumeID": ebs}}))
        volume: Json = {
            "metadata": {"name": name, "labels": {}},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": claim["spec"]["accessModes"],
                "storageClassName": claim["spec"].get("storageClassName", ""),
                "claimRef": {key: claim["metadata"][key] for key in ("name", "namespace", "uid")},
                **source,
            },
            "status": {"phase": "Bound"},
        }
        if chance(rng, 0.4):
            terms = [node_selector_term(rng, self._node_names) for _ in range(rng.choice((1, 1, 2)))]
            if in_tree:
                terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": rng.sample(ZONES, 2)}]}]
            volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        if chance(rng, 0.35):
            key = rng.choice((ZONE, ZONE, REGION, BETA_ZONE))
            values = REGIONS if key == REGION else (*ZONES, f"{ZONES[0]}__{ZONES[1]}", f"{ZONES[0]}__")
            volume["metadata"]["labels"][key] = rng.choice(values)
        self.objects["pvs"].append(volume)

    def _local_volume(self, claim: Json | None = None) -> None:
        """An available volume of a class without a provisioner, or one kept for ``claim``. No two have the same size:
        which of two equal ones kube-scheduler takes is chance.
        """
        rng, size = self._rng, next(self._sizes)
        volume: Json = {
            "metadata": {"name": f"volume-{size}", "labels": {"kind": rng.choice(("fast", "slow"))}},
            "spec": {
                "capacity": {"storage": f"{1000 + size * 64}Mi"},
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"] if chance(rng, 0.7) else ["ReadWriteOnce"],
                "storageClassName": rng.choice(("local", "local", "local", "delayed")),
                "local": {"path": "/mnt"},
            },
            "status": {"phase": "Available" if chance(rng, 0.9) else "Released"},
        }
        if chance(rng, 0.8):
            terms = [node_selector_term(rng, self._node_names)]
            volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        if chance(rng, 0.06):
            volume["spec"]["volumeMode"] = "Block"
        if chance(rng, 0.04):
            volume["spec"]["volumeAttributesClassName"] = "gold"
        if chance(rng, 0.04):
            volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if claim is not None:
            reference = {key: claim["metadata"][key] for key in ("name", "namespace")}
            if chance(rng, 0.5):
                reference["uid"] = claim["metadata"]["uid"] if chance(rng, 0.8) else "another"
            volume["spec"].update(claimRef=reference, storageClassName=claim["spec"]["storageClassName"])
        self.objects["pvs"].append(volume)

    def _attachment(self, volume: str) -> None:
        rng = self._rng
        attachment = {
            "metadata": {"name": f"attachment-{volume}"},
            "spec": {
                "attacher": rng.choice(DRIVERS),
                "nodeName": rng.choice(self._node_names),
                "source": {"persistentVolumeName": volume},
            },
        }
        self.objects["volumeAttachments"].append(attachment)

    def _ephemeral(self, pod: Json, name: str) -> Json:
        rng, metadata = self._rng, pod["metadata"]
        if chance(rng, 0.95):
            owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
            owner["controller"] = chance(rng, 0.97)
            if chance(rng, 0.03):
                owner["uid"] = "another"
            state = rng.choice(("bound", "delayed", "delayed", "local", "bound-exclusive"))
            self._claim(metadata["namespace"], f"{metadata['name']}-{name}", state, ownerReferences=[owner])
        return {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}


def disk(rng: random.Random) -> Json:
    """A disk named in the pod itself, of those that two pods of a node may not share."""
    kind, read_only = rng.randrange(4), chance(rng, 0.5)
    if kind == 0:
        return {"gcePersistentDisk": {"pdName": rng.choice(("disk-1", "disk-2")), "readOnly": read_only}}
    if kind == 1:
        return {"awsElasticBlockStore": {"volumeID": rng.choice(("vol-1", "vol-2")), "readOnly": read_only}}
    if kind == 2:
        portal = {"targetPortal": "10.0.0.9", "lun": rng.randrange(2)}
        return {"iscsi": {"iqn": rng.choice(("iqn-1", "iqn-2")), "readOnly": read_only, **portal}}
    monitors = rng.sample(("a:6789", "b:6789", "c:6789"), rng.randint(1, 2))
    pool = {"pool": rng.choice(("rbd", "ssd"))} if chance(rng, 0.5) else {}
    return {"rbd": {"monitors": monitors, "image": "image-1", "readOnly": read_only, **pool}}
