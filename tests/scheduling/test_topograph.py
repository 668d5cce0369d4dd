"""Models of topograph as it labels nodes: NVL72 racks, and two accelerators with a domain for each rack."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.e2e.real_input import data
from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from tests.scheduling.gang_pods import annotated_gang, rank_of
from topo_scheduler.api.objects import Node

MODELS = ("nvl72", "dual-xclr-regular", "large", "medium", "small-tree")
Model = Mapping[str, Any]


def model(name: str) -> Model:
    parsed: Model = yaml.safe_load(data("topograph", f"{name}.yaml").read_text(encoding="utf-8"))
    return parsed


def names_in(text: str) -> Iterator[str]:
    """Yield the names that a list of hosts such as ``srv11[01-08]`` means."""
    match = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", text)
    if match is None:
        yield text
        return
    head, low, high, tail = match.groups()
    for number in range(int(low), int(high) + 1):
        yield f"{head}{number:0{len(low)}d}{tail}"


def nodes_of(model: Model, gpus: int = 4) -> list[Node]:
    """Return the nodes with the labels that topograph gives them: tiers count from the leaf outwards."""
    above = {inner: name for name, switch in model["switches"].items() for inner in (switch or {}).get("switches", ())}
    nodes = []
    for block in model["blocks"]:
        labels: dict[str, str] = {}
        switch, tier = block["switch"], 0
        while switch:
            labels[f"fabric.topograph.run/tier-{tier}"] = switch
            switch, tier = above.get(switch), tier + 1
        for key, value in (block.get("annotations") or {}).items():
            labels[key.replace("accelerator.topology.test/", "accelerator.topograph.run/")] = value
        nodes += [make_node(name, gpus=gpus, labels=labels) for text in block["nodes"] for name in names_in(text)]
    return nodes


def label(d: Driver, node: str, key: str) -> str:
    world = d.engine.world
    return world.nodes.labels_of(world.nodes.row_of[node])[f"accelerator.topograph.run/{key}"]


def domains(d: Driver, where: Mapping[str, str], key: str = "domain") -> set[str]:
    return {label(d, node, key) for node in where.values()}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_read_and_every_domain_holds_a_gang_of_its_size(name: str) -> None:
    nodes = nodes_of(model(name))
    sizes: dict[str, int] = {}
    for node in nodes:
        domain = node.metadata.labels["accelerator.topograph.run/domain"]
        sizes[domain] = sizes.get(domain, 0) + 1
    d = Driver(nodes)
    tree = d.engine.world.layout.accelerators
    assert tree is not None
    assert {"/".join(path) for path in tree.paths("accelerator-domain")} == set(sizes)
    largest = max(sizes.values())
    members = annotated_gang(largest, gpus=4, required_level="accelerator-domain")
    where = d.run(*members)
    assert len(where) == largest
    assert len(domains(d, where)) == 1
    more = annotated_gang(largest + 1, "more", gpus=4, required_level="accelerator-domain")
    assert d.run(*more) == {}
    assert f"No accelerator-domain could hold the gang's {largest + 1} pods" in d.told(more[0])[-1]


def test_racks_of_18_nodes_hold_a_gang_of_16_each() -> None:
    d = Driver(nodes_of(model("nvl72")))
    for number in range(4):
        assert (
            len(domains(d, d.run(*annotated_gang(16, f"g{number}", gpus=4, required_level="accelerator-domain")))) == 1
        )
    assert d.run(*annotated_gang(16, "late", gpus=4, required_level="accelerator-domain")) == {}


def test_segments_of_16_nodes_each_have_a_rack_and_share_a_spine() -> None:
    d = Driver(nodes_of(model("nvl72")))
    members = annotated_gang(32, gpus=4, segment_size="16", segment_level="accelerator-domain")
    d.run(*members)
    in_order = [pod.spec.node_name for pod in sorted(members, key=rank_of)]
    racks = [{label(d, node, "domain") for node in in_order[at : at + 16]} for at in (0, 16)]
    assert racks in ([{"nvl-1-1"}, {"nvl-1-2"}], [{"nvl-2-1"}, {"nvl-2-2"}])


def test_a_domain_across_three_spines_holds_what_no_spine_does() -> None:
    d = Driver(nodes_of(model("dual-xclr-regular")))
    where = d.run(*annotated_gang(40, gpus=4, required_level="accelerator-domain"))
    assert len(domains(d, where)) == 1
    assert len(domains(d, where, "sub-domain")) == 5


def test_sub_domains_are_levels_of_their_own() -> None:
    d = Driver(nodes_of(model("dual-xclr-regular")))
    assert (
        len(domains(d, d.run(*annotated_gang(8, gpus=4, required_level="accelerator-sub-domain")), "sub-domain")) == 1
    )
    members = annotated_gang(16, "two", gpus=4, required_level="accelerator-domain")
    for pod in members:
        pod.metadata.annotations |= {
            "topology.scheduler/segment-size": "8",
            "topology.scheduler/segment-level": "accelerator-sub-domain",
        }
    where = d.run(*members)
    assert len(domains(d, where)) == 1
    assert len(domains(d, where, "sub-domain")) == 2


def test_busy_nodes_of_one_accelerator_send_a_gang_to_the_other() -> None:
    d = Driver(nodes_of(model("dual-xclr-regular")))
    first = [node.metadata.name for node in nodes_of(model("dual-xclr-regular")) if node.metadata.name[3] in "123"]
    d.apply(*(make_pod(f"busy-{n}", gpus=1, scheduler="other", node=n, phase="Running") for n in first[::6]))
    assert domains(d, d.run(*annotated_gang(48, gpus=4, required_level="accelerator-domain"))) == {"nvl-2"}
