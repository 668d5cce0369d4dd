"""Large profiles of bound pods have a budget of memory, and only the namespace that is beyond it loses affinity."""

import pytest

from tests.helpers import make_node
from topo_scheduler.state.ledger.ledger import Ledger
from topo_scheduler.state.nodes.node_table import NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import PODS, ResourceTable
from topo_scheduler.state.pods import kept_profiles as module
from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profile_labels import TEMPLATE_LABEL
from topo_scheduler.state.pods.profiles import ORDINARY_PROFILE_BYTES, CountedTerm, PodVolumeClaim, Port, Profile
from topo_scheduler.state.pods.selectors import Clause, Selector
from topo_scheduler.state.tenant_memory import TenantMemory

LARGE_BYTES = 70_000


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROFILE_BYTES_OF_NAMESPACE", 4 * LARGE_BYTES)


class Scene:
    def __init__(self) -> None:
        self.pod_index = PodIndex()
        nodes = NodeTable(ResourceTable(["nvidia.com/gpu"]), NodeLabels((), ()), rows=1)
        nodes.put(make_node("n"))
        self.ledger = Ledger(nodes, self.pod_index, memory=TenantMemory(6 * LARGE_BYTES))

    def profile(self, number: int, namespace: str = "hostile", terms: int = 20, claims: int = 0) -> Profile:
        values = frozenset(f"{namespace}-{number}-{value}" for value in range(1, 4))
        selector = Selector((Clause("app", "In", values),))
        repels = tuple(CountedTerm(selector, frozenset((namespace,)), f"key-{term}") for term in range(terms))
        return self.pod_index.profile(
            namespace,
            {"app": f"{namespace}-{number}", f"{TEMPLATE_LABEL}t": ""},
            ports=(Port("0.0.0.0", "TCP", number + 1),),
            repels=repels,
            claims=tuple(PodVolumeClaim(f"claim-{number}-{claim}") for claim in range(claims)),
        )

    def whole(self, namespace: str) -> list[int]:
        """Return the numbers of the pods whose affinity counts."""
        entries = ((number, self.ledger.get(f"{namespace}-{number}")) for number in range(20))
        return [number for number, entry in entries if entry and entry.profile and entry.profile.repels]

    def bind(self, number: int, profile: Profile) -> Profile:
        uid = f"{profile.namespace}-{number}"
        self.ledger.confirm(uid, "n", ((PODS, 1),), profile=profile)
        entry = self.ledger.get(uid)
        assert entry is not None
        assert entry.profile is not None
        return entry.profile


def test_the_size_of_a_large_profile_is_about_what_it_takes() -> None:
    profile = Scene().profile(1)
    assert 0.6 * LARGE_BYTES < profile.memory < 1.4 * LARGE_BYTES


def test_beyond_its_budget_affinity_of_a_namespace_keeps_no_pod_away_and_others_lose_nothing() -> None:
    scene = Scene()
    kept = [scene.bind(number, scene.profile(number)) for number in range(10)]
    whole = [profile for profile in kept if profile.repels]
    assert whole == kept[: len(whole)]
    assert 3 <= len(whole) <= 5
    assert all(profile.ports and profile.labels["app"] for profile in kept), "these count in any case"
    (warning,) = scene.ledger.profiles.take_warnings()
    assert warning.startswith("namespace hostile: the labels, volumes and affinity of its running pods take more than")
    assert scene.bind(0, scene.profile(0, "victim")).repels
    assert not scene.ledger.profiles.take_warnings()


def test_where_all_namespaces_take_the_total_each_has_an_equal_share() -> None:
    scene = Scene()
    for namespace in ("first", "second", "third"):
        for number in range(6):
            scene.bind(number, scene.profile(number, namespace))
    assert {namespace: scene.whole(namespace) for namespace in ("first", "second", "third")} == {
        "first": [0, 1],
        "second": [0, 1],
        "third": [0, 1],
    }
    assert scene.bind(0, scene.profile(0, "late", terms=4)).repels, "an ordinary pod needs no budget"
    assert sorted(scene.ledger.take_reduced()) == ["first-2", "first-3", "second-2"]
    assert len(scene.ledger.profiles.take_warnings()) == 3


def test_of_a_pod_that_lost_its_room_nothing_but_an_ordinary_profile_counts() -> None:
    scene = Scene()
    for namespace in ("first", "second", "third"):
        for number in range(6):
            scene.bind(number, scene.profile(number, namespace))
    terms = {term for namespace in ("first", "second", "third") for term in scene.profile(3, namespace).repels}
    assert not any(scene.pod_index.repelling.get(term) for term in terms)
    for namespace in ("first", "second", "third"):
        for number in range(6):
            scene.ledger.release(f"{namespace}-{number}")
    assert not scene.pod_index.repelling
    assert not scene.ledger.profiles._pods


def test_an_edited_label_costs_a_running_pod_no_affinity() -> None:
    scene = Scene()
    profiles = [scene.bind(number, scene.profile(number)) for number in range(4)]
    assert scene.whole("hostile") == [0, 1, 2, 3], "the budget is full"
    edited = scene.pod_index.profile("hostile", {"app": "edited"}, ports=profiles[1].ports, repels=profiles[1].repels)
    assert scene.bind(1, edited) is edited
    assert scene.whole("hostile") == [0, 1, 2, 3]


def test_pods_that_leave_give_their_budget_back() -> None:
    scene = Scene()
    for _ in range(3):
        for number in range(10):
            scene.bind(number, scene.profile(number))
        assert len(scene.ledger.profiles.take_warnings()) == 1
        for number in range(10):
            scene.ledger.release(f"hostile-{number}")
        assert not scene.ledger.profiles._pods
        assert not scene.ledger.profiles._memory.bytes_of("hostile")
    assert scene.bind(11, scene.profile(11)).repels


def test_a_pod_that_was_placed_by_the_scheduler_has_the_same_budget() -> None:
    scene = Scene()
    for number in range(10):
        scene.ledger.assume(f"hostile-{number}", "n", ((PODS, 1),), scene.profile(number))
    kept = [scene.bind(number, scene.profile(number)) for number in range(10)]
    assert 3 <= sum(bool(profile.repels) for profile in kept) <= 5


def test_equal_profiles_count_once() -> None:
    scene = Scene()
    profile = scene.profile(1)
    assert all(scene.bind(number, profile) is profile for number in range(50))
    assert not scene.ledger.profiles.take_warnings()


def test_a_pod_beyond_the_budget_keeps_as_many_claims_as_an_ordinary_pod() -> None:
    scene = Scene()
    for number in range(6):
        kept = scene.bind(number, scene.profile(number, claims=250))
    assert 20 <= len(kept.claims) < 60
    assert kept.claims[0] == PodVolumeClaim("claim-5-0")
    assert kept.memory <= ORDINARY_PROFILE_BYTES + 256


def test_labels_beyond_an_ordinary_pod_are_dropped_but_those_of_compute_domains_stay() -> None:
    scene = Scene()
    for number in range(6):
        labels = {f"key-{number}-{label}": "x" * 60 for label in range(200)}
        profile = scene.pod_index.profile("hostile", {f"{TEMPLATE_LABEL}t": "", **labels})
        kept = scene.bind(number, profile)
    assert dict(kept.labels) == {f"{TEMPLATE_LABEL}t": ""}


def test_an_ordinary_pod_is_always_kept_whole() -> None:
    scene = Scene()
    for number in range(200):
        profile = scene.profile(number, terms=4)
        assert scene.bind(number, profile) is profile
