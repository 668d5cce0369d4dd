"""A user's Migration moves nothing outside its namespace, whichever uids it names, and whatever its status says."""

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.tenants import Tenants
from tests.recovery.world import RECOVERY_ENABLED, World, copy_of, run_gang
from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec, MigrationStatus, Move, Phase
from topo_scheduler.api.objects import PodCondition
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.instructions import EvictPod, RecoveryInstruction

LEAVES = {"s1/l1": 4, "s1/l2": 4}
HOSTILE = "hostile"
KEY = f"{HOSTILE}/m"
OWN = MigrationPod("own", "own")


def tenants() -> World:
    """Return a cluster with a pod of namespace ``b`` and one of the user, each on a node of its own."""
    world = World(RECOVERY_ENABLED, LEAVES)
    world.put("theirs", "s1-l1-1", 8, namespace="b")
    world.put("own", "s1-l1-2", 8, namespace=HOSTILE)
    world.run(1)
    return world


def write(world: World, *pods: MigrationPod, reason: str = "", makes_room_for: str = "", lent: bool = False) -> None:
    """Have the user write a Migration."""
    spec = MigrationSpec(reason=reason, makes_room_for=makes_room_for, leave_spares=lent, pods=list(pods))
    created = world._create(HOSTILE, "m", spec)
    assert created is not None
    world.recovery.migration_seen(created, world.now)


def check_refused(world: World, seconds: int = 10, evicted: str = "") -> None:
    """Check that the Migration fails, and that meanwhile no pod is moved and no node reserved for it.

    ``evicted`` is the name of a pod that a Migration of its own namespace evicts, in vain.
    """
    before = dict(world.pods)
    for _ in range(seconds):
        world.run(1)
        assert not world.view.held.has_seats_of(KEY), "no node is reserved"
    migration = world.migrations[KEY]
    assert migration.phase is Phase.FAILED
    (condition,) = migration.status.conditions
    assert (condition.status, condition.reason) == ("False", "UnknownPod")
    assert not migration.status.moves
    assert {name for name, _ in world.evictions} <= {evicted}
    assert world.pods == before


@pytest.mark.parametrize("name", ["theirs", "own", "nobody", ""])
@pytest.mark.parametrize("beside", ["alone", "first", "last"])
@pytest.mark.parametrize("reason", ["", Cause.MAINTENANCE.value, Cause.IMPROVEMENT.value])
def test_a_migration_that_names_the_uid_of_another_namespaces_pod_fails(name: str, beside: str, reason: str) -> None:
    world = tenants()
    foreign = MigrationPod(name, "theirs")
    write(world, *{"alone": [foreign], "first": [foreign, OWN], "last": [OWN, foreign]}[beside], reason=reason)
    check_refused(world)
    message = world.migrations[KEY].status.message
    assert message == f"pod {name} with uid theirs is in another namespace than the Migration"


@pytest.mark.parametrize("cordoned", [False, True])
def test_a_new_leader_that_has_not_read_the_pod_refuses_it_too(cordoned: bool) -> None:
    world = tenants()
    world.node_objects["s1-l1-1"].spec.unschedulable = cordoned
    world.start()
    write(world, MigrationPod("theirs", "theirs"), OWN, reason=Cause.MAINTENANCE.value)
    check_refused(world)


@pytest.mark.parametrize("named", [("g-0",), ("g-0", "g-2"), ("g-0", "g-1", "g-2")], ids=len)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an own pod"])
@pytest.mark.parametrize("policy", ["replace", "restart-gang", "shrink"])
def test_a_migration_that_names_members_of_another_namespaces_gang_fails(
    named: tuple[str, ...], beside: bool, policy: str
) -> None:
    world = World(RECOVERY_ENABLED, LEAVES)
    world.gang("g", 3, said={"on-failure": policy})
    world.run()
    before = world.nodes_of("g-")
    if beside:
        free = next(node for node in world.node_objects if node not in before.values())
        world.put("own", free, 8, namespace=HOSTILE)
    write(world, *(MigrationPod(uid, uid) for uid in named), *[OWN] * beside)
    check_refused(world)
    assert world.nodes_of("g-") == before and len(before) == 3


