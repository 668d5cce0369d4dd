"""Seats of pods with resource claims hold devices, so no two Migrations evict pods for the same ones."""

from dataclasses import dataclass

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.slot_world import SlotWorld
from tests.recovery.world import Kill
from tests.scheduling.device_driver import DeviceDriver, asking
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import RecoverySpec

GPUS = 8
FORCED = RecoverySpec(enabled=True, force_delete=True)


@dataclass
class ClaimingGangs(SlotWorld):
    """Gangs whose pods have a claim for all GPUs of a node each."""

    whole_gpus: int = GPUS

    def _publish(self, d: DeviceDriver) -> None:
        """No GPU is partitioned."""

    def claiming_gang(self, name: str, size: int) -> list[Pod]:
        """A Job of indexed pods, which is a gang."""
        owner = controlled_by("Job", name)
        annotations = {"gang-name": name, "gang-size": str(size)}
        pods = [
            make_pod(
                f"{name}-{n}",
                gpus=0,
                uid=f"{name}-{n}",
                owner=owner,
                created=self.now,
                annotations=annotations,
                labels={"batch.kubernetes.io/job-completion-index": str(n)},
            )
            for n in range(size)
        ]
        for pod in pods:
            self.add(self.d.with_claim(pod, asking(GPUS)))
        return pods

    def nobody_shares_a_node(self) -> None:
        """Check that each running pod has a node of its own, with all its GPUs."""
        nodes = [pod.spec.node_name for pod in self.pods.values() if pod.spec.node_name]
        assert len(nodes) == len(set(nodes)), nodes


def world(leaves: dict[str, int], kill: Kill | None = None) -> ClaimingGangs:
    return ClaimingGangs(FORCED, leaves, kill=kill or Kill())


def two_gangs_that_lose_a_node(w: ClaimingGangs, size: int) -> None:
    for name in ("g", "h"):
        w.claiming_gang(name, size)
        w.run()
        assert len(w.nodes_of(name)) == size
    for name in ("g", "h"):
        w.fail(w.nodes_of(name)[f"{name}-1"])


def test_two_gangs_that_lose_a_node_at_once_get_different_leaves() -> None:
    w = world({"s1/l1": 4, "s1/l2": 4, "s2/l3": 4, "s2/l4": 4})
    two_gangs_that_lose_a_node(w, 4)
    w.run(120)
    assert [migration.phase for migration in w.migrations.values()] == [Phase.DONE, Phase.DONE]
    targets = [move.to for migration in w.migrations.values() for move in migration.status.moves]
    assert len(targets) == len(set(targets)) == 8
    assert all(len(w.nodes_of(name)) == 4 for name in ("g", "h"))
    w.nobody_shares_a_node()


def test_no_pod_is_evicted_for_devices_that_another_gang_gets() -> None:
    w = world({"s1/l1": 4, "s1/l2": 4, "s2/l3": 4})
    two_gangs_that_lose_a_node(w, 4)
    w.run(120)
    moved = {
        move.pod.partition("-")[0]
        for migration in w.migrations.values()
        if migration.phase is Phase.DONE
        for move in migration.status.moves
    }
    evicted = {name.partition("-")[0] for name, _ in w.evictions}
    assert len(moved) == 1
    assert evicted == moved, "a gang was evicted for a place that another one has"
    w.nobody_shares_a_node()


def test_seats_name_the_devices_that_they_hold() -> None:
    w = world({"s1/l1": 4, "s1/l2": 4})
    w.claiming_gang("g", 3)
    w.run()
    w.fail(w.nodes_of("g")["g-1"])
    w.run(11)
    (migration,) = w.migrations.values()
    (move,) = migration.status.moves
    assert {(device.driver, device.pool) for device in move.devices} == {(move.devices[0].driver, move.to)}
    assert len(move.devices) == GPUS
    assert migration.phase is Phase.DONE


@pytest.mark.parametrize("write", range(12))
def test_killed_at_any_write_both_gangs_run_again(write: int) -> None:
    w = world({"s1/l1": 4, "s1/l2": 4, "s2/l3": 4, "s2/l4": 4}, Kill(write + 8))
    two_gangs_that_lose_a_node(w, 4)
    w.run(180)
    assert all(len(w.nodes_of(name)) == 4 for name in ("g", "h"))
    w.nobody_shares_a_node()
