"""Random ResourceSlices: GPUs, whole or in partitions, shared or not, network cards, and pools that span nodes."""

import copy
import random
from collections.abc import Callable
from typing import Final

from tests.differential.choices import Json, chance

from .expressions import GPU, NIC, SHARED_DOMAIN

NODE: Final = "node-1"
OTHER_NODE: Final = "node-2"
ZONE: Final = "topology.kubernetes.io/zone"
TAINT_KEYS: Final = ("example.com/unhealthy", "example.com/reserved")
TAINT_VALUES: Final = ("", "yes", "no")


def node() -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {ZONE: "zone-a", "rack": "r1", "kubernetes.io/hostname": NODE}},
    }


class Hardware:
    """The slices of a case; what of the API they use is added to the features."""

    def __init__(self, rng: random.Random, themes: set[str], features: set[str]) -> None:
        self._rng = rng
        self._themes = themes
        self._features = features
        self.slices: list[Json] = []
        self._local_gpus()
        if "pools" in themes and chance(rng, 0.5):
            self._add(GPU, [("", {"nodeName": NODE}, self._gpus(rng.randint(1, 3)))], "more-gpus")
        if chance(rng, 0.45):
            self._add(NIC, [("", {"nodeName": NODE}, self._nics(rng.randint(1, 4)))], NODE)
        if chance(rng, 0.25):
            self._add(GPU, [("", {"nodeName": OTHER_NODE}, self._gpus(rng.randint(1, 2)))], OTHER_NODE)
        if "several nodes" in themes:
            self._pool_across_nodes()
            if "partitions" in themes and chance(rng, 0.6):
                self._counters_across_nodes()

    def _local_gpus(self) -> None:
        rng = self._rng
        if "partitions" in self._themes:
            self._features.add("partitions")
            counters, devices = self._partitions(rng.choice((1, 1, 2)))
        else:
            counters, devices = [], self._gpus(rng.choice((1, 2, 3, 4, 4, 5, 6, 7, 8)))
        contents: list[tuple[str, Json, list[Json]]] = []
        if counters:
            cut = rng.randint(0, len(counters) - 1)
            parts = [part for part in (counters[:cut], counters[cut:]) if part]
            contents += [("sharedCounters", {"nodeName": NODE}, part) for part in parts]
        cuts = rng.choice((1, 2, 3)) if "pools" in self._themes else 1
        if cuts > 1:
            self._features.add("several slices")
        contents += [("", {"nodeName": NODE}, devices[start::cuts]) for start in range(cuts)]
        self._add(GPU, contents, rng.choice((NODE, "gpus")), odd="pools" in self._themes)

    def _add(self, driver: str, contents: list[tuple[str, Json, list[Json]]], pool: str, odd: bool = False) -> None:
        """Add a pool of slices, each with its kind of content and the nodes that have access."""
        rng = self._rng
        generation = rng.randint(1, 3)
        slices: list[Json] = []
        for index, (kind, selection, content) in enumerate(contents):
            spec = {
                "driver": driver,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": len(contents)},
                **copy.deepcopy(selection),
                kind or "devices": content,
            }
            name = f"{pool}-{driver.partition('.')[0]}-{index}"
            slices.append(
                {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
            )
        if odd and chance(rng, 0.65):
            self._spoil(slices)
        if chance(rng, 0.3):
            rng.shuffle(slices)
        self.slices += slices

    def _spoil(self, slices: list[Json]) -> None:
        """Make a pool one that is being updated, or contradicts itself."""
        rng = self._rng
        kind = rng.choices(("incomplete", "older", "newer", "duplicate", "counters"), (2, 3, 2, 1.5, 1.5))[0]
        if kind == "incomplete":
            self._features.add("incomplete pool")
            for each in slices:
                each["spec"]["pool"]["resourceSliceCount"] += 1
        elif kind in ("older", "newer"):
            self._features.add("two generations")
            stale = copy.deepcopy(slices[rng.randrange(len(slices)) :])
            for each in stale:
                each["metadata"]["name"] += "-other"
                each["spec"]["pool"]["generation"] += -1 if kind == "older" else 1
                if each["spec"].get("devices") and chance(rng, 0.6):
                    each["spec"]["devices"][-1]["name"] += "-other"
            slices += stale
        elif kind == "duplicate":
            devices = [device for each in slices for device in each["spec"].get("devices", ())]
            if len(devices) > 1:
                self._features.add("duplicate devices")
                devices[-1]["name"] = devices[0]["name"]
        else:
            for each in slices:
                for device in each["spec"].get("devices", ()):
                    if device.get("consumesCounters") and "missing counters" not in self._features:
                        self._features.add("missing counters")
                        device["consumesCounters"][0]["counterSet"] = "missing"

    def _gpus(self, count: int) -> list[Json]:
        rng = self._rng
        models = rng.choice((("h100",), ("a100",), ("a100", "h100"), ("h100", "h200")))
        return [self._gpu(index, count, rng.choice(models)) for index in range(count)]

    def _gpu(self, index: int, count: int, model: str, name: str = "") -> Json:
        rng = self._rng
        attributes: Json = {
            "type": {"string": "gpu"},
            "model": {"string": model},
            "index": {"int": index},
            "healthy": {"bool": chance(rng, 0.85)},
            "driverVersion": {"version": rng.choice(("1.0.0", "1.5.0", "2.1.0", "2.10.3"))},
            "numa" if chance(rng, 0.8) else f"{GPU}/numa": {"int": 2 * index // count},
            f"{SHARED_DOMAIN}/pcieRoot": {"string": f"pci0000:{index // 2:02d}"},
            f"{SHARED_DOMAIN}/numaNode": {"int": 2 * index // count},
        }
        if chance(rng, 0.75):
            attributes["rack"] = {"string": rng.choice(("r1", "r1", "r2"))}
        memory = "80Gi" if model != "a100" else "40Gi"
        device: Json = {
            "name": name or f"gpu-{index}",
            "attributes": attributes,
            "capacity": {"memory": {"value": memory}},
        }
        self._extras(device)
        return device

    def _nics(self, count: int) -> list[Json]:
        return [self._nic(index, count) for index in range(count)]

    def _nic(self, index: int, count: int) -> Json:
        rng = self._rng
        attributes = {
            "type": {"string": "nic"},
            "speed": {"int": rng.choice((100, 200, 400))},
            "rdma": {"bool": chance(rng, 0.7)},
            "numa": {"int": 2 * index // count},
            f"{SHARED_DOMAIN}/pcieRoot": {"string": f"pci0000:{index // 2:02d}"},
            f"{SHARED_DOMAIN}/numaNode": {"int": 2 * index // count}
            if chance(rng, 0.9)
            else {"string": str(2 * index // count)},
        }
        device: Json = {"name": f"nic-{index}", "attributes": attributes}
        self._extras(device)
        return device

    def _extras(self, device: Json) -> None:
        """Add taints, conditions of binding and shares."""
        rng = self._rng
        if "taints" in self._themes and chance(rng, 0.4):
            self._features.add("taints")
            device["taints"] = [self._taint() for _ in range(rng.choice((1, 1, 2)))]
        if "binding conditions" in self._themes and chance(rng, 0.5):
            self._features.add("binding conditions")
            device["bindingConditions"] = [f"{GPU}/attached"]
            device["bindingFailureConditions"] = [f"{GPU}/failed"] if chance(rng, 0.8) else []
            if not device["bindingFailureConditions"]:
                del device["bindingFailureConditions"]
            if chance(rng, 0.5):
                device["bindsToNode"] = True
        if "shares" in self._themes and chance(rng, 0.75):
            self._features.add("shares")
            device["allowMultipleAllocations"] = True
            if "capacity" in device or chance(rng, 0.6):
                device["capacity"] = self._consumable(device.get("capacity", {}))

    def _taint(self) -> Json:
        rng = self._rng
        taint = {
            "key": rng.choice(TAINT_KEYS),
            "effect": rng.choice((*("NoSchedule", "NoExecute") * 6, "None", "None", "None", "NotKnownYet")),
            "timeAdded": "2026-01-01T00:00:00Z",
        }
        if value := rng.choice(TAINT_VALUES):
            taint["value"] = value
        return taint

    def _consumable(self, capacity: Json) -> Json:
        rng = self._rng
        memory = int(capacity.get("memory", {"value": "40Gi"})["value"].removesuffix("Gi"))
        policies: list[Json | None] = [
            None,
            {"default": "10Gi"},
            {"default": "10Gi", "validValues": ["5Gi", "10Gi", f"{memory // 2}Gi", f"{memory}Gi"]},
            {"default": "10Gi", "validValues": ["10Gi", f"{memory // 2}Gi"]},
            {"default": "4Gi", "validRange": {"min": "4Gi"}},
            {"default": "8Gi", "validRange": {"min": "4Gi", "max": f"{memory // 2 // 4 * 4}Gi", "step": "4Gi"}},
            {"default": "5Gi", "validRange": {"min": "3Gi", "step": "2Gi"}},
            {"default": "10Gi", "validRange": {"min": "10Gi", "max": f"{memory - 5}Gi"}},
        ]
        name = "memory" if chance(rng, 0.92) else f"{GPU}/memory"
        consumable: Json = {name: {"value": f"{memory}Gi"}}
        if (policy := rng.choice(policies)) is not None:
            self._features.add("request policy")
            consumable[name]["requestPolicy"] = policy
        if chance(rng, 0.4):
            consumable["cores"] = {"value": "8"}
            if chance(rng, 0.7):
                consumable["cores"]["requestPolicy"] = rng.choice(
                    ({"default": "1"}, {"default": "2", "validValues": ["1", "2", "4", "8"]}, {"default": "0"})
                )
        return consumable

    def _partitions(self, count: int) -> tuple[list[Json], list[Json]]:
        """GPUs with four memory slices, offered whole, as halves and as quarters; two halves may lack compute."""
        rng = self._rng
        compute = rng.choice((3, 4))
        counter_sets, devices = [], []
        for index in range(count):
            slices = {f"memory-slice-{number}": {"value": "1"} for number in range(4)}
            counter_sets.append({"name": f"gpu-{index}", "counters": {**slices, "compute": {"value": str(compute)}}})
            for size, starts, units in ((4, (0,), compute), (2, (0, 2), 2), (1, (0, 1, 2, 3), 1)):
                devices += [self._partition(index, count, size, start, units) for start in starts]
        return counter_sets, devices

    def _partition(self, index: int, count: int, size: int, start: int, compute: int) -> Json:
        name = f"gpu-{index}" if size == 4 else f"gpu-{index}-{size}g-{start}"
        device = self._gpu(index, count, "h100", name)
        if size < 4:
            device["attributes"]["type"] = {"string": "mig"}
            device["attributes"]["profile"] = {"string": f"{size}g"}
            if not device.get("allowMultipleAllocations"):
                device["capacity"]["memory"]["value"] = f"{20 * size}Gi"
        slices = {f"memory-slice-{number}": {"value": "1"} for number in range(start, start + size)}
        device["consumesCounters"] = [
            {"counterSet": f"gpu-{index}", "counters": {**slices, "compute": {"value": str(compute)}}}
        ]
        return device

    def _selection(self) -> Json:
        """Some nodes, for a slice or a device."""
        rng = self._rng
        expressions = [
            {"key": ZONE, "operator": "In", "values": [rng.choice(("zone-a", "zone-a", "zone-a", "zone-b"))]},
            {"key": "rack", "operator": rng.choice(("Exists", "Exists", "Exists", "DoesNotExist"))},
            {"key": "rack", "operator": "NotIn", "values": [rng.choice(("r1", "r2", "r3", "r4"))]},
        ]
        term: Json = {"matchExpressions": rng.sample(expressions, rng.choice((1, 1, 2)))}
        if chance(rng, 0.2):
            term = {
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": [rng.choice((NODE, OTHER_NODE))]}]
            }
        return rng.choice(
            (
                {"nodeSelector": {"nodeSelectorTerms": [term]}},
                {"nodeSelector": {"nodeSelectorTerms": [term]}},
                {"allNodes": True},
                {"nodeName": NODE},
                {"nodeName": OTHER_NODE},
            )
        )

    def _pool_across_nodes(self) -> None:
        """A pool that several nodes have access to, in one or two slices."""
        rng = self._rng
        self._features.add("several nodes")
        driver = rng.choice((NIC, GPU))
        make: Callable[[int], list[Json]] = self._nics if driver == NIC else self._gpus
        devices = make(rng.randint(1, 4))
        cuts = rng.choice((1, 2)) if len(devices) > 1 else 1
        contents: list[tuple[str, Json, list[Json]]] = []
        for part in range(cuts):
            content = devices[part::cuts]
            selection = self._selection()
            if chance(rng, 0.4):
                self._features.add("selection by device")
                selection = {"perDeviceNodeSelection": True}
                content = [{**device, **self._selection()} for device in content]
            contents.append(("", selection, content))
        self._add(driver, contents, "fabric")

    def _counters_across_nodes(self) -> None:
        """Devices of two nodes that consume the same counters."""
        rng = self._rng
        self._features.add("counters across nodes")
        devices = self._gpus(rng.randint(2, 4))
        for device in devices:
            counter = {"counterSet": "switch", "counters": {"ports": {"value": str(rng.choice((1, 1, 2)))}}}
            device["consumesCounters"] = [counter]
            if chance(rng, 0.3):
                device["consumesCounters"].append({"counterSet": "power", "counters": {"watts": {"value": "500"}}})
        here = rng.randint(1, len(devices))
        counter_sets = [
            {"name": "switch", "counters": {"ports": {"value": str(rng.randint(1, 3))}}},
            {"name": "power", "counters": {"watts": {"value": rng.choice(("500", "1k"))}}},
        ]
        contents: list[tuple[str, Json, list[Json]]] = [
            ("sharedCounters", rng.choice(({"allNodes": True}, {"nodeName": OTHER_NODE})), counter_sets),
            ("", rng.choice(({"nodeName": NODE}, {"allNodes": True})), devices[:here]),
        ]
        if devices[here:]:
            contents.append(("", {"nodeName": OTHER_NODE}, devices[here:]))
        self._add(GPU, contents, "switched")
