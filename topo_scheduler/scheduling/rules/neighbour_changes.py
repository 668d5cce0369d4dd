"""Pods that came or went, and which pending pods that may help: those whose constraints look at such pods.

Any tenant may have thousands of pending pods with constraints that nothing fulfils. If each pod that is bound had all
of them tried again, attempts of higher priority would delay the pods of others for seconds.
"""

from collections.abc import Sequence
from typing import Final

from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.pod_index import Change
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.workloads import Workload

MAX_COMPARISONS: Final = 4_000
"""Comparisons of a constraint with a pod in one step, some 20 ms. Beyond it, pods are tried again in their turn."""


class NeighbourChanges:
    """The pods that came or went since the last step. ``anything``: they are not known, so that anything may help."""

    def __init__(self, context: FilterContext, changes: Sequence[Change], *, anything: bool = False) -> None:
        self._context = context
        self._profiles = {id(profile): profile for _, profile, _ in changes}
        self._departed = {
            id(profile): profile for _, profile, change in changes if change < 0 and profile.repels
        }  # only a departure ends the anti-affinity of a pod
        self.anything = anything
        self._comparisons = 0
        self._known: dict[int, bool] = {}
        """By id of constraints or of a profile, whether the changes may help. The pods of a gang share these."""

    def __bool__(self) -> bool:
        return self.anything or bool(self._profiles)

    def may_help(self, workload: Workload) -> bool:
        """Return whether a pod that came or went may let an unschedulable workload fit, by its constraints or theirs.

        Room that pods free does not count here.
        """
        if self.anything:
            return True
        if workload.requeue_conditions.depends_on_pods and any(
            self._concern(cls.constraints) for cls in workload.requeue_conditions.classes if cls.constraints is not None
        ):
            return True
        return bool(self._departed) and any(self._repelled(member.profile) for member in workload.members.values())

    def _concern(self, constraints: Constraints) -> bool:
        known = self._known.get(id(constraints))
        if known is None:
            terms = len(constraints.affinity) + len(constraints.anti_affinity) + len(constraints.spread)
            known = self._known[id(constraints)] = self._exceeds(len(self._profiles) * (1 + terms)) or any(
                self._matters(constraints, profile) for profile in self._profiles.values()
            )
        return known

    def _exceeds(self, comparisons: int) -> bool:
        """Return whether so many comparisons are too many; if not, they are charged."""
        if self._comparisons + comparisons > MAX_COMPARISONS:
            return True
        self._comparisons += comparisons
        return False

    def _matters(self, constraints: Constraints, profile: Profile) -> bool:
        context = self._context
        if constraints.ports and profile.ports:
            return True
        if (constraints.claims or constraints.disks) and (profile.claims or profile.disks):
            return True  # a claim for one pod, or the volumes that a node can have
        if constraints.affinity and all(context.applies(term, profile) for term in constraints.affinity):
            return True
        if any(context.applies(term, profile) for term in constraints.anti_affinity):
            return True
        return profile.namespace == constraints.namespace and any(
            spread.selector.matches(profile.labels) for spread in constraints.spread
        )

    def _repelled(self, profile: Profile | None) -> bool:
        if profile is None:
            return True
        known = self._known.get(id(profile))
        if known is None:
            terms = sum(len(other.repels) for other in self._departed.values())
            known = self._known[id(profile)] = self._exceeds(terms) or any(
                self._context.applies(term, profile) for other in self._departed.values() for term in other.repels
            )
        return known
