"""Nodes that are kept for recovery: replacements go there, and pods that borrowed them are evicted."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recovery.world import Kill, World, leaf
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.instructions import CreateMigration, EvictPod, RecoveryInstruction

FORCED = RecoverySpec(enabled=True, force_delete=True)
ONE = "{spares: {perLeaf: 1}}"
FULL = {"s1/l1": 4, "s1/l2": 4}


def kept(world: World) -> set[str]:
    nodes = world.d.engine.world.nodes
    return {name for name, row in nodes.row_of.items() if nodes.spare[row]}


def lent_everywhere(world: World, size: int = 1, gpus: int = 8) -> None:
    """Jobs of low priority on all that is left."""
    for number in range(12):
        world.gang(f"low{number}", size, gpus=gpus, priority=-1)
    world.run()


def test_a_replacement_goes_to_the_spare_of_its_own_leaf() -> None:
    world = World(FORCED, FULL, ONE)
    world.gang("g", 3)
    world.run()
    where = world.nodes_of("g")
    (home,) = {leaf(node) for node in where.values()}
    (spare,) = {node for node in kept(world) if leaf(node) == home}
    assert spare not in where.values()
    world.fail(where["g-1"])
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert world.nodes_of("g")["g-1"] == spare
    world.check()


def test_a_pod_alone_goes_to_a_spare_too() -> None:
    world = World(FORCED, {"s1/l1": 2}, ONE)
    world.gang("g", 1)
    world.run()
    node = world.nodes_of("g")["g-0"]
    world.fail(node)
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert world.nodes_of("g")["g-0"] != node


def test_the_pod_that_borrowed_the_spare_of_the_leaf_leaves_first() -> None:
    world = World(FORCED, FULL, ONE)
    world.gang("g", 3)
    world.run()
    where = world.nodes_of("g")
    (home,) = {leaf(node) for node in where.values()}
    lent_everywhere(world)
    (spare,) = {node for node in kept(world) if leaf(node) == home}
    (borrower,) = {name for name, node in world.nodes_of("low").items() if node == spare}
    world.fail(where["g-1"])
    world.run(40)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    assert world.nodes_of("g")["g-1"] == spare
    order = [name for name, _ in world.evictions]
    assert order == [borrower, "g-1"], "no other pod is evicted, and the borrower goes first"
    helper = next(migration for migration in world.migrations.values() if migration.spec.makes_room_for)
    assert helper.status.policy == "give-way" and helper.spec.cause.startswith("leaves a spare node")
    assert helper.status.message == "1 pod gone, the spare nodes are free again"
    assert all(not move.to for move in helper.status.moves)
    assert borrower not in world.nodes_of("low"), "it waits like any other"
    world.check()


def test_a_pod_whose_own_migration_waits_for_room_leaves_the_spare_too() -> None:
    """Otherwise a user keeps a spare node by requesting a Migration that has no room."""
    world = World(FORCED, {"s1/l1": 4}, ONE)
    world.gang("g", 3)
    world.run()
    lent_everywhere(world)
    world.request("theirs", "low0-0")
    world.run(5)
    assert world.condition("Reserved")[1] == "NoRoom"
    failed = world.nodes_of("g")["g-1"]
    world.fail(failed)
    world.run(40)
    assert [name for name, _ in world.evictions] == ["low0-0", "g-1"]
    assert world.nodes_of("g")["g-1"] not in ("", failed)
    assert world.migrations["default/theirs"].phase is Phase.CANCELLED


def test_no_pod_leaves_a_spare_when_there_is_a_free_node_in_the_leaf() -> None:
    world = World(FORCED, {"s1/l1": 5}, ONE)
    world.gang("g", 3)
    world.run()
    world.gang("low", 1, priority=-1)
    world.run()
    world.fail(world.nodes_of("g")["g-1"])
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert {name for name, _ in world.evictions} == {"g-1"}


def test_the_lent_spare_of_the_own_leaf_comes_before_a_free_one_elsewhere() -> None:
    world = World(FORCED, {"s1/l1": 4, "s1/l2": 4}, ONE)
    world.gang("g", 3)
    world.run()
    where = world.nodes_of("g")
    (home,) = {leaf(node) for node in where.values()}
    low = world.gang("low", 1, priority=-1)
    for pod in low:
        pod.spec.node_selector = {"topology.scheduler/leaf": home.rpartition("-")[2]}
    world.tell_pod("low-0")
    world.run()
    assert leaf(world.nodes_of("low")["low-0"]) == home
    world.fail(where["g-1"])
    world.run(40)
    assert {leaf(node) for node in world.nodes_of("g").values()} == {home}
    world.check()


def test_only_as_many_leave_as_it_takes_the_cheapest() -> None:
    world = World(FORCED, {"s1/l1": 3}, ONE)
    world.gang("g", 2, gpus=4)
    world.run()
    where = world.nodes_of("g")
    world.now = world.d.now = 1000.0
    lent_everywhere(world, gpus=2)
    assert len(set(where.values())) == 1, "both on one node"
    (node,) = set(where.values())
    world.fail(node)
    world.run(40)
    assert all(phase is not None and phase.over for phase in world.phases())
    assert len(world.nodes_of("g")) == 2 and node not in world.nodes_of("g").values()
    assert sum(name.startswith("low") for name, _ in world.evictions) <= 4 + 4
    world.check()


def test_a_pod_that_a_user_asks_to_move_gets_no_spare() -> None:
    world = World(FORCED, {"s1/l1": 3}, ONE)
    world.gang("g", 2)
    world.run()
    world.request("move", "g-0")
    world.run(10)
    assert world.phases() == [Phase.PLANNED]
    assert world.condition("Reserved")[1] == "NoRoom"
    assert world.evictions == []


@pytest.mark.parametrize("going", [False, True])
def test_a_pod_that_waits_for_a_requested_move_gets_a_spare_when_its_node_dies(going: bool) -> None:
    """A user asked for it, or the node is to be removed; until then there is no room for it."""
    spec = FORCED.model_copy(update={"scale_down_taints": ("going",)})
    world = World(spec, {"s1/l1": 3}, ONE)
    for name in ("g", "h"):
        world.gang(name, 1)
    world.run()
    node = world.nodes_of("g")["g-0"]
    if going:
        world.extra[node] = {"taints": ("going",)}
        world.tell_node(node)
    else:
        world.request("please", "g-0")
    world.run(30)
    assert world.phases() == [Phase.PLANNED] and world.condition("Reserved")[1] == "NoRoom"
    world.fail(node)
    world.run(9)
    assert not world.evictions
    world.run(30)
    assert sorted(filter(None, world.phases())) in ([Phase.DONE], [Phase.CANCELLED, Phase.DONE])
    assert world.nodes_of("g")["g-0"] != node
    world.check()


def test_one_dead_node_gives_no_spare_to_the_pods_that_a_user_moves_off_others() -> None:
    """The pod of the dead node gets it, and its gang stays where it is; what the user asked for has ended."""
    world = World(FORCED, {"s1/l1": 4}, ONE)
    world.gang("g", 2)
    world.gang("h", 1)
    world.run()
    where = world.nodes_of("g")
    world.request("please", "g-0", "g-1")
    world.run(10)
    assert world.phases() == [Phase.PLANNED] and world.condition("Reserved")[1] == "NoRoom"
    world.fail(where["g-0"])
    world.run(40)
    assert set(world.phases()) == {Phase.CANCELLED, Phase.DONE}
    assert [name for name, _ in world.evictions] == ["g-0"]
    assert world.nodes_of("g")["g-1"] == where["g-1"]
    assert world.nodes_of("g")["g-0"] not in where.values()
    world.check()


def test_a_pod_of_no_lower_priority_than_the_gang_does_not_leave_a_spare() -> None:
    world = World(FORCED, {"s1/l1": 3}, ONE)
    world.gang("g", 2, priority=-1)
    world.run()
    lent_everywhere(world)
    world.fail(world.nodes_of("g")["g-1"])
    world.run(20)
    assert {name for name, _ in world.evictions} == set()
    assert world.condition("Reserved")[1] == "NoRoom"


def test_a_new_process_asks_them_to_leave_as_well() -> None:
    world = World(FORCED, FULL, ONE)
    world.gang("g", 3)
    world.run()
    where = world.nodes_of("g")
    lent_everywhere(world)
    before = kept(world)
    world.start()
    world.run()
    assert kept(world) == before, "what is kept follows from what there is"
    world.fail(where["g-1"])
    world.run(40)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    assert len({leaf(node) for node in world.nodes_of("g").values()}) == 1
    world.check()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(10))
def test_killed_at_any_write_the_gang_is_whole_again(write: int, after: bool) -> None:
    world = World(FORCED, FULL, ONE)
    world.gang("g", 3)
    world.run()
    where = world.nodes_of("g")
    lent_everywhere(world)
    (home,) = {leaf(node) for node in where.values()}
    world.fail(where["g-1"])
    world.kill = Kill(write, after)
    world.run(120)
    assert world.kill.count > write
    now = world.nodes_of("g")
    assert len(now) == 3 and {leaf(node) for node in now.values()} == {home}
    assert sum(name.startswith("low") for name, _ in world.evictions) == 1
    assert all(phase is not None and phase.over for phase in world.phases())
    world.check()


def test_nodes_in_quarantine_are_not_kept() -> None:
    world = World(RecoverySpec(enabled=True, force_delete=True, quarantine=100), {"s1/l1": 4}, ONE)
    world.run()
    (spare,) = kept(world)
    world.fail(spare)
    world.run(15)
    world.heal(spare)
    world.run(5)
    (other,) = kept(world)
    assert other != spare
    world.run(200)
    assert kept(world) == {spare}, "it is the first in order again"


class Watched(World):
    """Notes of each pod that is evicted where it was, and what was kept when its move began."""

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Do what recovery wants done."""
        if isinstance(instruction, CreateMigration) and instruction.spec.leave_spares:
            # What is taken back is not kept any more: another node is then.
            self.asked_when |= dict.fromkeys((pod.uid for pod in instruction.spec.pods), kept(self))
        if isinstance(instruction, EvictPod) and instruction.pod.uid in self.pods:
            pod, kept_nodes = self.pods[instruction.pod.uid], self.asked_when.get(instruction.pod.uid, set())
            self.seen.append((instruction.pod.uid, pod.spec.priority, pod.spec.node_name, kept_nodes))
        super().carry_out(instruction)

    def __post_init__(self) -> None:
        self.asked_when: dict[str, set[str]] = {}
        self.seen: list[tuple[str, int, str, set[str]]] = []
        super().__post_init__()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    leaves=st.lists(st.integers(2, 4), min_size=1, max_size=3),
    gangs=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([4, 8]), st.sampled_from([-1, 0, 3])), max_size=8),
    failures=st.lists(st.integers(0, 11), min_size=1, max_size=3),
)
def test_pods_are_evicted_only_from_failed_nodes_and_lent_ones(
    leaves: list[int], gangs: list[tuple[int, int, int]], failures: list[int]
) -> None:
    """No pod leaves to make a spare, and only pods that borrowed one leave it."""
    world = Watched(FORCED, {f"s1/l{n}": size for n, size in enumerate(leaves, 1)}, ONE)
    names = sorted(world.node_objects)
    for number, (size, gpus, priority) in enumerate(gangs):
        world.gang(f"g{number}", size, gpus=gpus, priority=priority)
        world.run()
    assert world.evictions == []
    failed: set[str] = set()
    for at in failures:
        failed.add(names[at % len(names)])
        world.fail(names[at % len(names)])
        world.run(40)
        world.check()
    helps = {
        pod.uid for migration in world.migrations.values() if migration.spec.leave_spares for pod in migration.spec.pods
    }
    makes_room = {
        pod.uid
        for migration in world.migrations.values()
        if migration.spec.makes_room_for
        for pod in migration.spec.pods
    }
    restarts = {
        move.uid
        for migration in world.migrations.values()
        if migration.status.policy == "restart-gang"
        for move in migration.status.moves
    }
    for uid, priority, node, kept_nodes in world.seen:
        if node in failed or uid in restarts | (makes_room - helps):
            continue
        assert uid in helps and priority < 0 and node in kept_nodes, (uid, priority, node, kept_nodes)
