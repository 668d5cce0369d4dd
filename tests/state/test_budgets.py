"""Disruption budgets: which pods they guard and how many may be evicted."""

import sys
import tracemalloc
from types import FrameType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.objects import BudgetSpec, BudgetStatus, DisruptionBudget, ObjectMeta
from topo_scheduler.api.selectors import LabelSelector, Requirement
from topo_scheduler.state.pods import disruption_budgets
from topo_scheduler.state.pods.disruption_budgets import MAX_BUDGETS, Budgets
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.selectors import Selector, compile_selector

pod_index = PodIndex()
DB = pod_index.profile("prod", {"app": "db"})
WEB = pod_index.profile("prod", {"app": "web"})
ELSEWHERE = pod_index.profile("test", {"app": "db"})


def budget(name: str, selector: LabelSelector | None, allowed: int = 1, *, seen: int = 1) -> DisruptionBudget:
    meta = ObjectMeta(name=name, namespace="prod", generation=1)
    return DisruptionBudget(meta, BudgetSpec(selector), BudgetStatus(allowed, seen))


def names(budgets: Budgets, profile: Profile) -> list[str]:
    return [guard.key for guard in budgets.guarding(profile)]


def test_a_budget_guards_what_it_selects_in_its_namespace() -> None:
    budgets = Budgets()
    budgets.put(budget("db", LabelSelector({"app": "db"})))
    assert names(budgets, DB) == ["prod/db"]
    assert names(budgets, WEB) == names(budgets, ELSEWHERE) == []


def test_an_empty_selector_guards_everything_and_none_nothing() -> None:
    budgets = Budgets()
    budgets.put(budget("all", LabelSelector()))
    budgets.put(budget("none", None))
    assert names(budgets, DB) == names(budgets, WEB) == ["prod/all"]


def test_what_may_go_is_what_its_status_says() -> None:
    budgets = Budgets()
    for allowed, seen, wanted in ((2, 1, 2), (0, 1, 0), (-1, 1, 0), (5, 0, 0)):
        budgets.put(budget("db", LabelSelector({"app": "db"}), allowed, seen=seen))
        (guard,) = budgets.guarding(DB)
        assert guard.allowed == wanted


def test_only_what_lets_more_go_is_news() -> None:
    budgets = Budgets()
    budgets.put(budget("db", LabelSelector({"app": "db"}), 0))
    before = budgets.changes
    budgets.put(budget("db", LabelSelector({"app": "db"}), 0))
    assert budgets.changes == before
    budgets.put(budget("another", LabelSelector({"app": "db"}), 1))
    assert budgets.changes == before, "one more budget lets nothing go"
    budgets.drop("prod", "another")
    before += 1
    budgets.drop("prod", "another")
    assert budgets.changes == before, "it was gone already"
    budgets.put(budget("db", LabelSelector({"app": "db"}), 2))
    before = budgets.changes
    budgets.put(budget("db", LabelSelector({"app": "db"}), 0))
    assert budgets.changes == before, "less than before"
    budgets.put(budget("db", LabelSelector({"app": "db"}), 1))
    assert budgets.changes == before + 1
    budgets.put(budget("db", LabelSelector({"app": "web"}), 1))
    assert budgets.changes == before + 2
    assert names(budgets, DB) == []
    budgets.drop("prod", "db")
    assert budgets.changes == before + 3
    budgets.drop("prod", "db")
    assert budgets.changes == before + 3
    assert names(budgets, WEB) == []


def test_a_selector_that_can_not_be_read_is_named() -> None:
    budgets = Budgets()
    problem = budgets.put(budget("odd", LabelSelector(match_expressions=(Requirement("a", "Like", ("b",)),))))
    assert problem.startswith("PodDisruptionBudget prod/odd: spec.selector: 'Like' is not an operator")
    assert names(budgets, DB) == []


def test_it_is_read_as_the_server_writes_it() -> None:
    body = (
        b'{"metadata":{"name":"db","namespace":"prod","generation":3},"spec":{"minAvailable":"50%","selector":'
        b'{"matchLabels":{"app":"db"}}},"status":{"disruptionsAllowed":2,"observedGeneration":3,"currentHealthy":4}}'
    )
    budgets = Budgets()
    assert not budgets.put(msgspec.json.decode(body, type=DisruptionBudget))
    assert [guard.allowed for guard in budgets.guarding(DB)] == [2]


