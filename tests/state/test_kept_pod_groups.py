"""Large PodGroups of a namespace have a budget of memory, beyond which their pods are refused with the reason."""

import pytest

from topo_scheduler.api.groups import GroupApi
from topo_scheduler.state.pods import pod_groups as module
from topo_scheduler.state.pods.pod_groups import GroupKey, Groups, LabelledSubgroups, PodGroup, SubgroupPolicy
from topo_scheduler.state.pods.selectors import Clause, Selector

GROUP_BYTES = 40_000


def group(number: int, namespace: str = "hostile", values: int = 4, *, scheduled: bool | None = None) -> PodGroup:
    names = (frozenset(f"v-{number}-{policy}-{value}" for value in range(values)) for policy in range(30))
    policies = tuple(
        SubgroupPolicy(f"p{policy}", Selector((Clause("x", "In", selected),)), ("a",))
        for policy, selected in enumerate(names)
    )
    key = GroupKey(GroupApi.VOLCANO, namespace, f"g{number}")
    return PodGroup(key, f"u{number}", "v1", subgroups=LabelledSubgroups(policies, 1), scheduled=scheduled)


def problem(groups: Groups, of: PodGroup) -> str:
    kept = groups.get(of.key)
    assert kept is not None
    return kept.problem


def test_large_groups_of_a_namespace_have_a_budget_and_others_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUP_BYTES_OF_NAMESPACE", 4 * GROUP_BYTES)
    groups = Groups()
    for number in range(10):
        groups.put(group(number))
    refused = [bool(problem(groups, group(number))) for number in range(10)]
    assert refused == sorted(refused)
    assert 2 <= refused.count(False) <= 4
    assert problem(groups, group(9)).startswith(
        "PodGroup hostile/g9 of scheduling.volcano.sh: the PodGroups of its namespace take more than"
    )
    groups.put(group(1, "victim"))
    assert not problem(groups, group(1, "victim"))
    assert not groups.put(group(0, scheduled=True)), "its condition alone changed"
    assert not problem(groups, group(0))
    groups.drop(group(0).key)
    groups.put(group(9))
    assert not problem(groups, group(9)), "it was created again"
    for number in range(1, 10):
        groups.drop(group(number).key)
    assert not groups._memory.bytes_of("hostile")


def test_ordinary_groups_are_always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUP_BYTES_OF_NAMESPACE", 10)
    groups = Groups()
    for number in range(50):
        plain = PodGroup(GroupKey(GroupApi.NATIVE, "a", f"g{number}"), f"u{number}", "v1", level_key="leaf")
        groups.put(plain)
        assert groups.get(plain.key) is plain
