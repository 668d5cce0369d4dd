"""PodGroups in the engine: waited for, placed from their minimum on, within their level, and marked."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import controlled_by, in_group, job_owner, make_group, make_job, make_node, make_pod, owner
from tests.scheduling.affinity_pods import one_gpu_spec, pod_anti_affinity, web_pod
from tests.scheduling.driver import Driver, configured, fabric, stage
from tests.scheduling.planning import Small, gang, grid, pods
from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.api.reasons import GroupReason, Reason
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.state.pods.pod_groups import Disruption, Serving
from topo_scheduler.state.pods.workloads import Stage

LEAF, SPINE = "topology.scheduler/leaf", "topology.scheduler/spine"
APIS = list(GroupApi)


def members(count: int, name: str = "g", api: GroupApi = GroupApi.NATIVE, first: int = 0, **more: object) -> list[Pod]:
    more.setdefault("gpus", 8)
    made = [make_pod(f"{name}-{n}", created=n, **more) for n in range(first, first + count)]  # type: ignore[arg-type]
    return [in_group(pod, name, api) for pod in made]


def leaves(where: dict[str, str]) -> set[str]:
    return {node.rpartition("-")[0] for node in where.values()}


# ---------------------------------------------------------------- size


@pytest.mark.parametrize("api", APIS)
def test_pods_wait_for_their_group_and_then_for_its_minimum(api: GroupApi) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.serve(api)
    first = members(2, api=api)
    assert d.run(*first) == {}
    assert not d.told(), "the group is usually about to come"
    d.settle(2.1)
    for pod in first:
        assert d.told(pod) == [f"Gang g is waiting: PodGroup default/g of {api} does not exist"]
    d.groups(make_group("g", 3, api=api))
    d.settle()
    d.settle(2.1)
    assert d.told(first[0])[-1] == "Gang g is waiting for 1 of 3 pods"
    assert not d.marked(), "nodes are not what is missing"
    rest = members(1, api=api, first=2)
    assert len(d.run(*rest)) == 1
    assert len(d.where(*first)) == 2


def test_pods_wait_while_it_is_not_known_whether_the_api_is_served() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.serve(GroupApi.VOLCANO, Serving.UNKNOWN)
    waiting = members(1, api=GroupApi.VOLCANO)
    assert d.run(*waiting) == {}
    d.serve(GroupApi.VOLCANO, Serving.ABSENT)
    d.settle()
    assert d.where(*waiting)
    assert d.told(waiting[0], Reason.GROUP_IGNORED)


def test_pods_whose_definition_is_deleted_wait_and_go_on_when_it_is_back() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    group = make_group("g", 2, api=GroupApi.PLUGINS)
    d.groups(group)
    pods = members(2, api=GroupApi.PLUGINS)
    assert d.run(*pods) == {}
    d.engine.group_deleted(group.key, group.uid, d.now)
    d.serve(GroupApi.PLUGINS, Serving.ABSENT)
    d.settle()
    d.settle(2.1)
    assert d.where(*pods) == {} and "does not serve any more" in d.told(pods[0])[-1]
    d.groups(group)
    d.nodes(make_node("n2", "s1/l1"))
    d.settle()
    assert len(d.where(*pods)) == 2


def test_pods_bound_earlier_show_that_there_was_a_group() -> None:
    """A new process: the definition is gone, and the pending pods are listed first."""
    d = Driver(fabric({"s1/l1": 4}))
    d.serve(GroupApi.PLUGINS, Serving.ABSENT)
    waiting, running = members(2, api=GroupApi.PLUGINS)
    running.metadata.annotations["topology.scheduler/gang-id"] = f"default/podgroups.{GroupApi.PLUGINS}/g"
    running.spec.node_name = next(iter(d.engine.world.nodes.row_of))
    d.apply(waiting, running)
    d.settle()
    d.settle(2.1)
    assert d.where(waiting) == {} and "does not serve any more" in d.told(waiting)[-1]


def test_an_earlier_leader_says_that_there_were_groups() -> None:
    """A new process: the definition was deleted before, and no pod of the group is bound."""
    d = Driver(fabric({"s1/l1": 4}))
    d.engine.groups_remembered(GroupApi.PLUGINS, d.now)
    d.serve(GroupApi.PLUGINS, Serving.ABSENT)
    d.serve(GroupApi.SIGS, Serving.ABSENT)
    waiting, never_served = members(1, api=GroupApi.PLUGINS), members(1, api=GroupApi.SIGS, name="other")
    d.run(*waiting, *never_served)
    d.settle(2.1)
    assert d.where(*waiting) == {} and "does not serve any more" in d.told(waiting[0])[-1]
    assert d.where(*never_served), "one that was never served is passed over"


def test_an_api_that_comes_later_is_followed_from_then_on() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    d.serve(GroupApi.PLUGINS, Serving.ABSENT)
    early = members(2, api=GroupApi.PLUGINS)
    d.run(*early)
    assert len(d.where(*early)) == 1, "each for itself"
    waiting = next(pod for pod in early if not pod.spec.node_name)
    d.groups(make_group("g", 2, api=GroupApi.PLUGINS))
    d.nodes(make_node("more", "s1/l1"))
    d.settle()
    d.settle(3)
    assert not d.where(waiting)
    assert d.told(waiting)[-1] == "Gang g is waiting for 1 of 2 pods"


def test_all_are_placed_at_once_where_there_is_room() -> None:
    d = Driver(fabric({"s1/l1": 4, "s1/l2": 8}))
    d.groups(make_group("g", 4))
    where = d.run(*members(6))
    assert leaves(where) == {"s1-l2"}
    assert len(d.decisions()) == 1


def test_the_minimum_is_placed_at_once_and_the_rest_near_it_as_room_comes() -> None:
    d = Driver([*fabric({"s1/l1": 6, "s1/l2": 6})])
    d.groups(make_group("g", 4))
    held = [make_pod(f"h{n}", gpus=8, node=f"s1-l{leaf}-{n}") for leaf, n in ((1, 5), (1, 6), (2, 4), (2, 5), (2, 6))]
    d.apply(*held)
    where = d.run(*members(6))
    assert len(where) == 4
    assert leaves(where) == {"s1-l1"}
    waiting = [pod for pod in d.pods.values() if pod.metadata.name.startswith("g-") and not pod.spec.node_name]
    assert len(waiting) == 2
    d.delete(held[2], held[0])
    d.settle()
    assert len(d.where(*waiting)) == 1, "free in the other leaf as well, but that is not near"
    d.delete(held[1])
    d.settle()
    assert leaves(d.where(*waiting)) == {"s1-l1"}
    assert sorted(
        pod.metadata.annotations["topology.scheduler/rank"] for pod in d.pods.values() if pod not in held
    ) == [str(rank) for rank in range(6)]


def test_less_than_the_minimum_is_never_placed() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.groups(make_group("g", 4))
    assert d.run(*members(6)) == {}
    assert len(d.marked()) == 6


def test_a_changed_minimum_is_understood_by_the_pods_that_wait() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.groups(make_group("g", 4, api=GroupApi.VOLCANO))
    waiting = members(3, api=GroupApi.VOLCANO)
    d.run(*waiting)
    assert not d.where(*waiting)
    d.groups(make_group("g", 3, api=GroupApi.VOLCANO))
    d.settle()
    assert len(d.where(*waiting)) == 3


@pytest.mark.parametrize("deleted_first", [True, False], ids=["after the last pod that waited", "before it"])
def test_a_gang_whose_minimum_becomes_what_runs_is_not_rolled_back_though_no_pod_is_pending(
    deleted_first: bool,
) -> None:
    d = Driver(fabric({"s1/l1": 6}))
    d.groups(make_group("g", 4, api=GroupApi.VOLCANO))
    made = members(4, api=GroupApi.VOLCANO)
    d.apply(*made)
    d.step()
    for pod in made[:3]:
        d.answer(pod.metadata.uid)
    d.answer(made[3].metadata.uid, BindOutcome.REJECTED)
    if deleted_first:
        d.delete(made[3])
        d.step(1)
    d.groups(make_group("g", 3, api=GroupApi.VOLCANO))
    if not deleted_first:
        d.delete(made[3])
    for _ in range(20):
        d.step(1)
    assert d.evicted() == [], "a new leader would take it for complete"
    assert next(iter(d.engine.workloads)).complete


def test_a_group_that_is_deleted_is_waited_for_again() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    group = make_group("g", 4)
    d.groups(group)
    waiting = members(4)
    d.run(*waiting)
    d.engine.group_deleted(group.key, group.uid, d.now)
    d.nodes(make_node("more", "s1/l1"))
    d.settle()
    d.settle(3)
    assert not d.where(*waiting)
    assert "does not exist" in d.told(waiting[0])[-1]
    d.groups(group)
    d.settle()
    assert len(d.where(*waiting)) == 4


def test_the_end_of_an_older_group_of_the_name_means_nothing() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    group = make_group("g", 2)
    d.groups(group)
    d.engine.group_deleted(group.key, "uid-of-an-older-one", d.now)
    assert len(d.run(*members(2))) == 2


def test_groups_of_two_apis_and_of_two_namespaces_are_four() -> None:
    d = Driver(fabric({"s1/l1": 8}))
    ours = [members(1, api=api, namespace=ns)[0] for api in (GroupApi.NATIVE, GroupApi.PLUGINS) for ns in ("a", "b")]
    for api in (GroupApi.NATIVE, GroupApi.PLUGINS):
        d.groups(*(make_group("g", 2, api=api, namespace=ns) for ns in ("a", "b")))
    assert d.run(*ours) == {}
    assert len(d.engine.workloads) == 4


def test_what_the_owners_of_a_pod_say_does_not_hinder_a_group_across_two_of_them() -> None:
    """More is asked at once than one of its Jobs makes: the pods wait, and say for how many."""
    d = Driver(fabric({"s1/l1": 8}))
    d.groups(make_group("g", 8))
    d.own(job_owner(make_job("j", parallelism=4, completions=4, indexed=True)))
    made = members(4, owner=controlled_by("Job", "j"))
    d.run(*made)
    d.settle(3)
    assert d.told(made[0])[-1] == "Gang g is waiting for 4 of 8 pods"
    other = make_pod("other", gpus=8)
    assert d.run(other), "the queue moves on"


# ---------------------------------------------------------------- priority, disruption


def test_the_priority_of_the_group_is_that_of_its_pods() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.groups(make_group("low", 2, priority=1), make_group("high", 2, priority=5))
    low, high = members(2, "low", priority=9), members(2, "high", priority=0)
    d.apply(*low, *high)
    d.settle()
    assert len(d.where(*high)) == 2
    assert not d.where(*low)


@pytest.mark.parametrize("mode", ["Pod", "PodGroup"])
@pytest.mark.parametrize(("priority", "evicts"), [(10, False), (2000, False), (2001, True)])
def test_the_priority_of_the_group_protects_its_pods(mode: str, priority: int, evicts: bool) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.engine.budgets_known()
    d.serve(GroupApi.NATIVE)
    d.groups(make_group("g", 2, priority=2000, spec={"disruptionMode": mode}))
    d.run(*members(2, priority=0))
    d.apply(make_pod("urgent", gpus=8, priority=priority))
    d.step()
    assert bool(d.preempted()) == evicts


def test_two_gangs_do_not_evict_each_other_without_end() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.engine.budgets_known()
    d.serve(GroupApi.NATIVE)
    d.groups(make_group("first", 2, priority=2000), make_group("second", 2))
    evicted, names = 0, {"first": 0, "second": 1000}
    for name, priority in names.items():
        d.apply(*members(2, name, priority=priority))
        d.settle()
    for number in range(1, 10):
        victims = [pod for pod in list(d.pods.values()) if pod.metadata.name in d.preempted()]
        evicted += len(victims)
        d.forget()
        d.evict(*victims)
        for pod in victims:  # its controller creates it again
            name = pod.metadata.name.rpartition("-")[0]
            d.apply(*members(1, name, first=10 * number + int(pod.metadata.name[-1]), priority=names[name]))
        for _ in range(3):
            d.settle(1)
    assert not evicted


def test_without_one_it_is_the_lowest_of_a_member() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.groups(make_group("g", 2))
    mixed = [*members(1, priority=9), *members(1, priority=-1, first=1)]
    single = make_pod("single", gpus=8, priority=0)
    d.apply(*mixed, single)
    d.settle()
    assert d.where(single)
    assert not d.where(*mixed)


# ---------------------------------------------------------------- levels


def test_all_share_a_domain_of_the_level_asked() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2, "s2/l1": 3}))
    d.groups(make_group("g", 4, key=LEAF))
    waiting = members(4)
    d.run(*waiting)
    assert not d.where(*waiting)
    assert "No leaf could hold the gang's 4 pods even if it were empty" in d.told(waiting[0])[-1]
    d.nodes(make_node("s2-l1-4", "s2/l1"))
    d.settle()
    assert leaves(d.where(*waiting)) == {"s2-l1"}


def test_a_preference_for_near_does_not_relax_what_the_group_asks() -> None:
    d = Driver(fabric({"s1/l1": 2, "s2/l1": 2}), configured("{topologyConstraints: {enforcement: preferred}}"))
    d.groups(make_group("g", 3, key=SPINE), make_group("free", 3))
    bound = members(3)
    d.run(*bound)
    assert not d.where(*bound)
    assert len(d.run(*members(3, "free"))) == 3


def test_a_level_for_which_no_node_has_a_label_is_named() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.groups(make_group("g", 2, key="topology.scheduler/core"))
    waiting = members(2)
    d.run(*waiting)
    assert "Its PodGroup asks for one core, for which no node has a label." in d.told(waiting[0])[-1]
    assert not d.where(*waiting)


def test_nodes_without_the_label_are_no_domain() -> None:
    d = Driver([*fabric({"s1/l1": 1}), *(make_node(f"bare-{n}", "s1/") for n in range(4))])
    d.groups(make_group("g", 2, key=LEAF))
    waiting = members(2)
    d.run(*waiting)
    assert not d.where(*waiting)
    d.groups(make_group("s", 2, key=SPINE))
    assert len(d.run(*members(2, "s"))) == 2


def test_the_rest_stays_in_the_domain_of_the_first() -> None:
    d = Driver(fabric({"s1/l1": 2, "s2/l1": 8}), configured("{topologyConstraints: {enforcement: preferred}}"))
    d.groups(make_group("g", 1, key=SPINE))
    holding = [make_pod(f"h{n}", gpus=8, node=f"s2-l1-{n}") for n in range(1, 9)]
    d.apply(*holding)
    first = members(2)
    assert leaves(d.run(*first)) == {"s1-l1"}
    d.delete(*holding)
    later = members(1, first=2)
    assert d.run(*later) == {}
    assert "near the 2 members" in d.told(later[0])[-1]


def test_tiers_count_from_the_leaf() -> None:
    nodes = fabric({"s1/l1": 2, "s1/l2": 2, "s2/l1": 2})
    for tier, placed in ((1, 0), (2, 4), (3, 4)):
        d = Driver(nodes)
        spec = {"networkTopology": {"mode": "hard", "highestTierAllowed": tier}}
        d.groups(make_group("g", 4, api=GroupApi.VOLCANO, spec=spec))
        assert len(d.run(*members(4, api=GroupApi.VOLCANO))) == placed


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3
    ),
    st.integers(1, 8),
    st.integers(1, 2),
    st.booleans(),
)
def test_a_place_within_the_level_is_found_if_and_only_if_there_is_one(
    spines: list[list[list[int]]], count: int, within: int, two_classes: bool
) -> None:
    """Whole numbers free on each node; enforcement preferred, so that any place will do that the level allows."""
    nodes: list[Node] = []
    small_room: dict[tuple[str, ...], int] = {}
    for s, leaves_ in enumerate(spines):
        for leaf, free in enumerate(leaves_):
            for n, room in enumerate(free):
                nodes.append(make_node(f"s{s}l{leaf}n{n}", f"s{s}/l{leaf}", gpus=4))
                path = (f"s{s}", f"l{leaf}")[:within]
                small_room[path] = small_room.get(path, 0) + room
    small = Small(nodes)
    for s, leaves_ in enumerate(spines):
        for leaf, free in enumerate(leaves_):
            for n, room in enumerate(free):
                if room < 4:
                    small.hold(f"s{s}l{leaf}n{n}", gpus=4 - room)
    depth = within + len(small.world.layout.levels) - 2
    groups = [(pods(1), count)]
    if two_classes and count > 1:
        groups = [(pods(1), count - 1), (pods(1, cpu=1), 1)]
    ask = PlacementQuery(groups, gang=True, enforcement=Enforcement.PREFERRED, within=depth, level="level")
    planned = small.plan(ask)
    assert isinstance(planned, Placement) == (max(small_room.values()) >= count)
    if isinstance(planned, Placement):
        layout = small.world.layout
        used = {int(layout.leaf_of_row[row]) for rows in planned.rows for row in rows}
        assert len({layout.domain_of_leaf(depth, leaf) for leaf in used}) == 1
        plain = small.plan(PlacementQuery(groups, gang=True, enforcement=Enforcement.PREFERRED))
        assert isinstance(plain, Placement)


def test_a_required_rule_waits_within_the_level() -> None:
    small = Small(grid(2, 2, 2))
    small.hold("s1l1n1", gpus=8)
    small.hold("s2l2n1", gpus=8)
    ask = gang(4)
    assert isinstance(small.plan(ask), PlacementFailure), "a spine could hold it in two leaves"
    bound = PlacementQuery(ask.groups, gang=True, within=1, level="spine")
    assert isinstance(small.plan(bound), PlacementFailure)
    small.hold("s2l1n1", gpus=8)
    three = PlacementQuery([(pods(8), 3)], gang=True, within=1, level="spine")
    placement = small.plan(three)
    assert isinstance(placement, Placement)
    assert {small.world.layout.paths[leaf][0] for leaf in placement.leaves} == {"s1"}


# ---------------------------------------------------------------- what is written on it


def test_a_native_group_is_marked_when_it_finds_no_room_and_when_it_runs() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    group = make_group("g", 4)
    d.groups(group)
    made = members(4)
    d.run(*made)
    (mark,) = d.group_marks()
    assert (mark.namespace, mark.name, mark.uid, mark.version) == ("default", "g", group.uid, "v1alpha2")
    assert (mark.scheduled, mark.reason) == (False, GroupReason.UNSCHEDULABLE)
    assert mark.message == d.told(made[0])[-1]
    d.nodes(make_node("s1-l1-4", "s1/l1"))
    d.step()
    assert len(d.group_marks()) == 1, "not before its pods are bound"
    d.settle()
    assert (d.group_marks()[-1].scheduled, d.group_marks()[-1].reason) == (True, GroupReason.SCHEDULED)
    d.apply(*members(1, first=4))
    d.settle()
    assert len(d.group_marks()) == 2, "that a later one finds no room does not take it back"


def test_a_refused_group_is_marked_as_an_error() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.groups(make_group("g", 2, key="no/level"))
    d.run(*members(2))
    assert d.group_marks()[-1].reason is GroupReason.ERROR
    assert "no/level" in d.group_marks()[-1].message


@pytest.mark.parametrize("api", [api for api in APIS if api is not GroupApi.NATIVE])
def test_groups_of_others_are_not_ours_to_mark(api: GroupApi) -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.groups(make_group("g", 4, api=api), make_group("h", 1, api=api))
    d.run(*members(4, api=api), *members(1, "h", api))
    assert not d.group_marks()


# ---------------------------------------------------------------- restart


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("groups_first", [True, False])
def test_a_gang_that_was_being_bound_is_known_again(api: GroupApi, groups_first: bool) -> None:
    nodes = {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4}
    spec = {"disruptionMode": "PodGroup"} if api is GroupApi.NATIVE else {}
    group = make_group("g", 4, api=api, spec=spec)
    first = Driver(fabric(nodes))
    first.groups(group)
    made = members(4, api=api)
    first.apply(*made)
    first.step()
    shuffler = random.Random(1)
    for uid in shuffler.sample(sorted(first.flight), 2):
        first.write(first.flight[uid])
    second = Driver(fabric(nodes))
    if groups_first:
        second.groups(group)
        second.apply(*shuffler.sample(made, 4))
    else:
        second.serve(api, Serving.UNKNOWN)
        second.apply(*shuffler.sample(made, 4))
        second.groups(group)
    (workload,) = second.engine.workloads
    assert workload.size == 4
    assert workload.disruption_mode is (Disruption.GANG if spec else Disruption.POD)
    second.settle()
    assert len({pod.spec.node_name for pod in made}) == 4
    assert len(leaves(second.where(*made))) == 1
    assert sorted(pod.metadata.annotations["topology.scheduler/rank"] for pod in made) == ["0", "1", "2", "3"]
    assert [mark.scheduled for mark in second.group_marks()] == ([True] if api is GroupApi.NATIVE else [])


def test_a_group_that_ran_before_the_restart_is_marked_if_that_was_not_done() -> None:
    first = Driver(fabric({"s1/l1": 4}))
    first.groups(make_group("g", 2))
    made = members(2)
    first.run(*made)
    for status, marks in (({}, 1), ({"conditions": [{"type": "PodGroupScheduled", "status": "True"}]}, 0)):
        second = Driver(fabric({"s1/l1": 4}))
        second.groups(make_group("g", 2, status=status))
        second.tell_again(*made)
        second.settle()
        assert len(second.group_marks()) == marks
        (workload,) = second.engine.workloads
        assert workload.size == 2


def test_a_gang_is_not_joined_by_an_annotation_of_another_namespace() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.groups(make_group("g", 2, namespace="a"))
    ours = members(2, namespace="a")
    d.run(*ours)
    theirs = make_pod("t", namespace="b", node="s1-l1-4", annotations={"gang-id": "a/podgroups.scheduling.k8s.io/g"})
    d.apply(theirs)
    assert stage(d, theirs) is None
    (workload,) = d.engine.workloads
    assert len(workload.at(Stage.BOUND)) == 2


# ---------------------------------------------------------------- of several makes


def test_a_launcher_and_workers_of_two_jobs_are_placed_as_one() -> None:
    d = Driver(fabric({"s1/l1": 3, "s1/l2": 4}))
    d.groups(make_group("g", 5, key=LEAF))
    d.own(job_owner(make_job("launch")))
    d.own(job_owner(make_job("work", parallelism=4, completions=4, indexed=True)))
    launcher = members(
        1, owner=controlled_by("Job", "launch"), gpus=0, labels={"training.kubeflow.org/job-role": "launcher"}
    )
    index = "batch.kubernetes.io/job-completion-index"
    workers = [
        in_group(make_pod(f"w{n}", gpus=8, owner=controlled_by("Job", "work"), labels={index: str(n)}), "g")
        for n in range(4)
    ]
    d.run(*workers)
    assert not d.where(*workers)
    where = d.run(*launcher) | d.where(*workers)
    assert leaves(where) == {"s1-l2"}
    assert len(where) == 5
    ranks = {
        pod.metadata.name: int(pod.metadata.annotations["topology.scheduler/rank"]) for pod in [*launcher, *workers]
    }
    assert ranks == {"g-0": 0, "w0": 1, "w1": 2, "w2": 3, "w3": 4}
    assert [where[f"w{n}"] for n in range(4)] == sorted(where[f"w{n}"] for n in range(4))


def test_the_resources_of_the_group_count_all_its_makes() -> None:
    d = Driver([make_node("n1", "s/l1", gpus=8), make_node("n2", "s/l2", gpus=8)])
    d.groups(make_group("g", 3, key=LEAF))
    made = [*members(1, gpus=8), *members(2, gpus=4, first=1)]
    d.run(*made)
    assert not d.where(*made)
    assert "No leaf holds the gang of 3 pods even when empty" in d.told(made[0])[-1]


@pytest.mark.parametrize("seed", range(6))
def test_where_its_makes_say_different_things_the_first_in_order_speaks_for_all(seed: int) -> None:
    made = [
        *members(1, owner=controlled_by("ReplicaSet", "launch"), annotations={"placement-strategy": "distributed"}),
        *members(
            3, first=1, owner=controlled_by("ReplicaSet", "work"), annotations={"placement-strategy": "consolidated"}
        ),
    ]
    d = Driver(fabric({"s1/l1": 4}))
    d.own(owner("ReplicaSet", "launch"))
    d.own(owner("ReplicaSet", "work"))
    d.groups(make_group("g", 5))
    d.run(*random.Random(seed).sample(made, 4))
    (workload,) = d.engine.workloads
    assert workload.request.strategy == "distributed"
    assert workload.controller == "ReplicaSet launch"
    d.step(3)
    d.forget()
    d.tell_again(*random.Random(seed).sample(made, 4))
    assert d.step() == [], "nothing has changed"
    assert not d.engine.queue.has_active
    d.delete(made[0])
    d.step()
    assert workload.request.strategy == "consolidated", "the next in order speaks then"


def tied(count: int) -> list[Pod]:
    """Members that keep apart by rack."""
    return [
        in_group(web_pod(f"g-{n}", one_gpu_spec(affinity=pod_anti_affinity("rack")), created=n), "g")
        for n in range(count)
    ]


@pytest.mark.parametrize(("key", "placed"), [(LEAF, 0), (SPINE, 3), ("", 3)])
def test_members_that_look_at_each_other_keep_to_the_level_as_well(key: str, placed: int) -> None:
    at = [("s1/l1", "a"), ("s1/l1", "b"), ("s1/l2", "c"), ("s2/l1", "d"), ("s2/l1", "e")]
    nodes = [make_node(f"n{n}", leaf, labels={"rack": rack}) for n, (leaf, rack) in enumerate(at)]
    d = Driver(nodes, configured("{topologyConstraints: {enforcement: preferred}}"))
    d.groups(make_group("g", 3, key=key))
    where = d.run(*tied(3))
    assert len(where) == placed
    if key:
        assert set(where.values()) <= {"n0", "n1", "n2"}
