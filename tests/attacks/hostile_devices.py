"""The objects of a hostile tenant that attacks by means of devices: ResourceClaims, extended resources, annotations."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.e2e import objects
from tests.e2e.api import Json
from tests.e2e.device_objects import DRIVER, asking, claim

from .hostile import DIGITS, NAMESPACE, POOL

FULL: Final = {1: 300, 2: 300, 3: 2000, 4: 8000, 5: 2000, 6: 24}
"""Pods of each attack at the full scale."""
CONTAINERS: Final = 256
GPUS: Final = 8
CHANNEL: Final = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomainChannelConfig",
    "allocationMode": "Single",
}


def _pod(name: str, gpus: int = 0, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    return objects.pod(name, gpus, annotations, namespace=NAMESPACE, **{"nodeSelector": {POOL: "a"}, **spec})


def count_of(attack: int, scale: float) -> int:
    """Return how many pods an attack has."""
    return max(4, round(FULL[attack] * scale))


def _with_claim(name: str, spec: Json) -> Iterator[Json]:
    """Yield a claim and the pod that asks for it."""
    yield {**claim(name, spec), "metadata": {"name": name, "namespace": NAMESPACE}}
    yield _pod(name, resourceClaims=[{"name": "devices", "resourceClaimName": name}])


def selectors(scale: float) -> Iterator[Json]:
    """Claims with selectors just within the cost that the API server allows: loops in loops, and long chains."""
    numbers = list(range(36))
    index = f"device.attributes['{DRIVER}'].index"
    for number in range(count_of(1, scale)):
        if number % 2:
            chain = " && ".join(f"({index} + {part}) * {number + 2} != -{part + 1}" for part in range(130))
            text = f"{chain} && {index} > {number + GPUS}"
        else:
            text = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, a + b * c + {index} != -{number + 1})))"
            text += f" && {index} > {number + GPUS}"
        yield from _with_claim(f"selectors-{number}", asking(1, text))


def alternatives(scale: float) -> Iterator[Json]:
    """Claims of alternatives in every request, tied by an attribute such that the last request finds one too few."""
    for number in range(count_of(2, scale)):
        requests: list[Json] = []
        for request in range(4 + number % 4):
            choices = [
                {
                    "name": f"choice-{choice}",
                    "deviceClassName": "gpu",
                    "allocationMode": "ExactCount",
                    "count": 1 + (choice + number) % 2,
                    "selectors": [
                        {"cel": {"expression": f"device.attributes['{DRIVER}'].index != {number * 8 + choice + GPUS}"}}
                    ],
                }
                for choice in range(8)
            ]
            requests.append({"name": f"request-{request}", "firstAvailable": choices})
        last = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3 if number % 2 else 4}
        requests.append({"name": "last", "exactly": last})
        constraints = [{"matchAttribute": f"{DRIVER}/numa"}]
        yield from _with_claim(
            f"alternatives-{number}", {"devices": {"requests": requests, "constraints": constraints}}
        )


def mappings(scale: float) -> Iterator[Json]:
    """Pods of 256 containers that ask for GPUs: within the caps but too many, beyond them, and such as have room."""
    for number in range(count_of(3, scale)):
        last, ending = (9, 254) if number % 3 == 0 else (1, 254) if number % 48 == 1 else (1, 0)
        item = _pod(f"mappings-{number}")
        containers = [_container(position, last) for position in range(CONTAINERS)]
        item["spec"]["initContainers"], item["spec"]["containers"] = containers[:ending], containers[ending:]
        if ending:
            item["spec"]["containers"] = containers[-1:]
        yield item


def _container(number: int, gpus: int) -> Json:
    limits = {objects.NVIDIA: str(gpus)}
    environment = [{"name": f"SETTING_{part}", "value": "x" * 20} for part in range(2)]
    resources = {"requests": {"cpu": "1m", **limits}, "limits": limits}
    return {"name": f"container-{number}", "image": "busybox:1.36", "env": environment, "resources": resources}


def unmatched(scale: float) -> Iterator[Json]:
    """Claims that no device matches, each in its own way."""
    for number in range(count_of(4, scale)):
        expression = f"device.attributes['{DRIVER}'].index == {1000 + number}"
        yield from _with_claim(f"unmatched-{number}", asking(1, expression))


def annotations(scale: float, borrowed_uid: str, nodes: list[str]) -> Iterator[Json]:
    """Annotations about GPUs that no node meets, and forged ones that only the scheduler or a driver writes."""
    localities = ("nvlink", "same-pcie-switch", "same-socket")
    for number in range(count_of(5, scale)):
        needs: Mapping[str, str] = {
            "gpu-locality": localities[number % 3],
            "gpu-min-bandwidth": f"{1000 + number}G",
            "gpu-memory": f"{100_000 + number}Mi",
            "gpu-requirements": "preferred" if number % 2 else "required",
        }
        name = f"annotations-{number}"
        match number % 8:
            case 0:
                forged = {"predicted-gpus": "0,1,2,3,4,5,6,7", "gpu-index": "0,1,2,3,4,5,6,7"}
                yield _pod(name, 1, forged, nodeName=nodes[number % len(nodes)], cpu="1m", nodeSelector={})
            case 1:
                yield _pod(name, 2, {**needs, "predicted-gpus": ",".join(map(str, range(1000)))})
            case 2:
                yield _pod(name, 1, {"mig-profile": f"{1 + number % 7}g.{10 + number % 80}gb"})
            case 3:
                parameters = {**CHANNEL, "domainID": borrowed_uid if number % 16 == 3 else DIGITS[:4000]}
                opaque = {"driver": "compute-domain.nvidia.com", "parameters": parameters}
                yield from _with_claim(name, asking(1, config=[{"requests": ["gpus"], "opaque": opaque}]))
            case _:
                yield _pod(name, 2 + number % 7, needs)


def churning(number: int) -> tuple[Json, Json]:
    """Return a claim that devices satisfy, and its pod, which runs until it is deleted."""
    item, consumer = _with_claim(f"churn-{number}", asking(1 + number % 2))
    return item, consumer
