"""Pods that contradict themselves: the pod gets a reason, and the queue goes on."""

import pytest

from tests.helpers import make_pod, requires, term, where
from tests.scheduling.affinity_pods import HOSTNAME, WEB_PODS, nodes_in_racks, one_gpu_spec, web_gang, web_pod
from topo_scheduler.api.objects import PodSpec, Toleration
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    TopologySpreadConstraint,
)

BOTH = [PodAffinityTerm(WEB_PODS, topology_key="rack")]
NOWHERE = requires(term(where("rack", "In", "a"), where("rack", "NotIn", "a")))
UNREADABLE = LabelSelector(match_expressions=(Requirement("app", "Is", ("web",)),))


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (one_gpu_spec(affinity=NOWHERE), "2 node(s) didn't match Pod's node affinity/selector"),
        (
            one_gpu_spec(node_selector={"rack": "a", HOSTNAME: "n2"}),
            "2 node(s) didn't match Pod's node affinity/selector",
        ),
        (
            one_gpu_spec(affinity=requires(term(where("rack", "Around", "a")))),
            "2 node(s) didn't match Pod's node affinity/selector",
        ),
        (
            one_gpu_spec(affinity=Affinity(pod_affinity=PodAffinity(BOTH), pod_anti_affinity=PodAffinity(BOTH))),
            "1 node(s) didn't match pod anti-affinity rules",
        ),
        (
            one_gpu_spec(
                affinity=Affinity(pod_affinity=PodAffinity([PodAffinityTerm(UNREADABLE, topology_key="rack")]))
            ),
            "affinity.podAffinity term 1: 'Is' is not an operator of a label selector",
        ),
        (
            one_gpu_spec(
                topology_spread_constraints=[
                    TopologySpreadConstraint("rack", "DoNotSchedule", 1, label_selector=UNREADABLE)
                ]
            ),
            "topologySpreadConstraints 1: 'Is' is not an operator of a label selector",
        ),
        (
            one_gpu_spec(
                topology_spread_constraints=[
                    TopologySpreadConstraint("nothing", "DoNotSchedule", 1, label_selector=WEB_PODS)
                ]
            ),
            "2 node(s) didn't match pod topology spread constraints (missing required label)",
        ),
    ],
)
def test_a_pod_that_contradicts_itself_is_reported_and_others_are_placed(of: PodSpec, words: str) -> None:
    d = nodes_in_racks("a", "b")
    d.apply(web_pod("there", node="n1"))
    odd = web_pod("odd", of)
    members = web_gang(2, of)
    ordinary = make_pod("ordinary", gpus=1, created=9)
    where_ = d.run(odd, *members, ordinary)
    assert set(where_) == {"ordinary"}
    assert words in d.told(odd)[0]
    assert d.told(members[0]), "and the gang gets its reason"
    assert not d.engine.pending_work


def test_tolerations_that_make_no_sense_tolerate_nothing() -> None:
    d = nodes_in_racks("a", "b")
    pod = make_pod("p", gpus=1)
    pod.spec.tolerations = [Toleration("", "Sometimes", "x", "Always")]
    assert d.run(pod)["p"] in ("n1", "n2")
