"""GPU models that no node has: most often an abbreviation of a model's name, or a typing error."""

from typing import Final

import numpy as np

from topo_scheduler.api.text import few_of
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.state.nodes.node_table import UNKNOWN, NodeTable

_MAX_NAMED: Final = 6


def unknown_models(nodes: NodeTable, query: PlacementQuery) -> str:
    """Return the message for a workload that only asks for GPU models that no node was ever seen with; empty if none.

    It names the models that there are, as users must write them.
    """
    for cls, _ in query.groups:
        if cls.models and all(nodes.model_id(model) == UNKNOWN for model in cls.models):
            present = np.unique(nodes.model[nodes.exists])
            names = sorted(nodes.models[number] for number in present.tolist() if number != UNKNOWN)
            there_are = f"there are {few_of(names, _MAX_NAMED)}" if names else "no node has a label with its model"
            return f"no node has the GPU model {few_of(cls.models)}: {there_are}"
    return ""
