"""The objects that a hostile tenant creates: only what the API server accepts in the tenant's own namespace."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.e2e import objects
from tests.e2e.api import Json
from tests.e2e.objects import PREFIX

NAMESPACE: Final = "hostile"
POOL: Final = "pool"
"""Node label. Most hostile pods select the nodes of pool a, so that they take no room from the other namespace."""
DIGITS: Final = "9" * 5000
GPUS: Final = 8
ANNOTATION_BYTES: Final = 261_000
"""Just below the 256 KiB that all annotations of an object may have together."""


def _pod(name: str, gpus: int = 0, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    spec = {"nodeSelector": {POOL: "a"}, **spec}
    return objects.pod(name, gpus, annotations, namespace=NAMESPACE, **spec)


def numbers(count: int) -> Iterator[Json]:
    """Preferred node affinity that compares with 5,000 digits, by one term or by 64."""
    for number in range(count):
        operator = "Gt" if number % 2 else "Lt"
        expression = {"key": "size", "operator": operator, "values": [DIGITS if number % 2 else f"-{DIGITS}"]}
        terms = 64 if number % 8 == 0 else 1
        preferred = [{"weight": 1, "preference": {"matchExpressions": [expression]}}] * terms
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
        yield _pod(f"numbers-{number}", 1, affinity=affinity)


def gangs_of_classes(scale: float) -> Iterator[Json]:
    """Gangs none of whose members asks what another does: 140, 1,000, and 64, which is the most that is read."""
    few = max(1, round(10 * scale))
    for gang, size in enumerate([140, max(70, round(1000 * scale)), *[64] * few]):
        annotations = {"gang-name": f"kinds-{gang}", "gang-size": str(size)}
        for member in range(size):
            yield _pod(f"kinds-{gang}-{member}", 1, annotations, cpu=f"{100 + member}m")


def _term(number: int, key: str = "kubernetes.io/hostname") -> Json:
    return {"labelSelector": {"matchLabels": {"app": f"a{number}"}}, "topologyKey": key}


def _tied(number: int, terms: int) -> Json:
    match number % 3:
        case 0:
            spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}
            constraints = [
                {**spread, "topologyKey": f"key-{n}"} for n in range(min(terms, 32) if terms < 65 else terms)
            ]
            return {"topologySpreadConstraints": constraints}
        case 1:
            required = [_term(n) for n in range(terms)]
            return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
        case _:
            preferred = [{"weight": 1, "podAffinityTerm": _term(n)} for n in range(terms)]
            return {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


def terms(scale: float) -> Iterator[Json]:
    """Pods with 5,000 anti-affinity terms, affinity terms or spread constraints, and with as many as are read."""
    for number in range(max(3, round(30 * scale))):
        yield _pod(f"terms-{number}", 1, **_tied(number, 5000))
    for number in range(round(500 * scale)):
        item = _pod(f"terms-within-{number}", 1, **_tied(number, 64))
        item["metadata"]["labels"] = {"app": f"a{number % 64}", "a": "b"}
        yield item


def resource_names(scale: float) -> Iterator[Json]:
    """12,000 invented resource names: 60 in each pod, and thousands in a few."""
    made = itertools.count()
    sizes = [*[60] * round(200 * scale), *[max(200, round(3000 * scale))] * 4]
    for number, size in enumerate(sizes):
        item = _pod(f"names-{number}", 1)
        amounts = {f"made.up/r{next(made)}": "1" for _ in range(size)}
        resources = item["spec"]["containers"][0]["resources"]
        resources["requests"] |= amounts
        resources["limits"] |= amounts
        yield item


def selector_keys(scale: float) -> Iterator[Json]:
    """25,000 invented keys: 62 in each pod's selector, and all of them in one."""
    total = round(25_000 * scale)
    for number, begin in enumerate(range(0, total, 62)):
        yield _pod(f"keys-{number}", 1, nodeSelector={f"made-up-{n}": "x" for n in range(begin, begin + 62)})
    yield _pod("keys-all", 1, nodeSelector={f"made-up-{n}": "x" for n in range(total)})


def classes(scale: float) -> Iterator[Json]:
    """8,000 pods of as many classes, which want nodes that are full."""
    for number in range(round(8000 * scale)):
        yield _pod(f"classes-{number}", GPUS, cpu=f"{1000 + number}m")


def owner_kinds(scale: float) -> Iterator[Json]:
    """4,000 pods whose controllers are of as many kinds that do not exist."""
    for number in range(round(4000 * scale)):
        item = _pod(f"kinds-of-owners-{number}", 1)
        owner = {
            "apiVersion": f"g{number}.made.up/v1",
            "kind": f"Kind{number}",
            "name": "x",
            "uid": f"made-up-{number}",
        }
        item["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        yield item


def forged(scale: float, borrowed_uid: str, nodes: list[str]) -> Iterator[Json]:
    """Annotations that only the scheduler writes, long ones, control characters, and another namespace's owner."""
    claims = {"charged-gpus": "8", "gpu-index": "0,1,2,3,4,5,6,7", "reserved-bandwidth": "9999999", "rank": "0"}
    claims |= {"gang-id": f"victim/{borrowed_uid}", "gang-minimum": "64"}
    strange = "\x1b[31m\u202e\x00\r\nlevel=error msg=forged"
    for number in range(round(500 * scale)):
        match number % 5:
            case 0:  # bound by the tenant itself
                yield _pod(
                    f"forged-{number}", 0, claims, nodeName=nodes[number % len(nodes)], cpu="1m", nodeSelector={}
                )
            case 1:
                item = _pod(f"forged-{number}", 1, claims)
                owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "anchor", "uid": borrowed_uid}
                item["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
                yield item
            case 2:
                yield _pod(f"forged-{number}", 1, {"example.com/big": "x" * ANNOTATION_BYTES, **claims})
            case 3:
                yield _pod(f"forged-{number}", 1, {PREFIX + "preferred-domain": "x" * ANNOTATION_BYTES})
            case _:
                annotations = {"gang-name": strange.replace("\x00", "") + str(number), "gpu-model": strange}
                yield _pod(f"forged-{number}", 1, {**annotations, "gang-size": "2"})
    yield from forged_gang(scale, nodes)


def forged_gang(scale: float, nodes: list[str]) -> Iterator[Json]:
    """One gang of 4,000 pods that the tenant puts on nodes itself, as if the scheduler had bound them."""
    for number in range(round(4000 * scale)):
        claims = {"gang-id": f"{NAMESPACE}/forged", "gang-minimum": "2", "rank": str(number)}
        node = nodes[number % len(nodes)]
        yield _pod(f"forged-member-{number}", 0, claims, nodeName=node, cpu="0", nodeSelector={})


def churning(number: int) -> list[Json]:
    """One gang that asks for whole nodes: a gang with room for it, one without, one too large for any leaf."""
    size = (16, 64, 8)[number % 3]
    annotations = {"gang-name": f"churn-{number}", "gang-size": str(size), "expected-duration": "5m"}
    if number % 3 == 1:
        annotations["required-level"] = "leaf"
    return [_pod(f"churn-{number}-{member}", GPUS, annotations, run=3.0) for member in range(size)]


def migration(number: int, pods: list[str]) -> Json:
    """A Migration that asks for pods of the tenant to move."""
    return {
        "apiVersion": "topology.scheduler/v1alpha1",
        "kind": "Migration",
        "metadata": {"name": f"churn-{number}", "namespace": NAMESPACE},
        "spec": {"reason": "NodeNotReady", "cause": "\x1b[31mforged", "pods": [{"name": name} for name in pods]},
    }
