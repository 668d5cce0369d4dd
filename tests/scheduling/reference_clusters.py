"""Clusters and gangs that property tests draw for the reference planner."""

from hypothesis import strategies as st

from tests.scheduling.reference import Machine, Want
from topo_scheduler.api.labels import UNLABELLED

DOMAIN_NAMES = ("a", "b", "c")


@st.composite
def clusters(draw: st.DrawFn) -> list[Machine]:
    """Up to twelve nodes in up to five leaves of one to three levels; leaf names repeat, labels are missing."""
    depth = draw(st.integers(1, 3))
    name = st.sampled_from(DOMAIN_NAMES)
    label = st.one_of(name, name, name, name, st.just(UNLABELLED))
    places = draw(st.lists(st.tuples(*[label] * depth), min_size=1, max_size=5))
    models = draw(st.sampled_from([("",), ("",), ("X",), ("X", "Y"), ("X", "")]))
    machines = []
    for number in range(draw(st.integers(1, 12))):
        gpus = draw(st.sampled_from([0, 1, 2, 2, 3, 4]))
        cpu = draw(st.sampled_from([1, 2, 4]))
        machines.append(
            Machine(
                name=f"n{number}",
                place=draw(st.sampled_from(places)),
                gpus=gpus,
                cpu=cpu,
                used_gpus=draw(st.integers(0, gpus)) if draw(st.booleans()) else 0,
                used_cpu=draw(st.integers(0, cpu)) if draw(st.integers(0, 3)) == 0 else 0,
                model=draw(st.sampled_from(models)),
                usable=draw(st.integers(0, 7)) > 0,
            )
        )
    levels = [level for level in range(depth) if any(m.place[level] != UNLABELLED for m in machines)]
    # A level that no node tells does not exist; without any, all hang in one leaf.
    return [
        Machine(
            m.name,
            tuple(m.place[level] for level in levels) or (UNLABELLED,),
            m.gpus,
            m.cpu,
            m.used_gpus,
            m.used_cpu,
            m.model,
            m.usable,
        )
        for m in machines
    ]


wants = st.builds(
    Want,
    members=st.integers(1, 8),
    gpus=st.sampled_from([1, 1, 2, 3]),
    cpu=st.sampled_from([0, 0, 0, 1]),
    required=st.booleans(),
    mixed=st.booleans(),
    max_nodes=st.sampled_from([0, 0, 0, 1, 2]),
    max_gpus=st.sampled_from([0, 0, 0, 1, 3, 4]),
)


@st.composite
def clusters_of_one_spine(draw: st.DrawFn) -> list[Machine]:
    """Draw up to twelve nodes in up to seven leaves of one spine; many of the nodes are full."""
    count = draw(st.integers(4, 7))
    machines = []
    for number in range(draw(st.integers(count, 12))):
        leaf = number if number < count else draw(st.integers(0, count - 1))
        used = draw(st.sampled_from([0, 1, 2, 3, 3, 4, 4]))
        machines.append(Machine(f"n{number}", ("s", f"l{leaf}"), gpus=4, cpu=4, used_gpus=used))
    return machines
