"""Pods whose claims are their own by name move; such a claim keeps its devices until Kubernetes deallocates it."""

from dataclasses import dataclass, field

import msgspec

from tests.helpers import controlled_by, make_pod, timestamp
from tests.recovery.device_world import DeviceWorld
from tests.scheduling.device_driver import asking
from topo_scheduler.api.devices import ResourceClaimStatus
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import RecoverySpec

GPUS = 4


@dataclass
class NamedClaims(DeviceWorld):
    """Pods that name their claims, and a controller that deallocates these only on request."""

    whole_gpus: int = GPUS
    terminates: set[str] = field(default_factory=set)
    """Uids of pods that take their time to end; their controller replaces them at once."""

    def _evict(self, uid: str, *, force: bool) -> str:
        if uid not in self.terminates:
            return super()._evict(uid, force=force)
        pod = self.pods[uid]
        self.replace(pod)
        pod.metadata.deletion_timestamp = timestamp(self.now)
        return ""

    def ends(self, uid: str) -> None:
        """A pod that was being deleted is gone."""
        del self.pods[uid]
        self.tell_pod(uid)

    def runs(self, name: str, claim: str, owner: str = "set") -> Pod:
        """A pod appears that uses a claim, and is bound."""
        pod = make_pod(name, gpus=0, uid=name, owner=controlled_by("ReplicaSet", owner), created=self.now)
        if ("default", claim) not in self.d.claims:
            self.d.claim(claim, asking(GPUS))
        self.add(self.d.sharing(pod, claim))
        self.run()
        assert self.pods[name].spec.node_name
        return self.pods[name]

    def deallocate(self, name: str) -> None:
        """Kubernetes sees that no pod uses a claim any more."""
        claim = self.d.claims["default", name]
        metadata = msgspec.structs.replace(claim.metadata, finalizers=[])
        self.d.put_claim(msgspec.structs.replace(claim, metadata=metadata, status=ResourceClaimStatus()))

    def reserved_for(self, name: str) -> list[str]:
        return [entry.uid for entry in self.d.claims["default", name].status.reserved_for]

    def others(self, *known: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.metadata.name not in known]


def moving() -> tuple[NamedClaims, str]:
    """A pod is evicted for a Migration, and its claim is still allocated; return where it ran."""
    w = NamedClaims(RecoverySpec(enabled=True), {"s1/l1": 2})
    node = w.runs("moved", "own").spec.node_name
    w.request("ours", "moved")
    w.run(5)
    return w, node


def test_its_replacement_waits_until_the_claim_is_deallocated_and_says_so() -> None:
    w, before = moving()
    (fresh,) = w.others("moved")
    assert fresh.spec.node_name == ""
    assert w.reserved_for("own") == ["moved"], "the claim was taken again on the node that the pod left"
    assert any('it waits until Kubernetes releases those of resourceclaim "own"' in text for text in w.d.told(fresh))

    w.deallocate("own")
    w.run(5)
    assert fresh.spec.node_name not in ("", before)
    assert w.migrations["default/ours"].phase is Phase.DONE


def test_the_replacement_of_a_pod_that_still_terminates_waits_too() -> None:
    """A Job replaces its pods as soon as they are being deleted."""
    w = NamedClaims(RecoverySpec(enabled=True), {"s1/l1": 2})
    moved = w.runs("moved", "own")
    before = moved.spec.node_name
    w.terminates.add("moved")
    w.request("ours", "moved")
    w.run(5)
    (fresh,) = w.others("moved")
    assert fresh.spec.node_name == ""
    assert w.reserved_for("own") == ["moved"]
    w.ends("moved")
    w.run(5)
    assert fresh.spec.node_name == ""
    w.deallocate("own")
    w.run(5)
    assert fresh.spec.node_name not in ("", before)


def test_once_the_reservation_has_ended_it_is_placed_like_any_other_pod() -> None:
    w, before = moving()
    (fresh,) = w.others("moved")
    w.run(1000)
    assert w.migrations["default/ours"].phase is Phase.FAILED
    assert fresh.spec.node_name == before


def test_a_claim_that_another_pod_uses_too_is_not_waited_for() -> None:
    w = NamedClaims(RecoverySpec(enabled=True), {"s1/l1": 2})
    moved = w.runs("moved", "own")
    w.runs("stays", "own", owner="other")
    w.request("ours", "moved")
    w.run(5)
    assert all(pod.spec.node_name == moved.spec.node_name for pod in w.pods.values())
    assert w.migrations["default/ours"].phase is not Phase.DONE


def test_seats_hold_no_more_devices_than_the_claims_of_their_namespace() -> None:
    """Pods that ask for nothing but devices, and whose owners create none once they are evicted."""
    w = NamedClaims(RecoverySpec(enabled=True), {"s1/l1": 8})
    w.controllers_stand = True
    for number in range(6):
        w.put(f"beside-{number}", f"s1-l1-{number + 1}", 0)
        w.runs(f"h{number}", f"c{number}", owner=f"o{number}")
        w.request(f"ask-{number}", f"h{number}")
        w.run(5)
        for evicted in {claim.metadata.name for claim in w.d.claims.values()} - {f"c{name[1:]}" for name in w.pods}:
            w.deallocate(evicted)
    held = [name for name in w.pods if name.startswith("h")]
    reserved = [
        migration for migration in w.migrations.values() if migration.phase is not None and migration.phase.running
    ]
    assert len(held) == len(reserved) == 3
    waits = next(migration for migration in w.migrations.values() if migration.phase is Phase.PLANNED)
    assert waits.status.conditions[0].reason == "Limited"
