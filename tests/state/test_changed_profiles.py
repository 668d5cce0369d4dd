"""The profile of a bound pod follows its labels and its deletion; its affinity is not read again."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.scheduling import world as module


def repelling(name: str, node: str = "") -> Pod:
    pod = make_pod(name, gpus=1, labels={"app": name}, node=node, phase="Running" if node else "Pending")
    term = PodAffinityTerm(LabelSelector({"app": "other"}), topology_key="kubernetes.io/hostname")
    pod.spec.affinity = Affinity(None, None, PodAffinity([term]))
    return pod


def test_an_edit_of_a_label_is_followed_and_keeps_anti_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s/l1": 1}))
    pod = repelling("p", "s-l1-1")
    d.apply(pod)
    reads: list[str] = []
    monkeypatch.setattr(module, "profile_of", lambda index, pod: reads.append(pod.metadata.name))
    before = d.engine.world.ledger.get(pod.metadata.uid)
    assert before is not None
    assert before.profile is not None
    terms = before.profile.repels
    for edit in ("x", "other", "p"):
        pod.metadata.labels["app"] = edit
        d.apply(pod)
        entry = d.engine.world.ledger.get(pod.metadata.uid)
        assert entry is not None
        assert entry.profile is not None
        assert entry.profile.labels == {"app": edit}
        assert entry.profile.repels is terms
    pod.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    d.apply(pod)
    entry = d.engine.world.ledger.get(pod.metadata.uid)
    assert entry is not None
    assert entry.profile is not None
    assert entry.profile.terminating
    assert not reads
