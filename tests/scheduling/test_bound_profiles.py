"""Labels and affinity of a pod beyond the budget of its namespace are not kept once it is bound."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.state.pods import kept_profiles, profiles

pytestmark = pytest.mark.unrecorded


def test_a_pod_that_was_placed_shares_the_profile_that_is_kept_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_profiles, "MAX_PROFILE_BYTES_OF_NAMESPACE", 10)
    for module in (kept_profiles, profiles):
        monkeypatch.setattr(module, "ORDINARY_PROFILE_BYTES", 300)
    d = Driver(fabric({"s/l1": 2}))
    pod = make_pod("p", gpus=1, labels={"app": "a"})
    term = PodAffinityTerm(LabelSelector({"app": "other"}), topology_key="kubernetes.io/hostname")
    pod.spec.affinity = Affinity(None, None, PodAffinity([term]))
    d.apply(pod)
    d.settle()
    assert pod.spec.node_name
    entry = d.engine.world.ledger.get(pod.metadata.uid)
    membership = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    assert entry.profile is not None
    assert membership is not None
    assert not entry.profile.repels
    assert entry.profile.labels == {"app": "a"}
    assert membership[1].profile is entry.profile