@pytest.mark.parametrize("exists", [False, True], ids=["missing", "evicting"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an own pod"])
def test_a_migration_that_would_make_room_for_one_of_another_namespace_fails(exists: bool, beside: bool) -> None:
    world = tenants()
    if exists:
        world.put("asking", "s1-l1-3", 8, namespace="b")
        world.blocked = {"asking"}
        world.request("ask", "asking", namespace="b")
        world.run(1)
        assert world.migrations["b/ask"].running
    write(world, MigrationPod("theirs", "theirs"), *[OWN] * beside, makes_room_for="b/ask")
    check_refused(world, evicted="asking")


@pytest.mark.parametrize("name", ["theirs", "own"])
def test_pods_of_another_namespace_leave_no_spare_nodes_for_a_users_migration(name: str) -> None:
    world = World(RECOVERY_ENABLED, LEAVES, "{spares: {perLeaf: 1}}")
    where = run_gang(world, "g")
    world.put("theirs", "s1-l2-1", 8, namespace="b", priority=-1)
    world.blocked = {"g-0"}
    world.request("ask", "g-0")
    world.run(1)
    assert world.migrations["default/ask"].running
    world.evictions.clear()
    write(world, MigrationPod(name, "theirs"), makes_room_for="default/ask", lent=True)
    world.run(60)
    migration = world.migrations[KEY]
    assert (migration.phase, migration.status.message) == (Phase.CANCELLED, "the pods are gone already")
    assert {uid for uid, _ in world.evictions} <= {"g-0"}
    assert world.nodes_of("theirs") == {"theirs": "s1-l2-1"} and world.nodes_of("g-") == where


def namesakes(namespaces: tuple[str, ...]) -> World:
    """Return a cluster with a pod called ``namesake`` in each of these namespaces."""
    world = World(RECOVERY_ENABLED, LEAVES)
    for number, namespace in enumerate(namespaces, 1):
        owner, uid = controlled_by("ReplicaSet", "set", f"set-{namespace}"), f"namesake-{namespace}"
        pod = make_pod("namesake", namespace=namespace, gpus=8, uid=uid, owner=owner, node=f"s1-l1-{number}")
        pod.status.conditions = [PodCondition("PodScheduled", "True")]
        world.add(pod)
    world.run(1)
    return world


def test_a_name_stands_for_no_pod_of_another_namespace() -> None:
    world = namesakes(("b",))
    write(world, MigrationPod("namesake"))
    check_refused(world)


@pytest.mark.parametrize("namespaces", [(HOSTILE, "b"), ("b", HOSTILE)])
def test_a_name_stands_for_the_pod_of_the_migrations_own_namespace(namespaces: tuple[str, ...]) -> None:
    world = namesakes(namespaces)
    write(world, MigrationPod("namesake"))
    world.run(10)
    assert world.migrations[KEY].phase is not Phase.FAILED
    assert [move.uid for move in world.migrations[KEY].status.moves] == [f"namesake-{HOSTILE}"]
    assert "namesake-b" in world.pods


class RecordedTenants(Tenants):
    """A `Tenants` that records which evictions are requested."""

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Do what recovery wants done."""
        if isinstance(instruction, EvictPod):
            self.requested.append(instruction)
        super().carry_out(instruction)

    def __post_init__(self) -> None:
        self.requested: list[EvictPod] = []
        super().__post_init__()


@pytest.mark.parametrize("own", [False, True], ids=["alone", "beside an own pod"])
@pytest.mark.parametrize("named", [False, True], ids=["with its name", "with another name"])
@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.RESERVING, Phase.EVICTING, Phase.PLACING])
def test_a_status_that_a_user_writes_moves_no_pod_of_another_namespace(phase: Phase, named: bool, own: bool) -> None:
    """Only the scheduler should have the right to write it: it holds nodes by it, but asks for no foreign pod."""
    world = RecordedTenants(RecoverySpec(enabled=True, force_delete=True), LEAVES)
    world.put("theirs", "s1-l1-1", 8, namespace="b")
    world.put("own", "s1-l1-2", 8, namespace=HOSTILE)
    world.run(1)
    pods = [("own" if named else "theirs", "theirs", "s1-l1-1", "s1-l2-1")] + [
        ("own", "own", "s1-l1-2", "s1-l2-2")
    ] * own
    spec = MigrationSpec(pods=[MigrationPod("own", "own")])
    assert world._create(HOSTILE, "m", spec) is not None
    migration = world.migrations[KEY]
    migration.status = MigrationStatus(
        phase=phase.value,
        policy="replace",
        moves=[
            Move(
                pod=name,
                uid=uid,
                workload=uid,
                controller=f"ReplicaSet {uid}",
                requests={"nvidia.com/gpu": 8},
                from_=node,
                to=seat if phase.running else "",
            )
            for name, uid, node, seat in pods
        ],
    )
    world.recovery.migration_seen(copy_of(migration), world.now)
    world.run(60)
    assert all(evict.pod.namespace == HOSTILE for evict in world.requested)
    assert "theirs" not in [name for name, _ in world.evictions]
    assert world.nodes_of("theirs") == {"theirs": "s1-l1-1"}
    world.request("ask", "theirs", namespace="b")
    world.run(30)
    assert world.migrations["b/ask"].phase is Phase.DONE, "its own namespace moves it all the same"
