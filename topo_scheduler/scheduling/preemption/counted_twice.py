"""What counts twice on a node: room that is promised to a pod, while the pods that are to leave still hold it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from topo_scheduler.state.ledger.ledger import Ledger


class Plans(Protocol):
    """Workloads that wait for pods to end, and these pods."""

    def claimant(self, uid: str) -> str:
        """Return the workload whose plan a nominated pod is part of, by id; empty if there is none."""

    def victims(self, workload: str) -> Iterable[tuple[str, bool]]:
        """Return the pods by uid that are to end for a workload, and whether they are evicted for it."""


def counted_twice(
    charged: Mapping[int, Mapping[str, Counter[int]]], workload: str, ledger: Ledger, plans: Plans
) -> dict[int, Counter[int]]:
    """Return for each row what counts twice there, by resource column.

    Each pod that is to end counts once: first for the workload that it is evicted for, then for those that only await
    it. In the latter case not if the workload that is tried awaits it too: that might be the room for both.

    Args:
        charged: what is promised to each other workload, by row.
        workload: the one that is tried.
        ledger: of all pods.
        plans: of all workloads.
    """
    awaited = {uid for uid, _ in plans.victims(workload)}
    ending: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for other in dict.fromkeys(other for promised in charged.values() for other in promised):
        for uid, evicted in plans.victims(other):
            if evicted or uid not in awaited:
                ending[evicted].append((other, uid))
    promised_left = {row: {other: Counter(amounts) for other, amounts in by.items()} for row, by in charged.items()}
    held_left: dict[str, Counter[int]] = {}
    twice: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for other, uid in (*ending[True], *ending[False]):
        entry = ledger.get(uid)
        promised = promised_left.get(entry.row, {}).get(other) if entry is not None else None
        if entry is None or promised is None:
            continue
        held = held_left.setdefault(uid, Counter(dict(entry.amounts)))
        both = promised & held
        promised -= both
        held -= both
        twice[entry.row] += both
    return twice
