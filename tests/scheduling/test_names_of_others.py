"""Events name no object of another namespace, unless the configuration says so."""

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, configured, fabric, gang
from topo_scheduler.api.objects import BudgetSpec, BudgetStatus, DisruptionBudget, ObjectMeta, Pod
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.api.text import few_for
from topo_scheduler.scheduling.instructions import Preempt
from topo_scheduler.scheduling.preemption import victim_search

NAMED = "{events: {nameOtherNamespaces: true}}"


def secret(d: Driver, node: str) -> Pod:
    """A running pod of another tenant, which ends in an hour."""
    pod = make_pod("secret", namespace="theirs", gpus=8, node=node, annotations={"expected-duration": "1h"})
    pod.spec.scheduler_name, pod.status.phase, pod.status.start_time = "other", "Running", timestamp(0)
    d.apply(pod)
    return pod


def test_names_of_other_namespaces_are_counted() -> None:
    names = ["a/x", "b/y", "b/z"]
    assert few_for(names, "", "pod") == "a/x, b/y, b/z"
    assert few_for(names, "a", "pod") == "a/x and 2 pods of other namespaces"
    assert few_for(names, "b", "pod") == "b/y, b/z and a pod of another namespace"
    assert few_for(names, "c", "pod") == "3 pods of other namespaces"


@pytest.mark.parametrize("spec", ["{}", NAMED])
def test_reservations_and_remedies_name_no_pod_of_others(spec: str) -> None:
    d = Driver(fabric({"s1/l1": 2}), configured(spec))
    secret(d, "s1-l1-1")
    secret(d, "s1-l1-2")
    pods = gang(1, name="large")
    d.apply(*pods)
    d.step()
    d.step(30)
    d.explain(1)
    mine = " ".join(d.told(pods[0]))
    assert "a pod of another namespace" in mine or spec == NAMED
    assert ("theirs/secret" in mine) is (spec == NAMED)


@pytest.mark.parametrize("spec", ["{}", NAMED])
def test_a_pod_that_is_kept_off_learns_no_name_of_the_holder(spec: str) -> None:
    d = Driver(fabric({"s1/l1": 2}), configured(spec))
    secret(d, "s1-l1-1")
    for pod in (pods := gang(2, name="large")):
        pod.metadata.namespace = "holder"
    d.engine.configure(
        configured(spec.replace("{", "{reservation: {maxGPUSharePerNamespace: 1}, ", 1).replace(", }", "}"))
    )
    d.apply(*pods)
    d.step()
    d.step(30)
    late = make_pod("late", gpus=8)
    assert d.run(late) == {}
    text = d.told(late)[-1]
    assert ("with room reserved for gang holder/large" in text) is (spec == NAMED)
    assert ("with room reserved for a gang of another namespace" in text) is (spec != NAMED)


@pytest.mark.parametrize("spec", ["{}", NAMED])
def test_a_victim_learns_no_name_of_the_pod_that_preempts_it(spec: str) -> None:
    d = Driver(fabric({"s1/l1": 1}), configured(spec))
    d.engine.budgets_known()
    low = make_pod("low", gpus=8)
    d.run(low)
    d.apply(make_pod("high", namespace="theirs", gpus=8, priority=10))
    d.step()
    (note,) = [instruction.note for instruction in d.said if isinstance(instruction, Preempt)]
    assert ("theirs/high" in note) is (spec == NAMED)
    assert ("Preempted by a pod of another namespace of priority 10" in note) is (spec != NAMED)


@pytest.mark.parametrize("spec", ["{}", NAMED])
def test_a_pod_that_asks_like_one_of_another_namespace_learns_no_budget_of_that_namespace(spec: str) -> None:
    d = Driver(fabric({"s1/l1": 1}), configured(spec))
    d.engine.budgets_known()
    low = make_pod("low", namespace="theirs", gpus=8, node="s1-l1-1", labels={"app": "web"}, scheduler="other")
    low.status.phase = "Running"
    d.apply(low)
    meta = ObjectMeta(name="secret", namespace="theirs", generation=1)
    d.engine.budgets_applied([DisruptionBudget(meta, BudgetSpec(LabelSelector({"app": "web"})), BudgetStatus(0, 1))])
    theirs = make_pod("theirs", namespace="theirs", gpus=8, priority=10)
    mine = make_pod("mine", gpus=8, priority=10)
    for pod in (theirs, mine):
        d.apply(pod)
        d.step()
    assert "PodDisruptionBudget theirs/secret." in d.told(theirs)[0]
    (text,) = d.told(mine)
    assert "1 pod of lower priority may not be evicted now: " in text
    assert ("theirs/secret" in text) is (spec == NAMED)


@pytest.mark.unrecorded
@pytest.mark.parametrize("spec", ["{}", NAMED])
def test_a_pod_that_shares_a_search_which_raised_learns_no_name_from_the_exception(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: object) -> None:
        raise ValueError("pod theirs/secret")

    d = Driver(fabric({"s1/l1": 1}), configured(spec))
    d.engine.budgets_known()
    d.run(make_pod("low", namespace="theirs", gpus=8))
    monkeypatch.setattr(victim_search, "plan_preemption", strike)
    theirs, mine = make_pod("a", namespace="theirs", gpus=8, priority=10), make_pod("mine", gpus=8, priority=10)
    for pod in (theirs, mine):
        d.apply(pod)
        d.step()
    assert any("ValueError: pod theirs/secret" in text for text in d.told(theirs))
    texts = " ".join(d.told(mine))
    assert "internal error during preemption" in texts
    assert ("theirs/secret" in texts) is (spec == NAMED)
