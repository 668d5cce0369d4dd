"""How well a gang was placed, as it is published on its pods, in decisions and in metrics."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import controlled_by, job_owner, make_job, make_pod
from tests.scheduling.driver import Driver, fabric, gang
from tests.scheduling.planning import small_of
from tests.scheduling.reference import Machine, Want
from tests.scheduling.reference_clusters import clusters
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.scheduling.placing.quality import quality_of

NAMES = ("score", "spanned-level", "levels-spanned", "hops")


def published(*, members: int = 4, gpus: int = 8, leaves: dict[str, int]) -> list[dict[str, str]]:
    d = Driver(fabric(leaves))
    pods = gang(members, gpus=gpus)
    d.run(*pods)
    return [{name: pod.metadata.annotations.get(PREFIX + name, "") for name in NAMES[1:]} for pod in pods]


@pytest.mark.parametrize(
    ("leaves", "members", "gpus", "quality"),
    [
        ({"s1/l1": 2}, 4, 2, ("node", "0", "0.00")),
        ({"s1/l1": 4}, 4, 8, ("leaf", "1", "2.00")),
        # Of six pairs two share a leaf and four a spine: (2 x 2 + 4 x 4) / 6.
        ({"s1/l1": 2, "s1/l2": 2}, 4, 8, ("spine", "2", "3.33")),
        # Two share a leaf, four nothing but the fabric: (2 x 2 + 4 x 6) / 6.
        ({"s1/l1": 2, "s2/l1": 2}, 4, 8, ("cluster", "3", "4.67")),
    ],
)
def test_every_pod_of_a_gang_gets_levels_and_hops(
    leaves: dict[str, int], members: int, gpus: int, quality: tuple[str, str, str]
) -> None:
    expected = dict(zip(NAMES[1:], quality, strict=True))
    assert published(members=members, gpus=gpus, leaves=leaves) == [expected] * members


def test_a_single_pod_gets_only_its_score() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=1)
    d.run(pod)
    assert [name for name in NAMES if PREFIX + name in pod.metadata.annotations] == ["score"]


def test_a_member_that_is_placed_again_gets_the_quality_of_the_whole_gang() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    pods = gang(2, controlled=True)
    d.chains["uid-g"] = ()
    d.run(*pods)
    assert {pod.metadata.annotations[PREFIX + "spanned-level"] for pod in pods} == {"leaf"}
    for node in {"s1-l1-1", "s1-l1-2", "s1-l2-1", "s1-l2-2"} - {pods[1].spec.node_name}:
        if node.rpartition("-")[0] == pods[1].spec.node_name.rpartition("-")[0]:
            d.drop_node(node)
    d.delete(pods[0])
    other = gang(1, controlled=True)[0]
    other.metadata.name, other.metadata.uid = "g-new", "uid-g-new"
    other.metadata.annotations |= {PREFIX + "gang-size": "2", PREFIX + "placement": "preferred"}
    d.run(other)
    assert other.spec.node_name.rpartition("-")[0] != pods[1].spec.node_name.rpartition("-")[0]
    assert other.metadata.annotations[PREFIX + "spanned-level"] == "spine"
    assert other.metadata.annotations[PREFIX + "hops"] == "4.00"


def test_an_expected_duration_of_an_owner_is_written_on_the_pod_and_one_of_its_own_is_left() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    job = make_job("j", parallelism=1, annotations={"expected-duration": "2h"})
    d.own(job_owner(job))
    pods = [make_pod("a", gpus=1, owner=controlled_by("Job", "j"))]
    own = make_pod("b", gpus=1, annotations={"expected-duration": "30m"})
    d.run(*pods, own)
    assert pods[0].metadata.annotations[PREFIX + "expected-duration"] == "7200s"
    assert own.metadata.annotations[PREFIX + "expected-duration"] == "30m"


@given(clusters(), st.data())
def test_hops_are_those_of_every_pair(machines: list[Machine], data: st.DataObject) -> None:
    small = small_of(machines, Want(1, 1))
    chosen = data.draw(st.lists(st.sampled_from(machines), min_size=1, max_size=6))
    layout = small.world.layout
    quality = quality_of(layout, small.rows(*(machine.name for machine in chosen)))

    def apart(machine: Machine, other: Machine) -> int:
        if machine.name == other.name:
            return 0
        common = next(
            (n for n, pair in enumerate(zip(machine.place, other.place, strict=True)) if pair[0] != pair[1]), -1
        )
        return 2 if common < 0 else 2 * (len(machine.place) - common + 1)

    hops = [apart(machine, other) for machine, other in combinations(chosen, 2)]
    assert quality.most_hops == max(hops, default=0) == 2 * quality.levels
    assert quality.mean_hops == (1000 * sum(hops) // len(hops) if hops else 0)


def test_gangs_are_counted_by_the_level_they_span() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    d.run(*gang(4), make_pod("alone", gpus=1))
    metrics = Metrics(Snapshot)
    for decision in d.decisions():
        metrics.decided(decision, 0.001)
    text = metrics.exposition().decode()
    assert 'topology_scheduler_gang_hops_sum{level="spine"} 3.333' in text
    assert 'topology_scheduler_gang_score_count{level="spine"} 1.0' in text
    assert text.count("topology_scheduler_gang_hops_count") == 1
