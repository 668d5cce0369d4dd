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
from topo_scheduler.recovery.controller.runner import RecoveryRunner
from topo_scheduler.scheduling.scheduler_view import SchedulerView


def runner_of(
    w: World, machine: object, start: Callable[[Coroutine[Any, Any, None], str], None], **replaced: object
) -> RecoveryRunner:
    """Return a runner with this machine. ``replaced`` has other attributes to set, by name."""
    engine = Driver(fabric({"s/l": 1})).engine
    runner = RecoveryRunner(
        w.client,
        SchedulerView(engine),
        engine,
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
    for name, value in {"_machine": machine, **replaced}.items():
        setattr(runner, name, value)
    return runner
