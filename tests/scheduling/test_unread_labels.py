"""Labels of nodes under the scheduler's prefix that it does not read: told once by name."""

from collections.abc import Sequence

import pytest

from tests.helpers import make_node
from topo_scheduler.api.config import TopologySchedulerConfig
from topo_scheduler.api.labels import BANDWIDTH_LABELS, FAMILIES, GPU_SHARING, PREFIX, RAIL_LABELS
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.topology.unread_labels import MAX_REPORTED


def world_of(*labels: str, config: SchedulerConfig | None = None) -> World:
    """A world of nodes n0, n1 and so on, each with one label."""
    world = World(config or SchedulerConfig())
    for number, key in enumerate(labels):
        put(world, f"n{number}", [key])
    return world


def put(world: World, name: str, keys: Sequence[str]) -> None:
    """Create a node with these labels, or change its labels."""
    world.put_node(make_node(name, labels=dict.fromkeys(keys, "x")), 0.0)


def test_a_typing_error_is_reported_once_with_what_was_meant() -> None:
    world = world_of(PREFIX + "laef", PREFIX + "leaf", "example.com/laef")
    (text,) = world.look_at_fabric()
    assert text == (
        f"node n0: label {PREFIX}laef is not known to this scheduler and is ignored; did you mean {PREFIX}leaf?"
    )
    assert world.look_at_fabric() == []
    put(world, "n3", [PREFIX + "laef"])
    assert world.look_at_fabric() == [], "told for another node"
    for name in ("n0", "n3"):
        put(world, name, [PREFIX + "leaf"])
    assert world.look_at_fabric() == []
    put(world, "n1", [PREFIX + "laef"])
    assert len(world.look_at_fabric()) == 1, "again"


def test_one_line_names_all_nodes_of_a_label() -> None:
    (text,) = world_of(*[PREFIX + "rack-of-mine"] * 5).look_at_fabric()
    assert text == (
        f"nodes n0, n1, n2 and 2 more: label {PREFIX}rack-of-mine is not known to this scheduler and is ignored"
    )


def test_labels_that_are_read_are_not_reported() -> None:
    family = FAMILIES["topology.scheduler"][0].keys.values()
    uplinks = [f"{PREFIX}{level}-uplink-bandwidth" for level in ("region", "zone", "fabric", "core", "spine", "leaf")]
    domains = [f"{PREFIX}accelerator-domain", f"{PREFIX}accelerator-sub-domain"]
    world = world_of(*family, *uplinks, *domains, *RAIL_LABELS, *BANDWIDTH_LABELS, GPU_SHARING)
    assert [text for text in world.look_at_fabric() if "is not known" in text] == []


@pytest.mark.parametrize("key", ["row", "rail-a", "model", "speed"])
def test_labels_of_a_configuration_are_read(key: str) -> None:
    own = PREFIX + key
    config = SchedulerConfig.model_validate(
        {
            "topology": {
                "levels": [{"name": "row", "labels": [PREFIX + "row"]}],
                "rails": {"labels": [PREFIX + "rail-a"], "level": "row"},
            },
            "gpuModelLabels": [PREFIX + "model"],
            "bandwidthLabels": [PREFIX + "speed"],
        }
    )
    assert not any("is not known" in text for text in world_of(own, config=config).look_at_fabric())
    assert any("is not known" in text for text in world_of(own).look_at_fabric())


def test_labels_of_recovery_are_read_as_soon_as_they_are_configured() -> None:
    world = world_of(PREFIX + "links-now")
    assert len(world.look_at_fabric()) == 1
    pair = {"current": PREFIX + "links-now", "expected": PREFIX + "links-wanted"}
    spec = TopologySchedulerConfig.model_validate({"spec": {"recovery": {"linkLabels": [pair]}}}).spec
    world.configure(spec)
    assert world.look_at_fabric() == []
    world.configure(TopologySchedulerConfig().spec)
    assert len(world.look_at_fabric()) == 1


def test_the_names_reported_at_a_time_are_capped() -> None:
    world = world_of(*[f"{PREFIX}x-{number}" for number in range(MAX_REPORTED + 5)])
    assert len(world.look_at_fabric()) == MAX_REPORTED
