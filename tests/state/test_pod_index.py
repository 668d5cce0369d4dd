"""Counts of pods by selector hold however pods come and go."""

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.selector_strategies import LABELS, NAMESPACES, SELECTORS
from topo_scheduler.state.pods import pod_index as module
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profiles import CountedTerm, Disk, PodVolumeClaim, Port, Profile
from topo_scheduler.state.pods.selectors import EVERYTHING, NOTHING, Clause, Selector

ROWS = 6


def profile(pod_index: PodIndex, namespace: str = "x", **labels: str) -> Profile:
    return pod_index.profile(namespace, labels)


def test_pods_that_look_alike_are_one() -> None:
    pod_index = PodIndex()
    first = profile(pod_index, app="a")
    assert profile(pod_index, app="a") is first
    assert profile(pod_index, app="b") is not first
    assert profile(pod_index, "y", app="a") is not first


def test_a_profile_that_no_pod_has_is_forgotten() -> None:
    pod_index = PodIndex()
    for number in range(100):
        passing = profile(pod_index, job=str(number))
        pod_index.change(0, passing, 1)
        pod_index.change(0, passing, -1)
    assert list(pod_index.all()) == []
    del passing
    assert len(pod_index._profiles) <= 100
    pod_index._log.clear()
    assert len(pod_index._profiles) == 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, ROWS - 1), NAMESPACES, LABELS, st.booleans(), st.sampled_from([1, 1, -1]), st.booleans()
        ),
        max_size=30,
    ),
    st.lists(st.tuples(SELECTORS, st.one_of(st.none(), NAMESPACES.map(lambda name: frozenset((name,))))), max_size=2),
    st.booleans(),
)
def test_a_tally_counts_as_one_that_counts_again(
    changes: list[tuple[int, str, dict[str, str], bool, int, bool]],
    conditions: list[tuple[Selector, frozenset[str] | None]],
    living: bool,
) -> None:
    pod_index = PodIndex()
    tally = pod_index.tally(tuple(conditions), living=living)
    here: Counter[tuple[int, Profile]] = Counter()
    for row, namespace, labels, terminating, change, look in changes:
        pod_profile = pod_index.profile(namespace, labels, terminating=terminating)
        if change < 0 and not here[row, pod_profile]:
            continue
        pod_index.change(row, pod_profile, change)
        here[row, pod_profile] += change
        if look:
            tally.counts(ROWS)
    wanted = [0] * ROWS
    for (row, pod_profile), count in here.items():
        matches = all(
            (names is None or pod_profile.namespace in names) and selector.matches(pod_profile.labels)
            for selector, names in conditions
        )
        wanted[row] += count * (matches and not (living and pod_profile.terminating))
    assert tally.counts(ROWS).tolist() == wanted


def test_a_tally_that_fell_behind_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_ENTRIES", 8)
    pod_index = PodIndex()
    tally = pod_index.tally(((EVERYTHING, None),))
    pod_profile = profile(pod_index)
    pod_index.change(1, pod_profile, 1)
    assert tally.counts(3).tolist() == [0, 1, 0]
    for _ in range(20):
        pod_index.change(2, pod_profile, 1)
        pod_index.change(2, pod_profile, -1)
    pod_index.change(0, pod_profile, 1)
    assert tally.counts(3).tolist() == [1, 1, 0]
    assert tally.counts(5).tolist() == [1, 1, 0, 0, 0], "the node table grew"


def selecting(number: int) -> tuple[tuple[Selector, None], ...]:
    """Return the conditions of a tally of pods with a label of this number."""
    return ((Selector((Clause("job", "In", frozenset((str(number),))),)), None),)


def test_a_thousand_selectors_take_little_memory_for_each_profile() -> None:
    pod_index = PodIndex()
    profiles = [profile(pod_index, job=str(number)) for number in range(200)]
    for pod_profile in profiles:
        pod_index.change(0, pod_profile, 1)
    tallies = [pod_index.tally(selecting(number)) for number in range(1000)]
    tracemalloc.start()
    for tally in tallies:
        for pod_profile in profiles:
            tally.matches(pod_profile)
    memory_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory_bytes < 512 * len(profiles)


