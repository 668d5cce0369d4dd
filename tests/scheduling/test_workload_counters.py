"""What workloads count of their members is what is there, whatever a tenant does to its pods and gangs."""

import random

import pytest

from tests.helpers import controlled_by, in_group, job_owner, make_group, make_job, make_pod, owner, timestamp
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.annotations import GANG_COMPLETE
from topo_scheduler.api.objects import Pod, PodCondition
from topo_scheduler.scheduling.instructions import BindOutcome, Evict, EvictionOutcome, Preempt
from topo_scheduler.state.pods.workloads import Stage

NODES = [node.metadata.name for node in fabric({"s1/l1": 3, "s1/l2": 3})]
IDS = ["a", "b", "c", "a (leaving)", "(leaving) default/a"]
OUTCOMES = [BindOutcome.BOUND, BindOutcome.BOUND, BindOutcome.REJECTED, BindOutcome.WITHDRAWN]


def check(d: Driver) -> None:
    workloads, key_of = d.engine.workloads, {}
    for key, workload in workloads._by_id.items():
        assert workload.members
        assert workload.bound == sum(member.stage is Stage.BOUND for member in workload.members.values())
        assert workload.pending == sum(member.stage is Stage.PENDING for member in workload.members.values())
        assert len(workload.marked_members) <= 3
        for uid in workload.members:
            assert uid not in key_of
            key_of[uid] = key
    assert key_of == workloads._of_pod
    assert workloads._ending <= workloads._by_id.keys()


class Tenant:
    """Does one thing after the other to its pods."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.d = Driver(fabric({"s1/l1": 3, "s1/l2": 3}, gpus=4))
        self.d.engine.budgets_known()
        self.number = 0
        self.resize()
        self.d.own(job_owner(make_job("j", parallelism=3, completions=3, indexed=True)))

    def any(self) -> Pod | None:
        return self.chance.choice(list(self.d.pods.values())) if self.d.pods else None

    def gang(self) -> dict[str, str]:
        name = self.chance.choice("abc")
        return {"topology.scheduler/gang-name": name, "topology.scheduler/gang-size": self.chance.choice("1234")}

    def resize(self) -> None:
        for name in "xy":
            self.d.own(owner("ReplicaSet", name, {"gang-size": self.chance.choice("1234")}))
        self.d.groups(make_group("g", self.chance.choice([1, 2, 3])))

    def create(self) -> None:
        self.number += 1
        pod = make_pod(f"p{self.number}", gpus=self.chance.choice([0, 1, 2, 4]), created=self.number)
        pod.spec.priority = self.chance.choice([0, 0, 5])
        match self.chance.randrange(5):
            case 0:
                pod.metadata.annotations = self.gang()
            case 1:
                pod.metadata.owner_references = [controlled_by("ReplicaSet", self.chance.choice("xy"))]
            case 2:
                pod.metadata.owner_references = [controlled_by("Job", "j")]
            case 3:
                in_group(pod, "g")
        self.d.apply(pod)

    def forge(self) -> None:
        self.number += 1
        forged = {"gang-id": f"default/{self.chance.choice(IDS)}", "gang-minimum": self.chance.choice("123")}
        pod = make_pod(f"f{self.number}", annotations=forged, node=self.chance.choice(NODES), created=self.number)
        if self.chance.random() < 0.3:
            pod.status.conditions = [PodCondition(GANG_COMPLETE, "True")]
        self.d.apply(pod)

    def edit(self) -> None:
        if (pod := self.any()) is None:
            return
        if pod.spec.node_name:
            pod.metadata.annotations["topology.scheduler/gang-id"] = f"default/{self.chance.choice(IDS)}"
        elif pod.metadata.uid not in self.d.flight:
            pod.metadata.annotations = self.gang()
        self.d.apply(pod)

    def put_on_a_node(self) -> None:
        if (pod := self.any()) and not pod.spec.node_name and pod.metadata.uid not in self.d.flight:
            pod.spec.node_name = self.chance.choice(NODES)
            self.d.apply(pod)

    def delete(self) -> None:
        if pod := self.any():
            self.d.delete(pod)

    def delete_slowly(self) -> None:
        if pod := self.any():
            pod.metadata.deletion_timestamp = timestamp(self.d.now + self.chance.choice([1, 30, 10**9]))
            self.d.apply(pod)

    def finish(self) -> None:
        if (pod := self.any()) and pod.spec.node_name and pod.metadata.uid not in self.d.flight:
            self.d.finish(pod, self.chance.choice(["Succeeded", "Failed"]))
            self.d.pods.pop(pod.metadata.uid)

    def answer(self) -> None:
        for uid in list(self.d.flight):
            if self.chance.random() < 0.5:
                if uid in self.d.pods and self.chance.random() < 0.8:
                    self.d.answer(uid, self.chance.choice(OUTCOMES))
                else:
                    outcome = BindOutcome.UNKNOWN if uid in self.d.pods else BindOutcome.GONE
                    self.d.engine.bind_finished(uid, outcome, "", self.d.now)
                check(self.d)

    def evict(self) -> None:
        for said in self.d.said:
            if not isinstance(said, Evict | Preempt) or (pod := self.d.pods.get(said.pod.uid)) is None:
                continue
            if self.chance.random() < 0.5:
                pod.metadata.deletion_timestamp = timestamp(self.d.now + 30)
                self.d.apply(pod)
            elif isinstance(said, Evict):
                self.d.engine.rollback_refused(said.pod.uid, "no", self.d.now)
            else:
                self.d.engine.eviction_finished(said.pod.uid, EvictionOutcome.REFUSED, "no", self.d.now)
        self.d.forget()

    def act(self) -> None:
        often = [self.create] * 4 + [self.answer, self.delete] * 2
        seldom = [self.forge, self.edit, self.put_on_a_node, self.delete_slowly, self.finish, self.evict, self.resize]
        self.chance.choice(often + seldom)()
        check(self.d)
        self.d.step(self.chance.choice([0, 0, 0.5, 2, 10]))
        check(self.d)


@pytest.mark.parametrize("seed", range(12))
def test_counters(seed: int) -> None:
    tenant = Tenant(seed)
    complaints = []
    for _ in range(400):
        tenant.act()
        complaints += [text for text in tenant.d.complaints() if "failed during" in text]
    assert complaints == []
    tenant.d.delete(*tenant.d.pods.values())
    tenant.d.step(1)
    check(tenant.d)
    assert not len(tenant.d.engine.workloads)
