"""What machines of pods with devices have in common: writes fail, binds are rejected, slices vanish, and restarts."""

import copy
from typing import Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.scheduling.device_driver import DeviceDriver, slice_of
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.state.devices.extended_resources import extended_claim_owner

NODES, GPUS = 3, 4
counts = st.integers(1, GPUS)
D = TypeVar("D", bound=DeviceDriver)


class DeviceMachine(RuleBasedStateMachine, Generic[D]):
    """An engine, and the truth about its pods and claims."""

    def __init__(self, driver: type[D], nodes: list[Node]) -> None:
        super().__init__()
        self.fabric = nodes
        self.driver = driver
        self.d = driver(nodes, GPUS)
        self.gangs: list[list[Pod]] = []
        self.number = 0

    def name(self) -> str:
        """Return a new name."""
        self.number += 1
        return f"w{self.number}"

    def come(self, *pods: Pod) -> None:
        """The pods of a workload appear."""
        self.gangs.append(list(pods))
        self.d.apply(*pods)

    def claims_of(self, pod: Pod) -> list[str]:
        """Return the claims that were made for a pod."""
        return [
            name
            for (_, name), claim in self.d.claims.items()
            if extended_claim_owner(claim) == pod.metadata.uid or name == f"{pod.metadata.name}-claim"
        ]

    @rule(data=st.data())
    def workload_ends(self, data: st.DataObject) -> None:
        """Kubernetes deletes the claims of its pods with them."""
        if not self.gangs:
            return
        for pod in self.gangs.pop(data.draw(st.integers(0, len(self.gangs) - 1))):
            self.d.flight.pop(pod.metadata.uid, None)
            self.d.delete(pod)
            for name in self.claims_of(pod):
                self.d.drop_claim(name)

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
        after = self.driver(self.fabric, GPUS)
        after.now = before.now
        for claim in before.claims.values():
            after.put_claim(copy.deepcopy(claim))
        after.apply(*before.pods.values())
        self.d = after

    @rule()
    def everything_settles(self) -> None:
        for _ in range(6):
            self.d.settle(20)
        evicted = set(self.d.evicted())
        for pods in self.gangs:
            bound = [pod for pod in pods if pod.spec.node_name]
            whole = len(bound) in (0, len(pods)) or evicted.issuperset(pod.metadata.name for pod in bound)
            assert whole, "a gang is bound by half"
        used = {name for pods in self.gangs for pod in pods if pod.spec.node_name for name in self.claims_of(pod)}
        held = {name for (_, name), claim in self.d.claims.items() if claim.status.allocation is not None}
        assert held <= used, "devices are allocated for a pod without a node"

    @invariant()
    def no_device_twice(self) -> None:
        assert all(number == 1 for number in self.d.allocated().values())
