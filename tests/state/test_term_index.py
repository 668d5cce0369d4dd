"""Terms of pods that are there are found by the pods that they may mean, and a namespace's cost others little."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.selector_strategies import LABELS, NAMESPACES, SELECTORS
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.state.nodes.node_table import NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.operation_budget import OperationBudget, limited
from topo_scheduler.state.pods import term_index
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profiles import CountedTerm, Profile
from topo_scheduler.state.pods.selectors import EVERYTHING, NOTHING, Clause, Selector

TERMS = st.builds(
    CountedTerm,
    SELECTORS,
    st.sets(st.sampled_from(["x", "y"])).map(frozenset),
    st.just("zone"),
    st.sampled_from([NOTHING, EVERYTHING, Selector((Clause("team", "In", frozenset(("x",))),))]),
)


def surroundings(pod_index: PodIndex) -> FilterContext:
    around = FilterContext(NodeTable(ResourceTable(()), NodeLabels((), ())), pod_index)
    around.put_namespace("x", {"team": "x"})
    around.put_namespace("y", {})
    return around


@given(
    st.lists(st.tuples(NAMESPACES, st.lists(TERMS, min_size=1, max_size=3), st.booleans()), max_size=12),
    NAMESPACES,
    LABELS,
    st.booleans(),
)
def test_the_terms_that_mean_a_pod_are_those_that_comparing_all_finds(
    pods: list[tuple[str, list[CountedTerm], bool]], namespace: str, labels: dict[str, str], twin: bool
) -> None:
    pod_index = PodIndex()
    here: Counter[Profile] = Counter()
    for holder, terms, leaves in pods:
        pod_profile = pod_index.profile(holder, {}, repels=tuple(terms), attracts=tuple((1, term) for term in terms))
        pod_index.change(0, pod_profile, 1)
        here[pod_profile] += 1
        if leaves:
            pod_index.change(0, pod_profile, -1)
            here[pod_profile] -= 1
    around = surroundings(pod_index.copy() if twin else pod_index)
    pod = pod_index.profile(namespace, labels)
    meant = {term for repeller, count in here.items() if count for term in repeller.repels if around.applies(term, pod)}
    assert around.repelled(pod) == meant
    if not twin:
        assert {term for _, term in around.attracted(pod)} == meant


def test_nothing_is_left_once_the_pods_are_gone() -> None:
    pod_index = PodIndex()
    terms = tuple(
        CountedTerm(Selector((Clause("app", "In", frozenset((f"{n}",))),)), frozenset("x"), "zone") for n in range(9)
    )
    pod_profile = pod_index.profile("x", {}, repels=terms)
    pod_index.change(0, pod_profile, 2)
    assert pod_index.repelling_index._at_home
    pod_index.change(0, pod_profile, -2)
    assert not pod_index.repelling_index._at_home
    assert not pod_index.repelling_index._abroad


WEB = Selector((Clause("app", "In", frozenset(("web",))),))


@pytest.mark.parametrize(
    ("namespaces", "further", "elsewhere"),
    [("x", NOTHING, 0), ("y", NOTHING, 1), ("xy", NOTHING, 1), ("", EVERYTHING, 1), ("x", EVERYTHING, 1)],
)
def test_a_term_is_compared_with_pods_of_the_namespaces_that_it_may_mean_alone(
    namespaces: str, further: Selector, elsewhere: int
) -> None:
    index = term_index.TermIndex[str]()
    index.change("term", "x", frozenset(namespaces), (WEB, further), 1)
    assert len(list(index.candidates("y", {"app": "web"}))) == elsewhere
    own = list(index.candidates("x", {"app": "web"}))
    assert set(own) == {"term"}
    assert len(own) <= ("x" in namespaces) + elsewhere, "looked up once each, where it is kept"
    assert list(index.candidates("x", {"app": "db"})) == list(index.candidates("y", {})) == []


def test_what_happens_to_a_copy_leaves_the_original_as_it_was() -> None:
    index = term_index.TermIndex[str]()
    index.change("term", "x", frozenset("xy"), (WEB, NOTHING), 1)
    twin = index.copy()
    twin.change("term", "x", frozenset("xy"), (WEB, NOTHING), -1)
    twin.change("other", "x", frozenset("xy"), (WEB, NOTHING), 1)
    for namespace in "xy":
        assert set(index.candidates(namespace, {"app": "web"})) == {"term"}
        assert set(twin.candidates(namespace, {"app": "web"})) == {"other"}


def crowd(pod_index: PodIndex, namespaces: Selector, *clauses: Clause) -> None:
    """Let pods of a namespace have 20,000 different terms, none of which matches the others' pods."""
    for number in range(2000):
        terms = tuple(
            CountedTerm(
                Selector((Clause("app", "NotIn", frozenset((f"{number}-{k}", "web"))), *clauses)),
                frozenset(("x",)),
                "zone",
                namespaces,
            )
            for k in range(10)
        )
        pod_index.change(number % 100, pod_index.profile("x", {"app": f"{number}"}, repels=terms), 1)


