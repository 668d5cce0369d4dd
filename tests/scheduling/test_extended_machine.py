"""Pods with extended resources come and go, beside pods with claims, on nodes of slices and of a device plugin.

Meanwhile writes fail or stay without an answer, binds are rejected, slices and a class vanish, and schedulers restart.
Whatever happens, no device has two claims. A bound pod has as many devices of its node as it asked for, by one claim;
none where a device plugin gives them. A gang is bound whole or not at all. Nothing is left for a pod without a node.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.device_driver import asking
from tests.scheduling.device_machine import GPUS, NODES, DeviceMachine, counts
from tests.scheduling.driver import fabric, gang
from tests.scheduling.extended_driver import ExtendedDriver, device_class
from topo_scheduler.api.objects import PodExtendedResourceClaimStatus
from topo_scheduler.state.devices.claim_writes import CreateClaim, after


class ExtendedMachine(DeviceMachine[ExtendedDriver]):
    """Pods with extended resources, and some with claims."""

    def __init__(self) -> None:
        nodes = [*fabric({"s1/l1": NODES}, gpus=0), make_node("plugin", "s1/l1", gpus=GPUS)]
        super().__init__(ExtendedDriver, nodes)

    @rule(count=counts)
    def pod_comes(self, count: int) -> None:
        self.come(make_pod(self.name(), gpus=count))

    @rule(count=counts)
    def pod_with_a_claim_comes(self, count: int) -> None:
        self.come(self.d.pod(self.name(), asking(count)))

    @rule(count=counts, size=st.integers(2, NODES))
    def gang_comes(self, count: int, size: int) -> None:
        self.come(*gang(size, gpus=count, name=self.name()))

    @rule()
    def a_claim_is_made_without_an_answer(self) -> None:
        """The API server makes a claim with its devices, and the scheduler learns of it by the watch only."""
        self.d.unanswered = []
        self.d.step(1)
        unanswered, self.d.unanswered = self.d.unanswered, None
        for instruction in unanswered:
            for write in instruction.writes:
                if isinstance(write, CreateClaim) and write.key not in self.d.claims:
                    claim = after(write, None)
                    claim.metadata.uid = f"uid-{len(self.d.claims)}-{self.d.now}"
                    self.d.put_claim(claim)
                    if (pod := self.d.pods.get(instruction.pod.uid)) is not None:
                        pod.status.extended_resource_claim_status = PodExtendedResourceClaimStatus(write.key[1])
            self.d.engine.claims_written(instruction.pod.uid, [], "no answer", self.d.now)
        self.d.tell_again(*self.d.pods.values())

    @rule()
    def class_flickers(self) -> None:
        self.d.drop_class("gpu")
        self.d.step()
        self.d.classes(device_class())

    @invariant()
    def bound_pods_have_their_devices(self) -> None:
        for pod in (pod for pods in self.gangs for pod in pods if pod.spec.node_name):
            names = self.claims_of(pod)
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
