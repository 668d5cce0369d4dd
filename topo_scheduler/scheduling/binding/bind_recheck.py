"""Changes between the decision on a pod and its bind: to its node, or to the pods that share its node or domain."""

from topo_scheduler.scheduling.extensions.extension import Nodes
from topo_scheduler.scheduling.rules.filters import UNSCHEDULABLE_TAINT, tolerated
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext, by_domain, by_row, condition_of
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.profiles import Profile


def closed_to(nodes: Nodes, cls: PodClass, row: int) -> str:
    """Return what happened to a node since it was chosen that excludes pods of a class; empty if nothing did."""
    if nodes.unschedulable[row] and not tolerated(UNSCHEDULABLE_TAINT, cls.tolerations):
        return "was cordoned"
    if not nodes.ready[row]:
        return "is not ready any more"
    for taint in nodes.taint_sets[int(nodes.taint_set[row])]:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerated(taint, cls.tolerations):
            return f"was tainted with {taint.key}"
    return ""


def crowded_out(around: FilterContext, cls: PodClass, profile: Profile, row: int) -> str:
    """Return why a pod counted as running on a row excludes another pod, or is excluded by one; empty if none does.

    The scheduler checks affinity and spread only when it decides, as kube-scheduler does.
    """
    constraints, pod_index = cls.constraints, around.pod_index
    if constraints is not None:
        for other, count in pod_index.special.get(row, {}).items():
            if count - (other is profile) <= 0:
                continue
            if any(have.conflicts(want) for have in other.ports for want in constraints.ports):
                return "a pod with the same host port"
            if any(have.conflicts(want) for have in other.disks for want in constraints.disks):
                return "a pod with the same disk"
        for term in constraints.anti_affinity:
            tally = pod_index.tally((condition_of(around, term),))
            counts = tally.counts(around.nodes.rows).copy()
            counts[row] -= tally.matches(profile)
            if by_domain(around.nodes, term.topology_key, counts)[1][row] > 0:
                return "a pod that its anti-affinity excludes"
    for term in around.repelled(profile) if pod_index.repelling else ():
        counts = by_row(around.nodes, pod_index.repelling.get(term, {}))
        counts[row] -= term in profile.repels
        if by_domain(around.nodes, term.topology_key, counts)[1][row] > 0:
            return "a pod whose anti-affinity excludes it"
    return ""
