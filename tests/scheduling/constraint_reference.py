"""A reference for affinity, anti-affinity and spread among the members of a gang."""

from collections import Counter
from collections.abc import Sequence

CONSTRAINTS = ("apart", "spread", "together")


def satisfies_constraint(machines: Sequence[tuple[str, str, int]], chosen: Sequence[int], tie: str, skew: int) -> bool:
    """Whether the members of a gang may be placed on these machines in this order."""
    everywhere = {rack for _, rack, _ in machines}
    count: Counter[str] = Counter()
    used: Counter[int] = Counter()
    for at in chosen:
        rack = machines[at][1]
        used[at] += 1
        if used[at] > machines[at][2]:
            return False
        if tie == "apart" and count[rack]:
            return False
        if tie == "together" and count and not count[rack]:
            return False
        if tie == "spread" and count[rack] + 1 - min(count[domain] for domain in everywhere) > skew:
            return False
        count[rack] += 1
    return True