def test_two_budgets_are_named_of_a_pod_with_several() -> None:
    budgets = Budgets()
    for name in ("c", "a", "b"):
        budgets.put(budget(name, LabelSelector({"app": "db"})))
    assert names(budgets, DB) == ["prod/a", "prod/b"]


def test_budgets_that_select_other_labels_cost_nothing_however_many_there_are() -> None:
    budgets = Budgets()
    for number in range(2_000):
        budgets.put(budget(f"other-{number}", LabelSelector({"app": f"other-{number}"})))
    budgets.put(budget("none", None))
    budgets.put(budget("db", LabelSelector({"app": "db"})))
    assert names(budgets, DB) == ["prod/db"]
    assert names(budgets, WEB) == []


def test_a_pod_with_too_many_budgets_to_compare_is_guarded_and_pods_elsewhere_are_not() -> None:
    budgets = Budgets()
    few = LabelSelector(match_expressions=(Requirement("app", "NotIn", ("web",)),))
    for number in range(MAX_BUDGETS):
        budgets.put(budget(f"b{number:03d}", few))
    assert names(budgets, WEB) == []
    budgets.put(budget("one-more", few))
    assert names(budgets, WEB) == ["prod/b000", "prod/b001"]
    assert names(budgets, ELSEWHERE) == []
    budgets.drop("prod", "b000")
    assert names(budgets, WEB) == []


def test_beyond_the_cap_the_first_two_of_all_that_may_be_its_guard_a_pod_also_when_one_goes() -> None:
    budgets = Budgets()
    for number in range(MAX_BUDGETS):
        budgets.put(budget(f"n{number:03d}", LabelSelector(match_expressions=(Requirement("x", "NotIn", ("1",)),))))
        budgets.put(budget(f"k{number:03d}", LabelSelector(match_expressions=(Requirement("app", "Exists", ()),))))
    assert names(budgets, WEB) == ["prod/k000", "prod/k001"]
    budgets.drop("prod", "k000")
    assert names(budgets, WEB) == ["prod/k001", "prod/k002"]


def test_nothing_is_left_of_budgets_that_are_gone() -> None:
    budgets = Budgets()
    for name in ("stays", "goes"):
        budgets.put(budget(name, LabelSelector({"app": name})))
    budgets.drop("prod", "goes")
    assert list(budgets._by_namespace["prod"].by_place) == [("app", "stays")]
    budgets.drop("prod", "stays")
    assert not budgets._by_namespace


def test_budgets_that_want_a_key_cost_pods_without_it_nothing() -> None:
    budgets = Budgets()
    for number in range(2 * MAX_BUDGETS):
        budgets.put(budget(f"b{number:03d}", LabelSelector(match_expressions=(Requirement("x", "Exists", ()),))))
    assert names(budgets, WEB) == []


