"""Gangs whose members look at each other, or ask for different things and look at other pods: seated one by one.

Each member is tried with those before it counted as if they ran, so what is found holds in the order in which it was
found. Who can't be placed yet (a worker that wants to be near the launcher) is tried again after the others. Members
go where the gang is already: same leaf, then the nearest one, same node, then the node they prefer.

Where a member finds no place, the last choices are taken back and made otherwise. The search is bounded: beyond that
such a gang may wait where an exact search would place it; what is placed always holds. The size rule is what the same
search finds in an empty cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.kernels.fit import fit_rows, sum_ranges
from topo_scheduler.scheduling.placing import tied_segments
from topo_scheduler.scheduling.placing.ask import Ask, Failure, Placement
from topo_scheduler.scheduling.placing.carried import carried, links_key
from topo_scheduler.scheduling.placing.mixed import bound, common_score, variants
from topo_scheduler.scheduling.placing.packer import FEW_NODES
from topo_scheduler.scheduling.placing.packer import Found as Placed
from topo_scheduler.scheduling.placing.repair import distance
from topo_scheduler.scheduling.placing.seating import Ground, Seating, Spots, Step
from topo_scheduler.scheduling.placing.site import Site
from topo_scheduler.scheduling.placing.size_rule import make_rule, named_at
from topo_scheduler.scheduling.placing.tied_zones import Zones, zones_of
from topo_scheduler.scheduling.placing.validation import holds_in_turn
from topo_scheduler.scheduling.rules.neighbours import Surroundings
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64

LOOKS: Final = 400
"""Looks around that may lead nowhere in one search."""
LOOKS_ON_FEW: Final = 4000
"""The same for a gang in segments where few nodes could take a member."""


def is_tied(groups: Sequence[tuple[PodClass, int]]) -> bool:
    """Return whether the members of a gang must be seated one by one."""
    if len(groups) > 1:
        return any(cls.constraints is not None for cls, _ in groups)
    cls, members = groups[0]
    constraints = cls.constraints
    return constraints is not None and members > 1 and constraints.mutual


def plan_tied(site: Site, ask: Ask, layout: Layout) -> Placement | Failure:
    """Place the members of a tied gang."""
    home = layout.leaves_of(ask.running)
    if home:
        rule: SizeRule | None = make_rule(layout, 0, max(1, len(layout.paths)), 1)
    else:
        rule = rule_of(site, ask, layout)
    if rule is None:
        return Failure(
            f"the gang's {ask.total} pods{_split(ask)} have {_tie(ask)}: no domain could hold them together even if it"
            " were empty"
        )
    found = _search(site, _now(site, ask), ask, layout, rule=rule, home=home)
    if found is None and ask.enforcement is Enforcement.PREFERRED:
        found = _search(site, _now(site, ask), ask, layout)
    if found is None:
        needs = f"1 {rule.domain}" if rule.leaves == 1 else f"{rule.leaves} leaves in 1 {rule.domain}"
        where = f"near the {len(ask.running)} members that run" if home else f"in {needs}"
        return Failure(f"no room {where} for {ask.members} pods{_split(ask)} that have {_tie(ask)}", rule)
    rows, seated = _in_order(site.around, ask, layout, found.steps)
    used = sorted(home | layout.leaves_of(row for _, row, _ in found.steps))
    return Placement(rows, used, rule, common_score(site, ask, layout, used, rule), 1, seated)


def _split(ask: Ask) -> str:
    return f" in segments that must each share one {ask.segments.level}" if ask.in_segments else ""


def _tie(ask: Ask) -> str:
    """Return what ties the members to each other, in words."""
    constraints = [cls.constraints for cls, _ in ask.groups if cls.constraints is not None]
    named: dict[str, list[tuple[object, ...]]] = {
        "host ports": [one.ports for one in constraints],
        "required pod affinity": [one.affinity for one in constraints],
        "required pod anti-affinity": [one.anti_affinity for one in constraints],
        "topologySpreadConstraints": [one.spread for one in constraints],
        "volume claims": [one.claims for one in constraints],
        "disks of their own": [one.disks for one in constraints],
    }
    return " and ".join(name for name, found in named.items() if any(found)) or "features they need of a node"


# ---------------------------------------------------------------- where a search looks


def _now(site: Site, ask: Ask) -> Iterator[Ground]:
    """The cluster as it is, once a GPU model that the gang may keep to."""
    nodes = site.nodes
    everything = np.arange(nodes.rows, dtype=np.int64)
    for views in variants(site, ask):
        fits = []
        for view in views:
            fit = np.zeros(nodes.rows, np.int64)
            usable = view.reachable
            if (shut := site.around.shut(view.cls, everything)) is not None:
                usable = usable & ~shut
            fit_rows(nodes.allocatable, nodes.requested, view.columns, view.amounts, usable, everything, fit)
            fits.append(ask.within_links(fit))
        yield Ground(site.around, nodes.requested, [cls for cls, _ in ask.groups], views, fits)


def _empty(site: Site, ask: Ask) -> Iterator[Ground]:
    """The cluster with nobody in it but what DaemonSets hold."""
    around = replace(site.around, residents=site.nobody)
    for views in variants(site, ask):
        classes = [_among_themselves(cls, ask) for cls, _ in ask.groups]
        fits = [ask.within_links(view.empty_fit) for view in views]
        yield Ground(around, site.nodes.daemons, classes, views, fits)


def _among_themselves(cls: PodClass, ask: Ask) -> PodClass:
    """Return the class without what can only be met by pods or volumes outside the gang."""
    constraints = cls.constraints
    if constraints is None:
        return replace(cls, repelled=frozenset())
    labels = [profile.labels for profiles in ask.profiles for profile in profiles if profile is not None]
    inside = tuple(term for term in constraints.affinity if any(term.selector.matches(one) for one in labels))
    return replace(cls, repelled=frozenset(), constraints=replace(constraints, affinity=inside, claims=()))


def rule_of(site: Site, ask: Ask, layout: Layout) -> SizeRule | None:
    """Return the size rule of a tied gang, None when not even an empty cluster could hold it."""
    reach = tuple(site.views.get(cls).reach_changes for cls, _ in ask.groups)
    about = (ask.mixed_models, site.limits_for(ask), ask.within, ask.bounds, reach)
    key = (tuple(ask.groups), ask.profiles, *about, layout.depth, ask.segments.parts, links_key(site, ask, layout))
    return site.remembered(key, layout, lambda: (_rule_of(site, ask, layout), 0))[0]


def _rule_of(site: Site, ask: Ask, layout: Layout) -> SizeRule | None:
    def find(ask: Ask, depth: int | None) -> Placed | None:
        found = _search(site, _empty(site, ask), ask, layout, at=depth)
        return None if found is None else (found.depth, found.leaves, [[row for _, row, _ in found.steps]])

    fit = np.max([np.sum([view.empty_fit for view in views], axis=0) for views in variants(site, ask)], axis=0)
    found = carried(site, ask, layout, find, fit)
    if found is None:
        return None
    depth, leaves, rows = found
    return make_rule(layout, depth, leaves, len({row for group in rows for row in group}))


# ---------------------------------------------------------------- searching


@dataclass(frozen=True, slots=True)
class Found:
    """Where the members went, in turn."""

    order: tuple[int, int, int, int]
    depth: int
    leaves: int
    steps: list[Step]


def _search(
    site: Site,
    grounds: Iterator[Ground],
    ask: Ask,
    layout: Layout,
    *,
    rule: SizeRule | None = None,
    home: set[int] | None = None,
    at: int | None = None,
) -> Found | None:
    """Look domain by domain, the innermost level first; the best of a level is taken. ``at`` the only level to look."""
    search = _Search(site, list(grounds), ask, layout, home or set())
    search.allow()
    if rule is not None and not home:
        return search.within(rule.depth, rule.leaves)
    within = bound(layout, ask.within, home)
    if within >= layout.depth:
        return search.within(layout.depth - 1, 1)
    for depth in range(layout.depth - 1, max(within, ask.bounds.depth) - 1, -1):
        if at is not None and depth != at:
            continue
        search.allow()
        found = search.within(depth, ask.bounds.leaves or len(layout.paths))
        if found is not None:
            search.allow()  # the first that does may use more leaves than it must
            fewer = (search.within(depth, most) for most in range(1, found.leaves if not home else 1))
            return next((one for one in fewer if one is not None), found)
    return None


class _Search:
    """One search with its bounds."""

    def __init__(self, site: Site, grounds: Sequence[Ground], ask: Ask, layout: Layout, home: set[int]) -> None:
        self._site = site
        self._grounds = [(ground, _ceilings(ground, ask, layout)) for ground in grounds]
        self._ask = ask
        self._layout = layout
        self._home = home
        self._looks = 0
        self._steps = tied_segments.Steps()
        usable = [(np.max(ground.fit, axis=0) > 0).sum() for ground in grounds]
        self._few = max(usable, default=0) <= FEW_NODES

    def allow(self) -> None:
        """Allow so many looks from now on."""
        self._steps = tied_segments.Steps()
        in_segments = self._few and self._ask.in_segments
        self._looks = (LOOKS_ON_FEW if in_segments else LOOKS) + 2 * self._ask.members

    def within(self, depth: int, most: int) -> Found | None:
        """Return the best place in so many leaves of one domain of a level."""
        best: Found | None = None
        for ground, ceilings in self._grounds:
            for domain in self._domains(depth, most, ground, ceilings):
                for start in self._starts(ground, ceilings, domain, most):
                    if self._looks <= 0:
                        return best
                    steps = self._try(ground, domain, most, start)
                    if steps is None:
                        continue
                    found = _judge(self._layout, depth, steps, self._home)
                    best = found if best is None else min(best, found, key=lambda one: one.order)
                    if isinstance(start, Spots) and self._few:
                        break  # of this domain there is none that is better
                    if not found.order[0]:
                        return best  # others may be nearer to each other; looking for them is not worth the time
        return best

    def _try(self, ground: Ground, domain: tuple[int, int], most: int, start: int | Spots) -> list[Step] | None:
        ask, layout = self._ask, self._layout
        if isinstance(start, int):
            seating = Seating(self._site, ground, ask, layout, domain, most, start, self._home)
        else:
            used = {*start.leaves} | self._home
            seating = Seating(self._site, ground, ask, layout, domain, len(used), -1, used, start)
        steps = seating.run(self._looks)
        self._looks -= seating.looks if steps is None else 0
        return steps

    def _domains(self, depth: int, most: int, ground: Ground, ceilings: Sequence[Int64]) -> Iterator[tuple[int, int]]:
        """Yield the domains that may hold every group alone: preferred ones first, then those with least room."""
        layout, groups = self._layout, self._ask.groups
        offsets = layout.domains[depth]
        room = np.add.reduceat(np.sum(ceilings, axis=0), offsets[:-1])
        low, high = self._ask.preferred or (0, 0)
        for index in sorted(range(len(room)), key=lambda at: (not low <= offsets[at] < high, int(room[at]), at)):
            first, last = int(offsets[index]), int(offsets[index + 1])
            if not all(first <= leaf < last for leaf in self._home):
                continue
            if any(
                int(np.sort(ceiling[first:last])[-most:].sum()) < count
                for ceiling, (_, count) in zip(ceilings, groups, strict=True)
            ):
                continue
            rows = layout.order[layout.offsets[first] : layout.offsets[last]]
            if all(ground.ceiling(group, rows, all_here=True) >= count for group, (_, count) in enumerate(groups)):
                yield first, last

    def _starts(
        self, ground: Ground, ceilings: Sequence[Int64], domain: tuple[int, int], most: int
    ) -> Iterator[int | Spots]:
        """Yield leaves to begin in, or what is settled of where members go, where it can be counted before."""
        zones = None if self._home else zones_of(ground, self._ask, self._layout, domain)
        if self._ask.segments.parts:
            yield from self._of_segments(ceilings, domain, most, zones)
            return
        if zones is not None:
            found = False
            for spots in zones.sets(self._ask.members, most, self._steps):
                found = True
                yield spots
            if not found and zones.whole and self._steps.left >= 0:
                return  # there is no place
        yield from self._leaves(ground, ceilings, domain)

    def _of_segments(
        self, ceilings: Sequence[Int64], domain: tuple[int, int], most: int, zones: Zones | None
    ) -> Iterator[Spots]:
        leaves, home = list(range(*domain)), sorted(self._home)
        if home:
            leaves.sort(key=lambda leaf: (*distance(self._layout, leaf, home), leaf))
        if zones is not None:
            low, high = domain
            ceilings = [ceilings[0].copy()]
            held = [np.minimum(zones.room, share.most).sum(axis=1) for share in zones.shares]
            ceilings[0][low:high] = np.minimum(ceilings[0][low:high], np.max(held, axis=0)) if held else 0
        for places in tied_segments.ways(self._ask, tied_segments.Ground(ceilings, leaves, home), most, self._steps):
            if zones is None:
                yield Spots(places, sorted({leaf for part in places for leaf in part}))
            else:
                yield from zones.shared(places[0], self._steps)

    def _leaves(self, ground: Ground, ceilings: Sequence[Int64], domain: tuple[int, int]) -> list[int]:
        """Return the leaves to begin in: labelled ones, then those that hold most of the gang, then the tightest."""
        if self._home:
            return [min(self._home)]
        low, high = domain
        held = np.sum(ceilings, axis=0)[low:high]
        room = np.sum([_by_leaf(self._layout, fit) for fit in ground.fit], axis=0)[low:high]
        order = np.lexsort((np.arange(high - low), room, -held, 1 - self._layout.aligned[low:high]))
        return [low + int(at) for at in order if held[at]]


def _ceilings(ground: Ground, ask: Ask, layout: Layout) -> list[Int64]:
    """How many of each group a leaf holds at most (int64[leaves] each)."""
    found = []
    for group, (_, count) in enumerate(ask.groups):
        ceiling = np.minimum(_by_leaf(layout, ground.fit[group]), count)
        for leaf in np.flatnonzero(ceiling).tolist():
            rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
            ceiling[leaf] = min(int(ceiling[leaf]), ground.ceiling(group, rows, all_here=False))
        found.append(ceiling * named_at(layout, ask.within) if ask.within else ceiling)
    return found


def _judge(layout: Layout, depth: int, steps: list[Step], home: set[int]) -> Found:
    leaves = sorted(layout.leaves_of(row for _, row, _ in steps) | home)
    unlabelled = int(not layout.aligned[leaves].all())
    return Found((unlabelled, len(leaves), leaves[-1] - leaves[0], leaves[0]), depth, len(leaves), steps)


def _by_leaf(layout: Layout, values: Int64) -> Int64:
    out = np.zeros(len(layout.paths), np.int64)
    sum_ranges(np.ascontiguousarray(values), layout.order, layout.offsets, out)
    return out


def _in_order(
    around: Surroundings, ask: Ask, layout: Layout, steps: Sequence[Step]
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Return the rows of each group in order of the fabric, so that ranks follow it, and the members in turn.

    Where it matters who of a class sits where (labels tell them apart, or segments), they stay where they were tried.
    """
    tried: list[list[int]] = [[-1] * count for _, count in ask.groups]
    turns: list[tuple[int, int]] = []
    for group, row, position in steps:
        turns.append((group, position))
        tried[group][position] = row
    if ask.segments.parts:
        return tried, turns
    places = [sorted(range(len(rows)), key=lambda at: (layout.position[rows[at]], at)) for rows in tried]
    rank = [{at: position for position, at in enumerate(order)} for order in places]
    rows = [[tried[group][at] for at in order] for group, order in enumerate(places)]
    seated = [(group, rank[group][at]) for group, at in turns]
    if holds_in_turn(around, ask, rows, seated):
        return tried, turns
    return rows, seated
