"""Nodes kept free for recovery: which they are, which pods may use them, and what events report of it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import Owner, controlled_by, make_node, make_pod
from tests.scheduling.driver import Driver, configured, copies, fabric
from topo_scheduler.api.objects import Node, OwnerReference, Pod, Taint
from topo_scheduler.api.reasons import NodeReason

ONE = "{spares: {perLeaf: 1}}"


def cluster(spec: str = ONE, leaves: dict[str, int] | None = None, *nodes: Node) -> Driver:
    return Driver([*fabric(leaves if leaves is not None else {"s1/l1": 4}), *nodes], configured(spec))


def spares(d: Driver) -> set[str]:
    """The nodes that are kept now."""
    d.settle()
    nodes = d.engine.world.nodes
    return {name for name, row in nodes.row_of.items() if nodes.spare[row]}


def owned(d: Driver, name: str, gpus: int = 8, *, priority: int = 0, created: float = 0.0) -> Pod:
    """A pod that a controller makes again."""
    d.chains[f"uid-{name}"] = [Owner("Job", name, uid=f"uid-{name}")]
    owner = controlled_by("Job", name)
    return make_pod(name, gpus=gpus, uid=name, priority=priority, created=created, owner=owner)


def put(name: str, node: str, gpus: int = 8, *, priority: int = 0, scheduler: str | None = None) -> Pod:
    """A pod that runs already."""
    pod = make_pod(name, gpus=gpus, uid=name, priority=priority, owner=controlled_by("Job", name))
    pod.spec.node_name = node
    if scheduler is not None:
        pod.spec.scheduler_name = scheduler
    return pod


# ---------------------------------------------------------------- which nodes


def test_one_free_node_of_each_leaf_is_kept_the_first_in_order() -> None:
    assert spares(cluster(ONE, {"s1/l1": 4, "s1/l2": 4})) == {"s1-l1-1", "s1-l2-1"}
    assert spares(cluster("{spares: {perLeaf: 2}}")) == {"s1-l1-1", "s1-l1-2"}
    assert spares(cluster("{}")) == set()


def test_one_node_of_a_kind_is_always_left() -> None:
    assert spares(cluster("{spares: {perLeaf: 8}}", {"s1/l1": 3, "s1/l2": 1})) == {"s1-l1-1", "s1-l1-2"}


def test_of_each_gpu_model_and_size_there_is_one() -> None:
    other = [make_node(f"other-{n}", "s1/l1", gpus=8, model="A100") for n in (1, 2)]
    small = [make_node(f"small-{n}", "s1/l1", gpus=4) for n in (1, 2)]
    none = [make_node(f"none-{n}", "s1/l1", gpus=0) for n in (1, 2)]
    d = cluster(ONE, {"s1/l1": 2}, *other, *small, *none)
    assert spares(d) == {"s1-l1-1", "other-1", "small-1"}


def test_a_node_that_is_not_well_is_none() -> None:
    d = cluster(ONE, {"s1/l1": 5})
    d.nodes(make_node("s1-l1-1", "s1/l1", ready=False), make_node("s1-l1-2", "s1/l1", unschedulable=True))
    assert spares(d) == {"s1-l1-3"}
    d.engine.spares_avoid(["s1-l1-3"])
    assert spares(d) == {"s1-l1-4"}
    d.nodes(*fabric({"s1/l1": 5}))
    assert spares(d) == {"s1-l1-1"}
    d.drop_node("s1-l1-1")
    assert spares(d) == {"s1-l1-2"}


def test_a_node_with_a_taint_that_gpu_pods_tolerate_is_one() -> None:
    taints = [Taint("nvidia.com/gpu", "", "NoSchedule")]
    nodes = [make_node(f"s1-l1-{n}", "s1/l1", taints=taints) for n in (1, 2)]
    assert spares(Driver(nodes, configured(ONE))) == {"s1-l1-1"}


def test_where_none_is_free_the_emptiest_becomes_free_as_its_pods_end_and_no_pod_is_evicted() -> None:
    d = cluster(ONE, {"s1/l1": 3})
    pods = [put(f"p{n}", f"s1-l1-{at}", gpus) for n, (at, gpus) in enumerate([(1, 8), (2, 4), (2, 2), (3, 8)])]
    d.apply(*pods)
    assert spares(d) == {"s1-l1-2"}
    waits = make_pod("waits", gpus=2, uid="waits")
    assert d.run(waits) == {}
    d.finish(pods[1])
    assert d.run() == {}, "what becomes free there stays free"
    d.finish(pods[2])
    assert spares(d) == {"s1-l1-2"}
    d.finish(pods[3])
    d.settle()
    assert d.where(waits) == {"waits": "s1-l1-3"}
    assert d.evicted() == []


def test_when_another_becomes_freer_that_is_kept_and_this_one_given_back() -> None:
    d = cluster(ONE, {"s1/l1": 2})
    first, second = put("first", "s1-l1-1", 6), put("second", "s1-l1-2", 8)
    d.apply(first, second)
    assert spares(d) == {"s1-l1-1"}
    waits = make_pod("waits", gpus=2, uid="waits")
    assert d.run(waits) == {}
    d.finish(second)
    d.settle()
    assert spares(d) == {"s1-l1-2"}
    assert d.where(waits) == {"waits": "s1-l1-1"}


def test_pods_of_other_schedulers_do_not_give_way_whatever_their_priority() -> None:
    d = cluster(ONE, {"s1/l1": 2})
    d.apply(put("theirs", "s1-l1-1", 8, priority=-10, scheduler="another"))
    assert spares(d) == {"s1-l1-2"}
    d.apply(put("ours", "s1-l1-2", 8, priority=-10))
    assert spares(d) == {"s1-l1-2"}


# ---------------------------------------------------------------- who may use them


def test_ordinary_pods_do_not_get_them_and_their_events_say_so() -> None:
    d = cluster(ONE, {"s1/l1": 2})
    first, second = (make_pod(name, gpus=8, uid=name, created=n) for n, name in enumerate(("a", "b")))
    assert d.run(first) == {"a": "s1-l1-2"}
    assert d.run(second) == {}
    assert f"1 {NodeReason.SPARE}" in d.told(second)[0]
    d.engine.configure(configured())
    d.settle()
    assert d.where(second) == {"b": "s1-l1-1"}


@pytest.mark.parametrize(("api_version", "placed"), [("apps/v1", {"b": "s1-l1-1"}), ("example.com/v1", {})])
def test_pods_of_daemonsets_use_them_those_of_a_kind_with_that_name_do_not(
    api_version: str, placed: dict[str, str]
) -> None:
    d = cluster(ONE, {"s1/l1": 2})
    assert d.run(make_pod("a", gpus=8, uid="a")) == {"a": "s1-l1-2"}
    owner = OwnerReference(api_version, "DaemonSet", "b", "uid-b", controller=True)
    d.chains["uid-b"] = [Owner("DaemonSet", "b", uid="uid-b")]
    assert d.run(make_pod("b", gpus=8, uid="b", owner=owner)) == placed


def test_pods_without_gpus_keep_off_as_well() -> None:
    d = cluster(ONE, {"s1/l1": 2})
    assert d.run(make_pod("cpu", gpus=0, uid="cpu")) == {"cpu": "s1-l1-2"}


def test_the_size_rule_counts_without_them() -> None:
    """A leaf of four with a spare never holds a gang of four: it may use two."""
    d = cluster(ONE, {"s1/l1": 4, "s1/l2": 4})
    pods = [
        make_pod(f"g-{n}", gpus=8, uid=f"g-{n}", annotations={"gang-name": "g", "gang-size": "4"}) for n in range(4)
    ]
    where = d.run(*pods)
    assert len(where) == 4 and not {"s1-l1-1", "s1-l2-1"} & set(where.values())


def test_workloads_of_lower_priority_borrow_them() -> None:
    d = cluster(ONE, {"s1/l1": 2})

    def pods(d: Driver) -> list[Pod]:
        return [owned(d, f"p{n}", priority=-1, created=n) for n in range(2)]

    assert set(d.run(*pods(d)).values()) == {"s1-l1-1", "s1-l1-2"}
    (leaf,) = d.engine.spares.leaves()
    assert (leaf.wanted, leaf.free, leaf.lent) == (1, 0, 1)
    higher = cluster("{spares: {perLeaf: 1, lendBelowPriority: -5}}", {"s1/l1": 2})
    assert len(higher.run(*pods(higher))) == 1
    for owner in (None, controlled_by("Pod", "boss")):
        bare = cluster(ONE, {"s1/l1": 2})
        bare.own(Owner("Pod", "boss", uid="uid-boss"))
        placed = bare.run(*(make_pod(f"p{n}", gpus=8, uid=f"p{n}", priority=-1, owner=owner) for n in range(2)))
        assert len(placed) == 1


def test_an_ordinary_pod_preempts_no_pod_on_a_lent_node() -> None:
    d = cluster(ONE, {"s1/l1": 2})
    d.engine.budgets_known()
    lent = [owned(d, f"p{n}", priority=-1, created=n) for n in range(2)]
    d.run(*lent)
    (kept,) = spares(d)
    (other,) = {"s1-l1-1", "s1-l1-2"} - {kept}
    d.run(make_pod("urgent", gpus=8, uid="urgent", priority=10))
    assert d.preempted() == [name for name, node in d.where(*lent).items() if node == other]
    d.run(make_pod("more", gpus=8, uid="more", priority=10))
    assert len(d.preempted()) == 1


def test_what_a_running_gang_has_lost_may_use_them() -> None:
    d = cluster(ONE, {"s1/l1": 3})
    said = {"gang-name": "g", "gang-size": "2"}
    pods = [make_pod(f"g-{n}", gpus=8, uid=f"g-{n}", annotations=said) for n in (0, 1)]
    assert set(d.run(*pods).values()) == {"s1-l1-2", "s1-l1-3"}
    lost = d.where(*pods)["g-1"]
    d.nodes(make_node(lost, "s1/l1", ready=False))
    d.delete(pods[1])
    again = make_pod("g-1b", gpus=8, uid="g-1b", annotations=said)
    assert d.run(again) == {"g-1b": "s1-l1-1"}


# ---------------------------------------------------------------- invariants


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    leaves=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    per_leaf=st.integers(1, 2),
    events=st.lists(
        st.one_of(
            st.tuples(st.just("pod"), st.sampled_from([1, 4, 8]), st.sampled_from([-1, 0, 5])),
            st.tuples(st.just("end"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("fail"), st.integers(0, 11), st.just(0)),
            st.tuples(st.just("heal"), st.integers(0, 11), st.just(0)),
        ),
        max_size=25,
    ),
)
def test_whatever_happens(leaves: list[int], per_leaf: int, events: list[tuple[str, int, int]]) -> None:
    """No ordinary pod goes to a kept node, no pod is evicted, and a new process keeps the same nodes."""
    shape = {f"s1/l{n}": size for n, size in enumerate(leaves, 1)}
    config = configured(f"{{spares: {{perLeaf: {per_leaf}}}, preemption: {{enabled: false}}}}")
    d = Driver(fabric(shape), config)
    d.engine.budgets_known()
    ready = {node.metadata.name: True for node in fabric(shape)}
    names = sorted(ready)

    def node_of(name: str) -> Node:
        return make_node(name, "/".join(name.split("-")[:2]), ready=ready[name])

    pods: list[Pod] = []
    for number, (what, which, priority) in enumerate(events):
        kept = spares(d)
        if what == "pod":
            pod = owned(d, f"p{number}", which, priority=priority)
            pods.append(pod)
            where = d.run(pod).get(f"p{number}")
            assert where is None or priority < 0 or where not in kept
        elif what == "end":
            running = [pod for pod in pods if pod.spec.node_name and not pod.finished]
            if running:
                d.finish(running[which % len(running)])
        else:
            name = names[which % len(names)]
            ready[name] = what == "heal"
            d.nodes(node_of(name))
        d.settle()
        assert d.evicted() == []
    now = spares(d)
    for leaf, size in zip(shape, leaves, strict=True):
        mine = [name for name in names if name.startswith(leaf.replace("/", "-") + "-")]
        well = [name for name in mine if ready[name]]
        assert len(now & set(mine)) == min(per_leaf, max(0, len(well) - 1)), (leaf, size)
        assert now & set(mine) <= set(well)
    again = Driver(map(node_of, names), config)
    again.apply(*copies([pod for pod in pods if pod.spec.node_name]))
    assert spares(again) == now
