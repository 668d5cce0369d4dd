"""What holds of assumed volumes whatever happens: none is promised twice, and no promise outlives its pod."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.scheduling.storage import DELAYED, LOCAL, StorageDriver, claim, using, volume, zoned
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.binding.volume_binding import UNANSWERED
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.state.pods.workloads import Stage
from topo_scheduler.state.storage.claim_annotations import SELECTED_NODE, is_bound

pytestmark = pytest.mark.unrecorded

NODES = ("n1", "n2", "n3")


class Promised(RuleBasedStateMachine):
    """Pods, claims and volumes come and go in any order, and writes are answered late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.d = StorageDriver(zoned("a", "a", "b"))
        self.made = 0
        self.ever: dict[str, Pod] = {}

    @rule(of=st.sampled_from((LOCAL, DELAYED)), size=st.sampled_from(("1Gi", "2Gi")), share=st.booleans())
    def a_pod_with_a_claim(self, of: str, size: str, share: bool) -> None:
        self.made += 1
        name = f"c{self.made - (share and self.made > 1)}"
        if name not in self.d.claims:
            self.d.tell(claim(name, of, size=size))
        pod = self.ever[f"pod-{self.made:04}"] = using(name, name=f"p{self.made}", uid=f"pod-{self.made:04}")
        self.d.apply(pod)

    @rule(node=st.sampled_from(("", *NODES)), size=st.sampled_from(("1Gi", "2Gi")))
    def a_volume(self, node: str, size: str) -> None:
        self.made += 1
        self.d.tell(volume(f"v{self.made}", node=node, size=size))

    @rule(seconds=st.sampled_from((0, 1, 5, 600)))
    def a_step(self, seconds: int) -> None:
        self.d.step(seconds)

    @precondition(lambda self: self.d.preparing)
    @rule(data=st.data(), watched=st.booleans())
    def writes_succeed(self, data: st.DataObject, watched: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.d.preparing)))
        self.d.carry_out(self.ever[uid], reported=watched)

    @precondition(lambda self: self.d.preparing)
    @rule(data=st.data())
    def writes_fail(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.d.preparing)))
        self.d.fail(self.ever[uid], "no")

    @rule()
    def the_watch_catches_up(self) -> None:
        self.d.tell_as_it_is(*self.d.claims.values(), *self.d.volumes.values())

    @rule()
    def volumes_are_bound(self) -> None:
        self.d.provision()

    @precondition(lambda self: any(SELECTED_NODE in c.metadata.annotations for c in self.d.claims.values()))
    @rule()
    def a_provisioner_gives_up(self) -> None:
        for pvc in self.d.claims.values():
            if not is_bound(pvc) and pvc.metadata.annotations.pop(SELECTED_NODE, ""):
                self.d.tell(pvc)

    @precondition(lambda self: self.d.flight)
    @rule(data=st.data(), outcome=st.sampled_from((BindOutcome.BOUND, BindOutcome.REJECTED, BindOutcome.GONE)))
    def a_bind_ends(self, data: st.DataObject, outcome: BindOutcome) -> None:
        uid = data.draw(st.sampled_from(sorted(self.d.flight)))
        if uid in self.d.pods:
            self.d.answer(uid, outcome)

    @precondition(lambda self: self.d.pods)
    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        pod = self.d.pods[data.draw(st.sampled_from(sorted(self.d.pods)))]
        self.d.flight.pop(pod.metadata.uid, None)
        self.d.delete(pod)

    @invariant()
    def no_volume_is_promised_twice(self) -> None:
        storage = self.d.storage
        held = {key: choice for key, (choice, _) in storage._holds.items()}
        promised = [choice.volume for choice in held.values() if choice.volume]
        assert len(promised) == len(set(promised))
        assert storage._reserved == {choice.volume: key for key, choice in held.items() if choice.volume}
        for key, choice in held.items():
            pv = self.d.volumes.get(choice.volume)
            reference = pv.spec.claim_ref if pv else None
            assert reference is None or reference.name == key[1], "what is given away is promised to no other pod"

    @invariant()
    def only_pods_on_their_way_hold_anything(self) -> None:
        for uid in self.d.storage._held_by:
            entry = self.d.engine.workloads.of_pod(uid)
            writing = uid.removesuffix(UNANSWERED) in self.d.preparing
            assert writing or (entry is not None and entry[1].stage is Stage.ASSUMED)

    @invariant()
    def nothing_is_remembered_of_claims_that_nobody_waits_for(self) -> None:
        held = {name for choice, _ in self.d.storage._holds.values() for name in (choice.claim, choice.volume)}
        assert self.d.engine.outcomes.volumes._known.keys() <= held

    @invariant()
    def no_pod_is_bound_before_its_volumes(self) -> None:
        for uid in self.d.flight:
            pod = self.d.pods.get(uid)
            for pod_volume in pod.spec.volumes if pod else ():
                assert pod_volume.persistent_volume_claim is not None
                assert is_bound(self.d.claims[pod_volume.persistent_volume_claim.claim_name])


Promised.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestPromised = Promised.TestCase
