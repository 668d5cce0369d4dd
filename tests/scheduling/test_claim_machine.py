"""Pods with claims come and go while writes fail, binds are rejected, slices vanish and schedulers restart.

Whatever happens, no device has two claims, and a bound pod has its devices on its node. A gang is bound whole or not at
all, and no claim stays allocated for a pod without a node.
"""

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.scheduling.device_driver import DeviceDriver, asking, slice_of
from tests.scheduling.driver import fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import BindOutcome

NODES, GPUS = 3, 4
counts = st.integers(1, GPUS)


class ClaimMachine(RuleBasedStateMachine):
    """An engine, and the truth about its pods and claims."""

    def __init__(self) -> None:
        super().__init__()
        self.fabric = fabric({"s1/l1": NODES}, gpus=0)
        self.d = DeviceDriver(self.fabric, GPUS)
        self.gangs: list[list[Pod]] = []
        self.number = 0

    def _name(self) -> str:
        self.number += 1
        return f"w{self.number}"

    @rule(count=counts)
    def pod_comes(self, count: int) -> None:
        pod = self.d.pod(self._name(), asking(count))
        self.gangs.append([pod])
        self.d.apply(pod)

    @rule(count=counts, size=st.integers(2, NODES))
    def gang_comes(self, count: int, size: int) -> None:
        pods = self.d.gang(size, asking(count), self._name())
        self.gangs.append(pods)
        self.d.apply(*pods)

    @rule(data=st.data())
    def workload_ends(self, data: st.DataObject) -> None:
        if not self.gangs:
            return
        for pod in self.gangs.pop(data.draw(st.integers(0, len(self.gangs) - 1))):
            self.d.flight.pop(pod.metadata.uid, None)
            self.d.delete(pod)
            self.d.drop_claim(f"{pod.metadata.name}-claim")

    @rule(fails=st.booleans())
    def step(self, fails: bool) -> None:
        """Decide; the claims can be written or not."""
        self.d.problem = "no" if fails else ""
        self.d.step(1)
        self.d.problem = ""

    @rule(data=st.data())
    def bind_ends(self, data: st.DataObject) -> None:
        if self.d.flight:
            uid = data.draw(st.sampled_from(sorted(self.d.flight)))
            self.d.answer(uid, data.draw(st.sampled_from((BindOutcome.BOUND, BindOutcome.REJECTED))))

    @rule(number=st.integers(1, NODES))
    def slice_flickers(self, number: int) -> None:
        """A driver restarts: its slice vanishes and comes back with a newer generation."""
        name = f"s1-l1-{number}"
        self.d.drop_slice(f"{name}-gpus")
        self.d.step()
        self.d.slices(slice_of(name, GPUS, generation=2 + self.number))

    @rule()
    def scheduler_restarts(self) -> None:
        before = self.d
        after = DeviceDriver(self.fabric, GPUS)
        after.now = before.now
        for claim in before.claims.values():
            after.put_claim(copy.deepcopy(claim))
        after.apply(*before.pods.values())
        self.d = after

    @rule()
    def everything_settles(self) -> None:
        for _ in range(6):
            self.d.settle(20)
        for pods in self.gangs:
            bound = [pod for pod in pods if pod.spec.node_name]
            assert len(bound) in (0, len(pods)), "a gang is bound by half"
        held = {name for (_, name), claim in self.d.claims.items() if claim.status.allocation is not None}
        assert held == {f"{pod.metadata.name}-claim" for pods in self.gangs for pod in pods if pod.spec.node_name}

    @invariant()
    def no_device_twice(self) -> None:
        assert all(number == 1 for number in self.d.allocated().values())

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
