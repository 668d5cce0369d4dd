"""One attempt to place a workload: from its pending members to a Decision, on the current state."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.devices.device_choice import DeviceChoiceError, choose_devices
from topo_scheduler.scheduling.explaining.blocked_class import blocked_class
from topo_scheduler.scheduling.explaining.compute_domain import compute_domain_sentence
from topo_scheduler.scheduling.explaining.explain import domain_reasons, node_reasons, sentence
from topo_scheduler.scheduling.explaining.placement_reason import why_there
from topo_scheduler.scheduling.extensions.extension import Demand
from topo_scheduler.scheduling.intake.ranks import give_ranks
from topo_scheduler.scheduling.placing.checks.bandwidth_limits import traffic_of
from topo_scheduler.scheduling.placing.checks.validation import check
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.placing.context.gpu_choice import choose_gpus
from topo_scheduler.scheduling.placing.context.pods_with_claims import pods_with_claims
from topo_scheduler.scheduling.placing.levels import as_relaxed, plan_by_levels, required_level, wish_of
from topo_scheduler.scheduling.placing.model.placement_query import (
    Placement,
    PlacementFailure,
    PlacementQuery,
    SizeRuleLimits,
)
from topo_scheduler.scheduling.placing.model.second_tree import seen_fabric
from topo_scheduler.scheduling.placing.model.segments import segments_of
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.quality import quality_of
from topo_scheduler.scheduling.placing.reserved_placement import place_in_seats
from topo_scheduler.scheduling.queueing.quotas import QuotaLack
from topo_scheduler.scheduling.queueing.sharing import Sharing
from topo_scheduler.scheduling.reserving.freed_claims import WAITS_FOR_CLAIM, claim_to_be_freed
from topo_scheduler.scheduling.reserving.replacements import Replacements
from topo_scheduler.scheduling.reserving.spares import Spares
from topo_scheduler.scheduling.rules.gpu_rules import device_score_of
from topo_scheduler.scheduling.rules.interpod_filters import Position, looks_around
from topo_scheduler.scheduling.rules.numa import rejecting_node
from topo_scheduler.scheduling.rules.volume_choice import volumes_of_members
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.decision import Decision, Seat, Verdict
from topo_scheduler.state.devices.claim_writes import ClaimChoice
from topo_scheduler.state.pods.classes import NO_LIMIT, Cap, PodClass
from topo_scheduler.state.pods.workloads import Member, MembersByClass, Stage, Workload, member_order
from topo_scheduler.state.storage.storage_objects import VolumeChoice
from topo_scheduler.state.topology.fabric import Layout, Path
from topo_scheduler.state.topology.topology_merge import crossed, leaves_in

Stamp = tuple[int, tuple[Position, ...]]
"""When a failure was found: the count of improvements so far, and positions of the filter context.

There is one position for each class whose filters depend on other pods or volumes.
"""
KeptRoom = tuple[Hashable, ...]
"""Identifies the nominations and the reservations that are charged during a decision.

It is part of the key of cached failures, because they depend on that room.
"""
NOTHING_KEPT: Final[KeptRoom] = (None, None)
MAX_CACHED_DEMANDS: Final = 4096
"""Maximum number of cached demands, and of cached failures."""
MAX_CACHED_DOMAINS: Final = 1024
"""Maximum number of cached preferred domains."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A cached failure, valid until something improves."""

    stamp: Stamp
    sentence: str
    reasons: dict[str, int]
    domains: tuple[tuple[tuple[str, ...], str], ...]
    room_helps: bool


class AttemptKey:
    """Cache key for everything that a decision depends on, except for the state of the cluster.

    Equal queries share one object.
    """

    __slots__ = ()


