"""Caches take no memory for pods × terms: classes have digests of the terms of running pods that apply to them."""

import random
from typing import Final, Literal

import numpy as np
import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.affinity_pods import HOSTNAME
from tests.scheduling.driver import Driver
from tests.soak.census import census
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    WeightedPodAffinityTerm,
)
from topo_scheduler.scheduling.rules import interpod_filters
from topo_scheduler.scheduling.rules.interpod_filters import open_rows
from topo_scheduler.state.pods import applied_terms
from topo_scheduler.state.pods.applied_terms import AppliedTerms, TermSets, digest_of, with_further
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.profiles import CountedTerm
from topo_scheduler.state.pods.selectors import EVERYTHING, NOTHING, Clause, Selector

pytestmark = pytest.mark.unrecorded

Kind = Literal["preferred", "required"]
PODS: Final = 40
TERMS_OF_POD: Final = 4
NODES: Final = 8


def all_but(value: str, key: str) -> PodAffinityTerm:
    """Return a term that selects the pods of all namespaces except those with a value of the label y."""
    selector = LabelSelector({}, (Requirement("y", "NotIn", (value,)),))
    return PodAffinityTerm(selector, namespace_selector=LabelSelector(), topology_key=key)


def with_terms(number: int, kind: Kind, key: str = HOSTNAME, **more: object) -> Pod:
    """Return a pod with labels and terms that no other pod has. Its terms apply to all other pods."""
    terms = [all_but(f"z{number}-{term}", key) for term in range(TERMS_OF_POD)]
    affinity = (
        Affinity(None, PodAffinity([], [WeightedPodAffinityTerm(weight, term) for weight, term in enumerate(terms, 1)]))
        if kind == "preferred"
        else Affinity(None, None, PodAffinity(terms))
    )
    pod = make_pod(f"p{number}", labels={"y": f"{number}"}, created=number, **more)  # type: ignore[arg-type]
    pod.spec.affinity = affinity
    return pod


def cluster() -> Driver:
    return Driver(
        [
            make_node(f"n{number}", f"s1/l{number // 4}", labels={HOSTNAME: f"n{number}", "zone": f"z{number % 3}"})
            for number in range(NODES)
        ]
    )


def cached_terms(d: Driver) -> int:
    """Return how many terms of other pods the classes in all caches have, and the caches of terms."""
    sizes = census(d.engine)
    return sum(
        size
        for path, size in sizes.items()
        if path.endswith((".attracted", ".repelled", ".beside", "_term_sets._sets[]"))
    )


@pytest.mark.parametrize("kind", ["preferred", "required"])
def test_cached_terms_do_not_grow_with_pods_times_terms(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied_terms, "MAX_CACHED_TERMS", 2 * PODS * TERMS_OF_POD)
    d = cluster()
    for number in range(PODS):
        # No node has the key of required terms: they apply to all pods, but keep none away.
        d.run(with_terms(number, kind, HOSTNAME if kind == "preferred" else "absent"))
    assert all(pod.spec.node_name for pod in d.pods.values())
    assert PODS * TERMS_OF_POD // 2 <= cached_terms(d) <= 2 * PODS * TERMS_OF_POD


def test_the_terms_of_deleted_pods_are_dropped_with_all_caches() -> None:
    d = cluster()
    for number in range(PODS):
        d.run(with_terms(number, "preferred"))
    d.delete(*d.pods.values())
    d.engine._drop_caches()
    assert cached_terms(d) == 0


