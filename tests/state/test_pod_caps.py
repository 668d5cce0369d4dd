"""Each cap on a pod accepts as many as it says and refuses one more, with field, count, cap and remedy.

The rows of the page are compared with the constants.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.pods import caps

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "caps.md"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
HOST: Final = "kubernetes.io/hostname"

Json = dict[str, Any]
Part = Callable[[int], Json]
"""The spec, or with ``metadata`` more of a pod, by how many of something it has."""


def _names(count: int) -> list[str]:
    return [f"x{number}" for number in range(count)]


def _labels(count: int) -> Json:
    return dict.fromkeys(_names(count), "v")


def _container(name: str = "c", **fields: object) -> Json:
    return {"name": name, "image": "i", **fields}


def _node_terms(count: int, *, required: bool) -> Json:
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    if required:
        return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term] * count}}}}
    return {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": term}] * count}}}


def _node_expressions(expressions: list[Json]) -> Json:
    """Return node affinity with these expressions, in two terms where there are two."""
    terms = [{"matchExpressions": expressions[:1]}, {"matchExpressions": expressions[1:]}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def _in(count: int) -> list[Json]:
    """Return expressions that have so many values together."""
    return [{"key": "a", "operator": "In", "values": _names(part)} for part in (count // 2, count - count // 2)]


def _pod_terms(count: int, *, kind: str, required: bool, **fields: object) -> Json:
    term = {"topologyKey": HOST, "labelSelector": {}, **fields}
    terms: list[Json] = [term] * count if required else [{"weight": 1, "podAffinityTerm": term}] * count
    return {"affinity": {kind: {REQUIRED if required else PREFERRED: terms}}}


def _selecting(*selectors: Json) -> Json:
    """Return a pod with these selectors: of a spread constraint, of affinity and anti-affinity in turn."""
    spread = [{"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selectors[0]}]
    terms = [{"topologyKey": HOST, "labelSelector": selector} for selector in selectors[1:]]
    return {"topologySpreadConstraints": spread, "affinity": {"podAntiAffinity": {REQUIRED: terms}}}


def _spread(count: int) -> Json:
    constraint = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    return {"topologySpreadConstraints": [constraint] * count}


def _disks(count: int, characters: int = 1) -> Json:
    return {
        "volumes": [{"name": "v", "rbd": {"pool": "p", "image": "i", "monitors": ["m" * characters] * (count - 2)}}]
    }


def _requests(count: int) -> Json:
    half = [dict.fromkeys(names, "1") for names in (_names(count)[::2], _names(count)[1::2])]
    return {"containers": [_container(f"c{at}", resources={"requests": names}) for at, names in enumerate(half)]}


def _ports(count: int) -> Json:
    ports = [{"containerPort": 80, "hostPort": 1000 + number} for number in range(count)]
    return {"containers": [_container(ports=ports[:9]), _container("d", ports=[*ports[9:], {"containerPort": 80}])]}


def _containers(count: int) -> Json:
    return {"containers": [_container()] * (count - 5), "initContainers": [_container()] * 5}


def _metadata(**fields: object) -> Json:
    return {"metadata": fields}


def _annotation_characters(count: int) -> Json:
    parts = (count // 3, count // 3, count - 2 * (count // 3))
    return _metadata(annotations={f"{PREFIX}{name}": "v" * part for name, part in zip("abc", parts, strict=True)})


SELECTORS: Final = "label selectors of its affinity and spread"
TERMS, VALUES, OTHER = "match several values with one term", "select by a label", "remove some"
CASES: Final[list[tuple[str, Part, int, str, str]]] = [
    # the row of the page, the pod, the cap, the field and the remedy that the message names
    *(
        ("terms of one kind", partial(_node_terms, required=required), caps.MAX_TERMS, "nodeAffinity", TERMS)
        for required in (True, False)
    ),
    *(
        ("terms of one kind", partial(_pod_terms, kind=kind, required=required), caps.MAX_TERMS, kind, TERMS)
        for kind in ("podAffinity", "podAntiAffinity")
        for required in (True, False)
    ),
    ("`topologySpreadConstraints`", _spread, caps.MAX_SPREAD_CONSTRAINTS, "spec.topologySpreadConstraints", TERMS),
    (
        "`matchExpressions`",
        lambda n: _node_expressions([{"key": "a", "operator": "Exists"}] * n),
        caps.MAX_REQUIREMENTS,
        "spec.affinity.nodeAffinity, matchExpressions,",
        OTHER,
    ),
    (
        "`matchExpressions`",
        lambda n: _selecting(
            *[{"matchExpressions": [{"key": "a", "operator": "Exists"}] * part} for part in (9, n - 9)]
        ),
        caps.MAX_REQUIREMENTS,
        f"{SELECTORS}, matchExpressions,",
        OTHER,
    ),
    (
        "`matchLabels`",
        lambda n: _selecting(*[{"matchLabels": _labels(part)} for part in (9, n - 9)]),
        caps.MAX_REQUIREMENTS,
        f"{SELECTORS}, matchLabels,",
        OTHER,
    ),
    (
        "values of all node affinity terms",
        lambda n: _node_expressions(_in(n)),
        caps.MAX_VALUES,
        "spec.affinity.nodeAffinity, values,",
        VALUES,
    ),
    (
        "values of all label selectors",
        lambda n: _selecting(*[{"matchExpressions": [expression]} for expression in _in(n)]),
        caps.MAX_SELECTOR_VALUES,
        f"{SELECTORS}, values,",
        VALUES,
    ),
    *(
        (
            "namespaces that pod affinity terms name",
            lambda n, kind=kind: _pod_terms(1, kind=kind, required=True, namespaces=_names(n)),
            caps.MAX_NAMESPACES,
            f"spec.affinity.{kind}, namespaces,",
            VALUES,
        )
        for kind in ("podAffinity", "podAntiAffinity")
    ),
    (
        "labels of `nodeSelector`",
        lambda n: {"nodeSelector": _labels(n)},
        caps.MAX_NODE_SELECTOR_LABELS,
        "spec.nodeSelector",
        OTHER,
    ),
    (
        "tolerations",
        lambda n: {"tolerations": [{"operator": "Exists"}] * n},
        caps.MAX_TOLERATIONS,
        "spec.tolerations",
        OTHER,
    ),
    ("volumes", lambda n: {"volumes": [{"name": "v"}] * n}, caps.MAX_VOLUMES, "spec.volumes", OTHER),
    (
        "`resourceClaims`",
        lambda n: {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in _names(n)]},
        caps.MAX_RESOURCE_CLAIMS,
        "spec.resourceClaims",
        OTHER,
    ),
    ("disks that volumes name", _disks, caps.MAX_DISK_NAMES, "disks and monitors of spec.volumes", OTHER),
    (
        "disks that volumes name",
        lambda n: _disks(3, n - 2),
        caps.MAX_DISK_CHARACTERS,
        "the disks of spec.volumes",
        "use PersistentVolumeClaims",
    ),
    ("host ports", _ports, caps.MAX_HOST_PORTS, "hostPorts of its containers", OTHER),
    ("containers", _containers, caps.MAX_CONTAINERS, "spec.containers", OTHER),
    ("resource names", _requests, caps.MAX_RESOURCES, "resources.requests of its containers", OTHER),
    (
        "resource names",
        lambda n: {"overhead": dict.fromkeys(_names(n), "1")},
        caps.MAX_RESOURCES,
        "spec.overhead",
        OTHER,
    ),
    ("labels", lambda n: _metadata(labels=_labels(n)), caps.MAX_LABELS, "metadata.labels", OTHER),
    (
        "labels",
        lambda n: _metadata(labels={"a": "v" * (n - 1)}),
        caps.MAX_LABEL_CHARACTERS,
        "metadata.labels",
        "remove or shorten some",
    ),
    (
        "annotations `topology.scheduler/…` of the pod",
        lambda n: _metadata(annotations={f"{PREFIX}{name}": "" for name in _names(n)}),
        caps.MAX_ANNOTATIONS,
        f"metadata.annotations, {PREFIX}…,",
        OTHER,
    ),
    (
        "characters of one annotation",
        lambda n: _metadata(annotations={f"{PREFIX}a": "v" * n}),
        caps.MAX_ANNOTATION_CHARACTERS,
        f"annotation {PREFIX}a",
        "shorten it",
    ),
    (
        "characters of all annotations",
        _annotation_characters,
        2 * caps.MAX_ANNOTATION_CHARACTERS,
        f"the annotations {PREFIX}…",
        "shorten them",
    ),
]


def _pod(part: Json) -> Pod:
    metadata = {"name": "p", "namespace": "n", "uid": "u", **part.get("metadata", {})}
    spec = {"containers": [_container()], **{key: value for key, value in part.items() if key != "metadata"}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("part", "cap", "field", "remedy"),
    [case[1:] for case in CASES],
    ids=[f"{case[3].partition(' ')[0]}-{number}" for number, case in enumerate(CASES)],
)
def test_a_pod_at_a_cap_is_read_and_one_beyond_it_is_refused(part: Part, cap: int, field: str, remedy: str) -> None:
    assert caps.excess(_pod(part(cap))) == ""
    message = caps.excess(_pod(part(cap + 1)))
    assert field in message and remedy in message
    assert re.search(rf"\b{cap + 1}\b.*\bat most {cap}\b", message), message


def test_every_cap_is_tried() -> None:
    constants = {name: value for name, value in vars(caps).items() if name.startswith("MAX_")}
    assert {value for _, _, value, _, _ in CASES} == {*constants.values(), 2 * caps.MAX_ANNOTATION_CHARACTERS}


def test_the_rows_of_the_page_are_the_constants() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## One pod")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)[1:])
    numbers = {
        what: {int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*", cap)} for what, cap in rows.items()
    }
    tried: dict[str, set[int]] = {}
    for begins, _, cap, _, _ in CASES:
        what = begins if begins in rows else next(what for what in rows if what.startswith(begins))
        tried.setdefault(what, set()).add(cap)
    assert {what: limits for what, limits in numbers.items() if limits} == tried
