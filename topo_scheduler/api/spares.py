"""What is configured about nodes that are kept free for recovery."""

from typing import Annotated

from pydantic import Field

from topo_scheduler.api.models import Model


class SparesSpec(Model):
    """Nodes that are kept free for pods which have lost theirs."""

    per_leaf: Annotated[int, Field(ge=0, le=64)] = 0
    """How many nodes with GPUs are kept in each leaf; where it has several kinds (GPU models, or numbers of GPUs), of
    each kind. Of the nodes of a kind one is always left to everybody. 0 keeps none."""
    lend_below_priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """Workloads of lower priority may use these nodes meanwhile, and are evicted when recovery needs them."""
