"""Whether pods of other namespaces keep pods away from the places that were freed for them, as they repel them."""

from collections.abc import Iterable
from typing import Final

from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.operation_budget import OperationBudget, OverBudgetError, charge, limited
from topo_scheduler.state.pods.pod_index import CountedTerm, Profile

MAX_OPERATIONS: Final = 20_000
"""Operations of one such check. What takes longer counts as not kept away."""
MAX_PROFILES: Final = 8
"""Different kinds of pods of one workload that are compared."""


def kept_away(world: World, namespace: str, places: Iterable[tuple[str, Profile]]) -> bool:
    """Return whether a pod of another namespace has required anti-affinity that closes one of some places.

    It may be on another node of the same topology domain.

    Args:
        world: the current state.
        namespace: of the pods that were to get the places.
        places: the node and the profile of each of these pods.
    """
    terms: dict[Profile, list[CountedTerm]] = {}
    try:
        with limited(OperationBudget(MAX_OPERATIONS)):
            for node, profile in dict.fromkeys(places):
                if profile not in terms and len(terms) < MAX_PROFILES:
                    repelled = world.around.repelled(profile)
                    charge(4 * len(repelled))
                    terms[profile] = sorted(repelled, key=_order)
                row = world.nodes.row_of.get(node)
                if row is not None and _is_closed(world, namespace, row, terms.get(profile, ())):
                    return True
    except OverBudgetError:
        return False
    return False


def _order(term: CountedTerm) -> tuple[str, list[str], str, str]:
    return term.topology_key, sorted(term.namespaces), repr(term.selector), repr(term.namespace_selector)


def _is_closed(world: World, namespace: str, row: int, terms: Iterable[CountedTerm]) -> bool:
    """Return whether a pod of another namespace has one of some terms in the domain of a row."""
    for term in terms:
        column = world.nodes.label_column(term.topology_key)
        if column[row] == UNKNOWN:
            continue
        for holder in sorted(world.around.pod_index.repelling.get(term, ())):
            charge(1)
            if column[holder] == column[row] and _holds(world, holder, term, namespace):
                return True
    return False


def _holds(world: World, row: int, term: CountedTerm, namespace: str) -> bool:
    """Return whether a pod of another namespace on a row has a term, or the term stands for its anti-affinity."""
    ledger, pod_index = world.ledger, world.around.pod_index
    for uid in sorted(ledger.on_node(world.nodes.names[row])):
        entry = ledger.get(uid)
        profile = entry.profile if entry is not None else None
        charge(2)
        if profile is None or profile.namespace == namespace or not profile.repels:
            continue
        charge(len(profile.repels) // 4)
        stands_in = pod_index.stand_in(profile.namespace, term.topology_key) == term
        if term in profile.repels or (
            stands_in and any(own.topology_key == term.topology_key for own in profile.repels)
        ):
            return True
    return False
