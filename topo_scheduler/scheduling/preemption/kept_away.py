"""Whether pods of other namespaces keep a workload away from room that is free, as they repel it."""

from collections.abc import Iterable, Iterator

from topo_scheduler.scheduling.preemption.freed_room import FreedRoom
from topo_scheduler.scheduling.rules.interpod_filters import condition_of, pods_matching
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.pods.pod_index import CountedTerm, Profile


def kept_away(world: World, room: FreedRoom, profiles: Iterable[Profile]) -> bool:
    """Return whether anti-affinity between pods of other namespaces and pods of some profiles closes part of a room.

    Either side may have the anti-affinity. The other pods may be on other nodes of the same topology domain.
    """
    nodes = world.nodes
    room_rows = [row for node in room.amounts if (row := nodes.row_of.get(node)) is not None]
    for term, rows in _opposed(world, profiles):
        column = nodes.label_column(term.topology_key)
        domains = {int(column[row]) for row in room_rows} - {UNKNOWN}
        near = (row for row in rows if int(column[row]) in domains)
        if any(_has_others(world, row, term, room.namespace) for row in near):
            return True
    return False


def _opposed(world: World, profiles: Iterable[Profile]) -> Iterator[tuple[CountedTerm, Iterable[int]]]:
    """Yield anti-affinity terms, and the rows of the pods that have them or that they select."""
    around = world.around
    for profile in profiles:
        for term in around.repelled(profile):
            yield term, around.pod_index.repelling.get(term, ())
        for term in profile.repels:
            yield term, pods_matching(around, (condition_of(around, term),)).nonzero()[0].tolist()


def _has_others(world: World, row: int, term: CountedTerm, namespace: str) -> bool:
    """Return whether a pod of another namespace on a row has the term, or one that stands for it, or is selected."""
    around, ledger = world.around, world.ledger
    for uid in ledger.on_node(world.nodes.names[row]):
        entry = ledger.get(uid)
        profile = entry.profile if entry is not None else None
        if profile is None or profile.namespace == namespace:
            continue
        if any(own.topology_key == term.topology_key for own in profile.repels) or around.applies(term, profile):
            return True
    return False
