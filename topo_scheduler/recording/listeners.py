"""The listeners of an engine for the open outputs."""

from topo_scheduler.observability.outputs import Outputs
from topo_scheduler.recording.audit import Audit
from topo_scheduler.recording.observed_engine import CallListener
from topo_scheduler.recording.recorder import Recorder


def listeners_for(outputs: Outputs) -> list[CallListener]:
    """Return the listeners of one term; none without an open output."""
    listeners: list[CallListener] = []
    if outputs.record is not None:
        listeners.append(Recorder(outputs.record))
    if outputs.audit is not None:
        listeners.append(Audit(outputs.audit))
    return listeners