def test_pods_are_compared_again_only_when_a_selector_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status of thousands of budgets may change each second."""
    budgets = Budgets()
    far = LabelSelector(match_expressions=(Requirement("app", "NotIn", ("web",)),))
    for number in range(MAX_BUDGETS):
        budgets.put(budget(f"b{number:03d}", far))
    assert names(budgets, WEB) == []
    compared = 0

    def matches(self: Selector, labels: object) -> bool:
        nonlocal compared
        compared += 1
        return False

    monkeypatch.setattr(Selector, "matches", matches)
    for allowed in range(5):
        budgets.put(budget("b000", far, allowed))
        assert names(budgets, WEB) == []
    assert compared == 0
    budgets.put(budget("b000", LabelSelector(match_expressions=(Requirement("app", "NotIn", ("db",)),))))
    assert names(budgets, WEB) == []
    assert compared == MAX_BUDGETS


def test_beyond_the_cap_no_pod_looks_at_all_budgets() -> None:
    budgets = Budgets()
    far = LabelSelector(match_expressions=(Requirement("app", "NotIn", ("web",)),))
    for number in range(10_000):
        budgets.put(budget(f"b{number:05d}", far))

    def lookups() -> int:
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        pods = [pod_index.profile("prod", {"app": "web", "pod": f"{number}"}) for number in range(100)]
        sys.setprofile(count)
        try:
            for pod in pods:
                budgets.guarding(pod)
        finally:
            sys.setprofile(None)
        return calls

    assert lookups() < 100 * 50
    assert len(budgets.guarding(WEB)) == 2


@given(st.data())
def test_budgets_are_found_as_by_comparing_each(data: st.DataObject) -> None:
    keys, values = st.sampled_from("abc"), st.sampled_from("xyz")
    clause = st.builds(
        Requirement, keys, st.sampled_from(["In", "NotIn", "Exists"]), st.sets(values, min_size=1).map(tuple)
    ).map(
        lambda requirement: Requirement(
            requirement.key, requirement.operator, () if requirement.operator == "Exists" else requirement.values
        )
    )
    drawn = st.builds(LabelSelector, st.just({}), st.lists(clause, max_size=3).map(tuple))
    selectors: list[LabelSelector | None] = list(data.draw(st.lists(drawn)))
    labels = data.draw(st.dictionaries(keys, values))
    budgets = Budgets()
    for number, selector in enumerate(selectors):
        budgets.put(budget(f"b{number:03d}", selector))
    for number in data.draw(st.sets(st.integers(0, max(0, len(selectors) - 1)))):
        budgets.drop("prod", f"b{number:03d}")
        if number < len(selectors):
            selectors[number] = None
    matching = [
        f"prod/b{number:03d}"
        for number, selector in enumerate(selectors)
        if selector is not None and compile_selector(selector).matches(labels)
    ]
    assert names(budgets, pod_index.profile("prod", labels)) == matching[:2]


def in_values(number: int, values: int = 400) -> LabelSelector:
    return LabelSelector({}, (Requirement("x", "In", tuple(f"v-{number}-{value}" for value in range(values))),))


def test_the_selectors_of_a_namespace_have_a_budget_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    selector_bytes = compile_selector(in_values(0)).memory_bytes
    monkeypatch.setattr(disruption_budgets, "MAX_SELECTOR_BYTES_OF_NAMESPACE", 5 * selector_bytes)
    budgets = Budgets()
    problems = [problem for number in range(20) if (problem := budgets.put(budget(f"b{number}", in_values(number), 3)))]
    (problem,) = problems
    assert problem.startswith("namespace prod: the selectors of its PodDisruptionBudgets take more than")
    kept = budgets._by_namespace["prod"].guards
    assert 4 <= sum(not guard.selector.everything for guard in kept.values()) <= 5
    assert kept["b19"].selector.everything
    assert kept["b19"].allowed == 0, "it protects all pods: no eviction is planned that the API server may refuse"
    other = DisruptionBudget(ObjectMeta(name="o", namespace="test"), BudgetSpec(in_values(0)), BudgetStatus(1, 1))
    assert not budgets.put(other)
    assert budgets._by_namespace["test"].guards["o"].allowed == 1


def test_a_status_update_changes_nothing_about_the_budget_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    selector_bytes = compile_selector(in_values(0)).memory_bytes
    monkeypatch.setattr(disruption_budgets, "MAX_SELECTOR_BYTES_OF_NAMESPACE", int(1.5 * selector_bytes))
    budgets = Budgets()
    for allowed in range(10):
        budgets.put(budget("b", in_values(0), allowed))
        budgets.put(budget("further", in_values(0), allowed))
        assert budgets._by_namespace["prod"].guards["b"].allowed == allowed
        assert budgets._by_namespace["prod"].guards["further"].allowed == 0
    budgets.put(budget("b", LabelSelector({"app": "db"}), 1))
    budgets.put(budget("further", in_values(0), 4))
    assert budgets._by_namespace["prod"].guards["further"].allowed == 4
    for name in ("b", "further"):
        budgets.drop("prod", name)
    assert not budgets._memory.bytes_of("prod")


def test_the_memory_of_a_selector_is_about_what_it_takes() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        selectors = [compile_selector(in_values(number)) for number in range(50)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 < (after - before) / sum(selector.memory_bytes for selector in selectors) < 1.2
