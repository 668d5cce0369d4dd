"""Whether pods of other namespaces keep a workload away from room that is free, as they repel it."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from topo_scheduler.scheduling.preemption.freed_room import FreedRoom
from topo_scheduler.scheduling.rules.interpod_filters import condition_of, pods_matching
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.operation_budget import OperationBudget, OverBudgetError, charge, limited
from topo_scheduler.state.pods.pod_index import CountedTerm, Profile

MAX_OPERATIONS: Final = 200_000
"""Operations of one such check. What takes longer counts as not kept away."""
MAX_PROFILES: Final = 8
"""Different kinds of pods of one workload that are compared."""


def kept_away(world: World, room: FreedRoom, profiles: Iterable[Profile]) -> bool:
    """Return whether anti-affinity between pods of other namespaces and pods of some profiles closes part of a room.

    Either side may have the anti-affinity. The other pods may be on other nodes of the same topology domain.
    """
    try:
        with limited(OperationBudget(MAX_OPERATIONS)):
            return any(_is_repelled(world, room, profile) for profile in islice(profiles, MAX_PROFILES))
    except OverBudgetError:
        return False


def _is_repelled(world: World, room: FreedRoom, profile: Profile) -> bool:
    around, pod_index = world.around, world.around.pod_index
    others: dict[str, set[CountedTerm]] = defaultdict(set)
    for term in around.repelled(profile):
        others[term.topology_key].add(term)
    for key, terms in others.items():
        rows = {row for term in terms for row in pod_index.repelling.get(term, ())}
        charge(sum(len(pod_index.repelling.get(term, ())) for term in terms))
        if any(_has_term(world, row, terms, room.namespace) for row in _near(world, room, key, rows)):
            return True
    for term in profile.repels:
        rows = set(pods_matching(around, (condition_of(around, term),)).nonzero()[0].tolist())
        if any(_is_selected(world, row, term, room.namespace) for row in _near(world, room, term.topology_key, rows)):
            return True
    return False


def _near(world: World, room: FreedRoom, key: str, rows: Collection[int]) -> list[int]:
    """Return those of some rows that are in one topology domain with a node of the room."""
    nodes, column = world.nodes, world.nodes.label_column(key)
    charge(len(rows) + len(room.amounts))
    room_rows = (row for node in room.amounts if (row := nodes.row_of.get(node)) is not None)
    domains = {int(column[row]) for row in room_rows} - {UNKNOWN}
    return [row for row in sorted(rows) if int(column[row]) in domains]


def _profiles_of_others(world: World, row: int, namespace: str) -> set[Profile]:
    """Return the profiles of the pods of other namespaces on a row."""
    ledger = world.ledger
    uids = ledger.on_node(world.nodes.names[row])
    charge(1 + len(uids))
    entries = (entry for uid in uids if (entry := ledger.get(uid)) is not None)
    return {entry.profile for entry in entries if entry.profile is not None and entry.profile.namespace != namespace}


def _has_term(world: World, row: int, terms: set[CountedTerm], namespace: str) -> bool:
    """Return whether a pod of another namespace on a row has one of some terms, or one of them stands for its own."""
    pod_index = world.around.pod_index
    for profile in _profiles_of_others(world, row, namespace):
        charge(1 + len(profile.repels))
        if not terms.isdisjoint(profile.repels):
            return True
        if any(pod_index.stand_in(profile.namespace, term.topology_key) in terms for term in profile.repels):
            return True
    return False


def _is_selected(world: World, row: int, term: CountedTerm, namespace: str) -> bool:
    """Return whether a term selects a pod of another namespace on a row."""
    return any(world.around.applies(term, profile) for profile in _profiles_of_others(world, row, namespace))
