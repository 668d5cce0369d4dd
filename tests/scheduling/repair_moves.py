"""Pods whose move makes room for a gang, and the planned moves."""

from collections.abc import Sequence

from tests.helpers import controlled_by, make_pod, owner
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.moving.plan import MovePlan

REPAIR_ONLY = configured("{repair: {enabled: true}, preemption: {enabled: false}, reservation: {enabled: false}}")


def repair_driver(leaves: dict[str, int], config: Configuration = REPAIR_ONLY) -> Driver:
    """Return a driver of a fabric that makes room for gangs only by moving pods."""
    d = Driver(fabric(leaves), config)
    d.engine.budgets_known()
    return d


def run_on(d: Driver, *pods: Pod, on: Sequence[str]) -> None:
    """Apply pods that this scheduler placed on these nodes."""
    for pod in pods:
        if (controller := pod.metadata.controller) is not None:
            d.own(owner(controller.kind, controller.name))
    d.apply(*pods)
    for pod, node in zip(pods, on, strict=True):
        pod.spec.node_name = node
    d.apply(*pods)


def replicated_pod(name: str, gpus: int = 2, *, controlled: bool = True, priority: int = 0, **annotations: str) -> Pod:
    """Return a pod whose controller recreates it after an eviction."""
    by = controlled_by("StatefulSet", name) if controlled else None
    pod_annotations = {key.replace("_", "-"): value for key, value in annotations.items()}
    return make_pod(name, gpus=gpus, owner=by, priority=priority, annotations=pod_annotations, labels={"app": name})


def plan_moves(d: Driver, pods: Sequence[Pod], max_moves: int = 8) -> MovePlan | None:
    """Return the moves that would make room for the workload of these pods."""
    entry = d.engine.workloads.of_pod(pods[0].metadata.uid)
    assert entry is not None
    made = d.engine.moving.plan(entry[0], d.now, max_moves)
    d.engine.preempting.nominations.remove_charges()
    return made


def moves_by_pod(d: Driver, plan: MovePlan | None) -> dict[str, tuple[str, str]] | None:
    """Return the node that each moved pod leaves, and its target."""
    names = d.engine.world.nodes.names
    return (
        None if plan is None else {move.pod.occupant.name: (names[move.pod.row], names[move.to]) for move in plan.moves}
    )
