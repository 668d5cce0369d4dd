"""Searches for victims: how one workload's search is made, and when it would end like the last one."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.api.text import counted, few_for
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import FORGIVEN_SECONDS, Activity, explained, failure_of, pause_of
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import Instruction
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.claims import PreemptionClaims
from topo_scheduler.scheduling.preemption.freed_devices import ChosenDevices
from topo_scheduler.scheduling.preemption.nominations import Nominations
from topo_scheduler.scheduling.preemption.plan import PreemptionPlan, plan_preemption, plan_waiting
from topo_scheduler.scheduling.preemption.search_turns import FIRST_RETRY_SECONDS, SearchTurns
from topo_scheduler.scheduling.preemption.shares import ReservationShare
from topo_scheduler.scheduling.preemption.vain_searches import VainSearch, VainSearches
from topo_scheduler.scheduling.preemption.victims import Candidates, candidates_below
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.operation_budget import OperationBudget, OverBudgetError, limited
from topo_scheduler.state.pods.disruption_budgets import Budgets
from topo_scheduler.state.pods.workloads import Member, MembersByClass, Workload, Workloads
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.topology_merge import crossed

MAX_RETRY_SECONDS: Final = 10.0
"""Seconds at most until workloads that found no victims search again if something changed."""
SEARCH_OPERATIONS: Final = 4_000_000
"""Operations of one search for victims, in addition to those of the attempt."""
NOT_DEALLOCATED: Final = (
    "The devices of pods that have ended are still allocated to their resource claims. Until Kubernetes deallocates one"
    " of them, no other pod is evicted for devices; check that kube-controller-manager runs its controller of resource"
    " claims."
)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What one search for victims is about, and its limits.

    ``members`` of the workload must be placed at once. ``now`` is in seconds, ``wall`` in seconds since the epoch.
    ``reserved`` identifies the reservations that are charged. ``shares`` returns what reservations would take of the
    room that pods leave. ``budget`` limits the search. ``failed`` is called with the exception that the search raised.
    """

    workload: Workload
    members: Sequence[Member]
    now: float
    wall: float
    budget: OperationBudget
    reserved: Hashable
    shares: Callable[[], Sequence[ReservationShare]]
    failed: Callable[[Exception], None]


