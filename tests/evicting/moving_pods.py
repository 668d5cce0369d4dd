"""A runner of recovery that evicts pods, whose machine and guard are not real."""

from tests.kube.virtual import now
from tests.kube.world import World
from tests.recovery.runners import runner_of
from topo_scheduler.recovery.controller.runner import RecoveryRunner
from topo_scheduler.recovery.model.instructions import EvictPod
from topo_scheduler.scheduling.instructions import PodRef

KEY = "default/move"


class Machine:
    """Takes over how evictions ended, and when."""

    def __init__(self) -> None:
        self.ended: list[tuple[float, str]] = []
        self.migrations = self

    def evicted(self, migration: str, uid: str, *, reason: str | None, **_: object) -> None:
        assert reason is None
        self.ended.append((now(), uid))


class Guard:
    """Lets every pod be evicted."""

    async def reason_not_to_evict(self, key: str, uid: str) -> str:
        return ""

    def why_over(self, key: str, uid: str) -> str:
        return ""


def moving(w: World) -> tuple[RecoveryRunner, Machine]:
    """A runner whose machine and guard are not real."""
    machine = Machine()
    runner = runner_of(w, machine, lambda work, name: None, guard=Guard())
    return runner, machine


def eviction(w: World, name: str, namespace: str = "default", *, force: bool = False) -> EvictPod:
    uid = w.create_pod(name, namespace, finalizers=["example.com/wait"]).metadata.uid
    return EvictPod(KEY, PodRef(namespace, name, uid), force, "migration")