@pytest.mark.parametrize("seed", range(6))
def test_decisions_do_not_depend_on_what_is_cached(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes(limit: int) -> dict[str, str]:
        monkeypatch.setattr(applied_terms, "MAX_CACHED_TERMS", limit)
        chance, d = random.Random(seed), cluster()
        placed: dict[str, str] = {}
        for number in range(24):
            kind: Kind = chance.choice(["preferred", "preferred", "required"])
            gang = chance.random() < 0.3
            annotations = {"gang-name": f"g{number}", "gang-size": "2"} if gang else {}
            pods = [
                with_terms(
                    100 * number + member,
                    kind,
                    chance.choice([HOSTNAME, "zone", "absent"]) if kind == "preferred" else "absent",
                    gpus=chance.choice([0, 1]),
                    annotations=annotations,
                )
                for member in range(1 + gang)
            ]
            placed |= d.run(*pods)
            if chance.random() < 0.3 and d.pods:
                d.delete(chance.choice(sorted(d.pods.values(), key=lambda pod: pod.metadata.name)))
        return placed

    assert nodes(0) == nodes(3 * TERMS_OF_POD) == nodes(1 << 20)


def own_term(number: int) -> CountedTerm:
    selector = Selector((Clause("y", "NotIn", frozenset((f"z{number}",))),))
    return CountedTerm(selector, frozenset(("default",)), HOSTNAME)


def test_a_search_keeps_one_result_for_all_anti_affinity_of_running_pods() -> None:
    around = cluster().engine.world.around
    rows = np.arange(NODES, dtype=np.int64)
    for number in range(PODS):
        repels = tuple(own_term(TERMS_OF_POD * number + term) for term in range(TERMS_OF_POD))
        around.pod_index.change(number % 3, around.pod_index.profile("default", {}, repels=repels), 1)
    search = around.remembering()
    cls = search.seen_by(PodClass(()), around.pod_index.profile("default", {"y": "other"}))
    seated = around.pod_index.profile("default", {}, repels=(own_term(0), own_term(10_000)))
    running = open_rows(search, cls, rows)
    beside = search.seen_beside(cls, around.pod_index.profile("default", {"y": "other"}), [(4, seated)])
    assert running.tolist() == [row > 2 for row in range(NODES)] == open_rows(around, cls, rows).tolist()
    assert open_rows(search, beside, rows, [(4, seated)]).tolist() == [row > 2 and row != 4 for row in range(NODES)]
    assert open_rows(around, beside, rows, [(4, seated)]).tolist() == [row > 2 and row != 4 for row in range(NODES)]
    assert not search.remembered
    assert search.open_beside_running is not None
    assert len(search.open_beside_running) == 1


def test_counts_of_a_search_are_dropped_beyond_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    around = cluster().engine.world.around
    rows = np.arange(NODES, dtype=np.int64)
    around.pod_index.change(1, around.pod_index.profile("default", {"y": "other"}), 1)
    cls = PodClass((), constraints=Constraints("default", anti_affinity=tuple(map(own_term, range(PODS)))))
    search = around.remembering()
    expected = open_rows(search, cls, rows).tolist()
    assert search.remembered is not None
    assert len(search.remembered) == PODS
    monkeypatch.setattr(interpod_filters, "COUNTS_BYTES", 0)
    monkeypatch.setattr(interpod_filters, "MIN_COUNTS", 5)
    search = around.remembering()
    assert open_rows(search, cls, rows).tolist() == expected == [row != 1 for row in range(NODES)]
    assert search.remembered is not None
    assert len(search.remembered) <= 5


def test_a_dropped_set_is_found_again_and_follows_the_pods() -> None:
    d = cluster()
    pod = with_terms(0, "preferred")
    d.run(pod)
    around = d.engine.world.around
    cls = around.seen_by(PodClass(()), around.pod_index.profile("default", {"y": "other"}))
    terms = around.terms_attracting(cls)
    assert len(terms) == TERMS_OF_POD
    around.drop_caches()
    assert around.terms_attracting(cls) == terms
    d.delete(pod)
    around.drop_caches()
    assert around.terms_attracting(cls) == frozenset()


def test_a_set_that_is_too_large_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied_terms, "MAX_CACHED_TERMS", 4)
    sets = TermSets()
    first, second, large = frozenset("ab"), frozenset("cd"), frozenset("efghi")
    digests = [sets.put(terms) for terms in (first, second, large)]
    assert [sets.get(digest) for digest in digests] == [first, second, None]
    assert sets.get(digests[0]) is not None, "used last"
    third = sets.put(frozenset("e"))
    assert [sets.get(digest) for digest in (*digests, third)] == [first, None, None, frozenset("e")]


def test_equal_terms_compare_equal_whatever_pods_they_apply_to() -> None:
    terms: AppliedTerms[str] = AppliedTerms(digest_of(frozenset("abc")), "ns", {"a": ""})
    equal_terms: AppliedTerms[str] = AppliedTerms(digest_of(frozenset("cba")), "other", {"b": ""})
    assert terms == equal_terms
    assert with_further(terms, frozenset()) is terms
    assert with_further(terms, frozenset("d")) != terms
    assert with_further(None, frozenset()) is None


def test_terms_that_differ_in_their_weight_only_have_different_digests() -> None:
    term = CountedTerm(EVERYTHING, frozenset("x"), "zone", NOTHING)
    assert len({digest_of(frozenset({(weight, term)})) for weight in range(-100, 101)}) == 201
