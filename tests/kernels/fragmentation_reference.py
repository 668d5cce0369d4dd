"""A reference for the fragmentation kernels: drawn nodes and pods, and each way to place them."""

from decimal import Decimal

import numpy as np
from hypothesis import strategies as st

from topo_scheduler.state.statistics.typical_pods import MILLIONTHS

# A node: free milli-CPU, free thousandths of each GPU, whether it shares them, its model.
nodes = st.tuples(
    st.integers(0, 8).map(lambda n: 1000 * n),
    st.lists(st.sampled_from([0, 100, 250, 400, 500, 900, 1000, 1000]), max_size=6),
    st.booleans(),
    st.integers(-1, 1),
).map(lambda node: (node[0], [g if node[2] else 1000 * (g == 1000) for g in node[1]], *node[2:]))
# A pod: milli-CPU, whole GPUs, thousandths of one.
pods = st.tuples(
    st.integers(0, 6).map(lambda n: 1000 * n),
    st.sampled_from([(0, 0), (1, 0), (2, 0), (4, 0), (0, 100), (0, 250), (0, 460), (0, 900)]),
).map(lambda pod: (pod[0], *pod[1]))
typical_pods = st.lists(
    st.tuples(pods, st.integers(1, MILLIONTHS), st.lists(st.booleans(), min_size=3, max_size=3)), max_size=5
)
Node = tuple[int, list[int], bool, int]
Pod = tuple[int, int, int]
TypicalPods = list[tuple[Pod, int, list[bool]]]


def placements(node: Node, pod: Pod) -> list[tuple[int, Node]]:
    """Return every way to place a pod on a node: the GPU that a share takes (-1 for none), and the rest of the node."""
    cpu, gpus, sharing, model = node
    need, whole, share = pod
    if need > cpu:
        return []
    if share:
        return [
            (at, (cpu - need, [*gpus[:at], free - share, *gpus[at + 1 :]], sharing, model))
            for at, free in enumerate(gpus)
            if free >= share
        ]
    untouched = [at for at, free in enumerate(gpus) if free == 1000]
    if len(untouched) < whole:
        return []
    left = [0 if at in untouched[:whole] else free for at, free in enumerate(gpus)]
    return [(-1, (cpu - need, left, sharing, model))]


def sigmoid_score(gain: int) -> int:
    """Return int(100 * sigmoid(gain in GPUs)), computed with 40 digits."""
    x = Decimal(gain) / (1000 * MILLIONTHS)
    return int(100 / (1 + (-x).exp()))


def typical_arrays(typical: TypicalPods) -> tuple[np.ndarray, np.ndarray]:
    """Return typical pods as the arrays that the kernels read."""
    table = np.array([(*pod, weight) for pod, weight, _ in typical], np.int64).reshape(len(typical), 4)
    access = np.array([access for *_, access in typical], np.bool_).reshape(len(typical), 3)
    return table, access