@pytest.mark.parametrize("namespaces", [NOTHING, EVERYTHING], ids=["own namespace", "all namespaces"])
@pytest.mark.parametrize("clauses", [(), (Clause("other", "Exists"),)], ids=["few clauses", "a key"])
def test_terms_of_one_namespace_cost_the_pods_of_another_little(
    monkeypatch: pytest.MonkeyPatch, namespaces: Selector, clauses: tuple[Clause, ...]
) -> None:
    pod_index = PodIndex()
    crowd(pod_index, namespaces, *clauses)
    compared = 0

    def matches(self: CountedTerm, profile: Profile, labels: object) -> bool:
        nonlocal compared
        compared += 1
        return False

    monkeypatch.setattr(CountedTerm, "matches", matches)
    around = surroundings(pod_index)
    around.repelled(pod_index.profile("y", {"app": "web"}))
    assert compared <= term_index.MAX_CROSS_NAMESPACE_TERMS


def test_terms_of_its_own_namespace_are_charged_to_a_pod() -> None:
    pod_index = PodIndex()
    crowd(pod_index, NOTHING)
    around = surroundings(pod_index)
    budget = OperationBudget(1_000_000)
    with limited(budget):
        assert not around.repelled(pod_index.profile("x", {"app": "web"}))
    assert budget.spent >= len(pod_index.repelling)


def app_terms(names: list[str], namespaces: frozenset[str] = frozenset()) -> tuple[CountedTerm, ...]:
    return tuple(
        CountedTerm(
            Selector((Clause("app", "NotIn", frozenset((name,))),)),
            namespaces,
            "zone",
            NOTHING if namespaces else EVERYTHING,
        )
        for name in names
    )


def test_beyond_the_terms_that_are_compared_none_is_overlooked() -> None:
    pod_index = PodIndex()
    for number, term in enumerate(app_terms(["web", *(f"{n}" for n in range(term_index.MAX_CROSS_NAMESPACE_TERMS))])):
        pod_index.change(number, pod_index.profile("x", {}, repels=(term,)), 1)
    around, pod = surroundings(pod_index), pod_index.profile("y", {"app": "web"})
    rows = {row for term in around.repelled(pod) for row in pod_index.repelling[term]}
    assert rows >= set(range(1, term_index.MAX_CROSS_NAMESPACE_TERMS + 1)), "each of these keeps it off its zone"
    fewer = pod_index.profile("x", {}, repels=app_terms(["1"]))
    pod_index.change(2, fewer, -1)
    assert {row for term in around.repelled(pod) for row in pod_index.repelling[term]} == rows - {0, 2}


def test_a_namespace_that_copies_a_term_of_another_hides_it_from_no_pod() -> None:
    pod_index = PodIndex()
    guard, *others = app_terms(["batch", *(f"{n}" for n in range(400))], frozenset(("y",)))
    for number, term in enumerate([*others, guard]):
        pod_index.change(number, pod_index.profile("x", {}, repels=(term,)), 1)
    around, pod = surroundings(pod_index), pod_index.profile("y", {"app": "web"})
    around.seen_by(PodClass(()), pod)
    pod_index.change(1000, pod_index.profile("y", {}, repels=(guard,)), 1)
    assert guard in around.terms_repelling(around.seen_by(PodClass(()), pod)), "the pod's own namespace has it by now"


def test_nothing_stands_for_terms_that_are_gone() -> None:
    pod_index = PodIndex()
    pod_profile = pod_index.profile("x", {}, repels=app_terms([f"{n}" for n in range(9)]))
    pod_index.change(0, pod_profile, 3)
    pod_index.change(0, pod_profile, -3)
    assert not pod_index.repelling
    assert not pod_index._stand_ins