def test_a_tally_in_use_is_kept_while_thousands_of_others_come_and_go() -> None:
    pod_index = PodIndex()
    pod_profile = profile(pod_index, job="1")
    pod_index.change(0, pod_profile, 1)
    tally = pod_index.tally(selecting(1))
    for number in range(2, 3000):
        assert pod_index.tally(selecting(number)).counts(1).tolist() == [0]
        assert pod_index.tally(selecting(1)) is tally
    assert len(pod_index._tallies) <= module.MAX_TALLIES
    assert pod_profile.compared < 1 << module.MAX_TALLIES, "bits of dropped tallies are used again"


def test_counts_of_many_nodes_take_limited_memory() -> None:
    pod_index = PodIndex()
    rows = 4 * module.KEEP_BYTES // (module.BYTES_PER_ROW * module.MAX_TALLIES)
    for number in range(400):
        pod_index.tally(selecting(number)).counts(rows)
        assert len(pod_index._tallies) <= module.MIN_TALLIES


def test_an_index_without_pods_shares_results_and_counts_none_of_the_pods() -> None:
    pod_index = PodIndex()
    no_pods = pod_index.without_pods()
    pod_profile = profile(pod_index, job="2")
    pod_index.change(0, pod_profile, 1)
    assert not pod_index.tally(selecting(1)).matches(pod_profile)
    empty = no_pods.tally(selecting(2))
    assert empty.matches(pod_profile) and empty.counts(1).tolist() == [0]
    pod_index.drop_caches()
    assert not pod_profile.compared
    assert not no_pods.tally(selecting(1)).matches(pod_profile)
    assert no_pods.tally(selecting(2)) is not empty, "its results are dropped"
    assert no_pods.tally(selecting(2)).matches(pod_profile)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=60))