class VictimSearch:
    """Searches for victims, each within a budget of operations."""

    def __init__(
        self,
        world: World,
        workloads: Workloads,
        attempts: Attempts,
        nominations: Nominations,
        budgets: Budgets,
        claims: PreemptionClaims,
        turns: SearchTurns,
        searches: VainSearches,
    ) -> None:
        """Set up.

        Args:
            world: the state of the cluster.
            workloads: workloads of this scheduler.
            attempts: makes decisions.
            nominations: all nominations.
            budgets: disruption budgets.
            claims: of workloads for which victims were found.
            turns: when each workload may search.
            searches: those that found none.
        """
        self._world = world
        self._workloads = workloads
        self._attempts = attempts
        self._nominations = nominations
        self._budgets = budgets
        self._claims = claims
        self._turns = turns
        self._searches = searches

    def search(
        self, request: SearchRequest, count_for: Callable[[Workload], Hashable]
    ) -> tuple[list[Instruction], str]:
        """Search for victims, unless the result is known or it is not the turn of the workload.

        Args:
            request: what to search for.
            count_for: charges the nominations that count for a workload.

        Returns:
            The instructions, and a sentence to add to the reason why the members are pending.
        """
        out: list[Instruction] = []
        workload, now, budget = request.workload, request.now, request.budget
        groups, _, _ = self._attempts.groups(workload, request.members)
        ask = self._attempts.ask_by_now(workload, groups, self._world.layout, now)
        layout = crossed(self._world.layout, ask.woven)
        wanted = (ask.gang, ask.enforcement, ask.mixed_models, ask.within, ask.woven, ask.segments, ask.profiles)
        key = (workload.priority, *wanted, *ask.groups, *ask.running)
        unlimited = self._searches.get(key)
        if budget.operations < SEARCH_OPERATIONS:
            # A search that ends because of a lowered budget says nothing about other namespaces: each has its own key.
            key = (workload.namespace, key)
        search = self._searches.share(workload.id, key)
        stamp, reader = self._stamp(request.reserved, now), self._world.reader(workload.namespace)
        for known in (search, unlimited):
            if known is not None and known.stamp == stamp:
                self._turns.leave(workload.id)
                return out, known.sentence(reader)
        if (at := self._turns.turn(workload.id, workload.namespace, self.own_due(workload.id), now)) > now:
            self._turns.again[workload.id] = at
            return out, search.sentence(reader)
        self._turns.leave(workload.id)
        exceeded = max(search.exceeded, unlimited.exceeded if unlimited is not None else 0)
        if budget.operations <= exceeded and budget.operations < SEARCH_OPERATIONS:
            # It would end like the last search, and lower the budget of its namespace again.
            self._turns.again[workload.id] = now + FORGIVEN_SECONDS
            return out, search.sentence(reader) or (unlimited.sentence(reader) if unlimited is not None else "")
        if (claim := self._claims.get(workload.id)) is not None:
            out += self._claims.clear(claim)
            count_for(workload)
            stamp = self._stamp(request.reserved, now)
        views = self._attempts.planner.views
        usable = np.logical_or.reduce([views.get(cls).eligible for cls, _ in ask.groups])
        spared = self._claims.spared.namespaces(now)
        candidates = self._candidates(request, usable, spared)
        plan = None
        try:
            with limited(budget):
                plan = self._plan(request, ask, layout, candidates, groups)
                if plan is None and spared:
                    candidates = self._candidates(request, usable, frozenset())
                    plan = self._plan(request, ask, layout, candidates, groups)
            search.exceeded = 0
        except PluginError:
            raise
        except Exception as error:
            # Room that comes free still helps the workload: it is unschedulable, and only this search pauses.
            request.failed(error)
            self._fail(search, request, error, stamp)
            self._turns.rest_after(workload.namespace, len(candidates.pods), now)
            name = f"workload {workload.namespace}/{workload.name}"
            failure = failure_of(name, error, Activity.PREEMPTION, namespace=workload.namespace)
            return out + failure, search.reason
        if plan is None:
            search.times += 1
            search.until = now + doubled(FIRST_RETRY_SECONDS, search.times, MAX_RETRY_SECONDS)
            self._turns.rest_after(workload.namespace, len(candidates.pods), now)
            search.stamp, search.reader = stamp, reader
            search.reason, search.reason_elsewhere = _shielded(candidates, reader)
            if self._spares_devices(groups):
                search.reason = search.reason_elsewhere = NOT_DEALLOCATED
            return out, search.sentence(reader)
        search.times = 0
        claimed, displaced = self._claims.make(workload, groups, plan, now)
        self._turns.search_at_once(displaced)
        return out + claimed, ""

    def keep_devices(self, request: SearchRequest) -> list[Instruction]:
        """Choose devices for nominated pods of an adopted claim, as the status of a pod does not say which they are.

        Otherwise pods of lower priority take those that come free first.
        """
        workload, now = request.workload, request.now
        if not any(member.cls.claims for member in request.members):
            return []
        groups, _, _ = self._attempts.groups(workload, request.members)
        ask = self._attempts.ask_by_now(workload, groups, self._world.layout, now)
        layout = crossed(self._world.layout, ask.woven)
        try:
            with limited(request.budget):
                candidates = self._candidates(request, None, frozenset())
                plan = self._plan(request, ask, layout, candidates, groups, evicting=False)
        except PluginError:
            raise
        except Exception as error:
            request.failed(error)
            name = f"workload {workload.namespace}/{workload.name}"
            return failure_of(name, error, Activity.PREEMPTION, namespace=workload.namespace)
        if plan is None:
            return []
        claimed, displaced = self._claims.make(workload, groups, plan, now, adopted=True)
        self._turns.search_at_once(displaced)
        return claimed

    def own_due(self, id_: str) -> float:
        """Return when a workload by itself may search for victims next."""
        search = self._searches.of(id_)
        return max(self._claims.patient_until(id_), search.until if search else 0.0)

    def _fail(self, search: VainSearch, request: SearchRequest, error: Exception, stamp: Hashable) -> None:
        """Note that a search raised, and when it may be repeated.

        With a lowered budget the next one may find victims though nothing has changed, once the budget is larger.
        """
        workload = request.workload
        search.exceeded = request.budget.operations if isinstance(error, OverBudgetError) else 0
        lowered = 0 < search.exceeded < SEARCH_OPERATIONS
        search.times += not lowered
        pause = FORGIVEN_SECONDS if lowered else pause_of(search.times)
        search.until, search.stamp = request.now + pause, None if lowered else stamp
        if lowered:
            self._turns.again[workload.id] = search.until
        search.reader = self._world.reader(workload.namespace)
        search.reason = explained(error, Activity.PREEMPTION, pause, alike=not lowered)
        search.reason_elsewhere = explained(error, Activity.PREEMPTION, pause, alike=not lowered, named=False)

    def _stamp(self, reserved: Hashable, now: float) -> Hashable:
        ledger = self._world.ledger
        return (
            self._world.improvements,
            ledger.occupied,
            self._budgets.changes,
            self._nominations.stamp,
            reserved,
            self._claims.spared.stamp(now),
            self._claims.deallocation_stands_still,
            self._world.around.position,
        )

    def _plan(
        self,
        request: SearchRequest,
        ask: PlacementQuery,
        layout: Layout,
        candidates: Candidates,
        groups: MembersByClass,
        *,
        evicting: bool = True,
    ) -> PreemptionPlan | None:
        """Return a plan, or only one that evicts no pod."""
        now, shares, namespace = request.now, request.shares, request.workload.namespace
        of_classes = groups if any(cls.claims for cls, _ in groups) else ()
        if not candidates.pods and not candidates.leaving and not of_classes:
            return None
        if not of_classes:
            return plan_preemption(self._attempts.planner, ask, layout, candidates, now, shares(), groups)

        def permits(devices: ChosenDevices, placement: Placement) -> bool:
            return self._attempts.lack_of_devices(namespace, groups, placement, devices) is None

        planner, stuck = self._attempts.planner, self._claims.stuck
        if not evicting or self._spares_devices(groups):
            return plan_waiting(planner, ask, layout, candidates, now, shares(), of_classes, stuck, permits)
        return plan_preemption(planner, ask, layout, candidates, now, shares(), of_classes, stuck, permits)

    def _spares_devices(self, groups: MembersByClass) -> bool:
        """Return whether no pod is evicted for devices, as Kubernetes would not deallocate them."""
        return self._claims.deallocation_stands_still and any(cls.claims for cls, _ in groups)

    def _candidates(self, request: SearchRequest, usable: Bool | None, closed: frozenset[str]) -> Candidates:
        workload, now, ledger = request.workload, request.now, self._world.ledger
        spent: Counter[str] = Counter()
        going = self._claims.final(workload.priority)
        for uid in going:
            entry = ledger.get(uid)
            if entry is not None and entry.profile is not None and not (entry.occupant and entry.occupant.terminating):
                spent.update(guard.key for guard in self._budgets.guarding(entry.profile))

        def spared(uid: str) -> bool:
            return uid in workload.members or self._claims.spared.has(uid, now)

        return candidates_below(
            workload.priority,
            self._world,
            self._workloads,
            self._budgets,
            spent,
            spared,
            set(going),
            request.wall,
            usable,
            closed,
            waiting=True,
        )


def _shielded(candidates: Candidates, reader: str) -> tuple[str, str]:
    """Return, as one sentence, which budgets protect pods of lower priority; and the same without names."""
    if not candidates.shielded:
        return "", ""
    own = not reader or any(name.startswith(f"{reader}/") for name in candidates.shielded)
    budgets = few_for(sorted(candidates.shielded), reader, "PodDisruptionBudget", 2)
    budgets = f"PodDisruptionBudget {budgets}" if own else budgets
    count = len(candidates.shielded)
    nameless = f"{count} PodDisruptionBudgets" if count > 1 else "a PodDisruptionBudget"
    start = f"{counted(candidates.shielded_pods, 'pod')} of lower priority may not be evicted now"
    return f"{start}: {budgets}.", f"{start}: {nameless}."
