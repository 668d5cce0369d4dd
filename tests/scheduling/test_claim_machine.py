"""Pods with claims come and go while writes fail, binds are rejected, slices vanish and schedulers restart.

Whatever happens, no device has two claims, and a bound pod has its devices on its node. A gang is bound whole or not at
all, and no claim stays allocated for a pod without a node.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.scheduling.device_driver import DeviceDriver, asking
from tests.scheduling.device_machine import NODES, DeviceMachine, counts
from tests.scheduling.driver import fabric


class ClaimMachine(DeviceMachine[DeviceDriver]):
    """Pods with claims."""

    def __init__(self) -> None:
        super().__init__(DeviceDriver, fabric({"s1/l1": NODES}, gpus=0))

    @rule(count=counts)
    def pod_comes(self, count: int) -> None:
        self.come(self.d.pod(self.name(), asking(count)))

    @rule(count=counts, size=st.integers(2, NODES))
    def gang_comes(self, count: int, size: int) -> None:
        self.come(*self.d.gang(size, asking(count), self.name()))

    @invariant()
    def bound_pods_have_their_devices(self) -> None:
        for pods in self.gangs:
            for pod in pods:
                if pod.spec.node_name:
                    claim = self.d.claims["default", f"{pod.metadata.name}-claim"]
                    assert claim.status.allocation is not None
                    assert {result.pool for result in claim.status.allocation.devices.results} == {pod.spec.node_name}
                    assert [entry.uid for entry in claim.status.reserved_for] == [pod.metadata.uid]


TestClaims = ClaimMachine.TestCase
TestClaims.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
