"""Latency-sensitive gangs against every set of leaves: the fewest hops, then the least loaded links, then the score."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.scheduling.planning import Small, ask_of, gang, small_of
from tests.scheduling.reference import Machine, Path, Reference, Want
from tests.scheduling.reference_clusters import clusters, clusters_of_one_spine, wants
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.links import Link
from topo_scheduler.scheduling.placing.model.placement_query import Placement


@dataclass(frozen=True)
class Traffic:
    """Gbit/s of the networks of nodes and of uplinks, as far as told, and gangs that send: Mbit/s and their nodes."""

    networks: dict[str, int]
    uplinks: dict[Path, int]
    others: Sequence[tuple[int, list[str]]]


@st.composite
def traffic(draw: st.DrawFn, machines: Sequence[Machine]) -> Traffic:
    domains = sorted({m.place[:depth] for m in machines for depth in range(1, len(m.place) + 1)})
    distinct = [path for path in domains if UNLABELLED not in path and domains_called(domains, path) == 1]
    names = st.lists(st.sampled_from([m.name for m in machines]), min_size=1, max_size=4, unique=True)
    return Traffic(
        {m.name: draw(st.sampled_from([0, 0, 1, 2, 4, 8])) for m in machines},
        {path: draw(st.sampled_from([0, 2, 4, 8])) for path in distinct},
        draw(st.lists(st.tuples(st.sampled_from([500, 1000]), names), max_size=3)),
    )


def domains_called(domains: Sequence[Path], path: Path) -> int:
    return sum(domain[-len(path) :] == path for domain in domains)


def loaded_small(machines: Sequence[Machine], want: Want, sent: Traffic) -> Small:
    small = small_of(machines, want, networks=sent.networks)
    small.world.links.configure(
        [Link(domain="/".join(path), capacity=f"{gb}Gb") for path, gb in sent.uplinks.items() if gb]
    )
    for number, (bandwidth, names) in enumerate(sent.others):
        small.send(f"other-{number}", bandwidth, *names)
    return small


def load_of(machines: Sequence[Machine], sent: Traffic, leaf: Path, across: int | None) -> int:
    """Thousandths: of known networks below a leaf together, or of the most loaded uplink to the domain ``across``."""
    place = {m.name: m.place for m in machines}
    inside = [m for m in machines if m.place == leaf]
    known = {m.name for m in inside if sent.networks[m.name]}
    carries = 1000 * sum(sent.networks[m.name] for m in inside)
    reserved: Counter[object] = Counter()
    for bandwidth, names in sent.others:
        reserved["networks"] += bandwidth * len(known.intersection(names)) * (len(names) > 1)
        for depth in range(1, len(leaf) + 1):
            below = sum(place[name][:depth] == leaf[:depth] for name in names)
            reserved[leaf[:depth]] += bandwidth * min(below, len(names) - below)
    loads = [1000 * reserved["networks"] // carries] if carries else []
    paths = [leaf[:depth] for depth in range(across + 1, len(leaf) + 1)] if across is not None else []
    loads += [reserved[path] // sent.uplinks[path] for path in paths if sent.uplinks.get(path)]
    if loads:
        return max(loads)
    return 1000 * sum(m.used_gpus for m in inside) // max(1, sum(m.gpus for m in inside))


wide = st.builds(Want, members=st.integers(3, 8), gpus=st.sampled_from([2, 3, 4]), required=st.just(False))


@settings(deadline=None, max_examples=200)
@given(st.data(), st.one_of(clusters(), clusters_of_one_spine()), st.one_of(wants, wide))
def test_the_least_loaded_links_are_taken_after_the_fewest_hops(
    data: st.DataObject, machines: list[Machine], want: Want
) -> None:
    reference = Reference(machines, want)
    best = reference.best()
    if not best or len(reference.models()) > 1:
        return
    sent = data.draw(traffic(machines))
    small = loaded_small(machines, want, sent)
    placement = small.plan(replace(ask_of(want), latency=True))
    assert isinstance(placement, Placement)
    across = -best[0].rank[1] if best[0].rank[2] > 1 else None
    loads = {option.leaves: max(load_of(machines, sent, leaf, across) for leaf in option.leaves) for option in best}
    chosen = tuple(small.world.layout.paths[leaf] for leaf in placement.leaves)
    assert loads[chosen] == min(loads.values())
    event(f"{min(3, len(set(loads.values())))} loads, {'one leaf' if across is None else 'several leaves'}")


def test_what_is_reserved_of_a_network_of_unknown_capacity_loads_no_other() -> None:
    """Leaf l2 has a share of its known network reserved, l1 none, but more on a node that tells no capacity."""
    bandwidths = {"l1": ("10Gb", ""), "l2": ("10Gb", ""), "l3": ("", "")}
    small = Small(
        make_node(f"{leaf}n{n}", f"s1/{leaf}", bandwidth=bandwidths[leaf][n])
        for leaf in sorted(bandwidths)
        for n in range(2)
    )
    small.send("one", 5000, "l1n1", "l3n0")
    small.send("other", 3000, "l2n0", "l3n1")
    for n in range(2):
        small.hold(f"l3n{n}", gpus=8)
    assert small.leaves(replace(gang(2, gpus=4), latency=True)) == ["s1/l1"]