class Attempts:
    """Makes decisions and caches failures: equal queries fail in the same way until something improves."""

    def __init__(
        self,
        planner: Planner,
        sharing: Sharing | None = None,
        replacements: Replacements | None = None,
        spares: Spares | None = None,
        *,
        explains: bool = True,
    ) -> None:
        """Set up without cached failures.

        Args:
            planner: plans placements on the current state.
            sharing: limits of namespaces.
            replacements: node assignments that are reserved for replacements of other members.
            spares: nodes that are kept free for recovery, and the workloads that must not use them.
            explains: whether to explain failures in text; False where the text has no reader.
        """
        self.planner = planner
        self.sharing = sharing
        self.replacements = replacements
        self.spares = spares
        self._explains = explains
        self._decisions = 0
        self.refused: tuple[AttemptKey, KnownFailure] | None = None
        """Key and failure of the last decision; None if it placed the workload."""
        self.awaits_claim = False
        """Whether the last decision waits for a claim that a pod which moved away still has (`freed_claims`)."""
        self._asked: dict[object, AttemptKey] = {}
        self._failures: dict[tuple[KeptRoom, AttemptKey], KnownFailure] = {}
        self._domains: dict[tuple[int, tuple[str, ...], str], tuple[tuple[int, int] | None, str]] = {}

    def decide(
        self,
        workload: Workload,
        members: Sequence[Member],
        siblings: Sequence[int],
        layout: Layout,
        improvements: int,
        now: float,
        kept: KeptRoom = NOTHING_KEPT,
        closed: tuple[Cap, ...] = (),
    ) -> Decision:
        """Decide on some pending members of a workload.

        Args:
            workload: the workload of the members.
            members: the members to place, all or none, in order of rank.
            siblings: rows of other pods of the same controller, for an ungrouped workload. Spreading avoids them.
            layout: the fabric of the network. Levels of the second tree are added if the workload requests them.
            improvements: count of events so far that could make a placement possible.
            now: time in seconds.
            kept: identifies the room that is reserved for nominated pods and pending workloads during the decision.
            closed: domains whose quotas were found to lack GPUs for the devices of the members.

        Raises:
            PluginError: a plugin failed, so no decision is possible.
        """
        around, whole = self.planner.around, layout
        layout = seen_fabric(workload, layout)
        groups, lack, never = self.groups(workload, members)
        if closed:
            groups = [(replace(cls, caps=(*cls.caps, *closed)), pods) for cls, pods in groups]
        ask = self.ask(workload, groups, siblings, layout)
        wish = wish_of(workload, members, layout, now)
        within = (ask.within, ask.woven)
        wanted = (ask.gang, ask.strategy, ask.enforcement, ask.mixed_models, within, ask.demands)
        # If no member runs, the gang has no reserved bandwidth yet, so the key needs no id of the gang.
        traffic = ask.traffic if ask.traffic is None or ask.running else ask.traffic.bandwidth
        demand = self._demand(
            (wanted, wish, ask.segments, tuple(ask.running), tuple(ask.groups), ask.profiles, traffic)
        )
        stamp = (improvements, tuple(around.position_for(cls) for cls, _ in groups if looks_around(cls)))
        self.refused, self.awaits_claim = None, False
        if self.replacements and (reserved := self._in_seats(workload, groups, ask, layout, now, stamp)) is not None:
            return reserved
        known = self._failures.get((kept, demand))
        if known is None or known.stamp != stamp:
            ask, outcome, note = plan_by_levels(self.planner, ask, layout, now, wish)
            layout = crossed(layout, ask.woven)
            if isinstance(outcome, Placement):
                wrong = check(around, layout, ask, outcome, self._limits(ask))
                if wrong:
                    outcome = PlacementFailure(
                        f"internal fault, please report it: the placement found was not valid: {wrong}"
                    )
                else:
                    try:
                        volumes = volumes_of_members(self.planner.around, groups, outcome.rows)
                        claims = self._claims(groups, outcome)
                        if len(groups) > 1:
                            self._check_numa_zones(groups, outcome)
                        exceeded = self.lack_of_devices(workload.namespace, groups, outcome, claims) if claims else None
                        if exceeded is not None and exceeded.domain:
                            caps = (*closed, Cap(exceeded.domain, 0, NO_LIMIT, NodeReason.QUOTA))
                            decision = self.decide(workload, members, siblings, whole, improvements, now, kept, caps)
                            return _with_lack(decision, exceeded.text)
                        if exceeded is not None:
                            return self._uncached(workload, len(members), exceeded.text, stamp)
                        return self._placed(workload, groups, ask, outcome, layout, volumes, claims, note)
                    except (ClaimError, DeviceChoiceError) as error:
                        outcome = PlacementFailure(str(error), outcome.rule)
            known = self._explain(ask, outcome, layout, stamp)
            if len(self._failures) > MAX_CACHED_DEMANDS:
                self._failures.clear()
            self._failures[kept, demand] = known
        self.refused = demand, known
        decision = self.refuse(known, workload.id, f"{workload.namespace}/{workload.name}", len(members))
        if not (lack or never):
            return decision
        text = " ".join(filter(None, ("" if never else known.sentence, lack)))
        return msgspec.structs.replace(decision, sentence=text, room_helps=known.room_helps and not never)

    def known(self, kept: KeptRoom, demand: AttemptKey, stamp: Stamp) -> KnownFailure | None:
        """Return the cached failure for a demand at ``stamp``; None if the demand must be tried."""
        known = self._failures.get((kept, demand))
        return known if known is not None and known.stamp == stamp else None

    def refuse(self, known: KnownFailure, id_: str, name: str, members: int) -> Decision:
        """Return the decision for a cached failure.

        Args:
            known: the failure.
            id_: id of the workload.
            name: namespace and name of the workload.
            members: how many members the decision is about.
        """
        return Decision(
            id=self._next(),
            workload=id_,
            name=name,
            generation=self.planner.nodes.capacity_changes.position,
            verdict=Verdict.UNSCHEDULABLE,
            members=members,
            nodes=len(self.planner.nodes),
            reasons=known.reasons,
            domain_reasons=known.domains,
            sentence=known.sentence,
            room_helps=known.room_helps,
        )

    def remember(self, workload: Workload, decision: Decision) -> None:
        """Record the size of a gang that is now placed, in the history of gang sizes."""
        if workload.gang and all(member.stage is Stage.PENDING for member in workload.members.values()):
            classes = [workload.members[seat.uid].cls for seat in decision.seats]
            column = classes[0].scarce
            self.planner.history.gangs.note(column, sum(cls.amount(column) for cls in classes))

    def preferred_leaves(self, name: str, layout: Layout) -> tuple[tuple[int, int] | None, str]:
        """Return the leaves of a preferred domain as (first, last + 1) or None, and the problem with its name or ''."""
        key = (layout.generation, layout.woven, name)
        domain = self._domains.get(key)
        if domain is None:
            if len(self._domains) > MAX_CACHED_DOMAINS:
                self._domains.clear()
            domain = self._domains[key] = _find_domain(name, layout)
        return domain

    def groups(self, workload: Workload, members: Sequence[Member]) -> tuple[MembersByClass, str, bool]:
        """Return the members by their current class, the most demanding class first.

        Also return what a quota lacks for them, and whether it can never allow so many. See `Sharing.bound`.
        """
        around = self.planner.around
        groups = group_by_class([(around.seen_by(member.cls, member.profile), member) for member in members])
        if self.spares is not None and self.spares.closed_to(workload):
            groups = [(replace(cls, ordinary=True), pods) for cls, pods in groups]
        if self.sharing is None or not self.sharing.configured:
            return groups, "", False
        running = sum(member.stage is not Stage.PENDING for member in workload.members.values())
        return self.sharing.bound(workload.namespace, groups, running)

    def ask(
        self,
        workload: Workload,
        groups: MembersByClass,
        siblings: Sequence[int],
        layout: Layout,
    ) -> PlacementQuery:
        """Return the planner's query for some members of a workload, on the fabric as the workload sees it."""
        layout = seen_fabric(workload, layout)
        request = workload.request
        row_of = self.planner.nodes.row_of
        seated = (m for m in workload.members.values() if m.stage is not Stage.PENDING)
        running = [row_of[member.node] for member in seated if member.node in row_of]
        preferred, _ = self.preferred_leaves(request.preferred_domain, layout)
        counts = [(cls, len(members)) for cls, members in groups]
        constrained = workload.gang and is_constrained(counts)
        within, level, because = required_level(workload, layout)
        return PlacementQuery(
            groups=counts,
            gang=workload.gang,
            strategy=request.strategy,
            enforcement=request.placement or self.planner.policy.limits.enforcement,
            latency=request.latency_sensitive,
            mixed_models=request.gpu_model_mixed,
            preferred=preferred,
            running=sorted(running),
            siblings=siblings if self.planner.extensions.strategy(request.strategy).apart else (),
            demands=self._demands(workload, groups, len(running)) if workload.gang else (),
            profiles=tuple(tuple(m.profile for m in members) for _, members in groups) if constrained else (),
            within=within,
            level=level,
            because=because,
            segments=segments_of(workload, groups, layout, row_of, constrained=constrained),
            traffic=traffic_of(workload, members_of(groups)),
            woven=layout.woven,
        )

    def ask_by_now(self, workload: Workload, groups: MembersByClass, layout: Layout, now: float) -> PlacementQuery:
        """Return the query of a pending workload without room, at its level as ``relax-after`` has relaxed it.

        Raises:
            PluginError: a plugin failed, so there is no result.
        """
        layout = seen_fabric(workload, layout)
        wish = wish_of(workload, members_of(groups), layout, now)
        return as_relaxed(self.planner, self.ask(workload, groups, (), layout), layout, now, wish)

    # ------------------------------------------------------------ inside

    def _in_seats(
        self,
        workload: Workload,
        groups: MembersByClass,
        ask: PlacementQuery,
        layout: Layout,
        now: float,
        stamp: Stamp,
    ) -> Decision | None:
        """Return the decision on the node assignments reserved for these members; None if they do not suffice."""
        replacements, devices = self.replacements, self.planner.around.devices
        rows = replacements.rows_for(workload, members_of(groups)) if replacements is not None else {}
        if replacements is None or not rows:
            return None
        claim = claim_to_be_freed(devices, replacements, workload, groups) if devices is not None else None
        if claim is not None:
            self.awaits_claim = True
            return self._uncached(workload, len(rows), WAITS_FOR_CLAIM.format(claim[1]), stamp)
        ask = replace(ask, groups=[(on_spares(cls), count) for cls, count in ask.groups])
        placement = place_in_seats(self.planner, ask, [members for _, members in groups], rows, layout, now)
        if placement is None:
            return None
        try:
            volumes = volumes_of_members(self.planner.around, groups, placement.rows)
            claims = self._claims(groups, placement)
            if len(groups) > 1:
                self._check_numa_zones(groups, placement)
            if self.lack_of_devices(workload.namespace, groups, placement, claims) is not None:
                return None
            note = "on the nodes that were reserved for them"
            return self._placed(workload, groups, ask, placement, layout, volumes, claims, note)
        except (ClaimError, DeviceChoiceError):
            return None

    def drop_caches(self) -> None:
        """Drop the caches. Decisions do not depend on them."""
        self.planner.drop_caches()
        self._asked.clear()
        self._failures.clear()

    def _demand(self, request: object) -> AttemptKey:
        demand = self._asked.get(request)
        if demand is None:
            if len(self._asked) > MAX_CACHED_DEMANDS:
                self._asked.clear()
            demand = self._asked[request] = AttemptKey()
        return demand

    def _next(self) -> int:
        self._decisions += 1
        return self._decisions

    def _limits(self, ask: PlacementQuery) -> SizeRuleLimits:
        return self.planner.limits_for(ask)

    def _demands(self, workload: Workload, groups: MembersByClass, running: int) -> tuple[Demand, ...]:
        rules = self.planner.policy.rules
        if not rules:
            return ()
        members = members_of(groups)
        labels = [member.profile.labels if member.profile is not None else {} for member in members]
        total = len(members) + running
        return tuple(rule.demand for rule in rules if rule.matches(workload.namespace, labels, total))

    def _explain(self, ask: PlacementQuery, failure: PlacementFailure, layout: Layout, stamp: Stamp) -> KnownFailure:
        if not self._explains:
            return KnownFailure(stamp, failure.sentence, {}, (), failure.rule is not None)
        domains: tuple[tuple[tuple[str, ...], str], ...] = ()
        blocked = blocked_class(self.planner, ask)
        if blocked is not None and blocked.error:
            # The problem of a claim is the only reason: no node and no domain was checked.
            return KnownFailure(stamp, blocked.text, {blocked.error: len(self.planner.nodes)}, (), False)
        if failure.rule is not None and ask.gang and not (blocked is not None and blocked.text):
            domains = tuple(failure.domains) or domain_reasons(self.planner, ask, layout, failure)
        try:
            reasons = node_reasons(self.planner, ask, blocked.cls if blocked is not None else ask.groups[0][0])
        except ClaimError as error:  # a problem on some nodes only excludes all, as in kube-scheduler
            return KnownFailure(stamp, "", {str(error): len(self.planner.nodes)}, (), False)
        compute_domain = compute_domain_sentence(self.planner.around, [cls for cls, _ in ask.groups])
        text = " ".join(filter(None, (sentence(self.planner, ask, layout, failure, blocked), compute_domain)))
        return KnownFailure(stamp, text, reasons, domains, failure.rule is not None)

    def _rows(self, workload: Workload, placement: Placement) -> list[int]:
        """Return the rows of all members of a gang after a placement. Members on deleted nodes are left out."""
        row_of = self.planner.nodes.row_of
        running = (m.node for m in workload.members.values() if m.stage is not Stage.PENDING)
        return [
            *(row for rows in placement.rows for row in rows),
            *(row_of[node] for node in running if node in row_of),
        ]

    def _claims(self, groups: MembersByClass, placement: Placement) -> dict[str, tuple[ClaimChoice, ...]]:
        """Return the devices of each member with resource claims, by uid.

        Raises:
            DeviceChoiceError: the members can't have their devices on these nodes.
        """
        devices = self.planner.around.devices
        for cls, _ in groups:
            if cls.claims:
                break
        else:
            return {}
        placed = pods_with_claims(self.planner, groups, placement.rows)
        if devices is None:
            return {}
        chosen = choose_devices(devices, list(placed.values()), self.planner.around.gpu_sets)
        return dict(zip(placed, chosen, strict=True))

    def _check_numa_zones(self, groups: MembersByClass, placement: Placement) -> None:
        """Check members of different classes that share nodes; those of one class were counted together.

        Raises:
            DeviceChoiceError: the kubelet of a node may reject one of them.
        """
        placed = [(cls, rows) for (cls, _), rows in zip(groups, placement.rows, strict=True)]
        if node := rejecting_node(self.planner.around, placed):
            raise DeviceChoiceError(f"the NUMA nodes of node {node} may not have room for all members placed there")

    def lack_of_devices(
        self,
        namespace: str,
        groups: MembersByClass,
        placement: Placement,
        claims: Mapping[str, tuple[ClaimChoice, ...]],
    ) -> QuotaLack | None:
        """Return what quotas lack for members whose claims get devices; None if they lack nothing.

        ``claims`` has what the claims of members get, by uid.
        """
        if self.sharing is None or not claims:
            return None
        if not any(choice.allocation is not None for choices in claims.values() for choice in choices):
            return None
        seats = [
            (cls, member.uid, row)
            for (cls, members), rows in zip(groups, placement.rows, strict=True)
            for member, row in zip(members, rows, strict=True)
        ]
        return self.sharing.lack_of_devices(namespace, [(cls, row, claims.get(uid, ())) for cls, uid, row in seats])

    def _uncached(self, workload: Workload, members: int, text: str, stamp: Stamp) -> Decision:
        """Return the decision on members for which there is room, but that may not have it now.

        It is not cached: other workloads may ask for the same.
        """
        known = KnownFailure(stamp, text, {}, (), False)
        return self.refuse(known, workload.id, f"{workload.namespace}/{workload.name}", members)

    def _placed(
        self,
        workload: Workload,
        groups: MembersByClass,
        ask: PlacementQuery,
        placement: Placement,
        layout: Layout,
        volumes: Mapping[str, tuple[VolumeChoice, ...]],
        claims: Mapping[str, tuple[ClaimChoice, ...]],
        note: str,
    ) -> Decision:
        layout = layout.network  # addresses and ranks follow the network, without levels of the second tree
        placed = [
            (member, row)
            for (_, members), rows in zip(groups, placement.rows, strict=True)
            for member, row in zip(members, rows, strict=True)
        ]
        if len(groups) > 1:
            # An explanation, which is made in parts, may still ask about members that are gone.
            placed.sort(key=lambda seat: member_order(seat[0]))
        on = np.array([row for _, row in placed], np.int64)
        # In a gang with segments the planner fixes the order of members. Other gangs are ranked along the network.
        positions = range(len(placed)) if ask.in_segments else layout.position[on].tolist()
        ranks = give_ranks(workload, [(member, at) for (member, _), at in zip(placed, positions, strict=True)])
        gpus = choose_gpus(self.planner, [(member.cls, row) for member, row in placed])
        seats: list[Seat] = []
        domains: dict[int, str] = {}
        for (member, row), devices, leaf in zip(placed, gpus, layout.leaf_of_row[on].tolist(), strict=True):
            node, chosen = self.planner.nodes.names[row], volumes.get(member.uid, ())
            score = None
            if devices and member.cls.gpu_needs is not None:
                score = device_score_of(self.planner.around, member.cls, row, devices)
            if devices and self.planner.nodes.has_backed_gpus(row):
                devices = ()  # the claim of the pod says which
            if leaf not in domains:
                domains[leaf] = ".".join(layout.paths[leaf])
            rank, address = ranks[member.uid], f"{domains[leaf]}.{node}"
            seats.append(
                Seat(
                    uid=member.uid,
                    namespace=member.namespace,
                    name=member.name,
                    row=row,
                    node=node,
                    rank=rank,
                    address=address,
                    volumes=chosen,
                    claims=claims.get(member.uid, ()),
                    devices=devices,
                    predicted=bool(devices) and not self.planner.nodes.devices.count[row],
                    device_score=score,
                )
            )
        leaves = tuple(layout.paths[leaf] for leaf in placement.leaves)
        return Decision(
            id=self._next(),
            workload=workload.id,
            name=f"{workload.namespace}/{workload.name}",
            generation=self.planner.nodes.capacity_changes.position,
            verdict=Verdict.PLACED,
            members=len(seats),
            seats=tuple(seats),
            rule=placement.rule,
            score=placement.score,
            quality=quality_of(layout, self._rows(workload, placement)) if workload.gang else None,
            leaves=leaves,
            candidates=placement.candidates,
            nodes=len(self.planner.nodes),
            sentence=", ".join(filter(None, [self._why_there(workload, placement, leaves), note])),
        )

    def _why_there(self, workload: Workload, placement: Placement, leaves: Sequence[Path]) -> str:
        return why_there(placement, leaves, gang=workload.gang, within=self.planner.policy.limits.within)


