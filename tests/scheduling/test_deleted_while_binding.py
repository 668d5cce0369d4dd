"""Claims and volumes that users delete between a decision and its writes, and faults outside of attempts."""

from typing import Any

import pytest

from tests.helpers import make_pod
from tests.scheduling.device_driver import DeviceDriver, asking
from tests.scheduling.driver import Driver, fabric, gang
from tests.scheduling.storage import DELAYED, LOCAL, claim, volume
from topo_scheduler.api.objects import ClaimSource, ObjectMeta, Pod, Volume
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.storage import ClaimReference, StorageClass
from topo_scheduler.scheduling.barrier import FIRST_PAUSE_SECONDS
from topo_scheduler.scheduling.binding import volume_binding
from topo_scheduler.scheduling.instructions import CountFailure, PrepareVolumes, WriteClaims
from topo_scheduler.scheduling.step_parts import RETRY_SECONDS
from topo_scheduler.state.storage.storage_objects import Storage


class BothDriver(DeviceDriver):
    """An engine whose pods have resource claims, which a test writes, and volumes."""

    def __init__(self, leaves: dict[str, int]) -> None:
        super().__init__(fabric(leaves))
        self.storage = self.engine.world.around.storage
        for name, provisioner in ((LOCAL, "kubernetes.io/no-provisioner"), (DELAYED, "disk.example.com")):
            made = StorageClass(ObjectMeta(name=name), provisioner, "WaitForFirstConsumer")
            self.storage.put(self.storage.classes, name, made)

    def put_claim_of_volume(self, name: str, kind: str) -> None:
        self.storage.put(self.storage.claims, ("default", name), claim(name, kind))

    def decide(self, *pods: Pod) -> list[WriteClaims]:
        """Decide on pods; return the writes of resource claims, none of which is answered."""
        self.unanswered = []
        self.apply(*pods)
        self.step()
        unanswered, self.unanswered = self.unanswered, None
        return unanswered

    def write_all(self, writes: list[WriteClaims]) -> None:
        for write in writes:
            self.write_claims(write)
        self.step()

    @property
    def volume_writes(self) -> list[PrepareVolumes]:
        return [instruction for instruction in self.said if isinstance(instruction, PrepareVolumes)]


def with_volume(d: BothDriver, pod: Pod, name: str, kind: str = DELAYED) -> Pod:
    d.put_claim_of_volume(name, kind)
    pod.spec.volumes = [Volume("v", ClaimSource(name))]
    return pod


@pytest.mark.unrecorded
def test_a_volume_claim_deleted_while_resource_claims_are_written_fails_its_pod_alone() -> None:
    d = BothDriver({"s1/l1": 2})
    pod, other = with_volume(d, d.pod("p", asking(1)), "data"), make_pod("other", gpus=1)
    writes = d.decide(pod)
    d.storage.drop(d.storage.claims, ("default", "data"))
    d.apply(other)
    d.write_all(writes)
    assert d.told(pod, Reason.BIND_FAILED) == [
        'Binding to s1-l1-1 failed: binding volumes: persistentvolumeclaim "data" was deleted'
    ]
    d.settle()
    assert d.where(pod, other).keys() == {"other"}
    d.put_claim_of_volume("data", LOCAL)
    d.storage.put(d.storage.volumes, "pv", volume("pv"))
    d.settle(30)
    assert d.volume_writes, "the next attempt comes once the claim exists"


@pytest.mark.unrecorded
@pytest.mark.parametrize("taken", [False, True])
def test_a_volume_deleted_or_taken_meanwhile_is_not_written(taken: bool) -> None:
    d = BothDriver({"s1/l1": 2})
    d.storage.put(d.storage.volumes, "pv", volume("pv"))
    pod = with_volume(d, d.pod("p", asking(1)), "data", LOCAL)
    writes = d.decide(pod)
    if taken:
        changed = volume("pv")
        changed.metadata.resource_version = "100"
        changed.spec.claim_ref = ClaimReference("others", "theirs", "uid-of-theirs")
        d.storage.put(d.storage.volumes, "pv", changed)
    else:
        d.storage.drop(d.storage.volumes, "pv")
    d.write_all(writes)
    why = "was reserved for another claim" if taken else "was deleted"
    assert d.told(pod, Reason.BIND_FAILED) == [
        f'Binding to s1-l1-1 failed: binding volumes: persistentvolume "pv" {why}'
    ]
    assert not d.volume_writes


@pytest.mark.unrecorded
def test_nothing_is_written_for_a_gang_of_which_one_member_lost_its_claim() -> None:
    d = BothDriver({"s1/l1": 4})
    pods = [with_volume(d, pod, f"c{n}") for n, pod in enumerate(d.gang(4, asking(1)))]
    writes = d.decide(*pods)
    assert len(writes) == 4
    d.write_all(writes[:-1])
    d.storage.drop(d.storage.claims, ("default", "c2"))
    d.write_all(writes[-1:])
    assert not d.volume_writes
    assert [len(d.told(pod, Reason.BIND_FAILED)) for pod in pods] == [1, 1, 1, 1]
    assert d.told(pods[0])[-1].endswith(
        'default/g-2 of its gang: binding volumes: persistentvolumeclaim "c2" was deleted'
    )
    assert not d.engine.outcomes.in_flight


