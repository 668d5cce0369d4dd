"""What can happen to one write of a decision: the API server refuses it, or its answer is lost."""

from typing import Final

from topo_scheduler.simulation.apiserver import Disconnect, Refuse, Truncate
from topo_scheduler.simulation.apiserver.faults import Fault

FAULTS: Final[dict[str, Fault]] = {
    "409": Refuse(409),
    "422": Refuse(422),
    "lost before it was written": Disconnect(),
    "lost after it was written": Disconnect(applied=True),
    "answer truncated": Truncate(),
}