def test_tallies_count_the_same_however_many_are_kept(looks: list[tuple[int, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(module, "MAX_TALLIES", 3)
        pod_index = PodIndex()
        wanted: Counter[int] = Counter()
        made = {number: pod_index.tally(selecting(number)) for number in range(8)}
        for pod, number, in_copy in looks:
            pod_index.change(0, profile(pod_index, job=str(pod)), 1)
            wanted[pod] += 1
            index = pod_index.copy() if in_copy else pod_index
            assert index.tally(selecting(number)).counts(1).tolist() == [wanted[number]]
            if not in_copy:
                assert made[number].counts(1).tolist() == [wanted[number]], "a tally that was dropped still counts"
            assert len(pod_index._tallies) <= 3


def test_what_a_pod_holds_is_found_on_its_row_until_it_leaves() -> None:
    pod_index = PodIndex()
    term = CountedTerm(EVERYTHING, frozenset(("x",)), "zone")
    port = Port("0.0.0.0", "TCP", 80)
    pod_profile = pod_index.profile(
        "x", {}, ports=(port,), repels=(term,), claims=(PodVolumeClaim("data"), PodVolumeClaim("p-scratch", "uid"))
    )
    pod_index.change(3, pod_profile, 1)
    pod_index.change(3, pod_profile, 1)
    assert pod_index.special == {3: {pod_profile: 2}}
    assert pod_index.repelling == {term: {3: 2}}
    assert pod_index.claimed == {("x", "data"): 2}, "a generic ephemeral claim belongs to one pod"
    pod_index.change(3, pod_profile, -2)
    assert not pod_index.special
    assert not pod_index.repelling
    assert not pod_index.claimed


@pytest.mark.parametrize(
    ("first", "other", "conflict"),
    [
        (Port("0.0.0.0", "TCP", 80), Port("10.0.0.1", "TCP", 80), True),
        (Port("10.0.0.1", "TCP", 80), Port("10.0.0.1", "TCP", 80), True),
        (Port("10.0.0.1", "TCP", 80), Port("10.0.0.2", "TCP", 80), False),
        (Port("0.0.0.0", "TCP", 80), Port("0.0.0.0", "UDP", 80), False),
        (Port("0.0.0.0", "TCP", 80), Port("0.0.0.0", "TCP", 81), False),
    ],
)
def test_host_ports(first: Port, other: Port, conflict: bool) -> None:
    assert first.conflicts(other) is conflict
    assert other.conflicts(first) is conflict


@pytest.mark.parametrize(
    ("first", "other", "conflict"),
    [
        (Disk("gce", frozenset("d"), read_only=True), Disk("gce", frozenset("d"), read_only=True), False),
        (Disk("gce", frozenset("d"), read_only=True), Disk("gce", frozenset("d")), True),
        (Disk("gce", frozenset("d")), Disk("gce", frozenset("e")), False),
        (
            Disk("aws", frozenset("d"), shared_read=False, read_only=True),
            Disk("aws", frozenset("d"), shared_read=False, read_only=True),
            True,
        ),
        (Disk("rbd", frozenset("ab"), ("p", "i")), Disk("rbd", frozenset("bc"), ("p", "i")), True),
        (Disk("rbd", frozenset("ab"), ("p", "i")), Disk("rbd", frozenset("bc"), ("p", "j")), False),
        (Disk("iscsi", frozenset("d")), Disk("gce", frozenset("d")), False),
    ],
)
def test_disks(first: Disk, other: Disk, conflict: bool) -> None:
    assert first.conflicts(other) is conflict
    assert other.conflicts(first) is conflict


def test_the_log_of_changes_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_ENTRIES", 10)
    pod_index = PodIndex()
    pod_profile = profile(pod_index)
    for number in range(100):
        pod_index.change(number % ROWS, pod_profile, 1)
        assert len(pod_index._log) <= 10


def test_the_log_keeps_few_large_profiles_of_pods_that_are_gone() -> None:
    pod_index = PodIndex()
    tally = pod_index.tally(((EVERYTHING, None),))
    for number in range(2_000):
        selectors = [Selector((Clause("a", "In", frozenset((f"{number}-{term}",))),)) for term in range(64)]
        terms = tuple(CountedTerm(selector, frozenset("x"), "zone", NOTHING) for selector in selectors)
        large = pod_index.profile("x", {}, repels=terms)
        pod_index.change(number % ROWS, large, 1)
        pod_index.change(number % ROWS, large, -1)
        assert not tally.counts(ROWS).any()
    profiles = {id(large): large for _, large, _ in pod_index._log}.values()
    assert len(profiles) > 1 and sum(large.memory for large in profiles) <= module.MAX_LOG_BYTES


def test_a_copy_changes_nothing_of_what_it_was_made_of_and_shares_what_does_not_change() -> None:
    pod_index = PodIndex()
    terms = [CountedTerm(EVERYTHING, frozenset((name,)), "zone", NOTHING) for name in ("x", "y")]
    profiles = [pod_index.profile("x", {}, repels=(term,)) for term in terms]
    for pod_profile in profiles:
        pod_index.change(0, pod_profile, 2)
    twin = pod_index.copy()
    assert twin.repelling[terms[0]] is pod_index.repelling[terms[0]]
    twin.change(0, profiles[1], -2)
    twin.change(1, profiles[0], 1)
    assert list(twin.repelling_candidates("x", {})) == [terms[0]]
    assert list(twin.repelling_candidates("y", {})) == []
    assert twin.repelling[terms[0]] == {0: 2, 1: 1}
    assert [pod_index.repelling[term] for term in terms] == [{0: 2}, {0: 2}]
    assert list(pod_index.repelling_candidates("y", {})) == [terms[1]]
    second = pod_index.copy()
    second.change(0, profiles[1], -1)
    assert second.repelling[terms[1]] == {0: 1} and pod_index.repelling[terms[1]] == {0: 2}
