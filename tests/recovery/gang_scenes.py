"""A gang with neighbours on the other nodes of its leaf, for tests of what happens when it loses a node."""

from tests.recovery.world import World, leaf
from topo_scheduler.api.recovery import RecoverySpec

SPEC = RecoverySpec(enabled=True, debounce=1, force_delete=True, quarantine=60)
KEY = "default/gv-4183d411fe"
"""The Migration of the gang: anyone can compute its name."""


def gang_with_neighbours(world: World, neighbours: int = 1, *, per_node: int = 1) -> tuple[str, list[str]]:
    """Place a gang of three, and neighbours on the other nodes of its leaf; return a node of it, and their nodes."""
    world.gang("gv", 3)
    world.run(1)
    nodes = world.nodes_of("gv-")
    free = [name for name in world.node_objects if leaf(name) == leaf(nodes["gv-0"]) and name not in nodes.values()]
    for number, node in enumerate(free[:neighbours]):
        for more in range(per_node):
            world.put(f"small{number + more}", node, 1, namespace="tu"[number], ran=1)
    world.run(1)
    return nodes["gv-1"], free