# ---------------------------------------------------------------- faults


def raising_for(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, hit: str) -> None:
    """Let a method raise where an argument names ``hit``."""
    method = getattr(owner, name)

    def wrapped(*arguments: Any) -> Any:
        if any(hit in repr(argument) for argument in arguments if not isinstance(argument, Storage)):
            raise KeyError(hit)
        return method(*arguments)

    monkeypatch.setattr(owner, name, wrapped)


def counted(d: Driver) -> list[tuple[str, str]]:
    return [(instruction.phase, instruction.kind) for instruction in d.said if isinstance(instruction, CountFailure)]


@pytest.mark.unrecorded
@pytest.mark.parametrize("method", ["writes_for", "_ready"])
def test_a_fault_with_the_volumes_of_a_pod_fails_that_pod_alone(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    d = BothDriver({"s1/l1": 2})
    owner = volume_binding if method == "writes_for" else d.engine.outcomes.volumes
    raising_for(monkeypatch, owner, method, "evil")
    evil, good = with_volume(d, make_pod("evil", gpus=1), "evil"), with_volume(d, make_pod("good", gpus=1), "good")
    d.apply(evil, good)
    d.step()
    d.step()
    assert [write.pod.name for write in d.volume_writes if write.pod.name == "good"] == ["good"]
    assert d.told(evil, Reason.BIND_FAILED)[0].startswith(
        "Binding to s1-l1-1 failed: binding volumes: internal error during outcome, please report it: KeyError: 'evil'"
    )
    assert counted(d) == [("outcome", "fault")]


@pytest.mark.unrecorded
@pytest.mark.parametrize("method", ["_writes_of", "_not_ready"])
def test_a_fault_with_the_resource_claims_of_a_pod_fails_that_pod_alone(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    d = BothDriver({"s1/l1": 2})
    raising_for(monkeypatch, d.engine.outcomes.claims, method, "evil")
    evil, good = d.pod("evil", asking(1), uid="evil"), d.pod("good", asking(1))
    d.apply(evil, good)
    d.settle()
    assert d.where(evil, good).keys() == {"good"}
    assert "allocating resource claims: internal error during outcome" in d.told(evil, Reason.BIND_FAILED)[0]
    assert ("outcome", "fault") in counted(d)


@pytest.mark.unrecorded
def test_a_fault_when_a_decision_goes_on_fails_that_decision_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    d = BothDriver({"s1/l1": 2})
    raising_for(monkeypatch, d.engine.outcomes.volumes, "hold", "evil")
    evil, good = d.pod("evil", asking(1)), d.pod("good", asking(1))
    d.run(evil, good)
    assert d.where(evil, good).keys() == {"good"}
    assert "internal error during outcome, please report it: KeyError" in d.told(evil, Reason.BIND_FAILED)[0]
    assert ("outcome", "fault") in counted(d)


@pytest.mark.unrecorded
def test_a_fault_in_the_place_of_a_workload_in_the_queue_sets_that_one_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    raising_for(monkeypatch, d.engine.requeuer, "_requeue", "evil")
    evil, good = gang(2, name="evil"), gang(2, name="good")
    d.run(*evil, *good)
    assert d.where(*evil, *good).keys() == {"good-0", "good-1"}
    texts = d.told(evil[0], Reason.SCHEDULER_ERROR)
    assert texts[0].startswith("In backoff: internal error during decision, please report it: KeyError: 'evil' at ")
    assert counted(d) == [("decision", "fault")]
    assert d.engine.next_due() == FIRST_PAUSE_SECONDS


PARTS = [
    ("outcomes", "check"),
    ("device_taints", "due"),
    ("spares", "settle"),
    ("sharing", "complaints"),
    ("outcomes", "due"),
    ("preempting", "due"),
    ("world", "fade"),
]


@pytest.mark.unrecorded
@pytest.mark.parametrize(("owner", "method"), PARTS)
def test_a_part_of_a_step_that_raises_ends_no_step_and_is_logged_rarely(
    monkeypatch: pytest.MonkeyPatch, owner: str, method: str
) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.run(make_pod("first", gpus=1))

    def fault(*_: object) -> Any:
        raise KeyError("x")

    with monkeypatch.context() as patched:
        patched.setattr(getattr(d.engine, owner), method, fault)
        first, second = d.step(1), d.step(1)
        assert [instruction for instruction in first if isinstance(instruction, CountFailure)] == [
            CountFailure("step", "fault")
        ]
        assert not second
        due = d.engine.next_due()
        assert due is None or due >= d.now + RETRY_SECONDS
        d.step(FIRST_PAUSE_SECONDS)
        assert len(counted(d)) == 2
    pod = make_pod("later", gpus=1)
    d.run(pod)
    assert d.where(pod)
