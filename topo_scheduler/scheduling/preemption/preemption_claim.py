"""A claim: the room that preemption has promised to a workload. `claims` makes and ends them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from topo_scheduler.scheduling.preemption.freed_room import FreedRoom, count_of_devices
from topo_scheduler.scheduling.preemption.take_over import EmptiedRoom
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.pods.profiles import Profile


@dataclass(slots=True)
class PreemptionClaim:
    """The room that a workload was promised.

    ``nodes`` maps the uid of each pod of the workload to its node. ``victims`` maps the uid of each pod that must end
    to its name. ``until`` is when the claim expires, in seconds. ``answers_until`` is until when the scheduler waits
    for the next answer to an eviction, in seconds. ``devices`` maps each ResourceClaim that Kubernetes must deallocate
    to its uid. ``devices_until`` is until when the scheduler waits for that after the victims have ended, in seconds.
    ``removed_before`` is how many pods Kubernetes had removed from their claims when this claim was made.
    ``doubted``: the eviction of a victim, or of a pod in its namespace, failed before. ``evicts``: pods are evicted for
    it; otherwise it only waits for pods that end anyway. ``room`` is where its pods get room, if pods are evicted.
    ``wanted`` are the amounts for which pods are evicted, by resource column, and ``emptied`` the nodes of these.
    ``inherits``: it answers for evictions for other workloads, whose room it takes over, and some were made already.
    ``profiles`` maps the uid of each pod of the workload to its profile when the claim was made, if pods are evicted.
    ``lost_until`` is when it ends because one of its own pods is gone, in seconds.
    ``adopted``: made from nominations of an earlier process, which may not have evicted all victims.
    ``idle_seconds``: for how long it holds other nodes than those of its own pods, in seconds, summed over the nodes.
    ``holds``: the nodes that it keeps from workloads of other namespaces, too.
    ``in_stages``: it waits only for pods of its own namespace; the next plan evicts those of others. ``kept_until`` is
    until when it keeps what they freed for that plan, in seconds.
    """

    workload: str
    namespace: str
    priority: int
    nodes: dict[str, str]
    victims: dict[str, str]
    until: float
    answers_until: float
    devices: dict[ClaimKey, str] = field(default_factory=dict)
    devices_until: float = inf
    removed_before: int = 0
    doubted: bool = False
    evicts: bool = False
    room: FreedRoom | None = None
    wanted: Counter[int] = field(default_factory=Counter)
    emptied: frozenset[str] = frozenset()
    inherits: bool = False
    profiles: dict[str, Profile | None] = field(default_factory=dict)
    lost_until: float = inf
    adopted: bool = False
    idle_seconds: float = 0.0
    holds: frozenset[str] = frozenset()
    in_stages: bool = False
    kept_until: float = inf

    @property
    def has_lost_pod(self) -> bool:
        """Whether a pod that was promised room is gone."""
        return self.lost_until < inf

    @property
    def freed(self) -> dict[str, Mapping[int, int]]:
        """What its pods get on the nodes that are emptied, by node and resource column."""
        amounts = self.room.amounts if self.room is not None else {}
        return {node: amounts[node] for node in sorted(self.emptied) if node in amounts}

    @property
    def emptied_room(self) -> EmptiedRoom:
        """The room that is emptied for it."""
        if self.room is None:
            return EmptiedRoom(self.namespace, {}, {})
        devices = count_of_devices(self.room.devices)
        return EmptiedRoom(self.namespace, self.freed, self.wanted, self.room.evicted, devices)
