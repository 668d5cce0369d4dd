"""How another state machine reads an engine, and the few calls with which it changes one.

Recovery works between two steps of the engine. It reads pods and nodes, plans on copies of the state, and asks which
seats and spare nodes are held. Results are valid until the next input of the engine. Tables and values that the view
returns are those of the engine: a reader must not change them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.moving.plan import MovePlan
from topo_scheduler.scheduling.moving.replacement_query import replacement_query
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates, candidates_below
from topo_scheduler.scheduling.reserving.replacements import ClaimedBySeat, ReservedSeat
from topo_scheduler.scheduling.time_slicing import SlicedSearch
from topo_scheduler.state.ledger.claimed_devices import other_devices_of_namespace, other_devices_of_pod
from topo_scheduler.state.ledger.claimed_gpus import gpus_in
from topo_scheduler.state.ledger.ledger import LedgerEntry
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, Amounts
from topo_scheduler.state.pods.workloads import Member, MembersByClass, Workload
from topo_scheduler.state.topology.fabric import Layout, Path


class SchedulerControl(Protocol):
    """The calls with which recovery changes an engine. Each is an input of the engine, and is recorded as such."""

    def seats_kept(self, migration: str, seats: Sequence[ReservedSeat]) -> None:
        """Reserve these seats, and no others, for the replacements that a Migration awaits."""

    def seat_taken(self, migration: str, pod: str, by: PodRef, origin: str, node: str) -> None:
        """Note that a pod replaces one that a Migration moved."""

    def spares_avoid(self, nodes: Sequence[str]) -> None:
        """Keep none of these nodes as spares."""

    def pods_reported(self, pods: Collection[Pod], now: float) -> None:
        """Read pods that were found bound, so that plans can include them."""

    def moved_for(self, pods: Sequence[str], workload: str, namespace: str, until: float, now: float) -> None:
        """Record that one of the pods that move to make room for a workload was evicted.

        ``until``: when recovery stops waiting for these pods, in seconds.
        """

    def search_wanted(self) -> None:
        """Note that searches for room will be needed: their kernels should be compiled."""


class SchedulerView:
    """Pods and nodes of an engine, read-only; with the parts ``planning`` and ``held``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.planning = PlanningView(engine)
        self.held = HeldView(engine)

    @property
    def scheduler_name(self) -> str:
        """The name of this scheduler."""
        return self._engine.config.scheduler.scheduler_name

    def reader(self, namespace: str) -> str:
        """Return the argument ``reader`` of `few_for` for a message to the users of a namespace."""
        return self._engine.world.reader(namespace)

    # ------------------------------------------------------------ pods

    def entry(self, uid: str) -> LedgerEntry | None:
        """Return what a bound or assumed pod holds; None if it holds nothing."""
        return self._engine.world.ledger.get(uid)

    def entries(self) -> Iterator[tuple[str, LedgerEntry]]:
        """Return all pods that hold resources, by uid."""
        return self._engine.world.ledger.items()

    def pods_on(self, node: str) -> list[str]:
        """Return the uids of the pods that hold resources of a node, sorted."""
        return sorted(self._engine.world.ledger.on_node(node))

    def member(self, uid: str) -> tuple[Workload, Member] | None:
        """Return a pod of this scheduler with its workload; None for any other pod."""
        return self._engine.workloads.of_pod(uid)

    def namespace_of(self, uid: str) -> str:
        """Return the namespace of a pod that this scheduler knows or that holds resources; empty for others."""
        entry, known_pod = self.entry(uid), self.member(uid)
        if entry is not None and entry.occupant is not None:
            return entry.occupant.namespace
        return known_pod[0].namespace if known_pod is not None else ""

    def workload(self, id_: str) -> Workload | None:
        """Return a workload by its id."""
        return self._engine.workloads.get(id_)

    def workloads(self) -> list[Workload]:
        """Return all workloads."""
        return list(self._engine.workloads)

    def decided(self, uid: str) -> bool:
        """Return whether this process chose the node of a pod."""
        return self._engine.workloads.decided(uid)

    def expected_end(self, uid: str, entry: LedgerEntry, now: float) -> float:
        """Return when a pod is expected to end, in seconds; infinity if that is unknown."""
        return self._engine.reserving.ends.of(uid, entry, now)

    # ------------------------------------------------------------ nodes

    @property
    def nodes(self) -> NodeTable:
        """The nodes."""
        return self._engine.world.nodes

    @property
    def absent_nodes(self) -> Set[str]:
        """Names of the nodes that are not listed and on which a scheduler placed pods."""
        return self._engine.world.ledger.absent_nodes

    @property
    def layout(self) -> Layout:
        """The fabric as arrays."""
        return self._engine.world.layout

    def leaf_of(self, node: str) -> Path | None:
        """Return the path of the leaf of a node; None for an unknown node."""
        return self._engine.world.leaf_of(node)

    def gpus_in_use(self) -> Int64:
        """Return the GPUs that pods hold of each node (int64[rows]), without room for other schedulers."""
        return self._engine.world.held()[:, GPU]

    @property
    def resource_names(self) -> Sequence[str]:
        """Names of the resources, by column."""
        return self._engine.world.resources.names

    @property
    def improvements(self) -> int:
        """Number of events so far that could have made a placement possible."""
        return self._engine.world.improvements


