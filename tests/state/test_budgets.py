"""Disruption budgets: whom they guard and how many may go."""

import msgspec

from topo_scheduler.api.objects import Budget, BudgetSpec, BudgetStatus, ObjectMeta
from topo_scheduler.api.selectors import LabelSelector, Requirement
from topo_scheduler.state.budgets import Budgets
from topo_scheduler.state.residents import Profile, Residents

residents = Residents()
DB = residents.profile("prod", {"app": "db"})
WEB = residents.profile("prod", {"app": "web"})
ELSEWHERE = residents.profile("test", {"app": "db"})


def budget(name: str, selector: LabelSelector | None, allowed: int = 1, *, seen: int = 1) -> Budget:
    meta = ObjectMeta(name=name, namespace="prod", generation=1)
    return Budget(meta, BudgetSpec(selector), BudgetStatus(allowed, seen))


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
    assert not budgets.put(msgspec.json.decode(body, type=Budget))
    assert [guard.allowed for guard in budgets.guarding(DB)] == [2]
