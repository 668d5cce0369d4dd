"""The node table: one row a node, its facts as told, and a log of what changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import MODEL, NVIDIA, make_node
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Taint
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.state.nodes.node_table import SPARE_TAINT_SETS, UNKNOWN, NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU, MEMORY, PODS, ResourceTable

DEFAULTS = SchedulerConfig()


def table(rows: int = 256) -> NodeTable:
    resources = ResourceTable(DEFAULTS.gpu_resources)
    return NodeTable(resources, NodeLabels(DEFAULTS.gpu_model_labels, DEFAULTS.bandwidth_labels), rows)


def test_a_node_is_read_as_it_is() -> None:
    nodes = table()
    taint = Taint("dedicated", "ml", "NoSchedule")
    row, changed, problems = nodes.put(
        make_node("a", "s/l", cpu="4500m", memory="1Gi", gpus=8, model="H100", bandwidth="200Gb", taints=[taint])
    )
    assert (changed, problems) == (True, [])
    assert nodes.row_of == {"a": row}
    assert nodes.names[row] == "a"
    assert nodes.exists[row]
    assert nodes.ready[row]
    assert not nodes.unschedulable[row]
    assert [int(nodes.allocatable[row, column]) for column in (CPU, MEMORY, PODS, GPU)] == [4500, 2**30, 110, 8]
    assert nodes.allocatable[row, nodes.resources.column(NVIDIA)] == 8
    assert nodes.models[nodes.model[row]] == "H100"
    assert nodes.bandwidth[row] == 200_000
    assert nodes.taint_sets[nodes.taint_set[row]] == (taint,)


def test_gpus_of_all_vendors_are_one_account() -> None:
    nodes = table()
    row, _, _ = nodes.put(make_node("a", allocatable={NVIDIA: "2", "amd.com/gpu": 3, "other.io/gpu": 9}))
    assert nodes.allocatable[row, GPU] == 5


def test_capacity_stands_in_where_allocatable_is_not_reported_yet() -> None:
    nodes = table()
    node = make_node("a", allocatable={})
    node.status.capacity = {"cpu": "2"}
    row, _, _ = nodes.put(node)
    assert nodes.allocatable[row, CPU] == 2000


@pytest.mark.parametrize(("ready", "unschedulable"), [(True, False), (False, False), (True, True)])
def test_readiness_and_cordon(ready: bool, unschedulable: bool) -> None:
    nodes = table()
    row, _, _ = nodes.put(make_node("a", ready=ready, unschedulable=unschedulable))
    assert (bool(nodes.ready[row]), bool(nodes.unschedulable[row])) == (ready, unschedulable)


def test_a_heartbeat_is_no_change() -> None:
    nodes = table()
    nodes.put(make_node("a", "s/l", model="H100"))
    facts, capacity = nodes.facts_changes.position, nodes.capacity_changes.position
    again = make_node("a", "s/l", model="H100")
    again.metadata.resource_version = "77"
    again.metadata.annotations = {"heartbeat": "now"}
    _, changed, _ = nodes.put(again)
    assert not changed
    assert (nodes.facts_changes.position, nodes.capacity_changes.position) == (facts, capacity)


def test_whatever_counts_is_a_change() -> None:
    nodes = table()
    seen = make_node("a", "s/l")
    row, _, _ = nodes.put(seen)
    for other in (
        make_node("a", "s/l2"),
        make_node("a", "s/l2", ready=False),
        make_node("a", "s/l2", unschedulable=True),
        make_node("a", "s/l2", taints=[Taint("k", "v", "NoSchedule")]),
        make_node("a", "s/l2", gpus=7),
        make_node("a", "s/l2", uid="another"),
    ):
        before = nodes.facts_changes.position
        put_row, changed, _ = nodes.put(other)
        assert (put_row, changed) == (row, True)
        rows = nodes.facts_changes.since(before)
        assert rows is not None
        assert rows.tolist() == [row]


def test_what_is_malformed_is_reported_and_the_rest_is_used() -> None:
    nodes = table()
    node = make_node("a", bandwidth="fast", allocatable={"cpu": "4", NVIDIA: "eight", "memory": "-1", "pods": 10})
    row, _, problems = nodes.put(node)
    text = "\n".join(problems)
    assert len(problems) == 3
    assert all(problem.startswith("node a: ") for problem in problems)
    assert f"{NVIDIA}: 'eight' is not a quantity" in text
    assert "memory: '-1' is negative" in text
    assert f"{PREFIX}network-bandwidth" in text
    assert [int(nodes.allocatable[row, column]) for column in (CPU, MEMORY, PODS, GPU)] == [4000, 0, 10, 0]
    assert nodes.bandwidth[row] == UNKNOWN


def test_what_is_repaired_is_used() -> None:
    nodes = table()
    nodes.put(make_node("a", bandwidth="fast", allocatable={"cpu": "four"}))
    row, _, problems = nodes.put(make_node("a", bandwidth="1Gb", allocatable={"cpu": "4"}))
    assert problems == []
    assert (int(nodes.allocatable[row, CPU]), int(nodes.bandwidth[row])) == (4000, 1000)


def test_the_first_label_present_names_the_model() -> None:
    nodes = table()
    labels = {"amd.com/gpu.product-name": "MI300X", "cloud.google.com/gke-accelerator": "nvidia-l4"}
    row, _, _ = nodes.put(make_node("a", labels=labels))
    assert nodes.models[nodes.model[row]] == "MI300X"
    row, _, _ = nodes.put(make_node("b", labels={MODEL: "", "neuronetes.io/gpu-type": "T4"}))
    assert nodes.models[nodes.model[row]] == "T4"
    row, _, _ = nodes.put(make_node("c"))
    assert nodes.model[row] == UNKNOWN


def test_a_row_is_used_again_and_nothing_of_its_last_node_stays() -> None:
    nodes = table(1)
    row, _, _ = nodes.put(make_node("a", "s/l", model="H100", bandwidth="1Gb", unschedulable=True, gpus=4))
    nodes.charge(row, ((GPU, 2),), daemon=True)
    nodes.label_column(MODEL)
    assert nodes.remove("a") == row
    assert nodes.remove("a") is None
    assert len(nodes) == 0
    assert not nodes.exists[row]
    again, _, _ = nodes.put(make_node("b", gpus=0))
    assert again == row
    assert nodes.rows == 1
    assert nodes.requested[row].tolist() == nodes.daemons[row].tolist() == [0] * nodes.requested.shape[1]
    assert (int(nodes.allocatable[row, GPU]), int(nodes.model[row]), int(nodes.bandwidth[row])) == (0, UNKNOWN, UNKNOWN)
    assert not nodes.unschedulable[row]
    assert nodes.label_column(MODEL)[row] == UNKNOWN


def test_the_table_grows_and_keeps_what_it_has() -> None:
    nodes = table(2)
    nodes.label_column(MODEL)
    position = nodes.capacity_changes.position
    for number in range(9):
        row, _, _ = nodes.put(make_node(f"n{number}", gpus=number, model=f"m{number}"))
        nodes.charge(row, ((GPU, number),))
    assert len(nodes) == 9
    assert len({*nodes.row_of.values()}) == 9
    for number in range(9):
        row = nodes.row_of[f"n{number}"]
        assert nodes.allocatable[row, GPU] == nodes.requested[row, GPU] == number
        assert nodes.values[nodes.label_column(MODEL)[row]] == f"m{number}"
    arrays = (nodes.exists, nodes.ready, nodes.model, nodes.bandwidth, nodes.taint_set, nodes.reserved_bandwidth)
    assert {len(array) for array in arrays} == {nodes.rows}
    assert nodes.capacity_changes.since(position) is None, "a reader that keeps an array must start over"


def test_a_resource_that_is_new_gets_a_column() -> None:
    nodes = table()
    names = [f"example.com/device-{number}" for number in range(40)]
    row, _, _ = nodes.put(make_node("a", allocatable=dict.fromkeys(names, 3)))
    assert [int(nodes.allocatable[row, nodes.resources.column(name)]) for name in names] == [3] * 40
    assert nodes.allocatable.shape == nodes.requested.shape == nodes.daemons.shape


def test_the_resources_that_are_overdrawn_are_named() -> None:
    nodes = table()
    row, _, _ = nodes.put(make_node("a", gpus=2, cpu="1"))
    nodes.charge(row, ((CPU, 1000), (GPU, 3)))
    assert nodes.overdrawn(row) == ["gpu"]
    assert nodes.overdrawn(row, ((CPU, 1), (GPU, 1))) == ["gpu"]
    assert nodes.overdrawn(row, ((CPU, 1),)) == []


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["put", "remove", "x", "y"])), max_size=30))
def test_a_label_column_is_always_what_the_labels_say(steps: list[tuple[str, str]]) -> None:
    nodes = table(2)
    now: dict[str, str] = {}
    for name, what in steps:
        if what == "remove":
            nodes.remove(name)
            now.pop(name, None)
        else:
            nodes.put(make_node(name, labels={"k": what} if what != "put" else {}))
            now[name] = what
        column = nodes.label_column("k")
        states = {
            name: "put" if column[row] == UNKNOWN else nodes.values[column[row]] for name, row in nodes.row_of.items()
        }
        assert states == now
        free = np.ones(nodes.rows, np.bool_)
        free[list(nodes.row_of.values())] = False
        assert (column[free] == UNKNOWN).all()
        assert not nodes.exists[free].any()


def test_sets_of_taints_that_no_node_has_any_more_are_forgotten() -> None:
    nodes = table()
    stays = Taint("dedicated", "ml", "NoSchedule")
    kept, _, _ = nodes.put(make_node("kept", taints=[stays]))
    for moment in range(1000):
        taint = Taint("DeletionCandidateOfClusterAutoscaler", str(moment), "PreferNoSchedule")
        row, _, _ = nodes.put(make_node("other", taints=[taint]))
        assert nodes.taint_sets[nodes.taint_set[row]] == (taint,)
        assert nodes.taint_sets[nodes.taint_set[kept]] == (stays,)
        assert nodes.taint_sets[0] == ()
    assert len(nodes.taint_sets) <= SPARE_TAINT_SETS + 2 * 2 + 1
    plain, _, _ = nodes.put(make_node("plain"))
    assert nodes.taint_sets[nodes.taint_set[plain]] == ()
