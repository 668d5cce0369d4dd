"""Limits per leaf below the leaves there are: a warning, once, and the limit is named in every reason it may cause."""

import pytest

from tests.helpers import make_node
from tests.scheduling.driver import Driver, configured, fabric, gang
from topo_scheduler.scheduling.fabric_warnings import leaves_above_limits

NODES = "spec.topologyConstraints.maxNodesPerLeaf is 4, but 2 of 2 leaves have more nodes (s1/l1 has 16)"
GPUS = "spec.topologyConstraints.maxGPUsPerLeaf is 32, but 2 of 2 leaves have more GPUs (s1/l1 has 128)"


@pytest.mark.parametrize(
    ("limits", "warnings"),
    [
        ("", []),
        ("maxNodesPerLeaf: 4", [NODES]),
        ("maxGPUsPerLeaf: 32", [GPUS]),
        ("maxNodesPerLeaf: 4, maxGPUsPerLeaf: 32", [NODES, GPUS]),
        ("maxNodesPerLeaf: 16, maxGPUsPerLeaf: 128", []),
    ],
)
def test_a_limit_below_the_leaves_seen_is_warned_about_once(limits: str, warnings: list[str]) -> None:
    config = configured(f"{{topologyConstraints: {{{limits}}}}}")
    d = Driver(fabric({"s1/l1": 16, "s1/l2": 16}), config)
    d.run(*gang(2, name="a"))
    assert [warning for text in d.complaints() for warning in warnings if warning in text] == warnings
    assert len(d.complaints()) == len(warnings)
    assert all("spread over several leaves" in text for text in d.complaints())
    d.nodes(*fabric({"s1/l3": 3}))
    d.run(*gang(2, name="b"))
    assert len(d.complaints()) == len(warnings), "once, and not for every node that comes"
    d.engine.configure(config)
    d.run(*gang(2, name="c"))
    assert len(d.complaints()) == 2 * len(warnings), "again when the configuration is read again"


def test_a_leaf_that_grows_beyond_the_limit_is_warned_about() -> None:
    d = Driver(fabric({"s1/l1": 4}), configured("{topologyConstraints: {maxNodesPerLeaf: 4}}"))
    d.run(*gang(2, name="a"))
    assert d.complaints() == []
    d.nodes(*fabric({"s1/l2": 5}))
    d.run(*gang(2, name="b"))
    (warning,) = d.complaints()
    assert "1 of 2 leaves have more nodes (s1/l2 has 5)" in warning


def test_a_gang_that_was_spread_by_a_limit_says_so() -> None:
    nodes = fabric({"s1/l1": 16, "s1/l2": 16, "s1/l3": 16, "s1/l4": 16})
    d = Driver(nodes, configured("{topologyConstraints: {maxNodesPerLeaf: 4, maxGPUsPerLeaf: 32}}"))
    d.run(*gang(16))
    (decision,) = d.decisions()
    assert "4 of 4 leaves needed within maxNodesPerLeaf 4 and maxGPUsPerLeaf 32, score" in decision.message
    free = Driver(nodes)
    free.run(*gang(16))
    (decision,) = free.decisions()
    assert "1 of 1 leaf needed, score" in decision.message


def test_a_gang_that_a_limit_keeps_waiting_says_so() -> None:
    d = Driver(fabric({"s1/l1": 16, "s1/l2": 16}), configured("{topologyConstraints: {maxNodesPerLeaf: 4}}"))
    pods = gang(16)
    d.apply(*pods)
    d.step()
    d.step(2)
    assert "hold 8 of 16 pods even when empty within maxNodesPerLeaf 4" in d.told(pods[0])[-1]


def test_a_gang_that_waits_for_blocks_within_a_limit_says_so() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}), configured("{topologyConstraints: {maxNodesPerLeaf: 2}}"))
    d.run(*gang(3, name="first", gpus=8))
    d.nodes(*fabric({"s2/l1": 1}))
    pods = gang(2, name="second")
    d.apply(*pods)
    d.step()
    assert "within maxNodesPerLeaf 2" in d.told(pods[0])[-1]


def test_it_is_warned_about_before_any_pod_comes_and_nodes_without_labels_are_no_leaf() -> None:
    limits = configured("{topologyConstraints: {maxNodesPerLeaf: 2}}")
    idle = Driver(fabric({"s1/l1": 3}), limits)
    idle.step()
    (warning,) = idle.complaints()
    assert warning.startswith("spec.topologyConstraints.maxNodesPerLeaf is 2, but 1 of 1 leaves have more nodes")
    assert _leaves_above_limits(idle) == {"maxNodesPerLeaf": 1}
    bare = Driver([make_node(f"n{at}") for at in range(9)], limits)
    bare.step()
    assert not [text for text in bare.complaints() if "maxNodesPerLeaf" in text]
    assert _leaves_above_limits(bare) == {"maxNodesPerLeaf": 0}


def test_the_metric_counts_the_leaves_above_each_limit() -> None:
    limits = configured("{topologyConstraints: {maxNodesPerLeaf: 2, maxGPUsPerLeaf: 32}}")
    d = Driver(fabric({"s1/l1": 5, "s1/l2": 3, "s1/l3": 4, "s2/l1": 2}), limits)
    d.step()
    assert _leaves_above_limits(d) == {"maxNodesPerLeaf": 3, "maxGPUsPerLeaf": 1}


def _leaves_above_limits(d: Driver) -> dict[str, int]:
    return leaves_above_limits(d.engine.config, d.engine.world.layout, d.engine.world.nodes)


def test_the_reason_of_a_gang_without_room_names_the_limit() -> None:
    d = Driver(fabric({"s1/l1": 4, "s1/l2": 4, "s1/l3": 4}), configured("{topologyConstraints: {maxNodesPerLeaf: 2}}"))
    d.run(*gang(4, name="first", gpus=8))
    d.run(*gang(4, name="other", gpus=8))
    pods = gang(6, name="second", gpus=8)
    d.apply(*pods)
    d.step()
    d.step(3)
    assert "with room for 6 pods of 8 GPUs within maxNodesPerLeaf 2" in d.told(pods[0])[-1]
