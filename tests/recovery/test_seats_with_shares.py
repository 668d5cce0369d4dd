"""Seats of pods whose claims have a share of a device hold such a share, and no more devices than are held."""

from dataclasses import dataclass

import msgspec

from tests.helpers import controlled_by, make_pod
from tests.recovery.device_world import DeviceWorld
from tests.scheduling.device_driver import DeviceDriver, asking, slice_of
from topo_scheduler.api.devices import DeviceClass
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import RecoverySpec

NIC_DRIVER = "nic.example.com"
MEMORY = {"memory": {"value": "80Gi"}}
NICS = 2


def share(memory: str) -> dict[str, object]:
    """The spec of a claim for a part of a device's memory."""
    return asking(1, capacity={"requests": {"memory": memory}})


@dataclass
class SharedDevices(DeviceWorld):
    """Nodes with one GPU that pods share, and two NICs, which stand for no GPU."""

    def _publish(self, d: DeviceDriver) -> None:
        nics = msgspec.convert(
            {
                "metadata": {"name": "nic"},
                "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{NIC_DRIVER}'"}}]},
            },
            DeviceClass,
        )
        d.classes(nics)
        for name in self.node_objects:
            d.slices(slice_of(name, 1, allowMultipleAllocations=True, capacity=MEMORY))
            of_nics = slice_of(name, NICS)
            of_nics.metadata.name = f"{name}-nics"
            d.slices(msgspec.structs.replace(of_nics, spec=msgspec.structs.replace(of_nics.spec, driver=NIC_DRIVER)))

    def _remove(self, pod: Pod) -> None:
        """Its claim goes with it."""
        super()._remove(pod)
        self.d.drop_claim(f"{pod.metadata.name}-claim")

    def runs(self, name: str, spec: dict[str, object], owner: str = "set") -> Pod:
        """A pod with a claim of its own appears; it is bound if there is room."""
        pod = make_pod(name, gpus=0, uid=name, owner=controlled_by("ReplicaSet", owner), created=self.now)
        self.add(self.d.with_claim(pod, spec))
        self.run()
        return self.pods[name]


def world(nodes: int) -> SharedDevices:
    w = SharedDevices(RecoverySpec(enabled=True), {"s1/l1": nodes})
    w.controllers_stand = True
    return w


def test_a_pod_with_a_share_moves_and_leaves_the_rest_of_the_device_to_others() -> None:
    w = world(2)
    first = w.runs("moved", share("20Gi")).spec.node_name
    w.request("ours", "moved")
    w.run(5)
    (move,) = w.migrations["default/ours"].status.moves
    assert move.to not in ("", first)
    beside = w.runs("beside", share("80Gi"), owner="other")
    assert beside.spec.node_name == first
    other = w.runs("smaller", share("60Gi"), owner="other")
    assert other.spec.node_name == move.to, "the seat for a share held the whole device"


def test_a_seat_holds_as_much_of_a_device_as_the_share_that_leaves() -> None:
    w = world(2)
    first = w.runs("moved", share("20Gi")).spec.node_name
    w.request("ours", "moved")
    w.run(5)
    assert w.runs("beside", share("80Gi"), owner="other").spec.node_name == first
    larger = w.runs("larger", share("61Gi"), owner="other")
    assert larger.spec.node_name == ""
    assert "1 node(s) with devices reserved for replacements of moved pods." in w.d.told(larger)[-1]


def test_a_new_leader_holds_the_same_share() -> None:
    w = world(2)
    w.runs("moved", share("20Gi"))
    w.request("ours", "moved")
    w.run(5)
    w.start()
    w.run(5)
    w.runs("beside", share("80Gi"), owner="other")
    assert w.runs("larger", share("61Gi"), owner="other").spec.node_name == ""
    assert w.runs("smaller", share("60Gi"), owner="other").spec.node_name != ""


def test_seats_hold_no_more_devices_of_any_driver_than_the_claims_of_their_namespace() -> None:
    """Pods with NICs, whose owners create none once they are evicted."""
    w = world(8)
    for number in range(6):
        w.put(f"beside-{number}", f"s1-l1-{number + 1}", 0)
        w.runs(f"h{number}", asking(NICS, deviceClassName="nic"), owner=f"o{number}")
        w.request(f"ask-{number}", f"h{number}")
        w.run(5)
    reserved = [
        migration for migration in w.migrations.values() if migration.phase is not None and migration.phase.running
    ]
    assert len([name for name in w.pods if name.startswith("h")]) == len(reserved) == 3
    waits = next(migration for migration in w.migrations.values() if migration.phase is Phase.PLANNED)
    assert waits.status.conditions[0].reason == "Limited"
