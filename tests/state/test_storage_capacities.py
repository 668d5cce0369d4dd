"""CSIStorageCapacity objects: where a class has room, and what no tenant can take by creating many."""

import gc
import pickle
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import make_node
from topo_scheduler.api.selectors import LabelSelector, Requirement
from topo_scheduler.api.storage import CSIStorageCapacity
from topo_scheduler.state.nodes.label_sets import LabelSets
from topo_scheduler.state.nodes.node_table import NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.pods.selectors import compile_selector
from topo_scheduler.state.storage import storage_capacities
from topo_scheduler.state.storage.storage_objects import Storage

HOST = "kubernetes.io/hostname"


def table(*labels: dict[str, str]) -> NodeTable:
    nodes = NodeTable(ResourceTable(["nvidia.com/gpu"]), NodeLabels((), ()), rows=4)
    for number, labels_of_node in enumerate(labels):
        nodes.put(make_node(f"n{number}", "s/l", labels={HOST: f"n{number}", **labels_of_node}))
    return nodes


def capacity(
    name: str, topology: dict[str, Any] | None = None, size: object = "1Gi", *, of: str = "fast", ns: str = "drivers"
) -> CSIStorageCapacity:
    made = {"metadata": {"name": name, "namespace": ns}, "storageClassName": of, "capacity": size}
    return msgspec.convert(made | ({"nodeTopology": topology} if topology is not None else {}), CSIStorageCapacity)


def put(storage: Storage, *items: CSIStorageCapacity) -> None:
    for item in items:
        storage.put(storage.capacities, (item.metadata.namespace, item.metadata.name), item)


def room(storage: Storage, nodes: NodeTable, size: int = 1, of: str = "fast") -> set[str]:
    return {nodes.names[row] for row in np.flatnonzero(storage.room_of_class(of, nodes, size))}


def host(number: int) -> dict[str, Any]:
    return {"matchLabels": {HOST: f"n{number}"}}


# ---------------------------------------------------------------- where a class has room


def test_room_is_where_an_object_of_the_class_says_so() -> None:
    storage, nodes = Storage(), table({"zone": "a"}, {"zone": "a"}, {"zone": "b"}, {})
    put(storage, capacity("z", {"matchLabels": {"zone": "a"}}, 10), capacity("h", host(0), 20))
    put(storage, capacity("other", {}, 99, of="slow"), capacity("nowhere", None, 99))
    put(storage, capacity("broken", {"matchExpressions": [{"key": "zone", "operator": "Near"}]}, 99))
    assert room(storage, nodes, 10) == {"n0", "n1"} and room(storage, nodes, 11) == {"n0"}
    assert room(storage, nodes, 21) == set() and room(storage, nodes, of="none") == set()
    put(storage, capacity("h", host(3), 20))
    assert room(storage, nodes, 11) == {"n3"}
    storage.drop(storage.capacities, ("drivers", "z"))
    assert room(storage, nodes, 1) == {"n3"}


def test_room_follows_the_labels_of_nodes() -> None:
    storage, nodes = Storage(), table({"zone": "a"}, {})
    put(storage, capacity("z", {"matchLabels": {"zone": "a"}}), capacity("all", {}, 100))
    assert room(storage, nodes, 2**30) == {"n0"} and room(storage, nodes) == {"n0", "n1"}
    nodes.put(make_node("n1", "s/l", labels={"zone": "a"}))
    assert room(storage, nodes, 2**30) == {"n0", "n1"}
    for number in range(2, 9):  # more rows than there were
        nodes.put(make_node(f"n{number}", "s/l", labels={"zone": "a"}))
    nodes.remove("n0")
    assert room(storage, nodes, 2**30) == {f"n{number}" for number in range(1, 9)}


WORDS = st.sampled_from(["a", "b", "c"])
SELECTORS = st.builds(
    LabelSelector,
    st.dictionaries(WORDS, WORDS, max_size=2),
    st.lists(
        st.one_of(
            st.builds(Requirement, WORDS, st.sampled_from(["In", "NotIn"]), st.lists(WORDS, min_size=1).map(tuple)),
            st.builds(Requirement, WORDS, st.sampled_from(["Exists", "DoesNotExist"])),
        ),
        max_size=3,
    ).map(tuple),
)


