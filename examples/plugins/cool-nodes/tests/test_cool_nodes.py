"""The plugin alone, on a node table, as its author would test it."""

import numpy as np
import pytest
from topo_cool_nodes import ANNOTATION, LABEL, plugin
from topo_cool_nodes.kernels import cool_enough

from topo_scheduler.api.objects import Node, NodeStatus, ObjectMeta
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.plugins import PodClass, Request
from topo_scheduler.scheduling.world import World


def world(**celsius: str) -> World:
    cluster = World(SchedulerConfig())
    for name, degrees in celsius.items():
        cluster.put_node(Node(metadata=ObjectMeta(name=name, labels={LABEL: degrees}), status=NodeStatus()), 0.0)
    return cluster


def test_hot_nodes_are_rejected_and_unknown_ones_are_not() -> None:
    nodes = world(hot="80", cool="40", odd="warm").nodes
    rows = np.array([nodes.row_of[name] for name in ("hot", "cool", "odd")], np.int64)
    accepts = plugin({}).filters[0].accepts
    wanted = PodClass((), plugin_inputs=((f"annotation:{ANNOTATION}", "60"),))
    assert accepts(nodes, wanted, rows).tolist() == [False, True, True]
    assert accepts(nodes, PodClass(()), rows).all()


def test_cooler_nodes_score_higher() -> None:
    nodes = world(hot="80", cool="40", odd="warm", beyond="120").nodes
    rows = np.array([nodes.row_of[name] for name in ("hot", "cool", "odd", "beyond")], np.int64)
    score = plugin({"hottest": 100}).scores[0].nodes
    assert score is not None
    assert score(nodes, Request(PodClass(()), 1, False, "balanced"), rows).tolist() == [200, 600, 500, 0]


def test_nothing_is_compiled_during_a_decision() -> None:
    if hasattr(cool_enough, "signatures"):  # not with NUMBA_DISABLE_JIT
        before = list(cool_enough.signatures)
        cool_enough(np.array([1, 2], np.int64), 1)
        assert cool_enough.signatures == before


@pytest.mark.parametrize("arguments", [{"hotest": 1}, {"hottest": 0}, {"hottest": "90"}])
def test_bad_arguments_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="hot"):
        plugin(arguments)
