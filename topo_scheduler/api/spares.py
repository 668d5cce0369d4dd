"""Configuration of nodes that are kept free for recovery."""

from typing import Annotated

from pydantic import Field

from topo_scheduler.api.models import Model


class SparesSpec(Model):
    """Spare nodes, kept free for pods that lost their node."""

    per_leaf: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of spare nodes with GPUs in each leaf, for each kind of node (GPU model and number of GPUs). One node of
    each kind always stays available to all workloads. 0 keeps none."""
    lend_below_priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """Workloads below this priority may use spare nodes in the meantime. They are evicted when recovery needs these
    nodes."""