@given(labels=st.lists(st.dictionaries(WORDS, WORDS), max_size=6), selector=SELECTORS)
def test_the_rows_of_a_selector_are_those_whose_labels_it_matches(
    labels: list[dict[str, str]], selector: LabelSelector
) -> None:
    nodes = table(*labels)
    compiled = compile_selector(selector)
    expected = {row for row in nodes.row_of.values() if compiled.matches(nodes.labels[row])}
    selected = nodes.label_sets.selected(nodes, selector)
    assert {row for row in range(nodes.rows) if selected >> row & 1} == expected


def test_which_nodes_an_object_selects_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, nodes = Storage(), table(*({"zone": "a"} for _ in range(20)))
    expressions = [{"key": "zone", "operator": "NotIn", "values": [f"v{n}"]} for n in range(16)]
    put(storage, *(capacity(f"a{n}", {"matchExpressions": expressions}, n) for n in range(50)))
    put(storage, *(capacity(f"h{n}", host(n)) for n in range(20)))
    computed: list[LabelSelector] = []
    selected = LabelSets.selected

    def counted(sets: LabelSets, *arguments: Any) -> int:
        computed.append(arguments[1])
        return selected(sets, *arguments)

    monkeypatch.setattr(LabelSets, "selected", counted)
    for size in range(100):
        room(storage, nodes, size)
    put(storage, *(capacity(f"h{n}", host(n), "2Gi") for n in range(20)))
    nodes.keep_spare(3, True)
    assert len(room(storage, nodes, 2**30 + 1)) == 20
    assert len(computed) == 21, "one for each different topology"
    put(storage, capacity("h3", host(4), "2Gi"))
    assert "n3" not in room(storage, nodes, 2**30 + 1)


def test_nothing_is_kept_of_labels_that_no_node_has() -> None:
    nodes = table({"zone": "a"})
    for number in range(1000):
        assert nodes.label_sets.selected(nodes, LabelSelector({f"k{number}": "v"})) == 0
    assert not nodes.label_sets._by_key


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize(
    ("expressions", "excess"),
    [
        ([{"key": "x", "operator": "In", "values": [f"v{n}" * 10 for n in range(16_000)]}], "of 8,192 at most"),
        ([{"key": f"k{n}", "operator": "Exists"} for n in range(40)], "has 40 matchLabels and matchExpressions, of 16"),
    ],
)
def test_an_object_whose_topology_is_too_long_is_left_out_with_a_warning(
    expressions: list[dict[str, Any]], excess: str
) -> None:
    storage, nodes = Storage(), table({}, {})
    put(storage, capacity("usual", host(1)))
    put(storage, *(capacity(f"long-{n}", {"matchExpressions": expressions}, ns="tenant") for n in range(100)))
    assert storage.capacities.keys() == {("drivers", "usual")} and room(storage, nodes) == {"n1"}
    first, *others = storage.take_problems()  # a nodeTopology of 0.9 MB took 1.85 MiB for each object
    assert first.startswith("CSIStorageCapacity tenant/long-0: nodeTopology has") and excess in first
    assert first.endswith("its capacity counts as not known; shorten nodeTopology") and len(others) == 7
    put(storage, capacity("usual", {"matchExpressions": expressions}))
    assert not storage.capacities and room(storage, nodes) == set(), "what it said before no longer holds"


def test_what_has_no_reader_is_not_kept_and_equal_topologies_are_kept_once() -> None:
    storage = Storage()
    first, second = capacity("a", host(1)), capacity("b", host(1), of="slow")
    first.metadata.annotations = {"a": "x" * 10_000}
    put(storage, first, second)
    kept, other = storage.capacities.values()
    assert not kept.metadata.annotations and kept.node_topology is other.node_topology
    changes = storage.changes
    put(storage, msgspec.structs.replace(first))
    assert storage.changes == changes
    put(storage, capacity("a", host(1), "3Gi"))
    assert storage.changes == changes + 1


