"""Annotations: each one of the table, from the nearest object that carries it, and a clear word where it is wrong."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ours
from topo_scheduler.api.annotations import (
    MAX_UNKNOWN_ANNOTATIONS,
    USERS_MAY_WRITE,
    Enforcement,
    PlacementRequest,
    PlacementStrategy,
    Source,
    read_annotations,
    unknown_annotations,
    written_number,
)
from topo_scheduler.api.labels import PREFIX


def on(kind: str, name: str = "default/it", **annotations: str) -> Source:
    return Source(kind, name, ours({key.replace("_", "-"): value for key, value in annotations.items()}))


def test_without_annotations_nothing_is_asked() -> None:
    assert read_annotations([on("Pod"), on("Job")]) == PlacementRequest()
    assert PlacementRequest().strategy is PlacementStrategy.BALANCED
    assert PlacementRequest().gang is None
    assert read_annotations([]) == PlacementRequest()


@pytest.mark.parametrize(
    ("annotation", "text", "attribute", "value"),
    [
        ("gpu-count", "16", "gpu_count", 16),
        ("gpu-count", "0", "gpu_count", 0),
        ("gpu-count", " 8 ", "gpu_count", 8),
        ("gpu-fraction", "0.5", "gpu_share", 500),
        ("gpu-fraction", ".125", "gpu_share", 125),
        ("gpu-fraction", "0.0010", "gpu_share", 1),
        ("gpu-model", "NVIDIA-H100-80GB-HBM3", "gpu_models", ("NVIDIA-H100-80GB-HBM3",)),
        ("gpu-model", "A100, H100 ,,A100", "gpu_models", ("A100", "H100")),
        ("gpu-model-mixed", "true", "gpu_model_mixed", True),
        ("gpu-model-mixed", "false", "gpu_model_mixed", False),
        ("preferred-domain", "leaf-1", "preferred_domain", "leaf-1"),
        ("preferred-domain", "spine-1/leaf-1", "preferred_domain", "spine-1/leaf-1"),
        ("network-bandwidth", "100Gb", "bandwidth", 100_000),
        ("network-bandwidth", "200Gbps", "bandwidth", 200_000),
        ("network-bandwidth", "400Gbit", "bandwidth", 400_000),
        ("latency-sensitive", "true", "latency_sensitive", True),
        ("latency-sensitive", "False", "latency_sensitive", False),
        ("placement-strategy", "consolidated", "strategy", PlacementStrategy.CONSOLIDATED),
        ("placement-strategy", "distributed", "strategy", PlacementStrategy.DISTRIBUTED),
        ("placement-strategy", "Balanced", "strategy", PlacementStrategy.BALANCED),
        ("placement", "preferred", "placement", Enforcement.PREFERRED),
        ("placement", "required", "placement", Enforcement.REQUIRED),
        ("gang", "false", "gang", False),
        ("gang", "true", "gang", True),
        ("gang-name", "llama", "gang_name", "llama"),
        ("gang-size", "8", "gang_size", 8),
        ("expected-duration", "1h30m", "expected_duration", 5400.0),
        ("movable", "false", "movable", False),
        ("required-level", " leaf ", "required_level", "leaf"),
        ("preferred-level", "spine", "preferred_level", "spine"),
        ("relax-after", "10m", "relax_after", 600.0),
        ("segment-size", "4", "segment_size", 4),
        ("segment-level", "spine", "segment_level", "spine"),
    ],
)
def test_each_annotation_is_read(annotation: str, text: str, attribute: str, value: object) -> None:
    request = read_annotations([Source("Pod", "default/it", ours({annotation: text}))])
    assert getattr(request, attribute) == value
    assert request.problems == ()
    others = {field.name for field in fields(request)} - {attribute, f"{attribute}_kind"}
    assert all(getattr(request, name) == getattr(PlacementRequest(), name) for name in others)


MALFORMED = [
    ("gpu-count", "eight", "whole number"),
    ("gpu-count", "-1", "between 0 and"),
    ("gpu-count", "1.5", "whole number"),
    ("gpu-count", "", "whole number"),
    *(("gpu-fraction", text, "above 0 and below 1") for text in ("0", "1", "0.0", "1.5", "50%", "-0.5", "0.0005", "")),
    ("gpu-count", "1_0", "whole number"),
    ("gpu-count", "٣", "whole number"),
    ("gpu-count", "1000001", "between 0 and"),
    ("gpu-count", "9" * 5000, "write one from 0 to"),
    ("gpu-model", "", "write one or more"),
    ("gpu-model", " , ", "write one or more"),
    ("on-failure", "pray", "replace, restart-gang, shrink"),
    ("checkpoint-interval", "sometimes", "duration"),
    ("gpu-model-mixed", "yes", '"true" nor "false"'),
    ("preferred-domain", "", "such as leaf-1 or spine-1/leaf-1"),
    ("preferred-domain", "spine-1//leaf-1", "such as leaf-1 or spine-1/leaf-1"),
    ("network-bandwidth", "fast", "such as 100Gb"),
    ("network-bandwidth", "0Gb", "between 1 Mbit/s"),
    ("latency-sensitive", "1", '"true" nor "false"'),
    ("placement-strategy", "packed", "consolidated, distributed, balanced"),
    ("placement", "maybe", "required, preferred"),
    ("gang", "no", '"true" nor "false"'),
    ("gang-name", "", "1 to 253 characters"),
    ("gang-name", "a/b", "without spaces or slashes"),
    ("gang-name", "a b", "without spaces or slashes"),
    ("gang-name", "x" * 254, "1 to 253 characters"),
    ("gang-size", "0", "between 1 and"),
    ("gang-size", "many", "whole number"),
    ("expected-duration", "soon", "is not a duration such as"),
    ("expected-duration", "-10m", "is negative"),
    ("movable", "maybe", "neither"),
    ("gang-size", "100001", "between 1 and"),
    ("required-level", "", "1 to 253 characters"),
    ("preferred-level", "a b", "without spaces"),
    ("segment-level", "x" * 254, "1 to 253 characters"),
    ("relax-after", "0s", "is not between"),
    ("relax-after", "10", "is not a duration such as"),
    ("segment-size", "0", "between 1 and"),
    ("segment-size", "two", "whole number"),
    ("gpu-locality", "nearby", "is not one of any, same-node, same-socket, same-pcie-switch, nvlink"),
    ("gpu-min-bandwidth", "600Gb", "write bytes per second"),
    ("gpu-min-bandwidth", "1e30", "is not a bandwidth in bytes per second"),
    ("gpu-memory", "40", "write a size with its unit, such as 40Gi"),
    ("gpu-memory", "big", "is not a size of memory such as 40Gi or 80G"),
    ("gpu-architecture", "x" * 33, "is not an architecture such as hopper"),
    ("gpu-architecture", ",".join(f"a{number}" for number in range(17)), "has not 1 to 16 architectures"),
    ("mig-profile", "8g", "is not a MIG profile such as 1g.10gb"),
    ("gpu-requirements", "maybe", "is not one of required, preferred"),
]


LEVELS = {"topology.scheduler/leaf": "leaf", "rack": "leaf", "topology.scheduler/spine": "spine"}


@pytest.mark.parametrize("annotation", ["required-level", "preferred-level", "segment-level"])
def test_a_level_is_a_name_or_a_label_of_one(annotation: str) -> None:
    attribute = annotation.replace("-", "_")
    for text, level in [("leaf", "leaf"), ("rack", "leaf"), ("topology.scheduler/spine", "spine")]:
        request = read_annotations([Source("Pod", "a/b", ours({annotation: text}))], levels=LEVELS)
        assert getattr(request, attribute) == level
    (problem,) = read_annotations([Source("Pod", "a/b", ours({annotation: "core"}))], levels=LEVELS).problems
    wanted = "'core' is no level of the fabric; write one of spine, leaf, or the key of a node label for one"
    assert wanted in str(problem)


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("required-level", " Leaf", "leaf"),
        ("preferred-level", "SPINE", "spine"),
        ("segment-level", "Leaf", "leaf"),
        ("placement-strategy", "Consolidated", "consolidated"),
        ("placement", "PREFERRED", "preferred"),
        ("on-failure", "Restart-Gang", "restart-gang"),
        ("gpu-locality", "NVLink", "nvlink"),
        ("gpu-requirements", "Preferred", "preferred"),
        ("gang", "True", True),
    ],
)
def test_the_case_of_keywords_does_not_count(annotation: str, text: str, value: object) -> None:
    request = read_annotations([Source("Pod", "a/b", ours({annotation: text}))], levels=LEVELS)
    attributes = {"placement-strategy": "strategy"}
    assert getattr(request, attributes.get(annotation, annotation.replace("-", "_"))) == value
    assert request.problems == ()


def test_of_levels_that_differ_in_case_alone_only_the_exact_name_counts() -> None:
    levels = {"a": "rack", "b": "Rack"}
    for text, level in [("rack", "rack"), ("Rack", "Rack"), ("RACK", "")]:
        request = read_annotations([Source("Pod", "a/b", ours({"required-level": text}))], levels=levels)
        assert request.required_level == level


@pytest.mark.parametrize(
    ("annotation", "text", "meant"),
    [
        ("required-level", "lef", "leaf"),
        ("segment-level", "Spines", "spine"),
        ("required-level", "core", None),
        ("placement-strategy", "consolidate", "consolidated"),
        ("on-failure", "restart", "restart-gang"),
        ("gpu-locality", "same_socket", "same-socket"),
        ("placement", "required" * 9, None),
    ],
)
def test_what_an_unknown_keyword_may_have_meant_is_asked(annotation: str, text: str, meant: str | None) -> None:
    (problem,) = read_annotations([Source("Pod", "a/b", ours({annotation: text}))], levels=LEVELS).problems
    assert str(problem).endswith(f"; did you mean {meant}?") is (meant is not None)
    assert ("did you mean" in str(problem)) is (meant is not None)


def test_every_annotation_has_a_malformed_example() -> None:
    assert {PREFIX + annotation for annotation, _, _ in MALFORMED} == set(USERS_MAY_WRITE)


@pytest.mark.parametrize(("annotation", "text", "remedy"), MALFORMED)
def test_a_malformed_value_names_object_annotation_and_remedy(annotation: str, text: str, remedy: str) -> None:
    request = read_annotations([on("Pod", "ml/train-0"), Source("Job", "ml/train", ours({annotation: text}))])
    (problem,) = request.problems
    message = str(problem)
    assert PREFIX + annotation in message
    assert "Job ml/train" in message
    assert remedy in message
    assert len(message) < 400


def test_a_malformed_value_leaves_the_others_as_they_are() -> None:
    request = read_annotations([on("Pod", gpu_count="x", gang_size="4", placement_strategy="distributed")])
    assert (request.gpu_count, request.gang_size, request.strategy) == (None, 4, PlacementStrategy.DISTRIBUTED)
    assert len(request.problems) == 1


def test_all_malformed_values_are_reported_at_once() -> None:
    request = read_annotations([on("Pod", gpu_count="x", gang_size="x", gang="x")])
    assert len(request.problems) == 3


def test_the_pods_own_annotation_wins_over_its_owners() -> None:
    chain = [
        on("Pod", gpu_count="1"),
        on("Job", gpu_count="16", placement_strategy="consolidated"),
        on("CronJob", placement_strategy="distributed", latency_sensitive="true"),
    ]
    request = read_annotations(chain)
    assert (request.gpu_count, request.gpu_count_kind) == (1, "Pod")
    assert request.strategy is PlacementStrategy.CONSOLIDATED
    assert request.latency_sensitive


def test_a_malformed_value_is_not_hidden_by_a_good_one_farther_out() -> None:
    request = read_annotations([on("Pod", gang_size="x"), on("Job", gang_size="8")])
    assert request.gang_size is None
    assert len(request.problems) == 1


def test_the_kind_that_carries_the_gpu_count_is_reported() -> None:
    for kind in ("Job", "Deployment", "StatefulSet", "Pod"):
        assert read_annotations([on("Pod"), on(kind, gpu_count="4")]).gpu_count_kind == kind


def test_annotations_that_are_not_read_are_reported() -> None:
    chain = [on("Pod", "ml/a", gpu_cuont="4", gpu_count="4"), Source("Job", "ml/b", {"other.io/gpu-count": "x"})]
    (problem,) = unknown_annotations(chain)
    assert PREFIX + "gpu-cuont" in str(problem)
    assert "Pod ml/a" in str(problem)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpu-cuont", "gpu-count"),
        ("GPU-Count", "gpu-count"),
        ("placement_strategy", "placement-strategy"),
        ("charged-gpu", None),
        ("owner", None),
        ("gpu-count" * 20, None),
    ],
)
def test_what_an_unknown_annotation_may_have_meant_is_asked(written: str, meant: str | None) -> None:
    (message,) = unknown_annotations([Source("Pod", "ml/a", {PREFIX + written: "4"})])
    if meant is None:
        assert message.endswith("the scheduler does not know it and ignores it")
    else:
        assert message.endswith(f"ignores it; did you mean {PREFIX}{meant}?")


def test_of_thousands_of_unknown_annotations_a_few_are_named_and_the_rest_counted() -> None:
    many = {f"{PREFIX}x{at}": "" for at in range(700)}
    messages = unknown_annotations([Source("Job", f"ml/{owner}", many) for owner in range(8)])
    assert len(messages) == MAX_UNKNOWN_ANNOTATIONS + 1
    assert messages[-1].startswith(f"{8 * 700 - MAX_UNKNOWN_ANNOTATIONS} more annotations")


def test_an_unknown_annotation_is_a_sentence_with_the_object_and_the_remedy() -> None:
    (message,) = unknown_annotations([Source("Pod", "a/b", ours({"gpu-localty": "nvlink"}))])
    assert message == (
        f"annotation {PREFIX}gpu-localty on Pod a/b: the scheduler does not know it and ignores it; did you mean"
        f" {PREFIX}gpu-locality?"
    )


@pytest.mark.parametrize(
    "written",
    [
        "topology-scheduler/gpu-count",
        "topology.scheduler.io/gpu-count",
        "toplogy.scheduler/gpu-count",
        "topology-aware-scheduler/gpu-count",
        "gpu-count",
    ],
)
def test_a_known_annotation_under_a_wrong_prefix_is_reported(written: str) -> None:
    (warning,) = unknown_annotations([Source("Pod", "a/b", {written: "8"})])
    assert warning == (
        f"annotation {written} on Pod a/b: the scheduler ignores it, as its annotations have the prefix {PREFIX};"
        f" write {PREFIX}gpu-count"
    )


@pytest.mark.parametrize("written", ["example.com/gpu-count", "topology-scheduler/team", "rank", "gang", "movable"])
def test_annotations_of_others_are_not_reported(written: str) -> None:
    assert unknown_annotations([Source("Pod", "a/b", {written: "8"})]) == []


def test_labels_with_the_names_of_annotations_are_reported_together() -> None:
    labels = ours({"gang-name": "g", "gang-size": "2"}) | {"app": "a", PREFIX + "leaf": "leaf-1"}
    (warning,) = unknown_annotations([Source("Pod", "a/b", {})], labels)
    assert warning == (
        f"labels {PREFIX}gang-name, {PREFIX}gang-size on Pod a/b: the scheduler reads annotations and ignores labels of"
        " these names; write them in metadata.annotations"
    )
    (warning,) = unknown_annotations([Source("Pod", "a/b", {})], ours({"gang": "false"}))
    assert warning.startswith(f"label {PREFIX}gang on Pod a/b: ")
    (warning,) = unknown_annotations([Source("Pod", "a/b", {})], dict.fromkeys(USERS_MAY_WRITE, "1"))
    assert warning.count(PREFIX) == MAX_UNKNOWN_ANNOTATIONS


@pytest.mark.parametrize("owner", [False, True])
def test_a_label_that_repeats_an_annotation_is_not_reported(owner: bool) -> None:
    sources = [Source("Pod", "a/b", {}), Source("Job", "a/j", {})]
    sources[owner] = Source("Pod", "a/b", ours({"gang-name": "g"}))
    assert unknown_annotations(sources, ours({"gang-name": "g"})) == []


def test_what_the_scheduler_writes_is_not_reported() -> None:
    written = (
        "rank",
        "address",
        "score",
        "charged-gpus",
        "charged-gpu-fraction",
        "gpu-index",
        "reserved-bandwidth",
        "gang-id",
        "gang-minimum",
    )
    assert unknown_annotations([Source("Pod", "a/b", ours(dict.fromkeys(written, "1")))]) == []


def test_what_only_the_scheduler_writes_is_reported_on_an_owner() -> None:
    (message,) = unknown_annotations([Source("Pod", "a/b", {}), Source("Job", "a/j", ours({"charged-gpus": "2"}))])
    assert message == (
        f"annotation {PREFIX}charged-gpus on Job a/j: only the scheduler writes it, on pods, so it ignores this one;"
        " remove it"
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8),
        ("0", 0),
        ("0123", 123),
        ("", None),
        ("-1", None),
        ("²", None),
        ("٣", None),
        ("1e3", None),
        ("9" * 11, None),
    ],
)
def test_only_numbers_this_scheduler_could_have_written_are_read_back(text: str, number: int | None) -> None:
    assert written_number({"a": text}, "a") == number
    assert written_number({}, "a") is None


@given(st.dictionaries(st.sampled_from(USERS_MAY_WRITE), st.text(max_size=30)))
def test_nothing_a_user_writes_makes_the_reader_fall_over(annotations: dict[str, str]) -> None:
    request = read_annotations([Source("Pod", "a/b", annotations)])
    refused = {problem.annotation for problem in request.problems}
    assert refused <= set(annotations)
    accepted: dict[str, Any] = {key: value for key, value in annotations.items() if key not in refused}
    assert read_annotations([Source("Pod", "a/b", accepted)]).problems == ()
