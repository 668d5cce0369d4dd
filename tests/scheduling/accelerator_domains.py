"""Nodes in accelerator domains, which need not nest in the leaves of the fabric."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, configured
from tests.scheduling.planning import WEIGHTS, Small
from tests.scheduling.reference import Machine, Want
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.objects import Node, Pod

CLIQUE = "nvidia.com/gpu.clique"
PREFERRED_CONFIG = configured("{topologyConstraints: {enforcement: preferred}}")


def domain_nodes(name: str, leaves: Mapping[str, int], gpus: int = 4, first: int = 1) -> list[Node]:
    """Return the nodes of an accelerator domain: ``a-1`` and so on in leaf ``a``, by the count per leaf."""
    return [
        make_node(f"{leaf.rpartition('/')[2]}-{n}", leaf, gpus=gpus, labels={CLIQUE: name} if name else {})
        for leaf, count in leaves.items()
        for n in range(first, first + count)
    ]


def fill_four_gpu_nodes(d: Driver, *nodes: str) -> list[Pod]:
    """Fill nodes of 4 GPUs with running pods of another scheduler."""
    busy = [make_pod(f"busy-{node}", gpus=4, scheduler="other", node=node, phase="Running") for node in nodes]
    d.apply(*busy)
    return busy


DOMAINS_ACROSS_LEAVES = [
    *domain_nodes("x.1", {"s1/a": 2, "s1/b": 2}),
    *domain_nodes("x.2", {"s1/a": 2, "s1/b": 2}, first=3),
]
"""Two domains, each of which has half of two leaves."""


DOMAIN_LEVEL = "accelerator-domain"
DOMAIN_NAMES = ("a", "b", "c")
DomainOfNode = dict[str, str]
"""The accelerator domain of each node that has one."""


@st.composite
def clusters_with_domains(draw: st.DrawFn) -> tuple[list[Machine], DomainOfNode]:
    """Draw up to eight nodes in up to five leaves of one to three levels, and accelerator domains across them."""
    depth = draw(st.integers(1, 3))
    name = st.sampled_from(DOMAIN_NAMES)
    label = st.one_of(name, name, name, name, st.just(UNLABELLED))
    places = draw(st.lists(st.tuples(*[label] * depth), min_size=1, max_size=5))
    # By leaf as often as node by node: domains of several leaves are what racks are.
    by_leaf = draw(st.booleans())
    of_leaf = {place: draw(st.sampled_from(DOMAIN_NAMES)) for place in places}
    machines, home = [], {}
    for number in range(draw(st.integers(2, 8))):
        gpus = draw(st.sampled_from([0, 1, 2, 3, 4]))
        place = draw(st.sampled_from(places))
        used = draw(st.integers(0, gpus)) if draw(st.booleans()) else 0
        machines.append(Machine(f"n{number}", place, gpus, 4, used_gpus=used, usable=draw(st.integers(0, 7)) > 0))
        domain = of_leaf[place] if by_leaf else draw(st.sampled_from([*DOMAIN_NAMES, ""]))
        if domain and draw(st.integers(0, 9)):
            home[f"n{number}"] = domain
    levels = [level for level in range(depth) if any(m.place[level] != UNLABELLED for m in machines)]
    trimmed = [replace(m, place=tuple(m.place[level] for level in levels) or (UNLABELLED,)) for m in machines]
    return trimmed, home


def planning_cluster_with_domains(machines: list[Machine], home: DomainOfNode, want: Want) -> Small:
    """Return the planning cluster of machines and their accelerator domains."""
    small = Small(
        (
            make_node(
                machine.name,
                "/".join("" if part == UNLABELLED else part for part in machine.place),
                gpus=machine.gpus,
                labels={"nvidia.com/gpu.clique": home[machine.name]} if machine.name in home else {},
                unschedulable=not machine.usable,
            )
            for machine in machines
        ),
        weights=WEIGHTS,
        max_nodes=want.max_nodes,
        max_gpus=want.max_gpus,
    )
    for machine in machines:
        small.hold(machine.name, gpus=machine.used_gpus)
    return small