def on_spares(cls: PodClass) -> PodClass:
    """Return a class that may use spare nodes, for replacements of lost pods."""
    return replace(cls, ordinary=False) if cls.ordinary else cls


def members_of(groups: MembersByClass) -> list[Member]:
    """Return the members of all groups."""
    return [member for _, members in groups for member in members]


def group_by_class(members: Sequence[tuple[PodClass, Member]]) -> list[tuple[PodClass, list[Member]]]:
    """Return the members by class, the class with the largest request of GPUs (then of CPU) first."""
    groups: dict[PodClass, list[Member]] = {}
    if len(members) == 1:
        ((cls, member),) = members
        return [(cls, [member])]
    for cls, member in members:
        groups.setdefault(cls, []).append(member)
    if len(groups) == 1:
        return list(groups.items())
    return sorted(groups.items(), key=lambda item: (-item[0].gpus, -item[0].amount(0), item[0].amounts))


def _find_domain(name: str, layout: Layout) -> tuple[tuple[int, int] | None, str]:
    if not name:
        return None, ""
    domains = layout.find(name)
    if layout.woven and len(domains) != 1 and not (domains and layout.cut and not layout.network.find(name)):
        domain, wrong = _find_domain(name, layout.network)
        leaves = leaves_in(layout.network, layout, domain) if domain else None
        return leaves, wrong or ("" if leaves else f"{name} has parts in several accelerator domains; it was ignored")
    if not domains:
        return (
            None,
            f"no domain is called {name}; write a name or path that `topo-scheduler topology` shows. It was ignored",
        )
    if len(domains) > 1:
        paths = ", ".join("/".join(layout.domain_path(depth, index)) for depth, index in domains[:4])
        return None, f"{name} may mean {paths}; write the path of one of them. It was ignored"
    depth, index = domains[0]
    low, high = layout.domains[depth][index : index + 2].tolist()
    return (low, high), ""


def _with_lack(decision: Decision, text: str) -> Decision:
    """Return a decision, with what a quota lacks if no other place was found."""
    if decision.verdict is not Verdict.UNSCHEDULABLE:
        return decision
    return msgspec.structs.replace(decision, sentence=" ".join(filter(None, (decision.sentence, text))))
