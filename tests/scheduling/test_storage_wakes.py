"""Changes of storage objects that users make do not have all pods with volumes tried each time."""

from collections import Counter

import pytest

from tests.scheduling.storage import LOCAL, StorageDriver, claim, using, volume, zoned
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.queueing.storage_wakes import MAX_PAUSE_SECONDS, StorageWakes

pytestmark = pytest.mark.unrecorded

PODS = 100


def waiting(d: StorageDriver, name: str, namespace: str = "default", size: str = "1Gi") -> Pod:
    """Return a pod whose claim has no volume."""
    pvc, pod = claim(name, LOCAL, size=size), using(name, name=name)
    pvc.metadata.namespace = pod.metadata.namespace = namespace
    d.tell(pvc)
    d.apply(pod)
    return pod


@pytest.fixture
def d() -> StorageDriver:
    """A hundred pods of a namespace, and one of another, wait for volumes."""
    d = StorageDriver(zoned("a"))
    for number in range(PODS):
        waiting(d, f"many-{number}", "many", "2Gi")
    waiting(d, "victim")
    d.settle(60)
    return d


def tried(d: StorageDriver, name: str) -> Counter[str]:
    """Return how many pods of each namespace are tried when a volume appears that none of them can use."""
    before = len(d.decisions())
    d.tell(volume(name, size="1Mi"))
    d.step()
    return Counter(decision.name.partition("/")[0] for decision in d.decisions()[before:])


def test_a_change_has_the_pods_of_a_namespace_tried_and_the_next_one_after_a_pause(d: StorageDriver) -> None:
    assert tried(d, "a") == {"many": PODS, "default": 1}
    d.now += 0.1
    assert tried(d, "b") == {"default": 1}
    d.now += 0.1
    assert tried(d, "c") == {"default": 1}
    before = len(d.decisions())
    due = d.engine.next_due()
    assert due is not None
    assert due <= d.now + 0.5
    d.now = due
    d.step()
    assert len(d.decisions()) - before == PODS, "what changed in the pause is not forgotten"


def test_a_pod_is_tried_at_once_when_its_own_claim_changes(d: StorageDriver) -> None:
    tried(d, "a")
    before = len(d.decisions())
    pvc = claim("many-7", LOCAL, size="3Gi")
    pvc.metadata.namespace = "many"
    d.tell(pvc)
    d.step()
    assert len(d.decisions()) - before == 1


def test_a_volume_that_fits_binds_the_pod_of_another_namespace_at_once(d: StorageDriver) -> None:
    tried(d, "a")
    d.now += 0.1
    d.tell(volume("fit", node="n1"))
    d.settle()
    assert [pod.metadata.name for pod in d.pods.values() if pod.spec.node_name] == ["victim"]


def test_a_pause_has_a_maximum_and_nothing_is_kept_of_namespaces_without_one() -> None:
    wakes = StorageWakes()
    assert wakes.begin(0.0, changed=True)
    assert all(wakes.concerns("many") for _ in range(100_000))
    wakes.end(0.0)
    assert wakes.begin(1.0, changed=True)
    assert not wakes.concerns("many")
    wakes.end(1.0)
    assert wakes.next_due() == MAX_PAUSE_SECONDS
    assert wakes.begin(MAX_PAUSE_SECONDS, changed=False)
    assert wakes.concerns("many")
    assert not wakes.concerns("others"), "nothing changed for these"
    wakes.end(MAX_PAUSE_SECONDS)
    assert wakes.next_due() is None
    assert not wakes.begin(100.0, changed=False)
    assert not wakes._until
    assert not wakes.late