def test_only_the_namespace_beyond_its_cap_loses_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_capacities, "MAX_BYTES_OF_NAMESPACE", 50_000)
    storage, nodes = Storage(), table(*({} for _ in range(9)))
    put(storage, *(capacity(f"t{n}", {"matchLabels": {f"k{n}": "v"}}, ns="tenant") for n in range(100)))
    kept = [name for _, name in storage.capacities]
    assert kept == [f"t{n}" for n in range(len(kept))] and 10 < len(kept) < 50, "those that came first"
    put(storage, *(capacity(f"h{n}", host(n)) for n in range(9)))
    assert len(room(storage, nodes)) == 9
    (problem,) = storage.take_problems()
    assert problem.startswith("namespace tenant: its CSIStorageCapacity objects take more than 50,000 bytes; t")
    assert "delete those that no driver needs" in problem
    put(storage, capacity("t0", {"matchLabels": {"k0": "v"}}, "9Gi", ns="tenant"))
    assert storage.capacities["tenant", "t0"].capacity == 9 * 2**30, "a change of what is kept is no further object"
    storage.drop(storage.capacities, ("tenant", "t1"))
    put(storage, capacity("t99", {"matchLabels": {"k99": "v"}}, ns="tenant"))
    assert ("tenant", "t99") in storage.capacities


def test_beyond_the_cap_of_all_the_namespace_with_the_most_loses_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_capacities, "MAX_BYTES", 100_000)
    storage, nodes = Storage(), table(*({} for _ in range(9)))
    for tenant in ("a", "b", "c"):
        put(storage, *(capacity(f"t{n}", {"matchLabels": {f"k{n}": "v"}}, ns=tenant) for n in range(60)))
    put(storage, *(capacity(f"h{n}", host(n)) for n in range(9)))
    assert len(room(storage, nodes)) == 9, "although it came last"
    assert storage._kept_capacities._bytes <= 100_000
    assert {problem.split(":")[0] for problem in storage.take_problems()} == {f"namespace {name}" for name in "abc"}


def test_a_large_cluster_with_four_classes_stays_below_the_caps() -> None:
    """Nor do objects take more memory than they count."""
    storage = Storage()
    gc.collect()
    tracemalloc.start()
    for number in range(5000):
        topology = {"matchLabels": {"topology.csi.example.com/hostname": f"ip-10-0-{number}.eu.compute.internal"}}
        for of in ("fast", "slow", "striped", "mirrored"):
            name, uid = f"csisc-{number:05d}-{of}", f"{number:08d}-1111-2222-3333-{of:>12}"
            item = capacity(name, topology, number, of=of, ns="kube-system")
            item.metadata.uid, item.metadata.resource_version = uid, str(10**9 + number)
            put(storage, item)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(storage.capacities) == 20_000 and not storage.take_problems()
    assert taken < storage._kept_capacities._bytes < storage_capacities.MAX_BYTES_OF_NAMESPACE


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(["fast", "slow"]),
        st.sampled_from(
            [None, {}, host(0), host(1), {"matchLabels": {"k": "v" * 60}}, {"matchLabels": {"k" * 9000: ""}}]
        ),
        st.booleans(),
    ),
    max_size=20,
)


@given(STEPS, st.sampled_from([2_000, 4_000, 10**6]), st.sampled_from([5_000, 10**6]))
def test_nothing_stays_behind_of_objects_that_are_gone(
    steps: list[tuple[str, str, str, dict[str, Any] | None, bool]], of_namespace: int, of_all: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_capacities, "MAX_BYTES_OF_NAMESPACE", of_namespace)
        patch.setattr(storage_capacities, "MAX_BYTES", of_all)
        storage, nodes = Storage(), table({}, {})
        kept = storage._kept_capacities
        for namespace, name, of, topology, dropped in steps:
            if dropped:
                storage.drop(storage.capacities, (namespace, name))
            else:
                put(storage, capacity(name, topology, of=of, ns=namespace))
            room(storage, nodes)
            assert kept._bytes == sum(own.bytes for own in kept._namespaces.values()) <= of_all
            assert {(ns, name) for ns, own in kept._namespaces.items() for name in own.objects} == set(
                storage.capacities
            )
        for key in list(storage.capacities):
            storage.drop(storage.capacities, key)
    assert (kept._bytes, kept._namespaces, kept._classes) == (0, {}, {})


def test_a_copy_by_pickle_knows_the_same() -> None:
    storage, nodes = Storage(), table({}, {})
    put(storage, capacity("a", host(1)), capacity("b", {}, 10))
    room(storage, nodes)
    copy, copied_nodes = pickle.loads(pickle.dumps((storage, nodes)))
    assert room(copy, copied_nodes, 11) == {"n1"} and room(copy, copied_nodes) == {"n0", "n1"}
