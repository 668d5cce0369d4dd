"""Gangs that ask for an accelerator domain, against every set of leaves of every such domain there is."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.scheduling.accelerator_domains import (
    DOMAIN_LEVEL,
    DomainOfNode,
    clusters_with_domains,
    planning_cluster_with_domains,
)
from tests.scheduling.planning import Small, ask_of
from tests.scheduling.reference import Machine, Option, Path, Reference, Rule, Want
from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.scheduling.placing.levels import LevelPreference, plan_by_levels
from topo_scheduler.scheduling.placing.model.placement_query import (
    Placement,
    PlacementFailure,
    PlacementQuery,
    Segments,
)
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.topology.topology_merge import crossed

wants = st.builds(
    Want,
    members=st.sampled_from([1, 2, 2, 3, 3, 4, 5, 7]),
    gpus=st.sampled_from([1, 1, 1, 2]),
    required=st.booleans(),
    max_nodes=st.sampled_from([0, 0, 0, 1, 2]),
    max_gpus=st.sampled_from([0, 0, 0, 1, 3, 4]),
)


class InDomains:
    """The reference, once for each accelerator domain on its nodes alone; of all the best."""

    def __init__(self, machines: list[Machine], home: DomainOfNode, want: Want) -> None:
        self.want = want
        by_domain = {
            domain: [m for m in machines if home.get(m.name) == domain] for domain in sorted(set(home.values()))
        }
        self.parts = {domain: Reference(inside, want) for domain, inside in by_domain.items()}

    def rule(self) -> Rule | None:
        """The rule of the domain that asks for least: labelled leaves before others, then the lowest level."""
        ranks = []
        for part in self.parts.values():
            rule = part.rule()
            if rule is not None:
                labelled = self._by_labelled(part, rule)
                ranks.append((not labelled, -rule.depth, rule.leaves))
        return Rule(-min(ranks)[1], min(ranks)[2]) if ranks else None

    @staticmethod
    def _by_labelled(part: Reference, rule: Rule) -> bool:
        empty = {leaf: part.in_leaf(leaf, None, empty=True) for leaf in part.leaves}
        return part._lowest(empty, labelled=True) == rule

    def best(self) -> list[tuple[str, Option]]:
        """The options of all domains between which only the score decides."""
        rule = self.rule()
        if rule is None:
            return []
        options: list[tuple[str, Option]] = []
        for labelled in (True, False):
            spreads = [rule]
            if not self.want.required:
                beyond = [wider for part in self.parts.values() if (wider := self._now(part, labelled=labelled))]
                spreads += sorted(beyond, key=lambda candidate: (-candidate.depth, candidate.leaves))[:1]
            for spread in spreads:
                options = [
                    (domain, option)
                    for domain, part in self.parts.items()
                    for option in part._options(self._fits(part), spread, labelled=labelled, model=None)
                ]
                if options:
                    rank = min(option.rank for _, option in options)
                    return [pair for pair in options if pair[1].rank == rank]
        return []

    @staticmethod
    def _fits(part: Reference) -> dict[Path, int]:
        return {leaf: part.in_leaf(leaf, None) for leaf in part.leaves}

    def _now(self, part: Reference, *, labelled: bool) -> Rule | None:
        return part._lowest(self._fits(part), labelled=labelled)


def ask_for(small: Small, want: Want) -> PlacementQuery:
    layout = crossed(small.world.layout, (DOMAIN_LEVEL,))
    within = layout.levels.index(DOMAIN_LEVEL) + 1 if DOMAIN_LEVEL in layout.levels else -1
    return replace(ask_of(want), within=within, level=DOMAIN_LEVEL, woven=layout.woven)


@settings(deadline=None, max_examples=400)
@given(clusters_with_domains(), wants)
def test_a_gang_is_in_one_accelerator_domain_as_near_as_the_network_allows(
    cluster: tuple[list[Machine], DomainOfNode], want: Want
) -> None:
    machines, home = cluster
    small = planning_cluster_with_domains(machines, home, want)
    ask = ask_for(small, want)
    planned = small.planner.plan(ask, crossed(small.world.layout, (DOMAIN_LEVEL,)), 0)
    reference = InDomains(machines, home, want)
    rule, best = reference.rule(), reference.best()
    if not best:
        assert isinstance(planned, PlacementFailure), "there is no place"
        assert (planned.rule is None) == (rule is None)
        event("too large" if rule is None else "no room")
        return
    assert isinstance(planned, Placement), f"{best[0]} would do"
    assert rule is not None and planned.rule.leaves == rule.leaves
    (rows,) = planned.rows
    placed = Counter(small.world.nodes.names[row] for row in rows)
    (domain,) = {home.get(name) for name in placed}
    assert placed.total() == want.members
    by_name = {machine.name: machine for machine in machines}
    used = {by_name[name].place for name in placed}
    options = {frozenset(option.leaves) for where, option in best if where == domain}
    assert any(used <= option for option in options)
    assert {small.world.layout.paths[leaf] for leaf in planned.leaves} == used
    event(f"placed in {len(used)} leaves of {len(options)} choices")
    _within_limits(reference.parts[str(domain)], placed)


@settings(deadline=None, max_examples=300)
@given(clusters_with_domains(), wants, st.sampled_from([PlacementStrategy.CONSOLIDATED, PlacementStrategy.DISTRIBUTED]))
def test_among_these_the_score_decides(
    cluster: tuple[list[Machine], DomainOfNode], want: Want, strategy: PlacementStrategy
) -> None:
    """It is that of the tree with the domains in it: a leaf counts with the part of it that lies in the domain."""
    machines, home = cluster
    small = planning_cluster_with_domains(machines, home, want)
    ask = replace(ask_for(small, want), strategy=strategy)
    reference = InDomains(machines, home, want)
    rule, best = reference.rule(), reference.best()
    if rule is None or not best:
        return
    depth, leaves = -best[0][1].rank[1], best[0][1].rank[2]
    aligned = (1000 * rule.leaves // leaves) >> max(0, rule.depth - depth)
    placement = small.planner.plan(ask, crossed(small.world.layout, (DOMAIN_LEVEL,)), 0)
    assert isinstance(placement, Placement)
    innermost = crossed(small.world.layout, (DOMAIN_LEVEL,)).levels[-1] == DOMAIN_LEVEL
    scores = []
    for domain, option in best:
        part = list(reference.parts[domain].machines)
        # Domains that all lie within leaves are below them, and the domain around one of them is its leaf.
        common = [m for m in machines if m.name in home and m.place == option.leaves[0]] if innermost else part
        scores.append(score(part, common, want, 0 if innermost else depth, option.leaves, strategy, aligned))
    assert placement.score.total == max(scores)
    event(f"{min(len(set(scores)), 3)} scores of {min(len(scores), 4)} places")


def score(
    part: list[Machine],
    common: list[Machine],
    want: Want,
    depth: int,
    leaves: tuple[Path, ...],
    strategy: PlacementStrategy,
    aligned: int,
) -> int:
    """Return the score in thousandths: 0.4 availability + 0.3 alignment + 0.2 utilisation + 0.1 history."""
    asked = want.members * want.gpus
    around = [m for m in common if m.place[:depth] == leaves[0][:depth]]
    whole, taken = max(1, sum(m.gpus for m in around)), sum(m.used_gpus for m in around)
    availability = max(0, 1000 * (whole - taken - asked) // whole)
    alignment = sum(aligned * (UNLABELLED not in leaf) for leaf in leaves) // len(leaves)
    inside = [m for m in part if m.place in leaves]
    used = 1000 * sum(m.used_gpus for m in inside) // max(1, sum(m.gpus for m in inside))
    utilization = used if strategy is PlacementStrategy.CONSOLIDATED else 1000 - used
    return (400 * availability + 300 * alignment + 200 * min(1000, max(0, utilization)) + 100 * 1000) // 1000


def _within_limits(part: Reference, placed: Counter[str]) -> None:
    by_name = {machine.name: machine for machine in part.machines}
    members: defaultdict[Path, list[str]] = defaultdict(list)
    for name, count in placed.items():
        assert count <= part.on_machine(by_name[name])
        members[by_name[name].place] += [name] * count
    for names in members.values():
        assert not part.want.max_nodes or len(set(names)) <= part.want.max_nodes
        assert not part.want.max_gpus or len(names) * part.want.gpus <= part.want.max_gpus


@settings(deadline=None, max_examples=300)
@given(clusters_with_domains(), wants)
def test_a_preferred_accelerator_domain_is_taken_where_one_has_room_now(
    cluster: tuple[list[Machine], DomainOfNode], want: Want
) -> None:
    machines, home = cluster
    small = planning_cluster_with_domains(machines, home, want)
    ask = ask_of(want)
    _, planned, _ = plan_by_levels(small.planner, ask, small.world.layout, 0, LevelPreference(preferred=DOMAIN_LEVEL))
    best = InDomains(machines, home, replace(want, required=False)).best()
    if best:
        assert isinstance(planned, Placement)
        names = {small.world.nodes.names[row] for row in planned.rows[0]}
        assert len({home.get(name) for name in names}) == 1 and names <= home.keys()
        event("in one domain")
    else:
        without = small.plan(ask)
        assert isinstance(planned, Placement) == isinstance(without, Placement)
        event("as without")


@settings(deadline=None, max_examples=400)
@given(clusters_with_domains(), wants)
def test_a_gang_that_asks_for_no_domain_gets_one_where_it_costs_no_level_and_no_leaf(
    cluster: tuple[list[Machine], DomainOfNode], want: Want
) -> None:
    machines, home = cluster
    planned = planning_cluster_with_domains(machines, home, want).plan(ask_of(want))
    without = planning_cluster_with_domains(machines, {}, want).plan(ask_of(want))
    assert type(planned) is type(without)
    if isinstance(planned, PlacementFailure) or isinstance(without, PlacementFailure):
        return
    small = planning_cluster_with_domains(machines, home, want)
    names = {small.world.nodes.names[row] for row in planned.rows[0]}
    by_name = {machine.name: machine for machine in machines}
    whole = Reference(machines, want)
    best = whole.best()
    *rank, _ = best[0].rank
    # Unlabelled or not, how deep and in how few leaves: as without the second tree.
    assert (planned.rule, len(planned.leaves)) == (without.rule, len(planned.leaves))
    assert len({by_name[name].place for name in names}) <= rank[2]
    apart = [
        option
        for domain in sorted(set(home.values()))
        for part in [Reference([m for m in machines if home.get(m.name) == domain], want)]
        for option in part._options(
            {leaf: part.in_leaf(leaf, None) for leaf in part.leaves},
            Rule(-rank[1], rank[2]),
            labelled=not rank[0],
            model=None,
        )
        if list(option.rank[:3]) == rank
    ]
    if apart:
        assert len({home.get(name) for name in names}) == 1 and names <= home.keys()
    event(f"{'one domain' if apart else 'none'} of {len(set(home.values()))}")


# ---------------------------------------------------------------- segments


def _holds(part: dict[str, int], size: int) -> int:
    return sum(part.values()) // size


@settings(deadline=None, max_examples=300)
@given(clusters_with_domains(), st.integers(2, 3), st.integers(1, 3))
def test_each_segment_is_in_one_accelerator_domain_and_they_take_the_fewest(
    cluster: tuple[list[Machine], DomainOfNode], size: int, segments: int
) -> None:
    machines, home = cluster
    want = Want(members=size * segments, gpus=1, required=False)
    small = planning_cluster_with_domains(machines, home, want)
    layout = crossed(small.world.layout, (DOMAIN_LEVEL,))
    if DOMAIN_LEVEL not in layout.levels:
        return
    depth = layout.levels.index(DOMAIN_LEVEL) + 1
    asked_segments = Segments(size, depth if depth < layout.depth else 0, DOMAIN_LEVEL)
    planned = small.planner.plan(replace(ask_of(want), segments=asked_segments, woven=layout.woven), layout, 0)
    fits = {m.name: max(0, m.gpus - m.used_gpus) if m.usable else 0 for m in machines}
    parts = {
        domain: {name: fits[name] for name, other in home.items() if other == domain}
        for domain in sorted(set(home.values()))
    }
    held = {domain: _holds(part, size) for domain, part in parts.items()}
    if sum(held.values()) < segments:
        assert isinstance(planned, PlacementFailure)
        return
    assert isinstance(planned, Placement), held
    (rows,) = planned.rows
    names = [small.world.nodes.names[row] for row in rows]
    for name, count in Counter(names).items():
        assert count <= fits[name]
    per = [{home.get(name) for name in names[at : at + size]} for at in range(0, len(names), size)]
    assert all(len(domains) == 1 and None not in domains for domains in per)
    if depth == 1:  # all domains hang side by side: none is nearer to another
        used = len({next(iter(domains)) for domains in per})
        fewest = next(
            count
            for count in range(1, len(held) + 1)
            if any(sum(chosen) >= segments for chosen in combinations(held.values(), count))
        )
        if not any(UNLABELLED in m.place for m in machines):
            assert used == fewest
    event(f"{segments} segments")
    assert small.world.nodes.allocatable[rows, GPU].min() > 0
