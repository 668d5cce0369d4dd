"""Gangs that lost members, and the seats that joint planning gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.helpers import EPOCH
from tests.recovery.world import World, leaf
from topo_scheduler.recovery.model.seating import find_moving_pod
from topo_scheduler.recovery.planning.joint_assignment import free_seats
from topo_scheduler.recovery.planning.joint_relocation import EligiblePods, room_for_all
from topo_scheduler.recovery.planning.migration_validation import rest_of_gang
from topo_scheduler.recovery.planning.seat_claims import Copies, RelocationRequest, Shares
from topo_scheduler.scheduling.time_slicing import whole

GPUS_PER_NODE = 8


def relocation_request(world: World, gang: str, lost: Sequence[str], avoided: frozenset[str]) -> RelocationRequest:
    """Return the request of a gang for its lost members."""
    moving_pods = tuple(pod for pod in (find_moving_pod(world.view, uid) for uid in lost) if pod is not None)
    rest = tuple(rest_of_gang(world.view, moving_pods))
    return RelocationRequest(f"default/{gang}", moving_pods, avoided, lambda _: None, rest, may_relocate=True)


def plan_jointly(world: World, claims: Sequence[RelocationRequest]) -> Shares:
    """Return the seats that each gang gets."""
    copies = Copies(world.view, world.now)
    free = whole(free_seats(copies, claims))
    if all(share.seats for share in free.values()):
        return free
    return whole(room_for_all(copies, claims, free, EligiblePods(frozenset(), EPOCH + world.now)))


@dataclass(frozen=True)
class GangWithLosses:
    """A gang of which members are lost: what is left of it runs in one leaf, its home. Or a pod alone, without a home.

    ``rest`` the node of each that runs on; ``gpus`` of each.
    """

    name: str
    priority: int
    home: str
    lost: tuple[str, ...]
    rest: tuple[str, ...] = ()
    gpus: int = GPUS_PER_NODE


@dataclass(frozen=True)
class ClusterWithLosses:
    """Free GPUs by node, pods that may move by name (node, GPUs, cost), and gangs that lost members."""

    free: Mapping[str, int]
    pods: Mapping[str, tuple[str, int, float]]
    gangs: Sequence[GangWithLosses]


def check_shares(cluster: ClusterWithLosses, shares: Shares) -> None:
    """Check that all seats are allowed, and that no two pods share one."""
    left = dict(cluster.free)
    for share in shares.values():
        for other in share.relocated:
            node, gpus, _ = cluster.pods[other.member.uid]
            left[node] += gpus
    for gang in cluster.gangs:
        share = shares[f"default/{gang.name}"]
        nodes = list(share.seats.values())
        assert len(nodes) in (0, len(gang.lost) + (len(gang.rest) if share.whole else 0))
        home = {gang.home} if nodes and gang.home and not share.whole else set()
        assert len({leaf(node) for node in nodes} | home) <= 1
        if share.whole:
            for node in gang.rest:
                left[node] += gang.gpus
        for node in nodes:
            left[node] -= gang.gpus
        for other in share.relocated:
            to = share.targets[other.member.uid]
            assert to != other.entry.node
            left[to] -= cluster.pods[other.member.uid][1]
    assert all(free >= 0 for free in left.values()), left
