"""Gangs of several Jobs or roles, where pods have the same index: each takes the place of its own series."""

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.world import RECOVERY_ENABLED, World
from topo_scheduler.api.groups import JOB_INDEX, JOBSET_JOB_INDEX, KUBEFLOW_INDEX, KUBEFLOW_TYPE
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import DefragmentationSpec, RecoverySpec

LEAF = {"s1/l1": 12}
DEFRAGMENTING = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True))
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {enabled: true}},"
    " preemption: {enabled: false}, reservation: {enabled: false}}"
)


def add_gang(world: World, kind: str, each: int = 3, *, runs: bool = True) -> list[Pod]:
    """Add a gang of two series, and let it run if it ``runs``.

    ``kind``: two Jobs of a JobSet, two Jobs with one name of a gang, two roles of a Kubeflow job, or two ReplicaSets.
    """
    pods = []
    for series in range(2):
        owner = controlled_by("ReplicaSet" if kind == "ReplicaSets" else "Job", f"{kind.lower()}-{series}")
        if kind == "Kubeflow":
            owner = controlled_by("PyTorchJob", "torch")
        for number in range(each):
            labels = {
                "JobSet": {JOB_INDEX: str(number), JOBSET_JOB_INDEX: str(series)},
                "Jobs": {JOB_INDEX: str(number)},
                "Kubeflow": {KUBEFLOW_INDEX: str(number), KUBEFLOW_TYPE: ("master", "worker")[series]},
                "ReplicaSets": {},
            }[kind]
            name = f"g-{series}-{number}"
            gang = {"gang-name": "g", "gang-size": str(2 * each)}
            pod = make_pod(name, gpus=8, uid=name, owner=owner, annotations=gang, labels=labels, created=world.now)
            pods.append(pod)
    world.add(*pods)
    if runs:
        world.run(1)
        assert len(world.nodes_of("g-")) == 2 * each
    return pods


@pytest.mark.parametrize("kind", ["JobSet", "Jobs", "Kubeflow", "ReplicaSets"])
@pytest.mark.parametrize("fails_over", [False, True])
def test_the_sibling_of_the_same_index_is_no_replacement(kind: str, fails_over: bool) -> None:
    """The Job controller takes seconds to make the replacement: until then the node stays reserved."""
    world = World(RECOVERY_ENABLED, LEAF)
    pods = add_gang(world, kind)
    world.run(10)
    world.controllers_stand = True
    world.request("please", "g-0-0")
    world.run(30)
    if fails_over:
        world.start()
        world.run(2)
    assert world.phases() == [Phase.PLACING]
    target = world.one().status.moves[0].to
    world.controllers_stand = False
    world.add(*(make_pod(f"b{number}", gpus=8, uid=f"b{number}", created=world.now) for number in range(6)))
    world.run(2)
    world.replace(pods[0])
    world.tell_pod(pods[0].metadata.uid)
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.moves[0].replacement == "g-0-0-again-1"
    assert world.nodes_of("g-")["g-0-0"] == target
    world.check()


@pytest.mark.parametrize("kind", ["JobSet", "Jobs", "Kubeflow", "ReplicaSets"])
@pytest.mark.parametrize("fails_over", [False, True])
def test_a_new_pod_of_the_other_series_is_no_replacement(kind: str, fails_over: bool) -> None:
    """A pod of the other series fails meanwhile, and its controller is faster."""
    world = World(RECOVERY_ENABLED, LEAF)
    pods = add_gang(world, kind)
    world.run(10)
    world.controllers_stand = True
    world.request("please", "g-0-0")
    world.run(10)
    other = world.pods.pop("g-1-0")
    world.replace(other)
    world.tell_pod("g-1-0")
    world.run(10)
    assert "g-1-0" in world.nodes_of("g-"), "the new pod of the other series is bound"
    if fails_over:
        world.start()
        world.run(2)
    assert world.phases() == [Phase.PLACING]
    world.replace(pods[0])
    world.tell_pod(pods[0].metadata.uid)
    world.run(30)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.moves[0].replacement == "g-0-0-again-2"


@pytest.mark.parametrize("kind", ["JobSet", "Jobs", "Kubeflow"])
def test_room_that_is_made_for_a_pending_gang_goes_to_each_series(kind: str) -> None:
    """Its Jobs make new pods while others leave the room."""
    world = World(DEFRAGMENTING, {"s1/l1": 2, "s1/l2": 2}, CONFIG)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        world.put(name, node, 2)
    pods = add_gang(world, kind, 1, runs=False)
    world.blocked = {"a"}
    world.run(65)
    assert set(world.phases()) == {Phase.EVICTING, Phase.RESERVING}
    for pod in reversed(pods):
        del world.pods[pod.metadata.uid]
        world.replace(pod)
        world.tell_pod(pod.metadata.uid)
    world.run(1)
    world.blocked = set()
    world.run(30)
    assert set(world.phases()) == {Phase.DONE}
    (migration,) = (made for made in world.migrations.values() if made.cause is Cause.PENDING_GANG)
    replaced = {move.pod: move.replacement_name.partition(".")[0] for move in migration.status.moves}
    assert replaced == {"g-0-0": "g-0-0", "g-1-0": "g-1-0"}
    world.check()


@pytest.mark.parametrize("kind", ["Job", "ReplicaSet"])
def test_in_a_gang_of_one_series_a_replacement_may_come_from_a_renamed_controller(kind: str) -> None:
    """A rollout has made a new ReplicaSet, or an operator a Job with a new name."""
    world = World(RECOVERY_ENABLED, LEAF)

    def member(name: str, index: int, controller: str) -> Pod:
        return make_pod(
            name,
            gpus=8,
            uid=name,
            owner=controlled_by(kind, controller),
            annotations={"gang-name": "g", "gang-size": "3"},
            labels={JOB_INDEX: str(index)} if kind == "Job" else {},
            created=world.now,
        )

    world.add(*(member(f"g-{number}", number, "first") for number in range(3)))
    world.run(10)
    world.controllers_stand = True
    world.request("please", "g-0")
    world.run(10)
    assert world.phases() == [Phase.PLACING], "siblings that run are no replacements"
    if kind == "Job":
        world.add(member("g-other", 7, "second"))
        world.run(10)
        assert world.phases() == [Phase.PLACING], "a pod of another index is no replacement"
    world.add(member("g-new", 0, "second"))
    world.run(10)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.moves[0].replacement == "g-new"
    world.check()
