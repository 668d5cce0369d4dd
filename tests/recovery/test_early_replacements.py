"""Controllers that make the replacement while the pod is still being deleted, as Jobs and ReplicaSets do."""

import pytest

from tests.helpers import timestamp
from tests.recovery.world import RECOVERY_ENABLED, World, run_gang
from topo_scheduler.api.migrations import Phase

LEAF = {"s1/l1": 8}


class EagerWorld(World):
    """A cluster whose controllers replace a pod as soon as it is being deleted."""

    def delete(self, uid: str) -> None:
        """Delete a pod on a dead node: its replacement is made, and it stays until its kubelet confirms."""
        pod = self.pods[uid]
        if pod.metadata.deletion_timestamp is None:
            pod.metadata.deletion_timestamp = timestamp(self.now)
            self.replace(pod)
            self.tell_pod(uid)

    def _evict(self, uid: str, *, force: bool) -> str:
        self.evictions.append((uid, force))
        self.delete(uid)
        return ""

    def finish_pod(self, uid: str) -> None:
        """A kubelet confirms that a pod is gone, which was replaced before."""
        del self.pods[uid]
        self.tell_pod(uid)


@pytest.mark.parametrize("gang", [False, True])
def test_a_replacement_that_came_before_the_next_leader_counts(*, gang: bool) -> None:
    world = EagerWorld(RECOVERY_ENABLED, LEAF)
    if gang:
        dead = run_gang(world, "g", 3)["g-0"]
    else:
        dead = "s1-l1-1"
        world.put("g-0", dead, 8)
    world.run(30)
    world.fail(dead)
    world.run(15)
    assert world.phases() == [Phase.EVICTING] and world.nodes_of("g-0")["g-0"] != dead
    world.start()
    world.run(5)
    world.finish_pod("g-0")
    world.run(5)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.moves[0].replacement == "g-0-again-1"
    world.check()


@pytest.mark.parametrize("force", [False, True])
def test_a_replacement_that_came_before_the_migration_counts(*, force: bool) -> None:
    """Someone deletes the pod within the debounce."""
    world = EagerWorld(RECOVERY_ENABLED.model_copy(update={"force_delete": force}), LEAF)
    dead = run_gang(world, "g", 3)["g-0"]
    world.run(30)
    world.fail(dead)
    world.run(2)
    world.delete("g-0")
    world.run(30)
    assert world.phases() == [Phase.EVICTING] and world.nodes_of("g-0")["g-0"] != dead
    world.finish_pod("g-0")
    world.run(5)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.moves[0].replacement == "g-0-again-1"
    world.check()
