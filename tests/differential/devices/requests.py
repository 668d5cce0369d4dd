"""Random ResourceClaims that are to be allocated, and the DeviceClasses that they name."""

import copy
import random
from typing import Final

from tests.differential.choices import Json, chance

from .expressions import CLASS_EXPRESSIONS, FAILING_EXPRESSIONS, GPU, GPU_EXPRESSIONS, NIC, NIC_EXPRESSIONS
from .hardware import TAINT_KEYS, TAINT_VALUES

ATTRIBUTES: Final = (
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/numaNode",
    "resource.kubernetes.io/numaNode",
    f"{GPU}/numa",
    f"{GPU}/model",
    f"{GPU}/driverVersion",
    f"{GPU}/healthy",
    f"{GPU}/index",
    f"{GPU}/rack",
    f"{NIC}/speed",
)
"""What constraints are about; not every device has all of them."""

DISTINCT_ATTRIBUTES: Final = (*ATTRIBUTES, *(f"{GPU}/index",) * 5)


def selectors(expressions: list[str]) -> list[Json]:
    return [{"cel": {"expression": text}} for text in expressions]


def configuration(rng: random.Random, strategy: str) -> Json:
    driver = rng.choice((GPU, GPU, NIC))
    return {"opaque": {"driver": driver, "parameters": {"kind": "Sharing", "strategy": strategy}}}


def classes(rng: random.Random, themes: set[str]) -> list[Json]:
    """All device classes; some carry configuration."""
    objects: list[Json] = []
    for name, expressions in CLASS_EXPRESSIONS.items():
        spec: Json = {}
        if expressions:
            spec["selectors"] = selectors([expression.text for expression in expressions])
        if "configuration" in themes and chance(rng, 0.5):
            spec["config"] = [configuration(rng, f"{name}-{index}") for index in range(rng.choice((1, 1, 2)))]
        objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
    return objects


