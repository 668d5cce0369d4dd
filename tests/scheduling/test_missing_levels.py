"""Levels that the configuration defines and no node is in: most often a label's key is misspelt."""

from tests.helpers import make_node
from tests.scheduling.driver import Driver
from topo_scheduler.api.config import Configuration, load_configuration

LEVELS = """
    levels:
      - {name: spine, labels: [topology.scheduler/spine]}
      - {name: rack, labels: [example.com/rack, example.com/old-rack]}
      - {name: leaf, labels: [topology.scheduler/leaf]}
    accelerators:
      - {name: nvlink, labels: [example.com/nvlink]}
"""


def _configured(topology: str) -> Configuration:
    text = f"apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\ntopology:{topology or ' {}'}"
    return load_configuration({"test": text})


def _complaints(topology: str, *labels: str) -> list[str]:
    nodes = [make_node(f"n{number}", "s1/l1") for number in range(2)]
    for label in labels:
        nodes[0].metadata.labels[label] = "a"
    d = Driver(nodes, _configured(topology))
    d.step()
    d.step()
    return [text for text in d.complaints() if "this level does not exist" in text]


def test_a_level_that_no_node_is_in_is_named_once_with_its_labels() -> None:
    rack, nvlink = _complaints(LEVELS)
    assert rack == (
        "SchedulerConfig: topology.levels: rack: no node has the label example.com/rack or example.com/old-rack, so"
        " this level does not exist; correct the key, or label the nodes"
    )
    assert "topology.accelerators: nvlink: no node has the label example.com/nvlink," in nvlink


def test_a_level_that_one_node_is_in_is_there() -> None:
    assert _complaints(LEVELS, "example.com/old-rack", "example.com/nvlink") == []


def test_the_only_level_may_be_missing_too() -> None:
    (text,) = _complaints(" {levels: [{name: leaf, labels: [topology.scheduler/laef]}]}")
    assert "topology.levels: leaf: no node has the label topology.scheduler/laef," in text


def test_predefined_levels_need_no_label() -> None:
    assert _complaints("") == []
