"""Subgroups of Volcano's PodGroups: told by labels of pods, each below one switch of a tier."""

import random
from collections.abc import Sequence

import pytest

from tests.helpers import in_group, make_group, make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.pods.pod_groups import PodGroup

PARTITION = "volcano.sh/partition-id"
HARD = {"mode": "hard", "highestTierAllowed": 1}
NODES = {"s1/a": 2, "s1/b": 2, "s2/a": 2, "s2/b": 2}


def group(policies: Sequence[object], size: int, **spec: object) -> PodGroup:
    return make_group("g", size, api=GroupApi.VOLCANO, spec={"subGroupPolicy": list(policies), **spec})


def members(*labels: dict[str, str], gpus: Sequence[int] = ()) -> list[Pod]:
    each = gpus or [8] * len(labels)
    made = [
        make_pod(f"g-{n}", gpus=gpu_count, cpu="1", labels=pod_labels, created=n)
        for n, (pod_labels, gpu_count) in enumerate(zip(labels, each, strict=True))
    ]
    return [in_group(pod, "g", GroupApi.VOLCANO) for pod in made]


def leaf(pod: Pod) -> str:
    return pod.spec.node_name.rpartition("-")[0]


def partitions(*numbers: int, gpus: Sequence[int] = ()) -> list[Pod]:
    return members(*({PARTITION: str(number)} for number in numbers), gpus=gpus)


def by_partition(tier: int = 1) -> dict[str, object]:
    topology = {"mode": "hard", "highestTierAllowed": tier}
    return {"name": "workers", "subGroupSize": 2, "matchLabelKeys": [PARTITION], "networkTopology": topology}


@pytest.mark.parametrize("gpus", [(), (8, 4, 8, 4, 8, 8)])
def test_pods_of_one_partition_are_in_one_leaf_wherever_they_stand_in_order(gpus: Sequence[int]) -> None:
    d = Driver(fabric(NODES))
    d.groups(group([by_partition()], 6))
    pods = partitions(0, 1, 2, 0, 1, 2, gpus=gpus)
    assert len(d.run(*pods)) == 6
    assert [leaf(pod) for pod in pods[:3]] == [leaf(pod) for pod in pods[3:]]
    assert len({leaf(pod) for pod in pods}) == 3


def test_a_tier_further_out_is_a_spine() -> None:
    d = Driver(fabric(NODES))
    d.groups(group([by_partition(2)], 6))
    pods = partitions(0, 1, 0, 1, 0, 1)
    assert len(d.run(*pods)) == 6
    spines = [leaf(pod)[:2] for pod in pods]
    assert spines[0::2] == [spines[0]] * 3
    assert spines[1::2] == [spines[1]] * 3


def test_two_policies_are_two_subgroups_and_a_pod_in_none_goes_anywhere_near() -> None:
    d = Driver(fabric(NODES))
    roles = [
        {"name": role, "labelSelector": {"matchLabels": {"role": role}}, "networkTopology": HARD}
        for role in ("prefill", "decode")
    ]
    d.groups(group(roles, 5, networkTopology={"mode": "hard", "highestTierAllowed": 3}))
    pods = members(*({"role": role} for role in ("prefill", "decode", "router", "decode", "prefill")))
    assert len(d.run(*pods)) == 5
    assert (leaf(pods[0]), leaf(pods[1])) == (leaf(pods[4]), leaf(pods[3]))
    assert leaf(pods[0]) != leaf(pods[1])


def test_policies_that_ask_for_no_tier_put_no_pods_together() -> None:
    d = Driver(fabric({"s1/a": 1, "s1/b": 1}))
    soft = {"name": "workers", "matchLabelKeys": [PARTITION], "networkTopology": {"mode": "soft"}}
    d.groups(group([soft], 2))
    assert len(d.run(*partitions(0, 0))) == 2


@pytest.mark.parametrize(
    ("policies", "wrong"),
    [
        ([by_partition(1), by_partition(2)], "one highestTierAllowed for all subgroups"),
        ([by_partition(), {"name": "others"}], "only where all of them have a networkTopology"),
        (["workers"], "is not an object"),
        ([{"name": "w", "networkTopology": {"mode": "hard", "highestTierName": "rack"}}], "write highestTierAllowed"),
        ([{"name": "w", "networkTopology": {"mode": "tight"}}], "spec.subGroupPolicy[0].networkTopology.mode"),
        ([{**by_partition(), "matchLabelKeys": [""]}], "is not a list of label keys"),
        ([{**by_partition(), "labelSelector": {"matchLabels": {"a b": "c"}}}], "'a b' is not a label key"),
        ([{**by_partition(), "labelSelector": {"matchLabels": 3}}], "spec.subGroupPolicy[0].labelSelector"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_field(policies: Sequence[object], wrong: str) -> None:
    d = Driver(fabric(NODES))
    d.groups(group(policies, 2))
    pods = partitions(0, 0)
    assert d.run(*pods) == {}
    assert wrong in d.told(pods[0])[-1]


@pytest.mark.parametrize("group_first", [True, False])
def test_a_lost_member_goes_back_to_its_partition_after_a_restart(group_first: bool) -> None:
    d = Driver(fabric(NODES))
    pod_group = group([by_partition()], 4)
    d.groups(pod_group)
    pods = partitions(0, 1, 0, 1)
    d.run(*pods)
    lost = pods[2]
    d.delete(lost)
    rest = [pod for pod in pods if pod is not lost]
    other = Driver(fabric(NODES))
    if group_first:
        other.groups(pod_group)
        other.apply(*random.Random(1).sample(rest, 3))
    else:
        other.serve(GroupApi.VOLCANO)
        other.apply(*rest)
        other.groups(pod_group)
    again = partitions(0, 1, 0, 1)[2]
    other.run(again)
    assert leaf(again) == leaf(pods[0])


def test_a_native_group_below_a_composite_one_is_refused() -> None:
    d = Driver(fabric(NODES))
    d.groups(make_group("g", 2, spec={"parentCompositePodGroupName": "all"}))
    pods = [in_group(make_pod(f"g-{n}", gpus=8), "g", GroupApi.NATIVE) for n in range(2)]
    assert d.run(*pods) == {}
    assert "this scheduler does not know composite pod groups" in d.told(pods[0])[-1]


def test_a_member_with_a_node_shares_the_labels_of_its_profile() -> None:
    """They have a budget of memory there."""
    d = Driver(fabric(NODES))
    d.groups(group([by_partition()], 4))
    pods = partitions(0, 1, 0, 1)
    d.run(*pods)
    restarted = Driver(fabric(NODES))
    restarted.apply(*pods)
    for driver in (d, restarted):
        for pod in pods:
            membership, entry = (
                driver.engine.workloads.of_pod(pod.metadata.uid),
                driver.engine.world.ledger.get(pod.metadata.uid),
            )
            assert membership is not None and entry is not None and entry.profile is not None
            assert membership[1].labels is entry.profile.labels
