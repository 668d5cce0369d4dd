"""Selectors and patches against definitions that are too slow or too simple to be used."""

import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.simulation.apiserver import StatusError
from topo_scheduler.simulation.apiserver.kinds import Registry
from topo_scheduler.simulation.apiserver.patch import (
    JSON_PATCH,
    apply_patch,
    decode_patch,
    merge,
    strategic_merge,
)
from topo_scheduler.simulation.apiserver.selectors import (
    LabelClause,
    from_label_selector,
    matches_labels,
    parse_fields,
    parse_labels,
    selector_text,
)

PODS = Registry()["pods"]
KEYS = st.sampled_from(["app", "tier", "example.com/role"])
VALUES = st.sampled_from(["a", "b", ""])
LABELS = st.dictionaries(KEYS, VALUES)
CLAUSES = st.one_of(
    st.builds(lambda k, vs: LabelClause(k, "in", frozenset(vs)), KEYS, st.sets(VALUES, min_size=1)),
    st.builds(lambda k, vs: LabelClause(k, "notin", frozenset(vs)), KEYS, st.sets(VALUES, min_size=1)),
    st.builds(lambda k: LabelClause(k, "exists"), KEYS),
    st.builds(lambda k: LabelClause(k, "!"), KEYS),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def _text(clause: LabelClause) -> str:
    values = ",".join(sorted(clause.values))
    return {
        "in": f"{clause.key} in ({values})",
        "notin": f"{clause.key} notin ({values})",
        "exists": clause.key,
        "!": f"!{clause.key}",
    }[clause.operator]


def _holds(clause: LabelClause, labels: dict[str, str]) -> bool:
    match clause.operator:
        case "in":
            return clause.key in labels and labels[clause.key] in clause.values
        case "notin":
            return clause.key not in labels or labels[clause.key] not in clause.values
        case "exists":
            return clause.key in labels
    return clause.key not in labels


@given(st.lists(CLAUSES, max_size=3), LABELS)
def test_a_selector_says_what_its_clauses_say(clauses: list[LabelClause], labels: dict[str, str]) -> None:
    parsed = parse_labels(",".join(map(_text, clauses)))
    assert list(parsed) == clauses
    assert matches_labels(parsed, labels) == all(_holds(clause, labels) for clause in clauses)


@given(st.lists(CLAUSES, max_size=3), LABELS)
def test_selectors_of_objects_are_the_same_selectors(clauses: list[LabelClause], labels: dict[str, str]) -> None:
    names = {"in": "In", "notin": "NotIn", "exists": "Exists", "!": "DoesNotExist"}
    expressions = [{"key": c.key, "operator": names[c.operator], "values": sorted(c.values)} for c in clauses]
    selector = {"matchExpressions": expressions}
    assert matches_labels(from_label_selector(selector), labels) == matches_labels(clauses, labels)
    assert matches_labels(parse_labels(selector_text(selector)), labels) == matches_labels(clauses, labels)


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("a=b", LabelClause("a", "in", frozenset("b"))),
        ("a == b", LabelClause("a", "in", frozenset("b"))),
        ("a!=b", LabelClause("a", "notin", frozenset("b"))),
        ("a=", LabelClause("a", "in", frozenset([""]))),
        ("! a", LabelClause("a", "!")),
        ("a in ( b , c )", LabelClause("a", "in", frozenset("bc"))),
    ],
)
def test_spellings(text: str, clause: LabelClause) -> None:
    assert parse_labels(text) == (clause,)


@pytest.mark.parametrize("text", ["a=b=c", "in (a)", "a in", "a in (b", "=b", "a b", "a/b/c=d", "-a=b"])
def test_what_is_no_selector(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse_labels(text)
    assert refused.value.code == 400


def test_no_selector_selects_nothing() -> None:
    assert not matches_labels(from_label_selector(None), {})
    assert matches_labels(from_label_selector({}), {})


@pytest.mark.parametrize("text", ["spec.nodeName", "spec.unknown=a", "status.phase"])
def test_what_is_no_field_selector(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse_fields(text, PODS)
    assert refused.value.code == 400


def _plain_merge(target: Any, patch: Any) -> Any:
    """RFC 7396, word for word."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        target = dict(target)
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = _plain_merge(target.get(name), value)
        return target
    return patch


@given(JSON, JSON)
def test_merge_is_rfc_7396(target: Any, patch: Any) -> None:
    before = json.dumps(target)
    assert merge(target, patch) == _plain_merge(target, patch)
    assert json.dumps(target) == before


@given(OBJECTS, OBJECTS)
def test_without_special_lists_strategic_merge_is_merge(target: Any, patch: Any) -> None:
    assert strategic_merge(target, patch) == merge(target, patch)


@given(OBJECTS, OBJECTS)
def test_json_patches_lead_from_one_to_the_other(before: Any, after: Any) -> None:
    patch = jsonpatch.make_patch(before, after).patch
    copy = json.dumps(before)
    assert apply_patch(PODS, JSON_PATCH, patch, before) == after
    assert json.dumps(before) == copy


ITEMS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from("ABC")}, optional={"status": VALUES, "reason": VALUES}),
    max_size=3,
    unique_by=lambda item: item["type"],
)


@given(ITEMS, ITEMS)
def test_conditions_are_a_map_by_type(old: list[dict[str, str]], new: list[dict[str, str]]) -> None:
    merged = strategic_merge({"conditions": old}, {"conditions": new})["conditions"]
    as_map = {item["type"]: item for item in old}
    for item in new:
        as_map[item["type"]] = {**as_map.get(item["type"], {}), **item}
    assert {item["type"]: item for item in merged} == as_map
    again = strategic_merge({"conditions": merged}, {"conditions": new})["conditions"]
    assert again == merged


def test_directives() -> None:
    target = {"containers": [{"name": "a", "image": "1"}, {"name": "b"}], "volumes": [{"name": "v", "hostPath": {}}]}
    replaced = strategic_merge(target, {"containers": [{"$patch": "replace"}, {"name": "c"}]})
    assert replaced["containers"] == [{"name": "c"}]
    deleted = strategic_merge(target, {"containers": [{"name": "a", "$patch": "delete"}]})
    assert deleted["containers"] == [{"name": "b"}]
    ordered = strategic_merge(
        target,
        {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "containers": [{"name": "c"}]},
    )
    assert [item["name"] for item in ordered["containers"]] == ["c", "b", "a"]
    kept = strategic_merge(target, {"volumes": [{"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}]})
    assert kept["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert strategic_merge({"a": {"b": 1}}, {"a": {"$patch": "delete"}}) == {"a": {}}


def test_a_patch_that_is_no_patch() -> None:
    with pytest.raises(StatusError) as refused:
        decode_patch(PODS, "text/plain", b"{}", json.loads)
    assert refused.value.code == 415
    with pytest.raises(StatusError) as refused:
        decode_patch(PODS, JSON_PATCH, b"{", json.loads)
    assert refused.value.code == 400
