"""Random requests: containers, init containers in any order, overhead, whole pods, and resizes in place."""

import random

from .choices import Json, chance

AMOUNTS: dict[str, tuple[str, ...]] = {
    "cpu": ("100m", "250m", "500m", "1", "1500m", "2", "0", "3.3", "1e-2"),
    "memory": ("128Mi", "512Mi", "1Gi", "2Gi", "3G", "0", "1500000001", "100.5"),
    "ephemeral-storage": ("1Gi", "5Gi", "20Gi", "0"),
    "nvidia.com/gpu": ("1", "1", "2", "4", "0"),
    "example.com/dongle": ("1", "2", "0"),
    "hugepages-2Mi": ("2Mi", "64Mi", "512Mi"),
    "attachable-volumes-disk": ("1", "2"),
    "kubernetes.io/special": ("1", "2"),
    "requests.example.com/dongle": ("5",),
    "bare": ("1", "5"),
}
WEIGHTS = (0.8, 0.7, 0.25, 0.2, 0.1, 0.06, 0.03, 0.03, 0.02, 0.03)
SMALL: dict[str, tuple[str, ...]] = {"cpu": ("100m", "100m", "1m", ".1"), "memory": ("64Mi", "64Mi", "100", "1e2")}
TINY: dict[str, tuple[str, ...]] = {
    "cpu": ("1m", "2m", "1e-3", "3000u", "+.001", "1000000n"),
    "memory": ("0.5", "1", "500m", "1Ki", "99.7", "1e2", "1100m"),
    "example.com/dongle": ("1", "1e0", "1000m"),
}
"""Thousandths of bytes, as a user who writes ``memory: 500m`` gets: they are summed first, then rounded. An API server
rounds CPU, and everything else, up to thousandths itself."""

RESIZED = ("cpu", "memory")


def amounts(rng: random.Random) -> dict[str, str]:
    if chance(rng, 0.07):
        return {name: rng.choice(values) for name, values in TINY.items() if chance(rng, 0.6)}
    return {
        name: rng.choice(values)
        for (name, values), weight in zip(AMOUNTS.items(), WEIGHTS, strict=True)
        if chance(rng, weight)
    }


def containers(rng: random.Random, spec: Json, elaborate: bool) -> None:
    """Give a pod its containers; ``elaborate`` also mixes init containers, overhead and requests of the whole pod."""
    if not elaborate:
        requests = {name: rng.choice(values) for name, values in SMALL.items() if chance(rng, 0.7)}
        spec["containers"] = [{"name": "main", "image": "example.test/image", "resources": {"requests": requests}}]
        return
    spec["containers"] = [_container(rng, f"main-{index}") for index in range(rng.choice((1, 1, 2, 3)))]
    if chance(rng, 0.6):
        spec["initContainers"] = [_container(rng, f"init-{index}") for index in range(rng.randint(1, 3))]
        for container in spec["initContainers"]:
            if chance(rng, 0.5):
                container["restartPolicy"] = "Always"
    if chance(rng, 0.25):
        spec["overhead"] = {"cpu": "250m", "memory": rng.choice(("64Mi", "1Gi"))}
    if chance(rng, 0.35):
        whole = {name: value for name, value in amounts(rng).items() if chance(rng, 0.8)}
        spec["resources"] = {rng.choice(("requests", "requests", "requests", "limits")): whole}


def _container(rng: random.Random, name: str) -> Json:
    container: Json = {"name": name, "image": "example.test/image"}
    kind = rng.random()
    if kind < 0.9:
        container["resources"] = {"requests": amounts(rng)}
    if kind > 0.85:
        container.setdefault("resources", {})["limits"] = amounts(rng)
    return container


def _held(rng: random.Random, resources: Json) -> dict[str, str]:
    """Return what a kubelet says that a container holds: only CPU and memory can differ from its requests.

    kube-scheduler believes what a status says of other resources, this scheduler does not.
    """
    fixed = {name: value for name, value in resources.get("requests", {}).items() if name not in RESIZED}
    return {**(_resized(rng) if chance(rng, 0.9) else {}), **fixed}


def _resized(rng: random.Random) -> dict[str, str]:
    return {name: value for name, value in amounts(rng).items() if name in RESIZED}


def resize(rng: random.Random, pod: Json) -> None:
    """Give a running pod the status of a resize: under way, refused, or none."""
    spec, status = pod["spec"], pod["status"]
    for field, of in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
        for container in spec.get(field, []):
            if chance(rng, 0.8):
                container_status: Json = {"name": container["name"]}
                if chance(rng, 0.8):
                    container_status["resources"] = {"requests": _held(rng, container.get("resources", {}))}
                if chance(rng, 0.6):
                    container_status["allocatedResources"] = _resized(rng)
                status.setdefault(of, []).append(container_status)
    if chance(rng, 0.5):
        status["resources"] = {"requests": _held(rng, spec.get("resources", {}))}
    if chance(rng, 0.5):
        status["allocatedResources"] = _resized(rng)
    if chance(rng, 0.6):
        reason = rng.choice(("Infeasible", "Infeasible", "Deferred"))
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    if chance(rng, 0.3):
        other = {
            "type": rng.choice(("PodResizeInProgress", "PodResizePending")),
            "status": "True",
            "reason": "Infeasible",
        }
        status["conditions"] = [*status.get("conditions", []), other]
    if chance(rng, 0.2):
        status["resize"] = "Infeasible"
