"""Label selectors mean what they mean in Kubernetes, and what Kubernetes refuses is refused."""

import pytest

from topo_scheduler.api.selectors import LabelSelector, Requirement
from topo_scheduler.state.pods.selectors import EVERYTHING, NOTHING, SelectorError, as_int64, compile_selector

LABELS = {"app": "web", "tier": ""}


def selector(*requirements: Requirement, **labels: str) -> LabelSelector:
    return LabelSelector(labels, requirements)


@pytest.mark.parametrize(
    ("written", "matches"),
    [
        (None, False),
        (selector(), True),
        (selector(app="web"), True),
        (selector(app="web", tier="front"), False),
        (selector(tier=""), True),
        (selector(absent=""), False),
        (selector(Requirement("app", "In", ("db", "web"))), True),
        (selector(Requirement("app", "NotIn", ("web",))), False),
        (selector(Requirement("absent", "NotIn", ("web",))), True),
        (selector(Requirement("tier", "Exists")), True),
        (selector(Requirement("absent", "Exists")), False),
        (selector(Requirement("absent", "DoesNotExist")), True),
        (selector(Requirement("app", "DoesNotExist")), False),
        (selector(Requirement("app", "Exists"), Requirement("tier", "DoesNotExist")), False),
    ],
)
def test_what_is_selected(written: LabelSelector | None, matches: bool) -> None:
    assert compile_selector(written).matches(LABELS) is matches


def test_nothing_and_everything() -> None:
    assert compile_selector(None) == NOTHING
    assert compile_selector(selector()) == EVERYTHING
    assert EVERYTHING.everything
    assert not NOTHING.everything, "as in Kubernetes, nothing is not empty"
    assert NOTHING.narrowed([("app", "web")]) == NOTHING


def test_the_order_of_requirements_does_not_matter() -> None:
    first, other = Requirement("a", "Exists"), Requirement("b", "In", ("x", "y"))
    again = Requirement("b", "In", ("y", "x"))
    assert compile_selector(selector(first, other)) == compile_selector(selector(again, first, first))
    assert hash(compile_selector(selector(first, other))) == hash(compile_selector(selector(again, first)))


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        (Requirement("app", "In"), "needs at least one value"),
        (Requirement("app", "NotIn"), "needs at least one value"),
        (Requirement("app", "Exists", ("x",)), "takes no values"),
        (Requirement("app", "Gt", ("1",)), "is not an operator of a label selector"),
        (Requirement("app", "Like", ("x",)), "'Like'"),
        (Requirement("", "Exists"), "'' is not a label key"),
        (Requirement("a b", "Exists"), "'a b' is not a label key"),
        (Requirement("Upper.example.com/x", "Exists"), "is not a label key"),
        (Requirement("/x", "Exists"), "is not a label key"),
        (Requirement("app", "In", ("-x",)), "'-x' is not a label value"),
        (Requirement("app", "In", ("x" * 64,)), "is not a label value"),
    ],
)
def test_what_kubernetes_refuses_is_refused(requirement: Requirement, says: str) -> None:
    with pytest.raises(SelectorError, match=says):
        compile_selector(selector(requirement))


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("+7", 7), ("007", 7), ("", None), ("7x", None), ("1_000", None), (str(2**63), None)],
)
def test_integers(text: str, value: int | None) -> None:
    assert as_int64(text) == value
