"""Why the scheduler placed a workload where it is, as short text."""

from collections.abc import Sequence

from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.text import few_of, plural
from topo_scheduler.scheduling.placing.model.placement_query import Placement
from topo_scheduler.state.topology.fabric import Path


def why_there(placement: Placement, leaves: Sequence[Path], *, gang: bool, within: str = "") -> str:
    """Return the leaves of a placement, how many the size rule needs, and the score, as text.

    For a gang whose segments lie in domains above the leaf, the text counts these domains. ``within`` names the limits
    per leaf, which may be the reason why the gang needs several leaves.
    """
    names, score = few_of(["/".join(path) for path in leaves]), f"score {placement.score.total / 1000:.3f}"
    if not gang:
        counted_candidates = _counted(placement.candidates, "node" if placement.score.by_node else "leaf")
        return f"{names}, {score}, chosen from {counted_candidates}"
    used_domains, level = placement.domains or (len(leaves), "leaf")
    needed_text = f"{used_domains} of {_counted(placement.rule.leaves, level)} needed"
    if any(UNLABELLED in path for path in leaves):
        needed_text = "of nodes whose labels do not give their position in the fabric"
    return f"{names}, {needed_text}{within if placement.rule.leaves > 1 else ''}, {score}"


def _counted(number: int, level: str) -> str:
    return f"{number} {level if number == 1 else plural(level)}"
