"""Cached counts of inter-pod terms equal counts made again, and their work is charged."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from tests.scheduling.function_calls import calls_of
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from topo_scheduler.scheduling.rules.interpod_filters import open_rows
from topo_scheduler.scheduling.rules.node_preferences import liking
from topo_scheduler.scheduling.rules.remembered import Remembered
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import Constraints, PodPreferences
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profiles import CountedTerm, Profile
from topo_scheduler.state.pods.selectors import NOTHING, Clause, Selector

HOST = "kubernetes.io/hostname"
CALLS_PER_OPERATION = 3
"""Calls of Python functions, each a few tenths of a microsecond, that one operation may stand for."""


@given(
    st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 5), st.booleans())), max_size=40),
    st.one_of(st.none(), st.lists(st.booleans(), min_size=6, max_size=6)),
)
def test_pods_that_come_and_go_as_on_a_stack_are_counted(
    steps: list[tuple[int, bool] | None], counted: list[bool] | None
) -> None:
    pod_index = PodIndex()
    tally = pod_index.tally(((Selector((Clause("app", "In", frozenset("a")),)), None),))
    profiles = {True: pod_index.profile("x", {"app": "a"}), False: pod_index.profile("x", {"app": "b"})}
    column = np.array([0, 0, 1, 2, UNKNOWN, 1], np.int64)
    where = None if counted is None else np.array(counted, np.bool_)
    sums = np.array([3, 0, 1, 0], np.int64)
    remembered = Remembered(column, sums, tally, where, sums[:0], None)
    stack: list[tuple[int, Profile]] = []
    for number, step in enumerate(steps):
        if step is not None:
            stack.append((step[0], profiles[step[1]]))
        elif stack:
            stack.pop()
        if number % 3 == 2:
            continue  # skip some changes
        wanted = sums.copy()
        for row, profile in stack:
            if profile is profiles[True] and column[row] != UNKNOWN and (where is None or where[row]):
                wanted[column[row]] += 1
        assert remembered.with_further(stack).tolist() == wanted.tolist()
    assert sums.tolist() == [3, 0, 1, 0]
    assert remembered.with_further(()).tolist() == sums.tolist()


VALUES = st.sampled_from(["a", "b", "c"])
TERMS = st.builds(
    CountedTerm,
    VALUES.map(lambda value: Selector((Clause("app", "In", frozenset((value,))),))),
    st.just(frozenset(("default",))),
    st.sampled_from([HOST, "zone", "absent"]),
    st.just(NOTHING),
)


@given(
    st.lists(st.tuples(st.integers(0, 5), VALUES, st.lists(TERMS, max_size=2)), max_size=8),
    st.lists(TERMS, max_size=4),
    st.lists(st.tuples(st.sampled_from([-9, 1, 5]), TERMS), max_size=4),
)
@settings(max_examples=60)
def test_terms_of_one_key_are_summed_as_each_alone(
    running_pods: list[tuple[int, str, list[CountedTerm]]],
    apart: list[CountedTerm],
    near: list[tuple[int, CountedTerm]],
) -> None:
    d = Driver([make_node(f"n{n}", "s1/l1", labels={HOST: f"n{n}", "zone": f"z{n % 2}"}) for n in range(6)])
    around = d.engine.world.around
    rows = np.array([around.nodes.row_of[f"n{n}"] for n in range(6)], np.int64)
    for at, value, repels in running_pods:
        profile = around.pod_index.profile("default", {"app": value}, repels=tuple(repels))
        around.pod_index.change(int(rows[at]), profile, 1)
    cls = PodClass((), constraints=Constraints("default", anti_affinity=tuple(apart)))
    cls = around.seen_by(cls, around.pod_index.profile("default", {"app": "a"}))
    assert open_rows(around, cls, rows).tolist() == open_rows(around.remembering(), cls, rows).tolist()

    def liked(preferences: list[tuple[int, CountedTerm]]) -> list[int]:
        """Return the weighted pods near each node."""
        return [
            sum(
                weight
                * sum(
                    value in term.selector.clauses[0].values and same(term.topology_key, node, at)
                    for at, value, _ in running_pods
                )
                for weight, term in preferences
            )
            for node in range(6)
        ]

    def same(key: str, node: int, other: int) -> bool:
        return node == other if key == HOST else key == "zone" and node % 2 == other % 2

    zeros = np.zeros(around.nodes.rows, np.int64)
    usable = np.zeros(around.nodes.rows, np.bool_)
    usable[rows] = True
    scores = liking(
        around, PodClass((), preferences=PodPreferences("default", near=tuple(near))), zeros, zeros, usable
    )[rows]
    without = liking(around, PodClass(()), zeros, zeros, usable)[rows]
    wanted = np.array(liked(near))
    scaled = 100 * (wanted - wanted.min()) // max(1, int(wanted.max() - wanted.min()))
    assert (scores - without).tolist() == (2 * scaled if near else 0 * scaled).tolist()


# ---------------------------------------------------------------- what is charged


def of_many_terms(name: str, members: int, classes: int) -> list[Pod]:
    """Return a gang of several classes, each with as many terms of each kind as are read."""
    annotations = {"gang-name": name, "gang-size": str(members)}
    pods = []
    for n in range(members):
        pod = make_pod(
            f"{name}-{n}", gpus=1, cpu=f"{100 + n % classes}m", annotations=annotations, labels={"app": f"a{n}"}
        )
        terms = [
            PodAffinityTerm(LabelSelector({"app": f"b{n % classes}-{k}"}), topology_key=(HOST, "zone")[k % 2])
            for k in range(64)
        ]
        weighted = [WeightedPodAffinityTerm(1 + k, term) for k, term in enumerate(terms)]
        pod.spec.affinity = Affinity(None, PodAffinity([], weighted), PodAffinity(terms, weighted))
        pods.append(pod)
    return pods


def of_many_spreads(name: str, members: int) -> list[Pod]:
    """Return a gang with as many spread constraints as are read, which all count the same pods."""
    annotations = {"gang-name": name, "gang-size": str(members)}
    pods = [
        make_pod(f"{name}-{n}", gpus=1, annotations=annotations, labels={"app": "a", "x": f"{n}"})
        for n in range(members)
    ]
    for pod in pods:
        pod.spec.topology_spread_constraints = [
            TopologySpreadConstraint(
                (HOST, "zone")[k % 2],
                "DoNotSchedule",
                1 + k // 2,
                label_selector=LabelSelector({"app": "a"}, (Requirement("x", "NotIn", (f"q{k}",)),)),
            )
            for k in range(32)
        ]
    return pods


@pytest.mark.parametrize(
    "make",
    [lambda name: of_many_terms(name, 64, 16), lambda name: of_many_spreads(name, 64)],
    ids=["affinity", "spread"],
)
def test_what_an_attempt_does_is_charged(make: Callable[[str], list[Pod]]) -> None:
    def crowded() -> Driver:
        return Driver(
            [make_node(f"n{n}", f"s1/l{n // 16}", labels={HOST: f"n{n}", "zone": f"z{n % 7}"}) for n in range(160)]
        )

    crowded().run(*make("warm"))  # compiles
    d = crowded()
    d.apply(*make("measured"))
    calls = calls_of(d.settle).total()
    assert d.engine.attempting.spent > 10_000
    assert calls < CALLS_PER_OPERATION * d.engine.attempting.spent
