"""A runner of recovery that is not started: tests call its parts, with a machine of their own."""

from collections.abc import Callable, Coroutine
from typing import Any, cast

from tests.evicting.eviction_scenes import RecordedEvents
from tests.kube.virtual import now
from tests.kube.world import World
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.writing.events import EventRecorder
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.recovery.controller.eviction_guard import EvictionGuard
from topo_scheduler.recovery.controller.runner import RecoveryRunner
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.scheduling.scheduler_view import SchedulerControl, SchedulerView


def runner_of(
    w: World,
    machine: object,
    start: Callable[[Coroutine[Any, Any, None], str], None],
    guard: object = None,
    control: object = None,
) -> RecoveryRunner:
    """Return a runner with this machine, and with a guard or a control that are not real."""
    engine = Driver(fabric({"s/l": 1})).engine
    runner = RecoveryRunner(
        w.client,
        SchedulerView(engine),
        cast("SchedulerControl", control or engine),
        RecoverySpec(),
        gpu_resources=(),
        events=cast("EventRecorder", RecordedEvents()),
        metrics=Metrics(Snapshot),
        owners=OwnerDirectory(w.client, clock=now),
        clock=now,
        epoch=0.0,
        start=start,
        changed=lambda: None,
    )
    runner._machine = cast("Recovery", machine)
    if guard is not None:
        runner._executor.guard = cast("EvictionGuard", guard)
    return runner
