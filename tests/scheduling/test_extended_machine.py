"""Pods with extended resources come and go, beside pods with claims, on nodes of slices and of a device plugin.

Meanwhile writes fail or stay without an answer, binds are rejected, slices and a class vanish, and schedulers restart.
Whatever happens, no device has two claims. A bound pod has as many devices of its node as it asked for, by one claim;
none where a device plugin gives them. A gang is bound whole or not at all. Nothing is left for a pod without a node.
"""

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.device_driver import asking, slice_of
from tests.scheduling.driver import fabric, gang
from tests.scheduling.extended_driver import ExtendedDriver, device_class
from topo_scheduler.api.objects import Pod, PodExtendedResourceClaimStatus
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.state.devices.claim_writes import CreateClaim, after
from topo_scheduler.state.devices.extended_resources import extended_claim_owner

NODES, GPUS = 3, 4
counts = st.integers(1, GPUS)


class ExtendedMachine(RuleBasedStateMachine):
    """An engine, and the truth about its pods and claims."""

    def __init__(self) -> None:
        super().__init__()
        self.fabric = [*fabric({"s1/l1": NODES}, gpus=0), make_node("plugin", "s1/l1", gpus=GPUS)]
        self.d = ExtendedDriver(self.fabric, GPUS)
        self.gangs: list[list[Pod]] = []
        self.number = 0

    def _name(self) -> str:
        self.number += 1
        return f"w{self.number}"

    def _claims_of(self, pod: Pod) -> list[str]:
        return [
            name
            for (_, name), claim in self.d.claims.items()
            if extended_claim_owner(claim) == pod.metadata.uid or name == f"{pod.metadata.name}-claim"
        ]

    @rule(count=counts)
    def pod_comes(self, count: int) -> None:
        self.gangs.append([make_pod(self._name(), gpus=count)])
        self.d.apply(*self.gangs[-1])

    @rule(count=counts)
    def pod_with_a_claim_comes(self, count: int) -> None:
        self.gangs.append([self.d.pod(self._name(), asking(count))])
        self.d.apply(*self.gangs[-1])

    @rule(count=counts, size=st.integers(2, NODES))
    def gang_comes(self, count: int, size: int) -> None:
        self.gangs.append(gang(size, gpus=count, name=self._name()))
        self.d.apply(*self.gangs[-1])

    @rule(data=st.data())
    def workload_ends(self, data: st.DataObject) -> None:
        """Kubernetes deletes the claims of its pods with them."""
        if not self.gangs:
            return
        for pod in self.gangs.pop(data.draw(st.integers(0, len(self.gangs) - 1))):
            self.d.flight.pop(pod.metadata.uid, None)
            self.d.delete(pod)
            for name in self._claims_of(pod):
                self.d.drop_claim(name)

    @rule(fails=st.booleans())
    def step(self, fails: bool) -> None:
        """Decide; the claims can be written or not."""
        self.d.problem = "no" if fails else ""
        self.d.step(1)
        self.d.problem = ""

    @rule()
    def a_claim_is_made_without_an_answer(self) -> None:
        """The API server makes a claim with its devices, and the scheduler learns of it by the watch only."""
        self.d.unanswered = []
        self.d.step(1)
        unanswered, self.d.unanswered = self.d.unanswered, None
        for one in unanswered:
            for write in one.writes:
                if isinstance(write, CreateClaim) and write.key not in self.d.claims:
                    claim = after(write, None)
                    claim.metadata.uid = f"uid-{len(self.d.claims)}-{self.d.now}"
                    self.d.put_claim(claim)
                    if (pod := self.d.pods.get(one.pod.uid)) is not None:
                        pod.status.extended_resource_claim_status = PodExtendedResourceClaimStatus(write.key[1])
            self.d.engine.claims_written(one.pod.uid, [], "no answer", self.d.now)
        self.d.tell_again(*self.d.pods.values())

    @rule(data=st.data())
    def bind_ends(self, data: st.DataObject) -> None:
        if self.d.flight:
            uid = data.draw(st.sampled_from(sorted(self.d.flight)))
            self.d.answer(uid, data.draw(st.sampled_from((BindOutcome.BOUND, BindOutcome.REJECTED))))

    @rule(number=st.integers(1, NODES))
    def slice_flickers(self, number: int) -> None:
        name = f"s1-l1-{number}"
        self.d.drop_slice(f"{name}-gpus")
        self.d.step()
        self.d.slices(slice_of(name, GPUS, generation=2 + self.number))

    @rule()
    def class_flickers(self) -> None:
        self.d.drop_class("gpu")
        self.d.step()
        self.d.classes(device_class())

    @rule()
    def scheduler_restarts(self) -> None:
        before = self.d
        after_it = ExtendedDriver(self.fabric, GPUS)
        after_it.now = before.now
        for claim in before.claims.values():
            after_it.put_claim(copy.deepcopy(claim))
        after_it.apply(*before.pods.values())
        self.d = after_it

    @rule()
    def everything_settles(self) -> None:
        for _ in range(6):
            self.d.settle(20)
        for pods in self.gangs:
            bound = [pod for pod in pods if pod.spec.node_name]
            assert len(bound) in (0, len(pods)), "a gang is bound by half"
            for pod in pods:
                if not pod.spec.node_name:
                    held = [self.d.claims["default", name].status.allocation for name in self._claims_of(pod)]
                    assert not any(held), "devices are allocated for a pod without a node"

    @invariant()
    def no_device_twice(self) -> None:
        assert all(number == 1 for number in self.d.allocated().values())

    @invariant()
    def bound_pods_have_their_devices(self) -> None:
        for pod in (pod for pods in self.gangs for pod in pods if pod.spec.node_name):
            names = self._claims_of(pod)
            count = int(pod.spec.containers[0].resources.requests.get(NVIDIA, 0))
            status = pod.status.extended_resource_claim_status
            if pod.spec.node_name == "plugin":
                assert not names
                assert status is None, "the kubelet would not ask the device plugin"
                continue
            (name,) = names
            allocation = self.d.claims["default", name].status.allocation
            assert allocation is not None
            results = allocation.devices.results
            assert {result.pool for result in results} == {pod.spec.node_name}
            if count:
                assert len(results) == count
                assert status is not None
                assert status.resource_claim_name == name


TestExtendedResources = ExtendedMachine.TestCase
TestExtendedResources.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
