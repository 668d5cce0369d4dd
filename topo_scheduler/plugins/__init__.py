"""The public API for plugin authors. Other modules may change without notice.

An entry point of the group ``topo_scheduler.plugins`` names a `Factory`: a function that takes the plugin's arguments
from the configuration and returns a `Plugin`. docs/how-to/write-a-plugin.md shows how to write one.
docs/reference/plugins.md describes every name here.

Imported by: `cli`, `daemon`, `runtime`.
"""

from topo_scheduler.scheduling.extensions.extension import (
    GROUP,
    VERSION,
    WHOLE,
    Answer,
    Binding,
    Bool,
    Demand,
    Factory,
    Filter,
    Gang,
    LeafSeats,
    Leaves,
    Nodes,
    Plugin,
    PluginError,
    Prefers,
    Request,
    Score,
    Strategy,
)
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass

__all__ = [
    "GROUP",
    "VERSION",
    "WHOLE",
    "Answer",
    "Binding",
    "Bool",
    "Demand",
    "Factory",
    "Filter",
    "Gang",
    "Int64",
    "LeafSeats",
    "Leaves",
    "Nodes",
    "Plugin",
    "PluginError",
    "PodClass",
    "Prefers",
    "Request",
    "Score",
    "Strategy",
]
