"""Pending pods count about as much memory as they take, whatever their tenants write and however often they change."""

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Pod, PodCondition

pytestmark = pytest.mark.unrecorded

PODS = 12
CHANGES = 2
"""Conditions that are written on each pod, each of which brings a new version of it."""
COMMON_BYTES = 3 << 18
"""What the first pods take once for all: tables of modules and of the planner."""
TALLIES_BYTES = 3 << 20
"""What the 1,025 tallies of affinity terms take that the planner keeps at most."""
Make = Callable[[Callable[[int], str]], dict[str, Any]]


def _node_affinity(word: Callable[[int], str]) -> dict[str, Any]:
    expressions = [{"key": "zone", "operator": "In", "values": [word(6) for _ in range(70)]} for _ in range(200)]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _short_values(word: Callable[[int], str]) -> dict[str, Any]:
    values = [word(2) for _ in range(15_000)]
    preference = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": values}]}
    terms = [{"weight": 1, "preference": preference}]
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}


def _ten_terms(word: Callable[[int], str]) -> dict[str, Any]:
    terms = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {
                "matchExpressions": [{"key": word(8), "operator": "In", "values": [word(6) for _ in range(100)]}]
            },
        }
        for _ in range(10)
    ]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _match_labels(word: Callable[[int], str]) -> dict[str, Any]:
    terms = [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {word(4): word(4) for _ in range(60)}}}
        for _ in range(4)
    ]
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _many_terms(word: Callable[[int], str]) -> dict[str, Any]:
    def term() -> dict[str, Any]:
        return {
            "topologyKey": word(5),
            "labelSelector": {"matchExpressions": [{"key": word(6), "operator": "Exists"}]},
        }

    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": [term() for _ in range(64)],
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": term()} for _ in range(64)
        ],
    }
    return {"affinity": {"podAffinity": terms, "podAntiAffinity": terms}}


def _monitors(word: Callable[[int], str]) -> dict[str, Any]:
    return {"volumes": [{"name": "disk", "rbd": {"image": "i", "monitors": [word(4) for _ in range(1000)]}}]}


def _wide_image(word: Callable[[int], str]) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": f"{word(8) * 20_000}\N{GRINNING FACE}"}]}


def _plain(word: Callable[[int], str]) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("make", "common_bytes"),
    [
        (_node_affinity, COMMON_BYTES),
        (_short_values, COMMON_BYTES),
        (_ten_terms, COMMON_BYTES),
        (_match_labels, COMMON_BYTES),
        (_many_terms, TALLIES_BYTES),
        (_monitors, COMMON_BYTES),
        (_wide_image, COMMON_BYTES),
        (_plain, COMMON_BYTES),
    ],
)
def test_pending_pods_take_about_as_much_memory_as_they_count(make: Make, common_bytes: int) -> None:
    d = Driver(fabric({"s/l1": 8}))
    numbers = itertools.count()

    def word(characters: int) -> str:
        return f"{next(numbers) % 36**characters:0{characters}x}"[-characters:]

    plain = msgspec.to_builtins(make_pod("pod", gpus=16))
    decoder = msgspec.json.Decoder(Pod)
    texts = []
    for number in range(PODS + 1):
        metadata = {**plain["metadata"], "name": f"p{number}", "uid": f"u{number}"}
        texts.append(msgspec.json.encode({**plain, "metadata": metadata, "spec": {**plain["spec"], **make(word)}}))

    def apply(text: bytes, version: int) -> None:
        pod = decoder.decode(text)
        pod.metadata.resource_version = str(version)
        pod.status.conditions = [PodCondition("PodScheduled", "False", "Unschedulable", f"version {version}")]
        d.engine.pods_applied([pod], d.now)
        d.step(0.1)
        d.said.clear()

    def counted() -> int:
        return d.engine.arrivals._pods._all_bytes

    apply(texts[0], 0)
    before = counted()
    gc.collect()
    tracemalloc.start()
    try:
        for version in range(1 + CHANGES):
            for text in texts[1:]:
                apply(text, version)
            if version == 1:  # as the API server allows: most of the pod is the same, and its class is equal
                texts = [text.replace(b'"spec":{', b'"spec":{"activeDeadlineSeconds":600,') for text in texts]
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(d.engine.arrivals._pods) == PODS + 1
    assert taken < 1.25 * (counted() - before) + common_bytes


def test_a_changed_pod_shares_its_affinity_with_the_class_that_its_first_version_made() -> None:
    d = Driver(fabric({"s/l1": 8}))
    numbers = itertools.count()
    spec = _node_affinity(lambda characters: f"{next(numbers):0{characters}}")
    plain = msgspec.to_builtins(make_pod("pod", gpus=16))
    uid = plain["metadata"]["uid"]
    for change in ({}, {}, {"activeDeadlineSeconds": 600}, {"activeDeadlineSeconds": 500}):
        text = msgspec.json.encode({**plain, "spec": {**plain["spec"], **spec, **change}})
        d.engine.pods_applied([msgspec.json.decode(text, type=Pod)], d.now)
        d.step(1)
    pod, membership = d.engine.arrivals.pending(uid), d.engine.workloads.of_pod(uid)
    assert pod is not None and pod.spec.affinity is not None and membership is not None
    assert pod.spec.active_deadline_seconds == 500, "what changed is known"
    assert membership[1].cls.affinity is pod.spec.affinity.node_affinity
