"""An executor that only logs and counts, and decisions for it."""

from types import SimpleNamespace
from typing import Any, cast

from topo_scheduler.observability.metrics import Metrics
from topo_scheduler.runtime.executor import Executor
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.state.decision import Decision, Quality, ScoreParts, Verdict


def decision(verdict: Verdict, score: ScoreParts | None = None, quality: Quality | None = None) -> Decision:
    return Decision(
        id=1, workload="w", name="n/w", generation=1, verdict=verdict, members=2, nodes=4, score=score, quality=quality
    )


def executor(metrics: Metrics, engine: Engine | None = None) -> Executor:
    nothing = cast("Any", None)
    return Executor(
        cast("Any", engine),
        cast("Any", SimpleNamespace(evictor=None, statuses=None, events=None)),
        metrics,
        name="topo-scheduler",
        workers=48,
        clock=lambda: 0.0,
        wall=nothing,
        start=nothing,
        changed=nothing,
        confirm=nothing,
    )