class PlanningView:
    """How to plan on copies of an engine's state, and which pods its own search would move."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # ------------------------------------------------------------ placements

    def trial(
        self,
        leaving: Iterable[Candidate],
        avoided: Collection[str],
        now: float,
        *,
        priority: int,
        mine: Callable[[str], bool] = lambda _: False,
        neighbours: bool = True,
        devices: bool = False,
    ) -> Trial:
        """Return a copy of the state on which placements can be tried.

        Args:
            leaving: pods that are gone on it.
            avoided: nodes that are full on it.
            now: seconds.
            priority: nominations and seats of this priority or a higher one count as if their pods ran.
            mine: returns whether a nomination or seat does not count, by its uid or id.
            neighbours: whether the pods on a node matter beyond the resources that they hold.
            devices: whether the devices of the pods that leave are free on it. Those of nominations and seats that
                count are in use in any case.
        """
        engine = self._engine
        devices = devices or any(promised.devices for promised in engine.preempting.nominations)
        trial = Trial(engine.planner, engine.world.layout, now, neighbours=neighbours, devices=devices)
        trial.remove(leaving)
        row_of = engine.world.nodes.row_of
        for promised in engine.preempting.nominations:
            counts = promised.priority >= priority and not mine(promised.uid)
            if counts and (row := row_of.get(promised.node)) is not None:
                trial.charge(row, promised.amounts)
                if promised.devices:
                    trial.count_devices(promised.uid, promised.devices, counts=True)
        trial.fill(avoided)
        return trial

    def replacement_query(
        self, workload: Workload, members: Sequence[Member], rows: Sequence[int]
    ) -> tuple[MembersByClass, PlacementQuery]:
        """Return groups and query for bound members of a workload, as they are once they have left these rows.

        Raises:
            PluginError: a plugin failed, so there is no result.
        """
        engine = self._engine
        reserved = engine.preempting.replacements.nodes_for(workload)
        return replacement_query(engine.attempts, engine.world, workload, members, rows, reserved)

    def gang_query(
        self, workload: Workload, members: Sequence[Member], now: float
    ) -> tuple[MembersByClass, PlacementQuery] | None:
        """Return groups and query for pending members of a gang; None if a quota never allows so many.

        Raises:
            PluginError: a plugin failed, so there is no result.
        """
        attempts = self._engine.attempts
        groups, _, never = attempts.groups(workload, members)
        return None if never else (groups, attempts.ask_by_now(workload, groups, self._engine.world.layout, now))

    @property
    def pods_repel(self) -> bool:
        """Whether a running pod keeps others away by required anti-affinity."""
        return bool(self._engine.world.pod_index.repelling)

    def sliced_search(self) -> SlicedSearch[Any]:
        """Return a new runner of searches in slices, which notices when nodes or the fabric change."""
        return SlicedSearch(self._engine.world)

    # ------------------------------------------------------------ pods that could move

    @property
    def ready(self) -> bool:
        """Whether the kernels for searches for room are compiled."""
        return self._engine.preempting.ready

    @property
    def budgets_known(self) -> bool:
        """Whether the list of disruption budgets is complete. Before that, no search may choose pods to move."""
        return self._engine.preempting.budgets.known

    @property
    def budget_changes(self) -> int:
        """Number of changes so far that could allow the eviction of a pod that disruption budgets refused before."""
        return self._engine.preempting.budgets.changes

    def budgets_allow(self, entry: LedgerEntry) -> bool:
        """Return whether disruption budgets allow the eviction of a pod now."""
        guards = self._engine.preempting.budgets.guarding(entry.profile)
        return len(guards) <= 1 and all(guard.allowed > 0 for guard in guards)

    def movable(self, workload: Workload) -> Candidates:
        """Return the pods that may move to make room for a workload."""
        return self._engine.moving.movable(workload)

    def query_again(self, pods: Sequence[Candidate]) -> PlacementQuery:
        """Return the query that places the pods of one workload again once they are gone."""
        return self._engine.moving.again(pods)

    @property
    def gangs_wait(self) -> bool:
        """Whether a gang is pending that moves may help."""
        return self._engine.moving.awaited

    def gang_plans(self) -> list[tuple[Workload, MovePlan]]:
        """Return the pending gangs with the moves that would make room for them, the longest pending first."""
        return self._engine.moving.plans()

    def why_no_moves(self, namespace: str, now: float) -> str:
        """Return why no pod is moved to make room for another workload of a namespace now, or an empty string."""
        return self._engine.preempting.room_by_moves.obstacle(namespace, now)

    def evicted_in_vain(self, namespace: str, now: float) -> bool:
        """Return whether evictions to make room for a namespace were in vain more than once lately."""
        return self._engine.preempting.vain_evictions.is_doubted(namespace, now)

    def described(self, plan: MovePlan, namespace: str) -> str:
        """Return a plan as text for the users of a namespace."""
        return self._engine.moving.sentence(plan, self._engine.world.reader(namespace))

    @property
    def max_moves(self) -> int:
        """Pods that one plan may move at most."""
        return self._engine.config.topology.spec.repair.max_moves


class HeldView:
    """Which room an engine holds for recovery: seats of replacements, and spare nodes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def has_seat(self, id_: str) -> bool:
        """Return whether a seat is reserved."""
        return self._engine.preempting.replacements.holds(id_)

    def has_seats_of(self, migration: str) -> bool:
        """Return whether any seat is reserved or remembered for a Migration."""
        return self._engine.preempting.replacements.knows(migration)

    def has_seat_for(self, workload: Workload) -> bool:
        """Return whether a seat is reserved that a workload may take."""
        return bool(self._engine.preempting.replacements.own(workload))

    def has_room_for_seats(self, migration: str, namespace: str, pods: Iterable[tuple[str, Amounts]]) -> bool:
        """Return whether a namespace holds at least as much as its seats would with those of a Migration.

        Devices of claims count as GPUs, as they do for quotas, and others by their driver. The Migration may hold its
        seats already, if the write that was to record them failed. Seats of pending pods don't count: quotas count
        these pods.

        Args:
            migration: key of the Migration.
            namespace: its namespace.
            pods: uid of each pod that it moves, with what the pod requests.
        """
        world, reserved, devices = self._engine.world, Counter[int](), Counter[str]()
        inventory = world.inventory

        def reserve(requested: Amounts, claimed: ClaimedBySeat) -> None:
            reserved.update(dict(requested))
            reserved[GPU_SHARE] += claimed.gpus
            devices.update(claimed.devices)

        for uid, requested in pods:
            reserve(requested, ClaimedBySeat(world.claimed_gpus.of_pod(uid), other_devices_of_pod(inventory, uid)))
        for seat, requested, claimed in self._engine.preempting.replacements.of_namespace(namespace):
            if seat.migration != migration and self._engine.arrivals.pending(seat.pod) is None:
                reserve(requested, claimed)
        if devices and not devices <= other_devices_of_namespace(inventory, namespace):
            return False
        held = world.accounts.held(namespace)
        others = ((column, amount) for column, amount in reserved.items() if column not in (GPU, GPU_SHARE))
        has_gpus = gpus_in(tuple(reserved.items())) <= gpus_in(tuple(held.items()))
        return has_gpus and all(amount <= held.get(column, 0) for column, amount in others)

    @property
    def seats_taken(self) -> Mapping[str, str]:
        """The uid of the pod that took a seat, by the id of the seat."""
        return self._engine.preempting.replacements.taken

    @property
    def keeps_spares(self) -> bool:
        """Whether the configuration keeps spare nodes."""
        return self._engine.spares.configured

    def lent(self) -> list[int]:
        """Return the rows of spare nodes with borrowing pods, on which no other pods hold GPUs, in order."""
        return self._engine.spares.lent()

    def may_borrow(self, priority: int) -> bool:
        """Return whether pods of a priority may use spare nodes, if controllers recreate these pods."""
        return self._engine.spares.may_borrow(priority)

    def borrowers(self, priority: int, wall: float) -> Candidates:
        """Return the pods that may be evicted from spare nodes for a priority. ``wall``: seconds since the epoch."""
        engine = self._engine
        below = min(engine.spares.spec.lend_below_priority, priority)
        budgets = engine.preempting.budgets
        return candidates_below(below, engine.world, engine.workloads, budgets, {}, lambda _: False, (), wall)
