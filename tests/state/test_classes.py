"""Pod classes, and the constraints that are refused because they are not honoured yet."""

import msgspec
import pytest

from tests.helpers import make_pod, requires, term, where
from topo_scheduler.api.objects import Pod, PodSpec, Toleration
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.state.nodes.resources import CPU, GPU, PODS
from topo_scheduler.state.pods.classes import NO_LIMIT, Cap, PodClass, pod_class, unsupported

AMOUNTS = ((CPU, 1000), (PODS, 1), (GPU, 8))


def test_pods_that_ask_for_the_same_are_of_one_class() -> None:
    def spec(order: int) -> PodSpec:
        return PodSpec(
            node_selector=dict([("a", "1"), ("b", "2")][::order]),
            tolerations=[Toleration("x", "Exists"), Toleration("y", "Equal", "z")][::order],
            affinity=requires(term(where("k", "In", "v"))),
        )

    first, other = (pod_class(make_pod("p", spec=spec(order)), AMOUNTS, ("H100",), 100) for order in (1, -1))
    assert first == other
    assert hash(first) == hash(other)


def test_what_decides_where_a_pod_may_run_decides_its_class() -> None:
    plain = pod_class(make_pod("p"), AMOUNTS, (), 0)
    others = [
        pod_class(make_pod("p"), ((CPU, 1), (PODS, 1)), (), 0),
        pod_class(make_pod("p"), AMOUNTS, ("H100",), 0),
        pod_class(make_pod("p"), AMOUNTS, (), 100),
        pod_class(make_pod("p", spec=PodSpec(node_selector={"a": "b"})), AMOUNTS, (), 0),
        pod_class(make_pod("p", spec=PodSpec(tolerations=[Toleration("x")])), AMOUNTS, (), 0),
        pod_class(make_pod("p", spec=PodSpec(affinity=requires(term(where("k", "Exists"))))), AMOUNTS, (), 0),
    ]
    assert len({plain, *others}) == 7


def test_placements_are_judged_by_gpus_where_any_are_asked_else_by_cpu() -> None:
    assert PodClass(AMOUNTS).scarce == GPU
    assert PodClass(((CPU, 1), (PODS, 1))).scarce == CPU


def decoded(spec: str) -> Pod:
    return msgspec.json.decode(b'{"spec": %s}' % spec.encode(), type=Pod)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ('{"workloadRef": {"name": "w", "podGroup": "g"}}', "workloadRef"),
    ],
)
def test_a_constraint_that_is_not_honoured_yet_is_named(spec: str, named: str) -> None:
    assert named in unsupported(decoded(spec))


@pytest.mark.parametrize(
    "spec",
    [
        "{}",
        '{"volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "x"}}]}',
        '{"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}',
        '{"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]}',
        '{"containers": [{"ports": [{"containerPort": 80}, {"hostPort": 81}]}]}',
        '{"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":'
        ' [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}}}',
        '{"topologySpreadConstraints": [{"topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}]}',
        '{"topologySpreadConstraints": [{"topologyKey": "k", "whenUnsatisfiable": "ScheduleAnyway"}]}',
        '{"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}',
        '{"affinity": {"nodeAffinity": {}}, "tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}}',
        '{"overhead": {"cpu": "1"}, "hostNetwork": true, "priority": 5}',
    ],
)
def test_what_is_honoured_or_only_preferred_is_not_refused(spec: str) -> None:
    assert unsupported(decoded(spec)) == ""


@pytest.mark.parametrize(
    ("now", "ever", "partial"),
    [
        (0, 0, False),
        (0, NO_LIMIT, False),
        (NO_LIMIT, NO_LIMIT, False),
        (3, NO_LIMIT, True),
        (0, 3, True),
        (NO_LIMIT, 3, True),
    ],
)
def test_a_cap_lets_some_in_where_it_lets_in_neither_none_nor_all(now: int, ever: int, partial: bool) -> None:
    assert Cap("s1", now, ever, NodeReason.QUOTA).partial is partial
