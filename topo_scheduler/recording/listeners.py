"""Who listens to an engine, for what is open."""

from topo_scheduler.observability.outputs import Outputs
from topo_scheduler.recording.audit import Audit
from topo_scheduler.recording.ear import CallListener
from topo_scheduler.recording.recorder import Recorder


def listeners_for(outputs: Outputs) -> list[CallListener]:
    """Return the listeners of one term; none where nothing is open."""
    found: list[CallListener] = []
    if outputs.record is not None:
        found.append(Recorder(outputs.record))
    if outputs.audit is not None:
        found.append(Audit(outputs.audit))
    return found