class Requests:
    """The claims of a case; what of the API they use is added to the features."""

    def __init__(self, rng: random.Random, themes: set[str], features: set[str], slices: list[Json]) -> None:
        self._rng = rng
        self._themes = themes
        self._features = features
        self._has_cards = any(each["spec"]["driver"] == NIC for each in slices)

    def claims(self) -> list[Json]:
        rng = self._rng
        count = rng.choice((2, 2, 3)) if "several claims" in self._themes else 1
        if count > 1:
            self._features.add("several claims")
        return [self._claim(f"claim-{index}", 3 if count == 1 else 2) for index in range(count)]

    def _claim(self, name: str, most_requests: int) -> Json:
        rng = self._rng
        constrained = bool({"matchAttribute", "distinctAttribute"} & self._themes)
        count = rng.choice((1, 2, 2, 2, 3) if constrained else (1, 1, 1, 1, 2, 2, 3))
        count = min(count, most_requests)
        if count > 1:
            self._features.add("several requests")
        devices: Json = {"requests": [self._request(f"request-{index}") for index in range(count)]}
        constraints = [
            self._constraint(kind, devices["requests"])
            for kind in ("matchAttribute", "distinctAttribute")
            if kind in self._themes
            for _ in range(rng.choice((0, 1, 1, 1, 2)))
        ]
        if constraints:
            devices["constraints"] = constraints
        if "configuration" in self._themes:
            self._configure(devices)
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"devices": devices},
        }

    def _request(self, name: str) -> Json:
        rng = self._rng
        if "firstAvailable" in self._themes and chance(rng, 0.65):
            self._features.add("firstAvailable")
            alternatives = [
                {"name": f"choice-{index}", **self._exactly(sub_request=True)} for index in range(rng.choice((2, 2, 3)))
            ]
            return {"name": name, "firstAvailable": alternatives}
        return {"name": name, "exactly": self._exactly(sub_request=False)}

    def _exactly(self, sub_request: bool) -> Json:
        rng = self._rng
        class_name = self._class_name()
        request: Json = {"deviceClassName": class_name, "allocationMode": "ExactCount"}
        if "all devices" in self._themes and chance(rng, 0.6):
            self._features.add("all devices")
            request["allocationMode"] = "All"
        else:
            request["count"] = rng.choice((1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4))
            if request["count"] > 1:
                self._features.add("count above one")
        if "selectors" in self._themes:
            self._select(request, class_name)
        if "admin access" in self._themes and not sub_request and chance(rng, 0.6):
            self._features.add("admin access")
            request["adminAccess"] = True
        elif not sub_request and chance(rng, 0.02):
            request["adminAccess"] = False
        if "taints" in self._themes and chance(rng, 0.65):
            self._features.add("tolerations")
            request["tolerations"] = [self._toleration() for _ in range(rng.choice((1, 1, 2)))]
        if "shares" in self._themes and chance(rng, 0.65):
            self._features.add("capacity requests")
            request["capacity"] = {"requests": self._capacity_requests()}
        elif chance(rng, 0.03):
            self._features.add("capacity requests")
            request["capacity"] = {"requests": {"memory": rng.choice(("40Gi", "80Gi"))}}
        return request

    def _class_name(self) -> str:
        rng = self._rng
        weights = {"any": 1.0, "gpu": 5.0, "every-gpu": 1.5, "nic": 0.1, "mig": 0.05, "shared": 0.0, "broken": 0.1}
        if self._has_cards:
            weights["nic"] = 4.0 if "several nodes" in self._themes else 1.5
        if "partitions" in self._themes:
            weights.update(mig=6.0, gpu=3.0)
        if "shares" in self._themes:
            weights["shared"] = 1.5
        weights["missing"] = 0.03
        name = rng.choices(list(weights), list(weights.values()))[0]
        if name == "missing":
            self._features.add("missing class")
        if name == "broken":
            self._features.add("failing selector")
        return name

    def _select(self, request: Json, class_name: str) -> None:
        rng = self._rng
        texts = []
        if class_name == "nic":
            if chance(rng, 0.6):
                texts.append(rng.choice(NIC_EXPRESSIONS).text)
        elif class_name in ("gpu", "mig", "every-gpu"):
            texts = [each.text for each in rng.sample(GPU_EXPRESSIONS, rng.choice((0, 1, 1, 1, 2)))]
            if chance(rng, 0.07):
                self._features.add("failing selector")
                texts.append(rng.choice(FAILING_EXPRESSIONS).text)
        if texts:
            self._features.add("selectors")
            request["selectors"] = selectors(texts)

    def _toleration(self) -> Json:
        rng = self._rng
        toleration: Json = {"operator": "Exists"}
        if chance(rng, 0.8):
            toleration["key"] = rng.choice(TAINT_KEYS)
            if chance(rng, 0.4):
                toleration["operator"] = "Equal"
                if value := rng.choice(TAINT_VALUES):
                    toleration["value"] = value
        if chance(rng, 0.5):
            toleration["effect"] = rng.choice(("NoSchedule", "NoExecute"))
            if toleration["effect"] == "NoExecute" and chance(rng, 0.3):
                toleration["tolerationSeconds"] = 60
        return toleration

    def _capacity_requests(self) -> Json:
        rng = self._rng
        requests = {"memory": rng.choice(("1Gi", "5Gi", "7Gi", "10Gi", "15Gi", "20Gi", "40Gi", "60Gi", "500M"))}
        if chance(rng, 0.3):
            requests["cores"] = rng.choice(("1", "2", "3", "8", "1500m"))
        if chance(rng, 0.04):
            requests["bandwidth"] = "1"
        if chance(rng, 0.05):
            requests[f"{GPU}/memory"] = requests.pop("memory")
        return requests

    def _constraint(self, kind: str, requests: list[Json]) -> Json:
        rng = self._rng
        self._features.add(kind)
        constraint: Json = {kind: rng.choice(ATTRIBUTES if kind == "matchAttribute" else DISTINCT_ATTRIBUTES)}
        if chance(rng, 0.6):
            return constraint
        names = rng.sample([request["name"] for request in requests], rng.randint(1, len(requests)))
        for request in requests:
            if request["name"] in names and "firstAvailable" in request and chance(rng, 0.5):
                names.remove(request["name"])
                names.append(f"{request['name']}/{rng.choice(request['firstAvailable'])['name']}")
        constraint["requests"] = names
        return constraint

    def _configure(self, devices: Json) -> None:
        rng = self._rng
        self._features.add("configuration")
        requests = devices["requests"]
        names = [request["name"] for request in requests]
        names += [
            f"{request['name']}/{each['name']}" for request in requests for each in request.get("firstAvailable", ())
        ]
        devices["config"] = [
            {
                **({"requests": rng.sample(names, rng.randint(1, min(2, len(names))))} if chance(rng, 0.6) else {}),
                **copy.deepcopy(configuration(rng, f"claim-{index}")),
            }
            for index in range(rng.choice((1, 1, 2)))
        ]
