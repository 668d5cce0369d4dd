"""Which nodes a pod may use at all, as Kubernetes says it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod, requires, term, where
from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.api.objects import Node, PodSpec, Taint, Toleration
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.selectors import Affinity, NodeAffinity, NodeSelectorTerm, PreferredTerm
from topo_scheduler.scheduling.rules.filters import FILTERS, Particular, eligible, tolerated
from topo_scheduler.scheduling.rules.node_preferences import preferred_nodes
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import GPU, PODS
from topo_scheduler.state.pods.classes import PodClass, pod_class

AMOUNTS = ((PODS, 1), (GPU, 1))


def world(*nodes: Node) -> World:
    made = World(SchedulerConfig())
    for node in nodes:
        made.put_node(node, 0)
    return made


def of(spec: PodSpec, models: tuple[str, ...] = (), bandwidth: int = 0) -> PodClass:
    return pod_class(make_pod("p", spec=spec), AMOUNTS, models, bandwidth)


def accepts(node: Node, cls: PodClass) -> bool:
    cluster = world(node)
    rows = np.array([cluster.nodes.row_of[node.metadata.name]], np.int64)
    return bool(eligible(cluster.nodes, cls, rows)[0])


def accepted(nodes: Sequence[Node], cls: PodClass) -> list[str]:
    cluster = world(*nodes)
    rows = np.array(list(cluster.nodes.row_of.values()), np.int64)
    return [cluster.nodes.names[row] for row in rows[eligible(cluster.nodes, cls, rows)]]


PLAIN = of(PodSpec())


def test_a_ready_node_takes_a_plain_pod() -> None:
    assert accepts(make_node("n"), PLAIN)
    assert not accepts(make_node("n", ready=False), PLAIN)


def test_a_node_that_never_reported_is_taken_for_ready_as_kubernetes_does() -> None:
    node = make_node("n")
    node.status.conditions = []
    assert accepts(node, PLAIN)


def test_a_cordoned_node_takes_only_pods_that_tolerate_its_taint() -> None:
    node = make_node("n", unschedulable=True)
    assert not accepts(node, PLAIN)
    assert accepts(node, of(PodSpec(tolerations=[Toleration("node.kubernetes.io/unschedulable", "Exists")])))
    assert accepts(node, of(PodSpec(tolerations=[Toleration(operator="Exists")])))


# ---------------------------------------------------------------- taints

TAINT = Taint("dedicated", "ml", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("dedicated", "Equal", "ml", "NoSchedule"), True),
        (Toleration("dedicated", "Equal", "ml"), True),
        (Toleration("dedicated", "", "ml"), True),
        (Toleration("dedicated", value="ml"), True),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("dedicated", "Exists", effect="NoSchedule"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Exists", effect="NoSchedule"), True),
        (Toleration("dedicated", "Equal", "web"), False),
        (Toleration("dedicated", "Equal", "ml", "NoExecute"), False),
        (Toleration("dedicated", "Exists", effect="NoExecute"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("", "Equal", "ml"), True),  # no API server takes it, but that is what it would mean
        (Toleration(), False),
        (Toleration("dedicated", "Gt", "ml"), False),
    ],
)
def test_tolerations(toleration: Toleration, covers: bool) -> None:
    assert tolerated(TAINT, frozenset({toleration})) is covers
    assert accepts(make_node("n", taints=[TAINT]), of(PodSpec(tolerations=[toleration]))) is covers


def test_every_taint_must_be_tolerated_and_soft_ones_need_not() -> None:
    tolerating = of(PodSpec(tolerations=[Toleration("dedicated", "Exists")]))
    assert not accepts(make_node("n", taints=[TAINT, Taint("x", "", "NoExecute")]), tolerating)
    assert accepts(make_node("n", taints=[TAINT, Taint("x", "", "PreferNoSchedule")]), tolerating)
    assert accepts(make_node("n", taints=[Taint("x", "", "PreferNoSchedule")]), PLAIN)


# ---------------------------------------------------------------- selectors and affinity

LABELLED = make_node("n", labels={"zone": "a", "cores": "64", "empty": "", "bad": "6x", "minus": "-3"})


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "a", "cores": "64"}, True),
        ({"zone": "b"}, False),
        ({"zone": "a", "absent": "x"}, False),
        ({"absent": ""}, False),
        ({"empty": ""}, True),
    ],
)
def test_node_selectors(selector: dict[str, str], matches: bool) -> None:
    assert accepts(LABELLED, of(PodSpec(node_selector=selector))) is matches


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        (where("zone", "In", "a", "b"), True),
        (where("zone", "In", "b"), False),
        (where("absent", "In", "a"), False),
        (where("zone", "In"), False),
        (where("zone", "NotIn", "b"), True),
        (where("zone", "NotIn", "a"), False),
        (where("absent", "NotIn", "a"), True),
        (where("zone", "Exists"), True),
        (where("empty", "Exists"), True),
        (where("absent", "Exists"), False),
        (where("zone", "DoesNotExist"), False),
        (where("absent", "DoesNotExist"), True),
        (where("cores", "Gt", "63"), True),
        (where("cores", "Gt", "64"), False),
        (where("cores", "Lt", "65"), True),
        (where("cores", "Lt", "64"), False),
        (where("minus", "Lt", "-2"), False),  # no label value begins with a minus, and Kubernetes refuses the term
        (where("minus", "Gt", "-3"), False),
        (where("absent", "Gt", "1"), False),
        (where("absent", "Lt", "1"), False),
        (where("bad", "Gt", "1"), False),
        (where("cores", "Gt", "many"), False),
        (where("cores", "Gt"), False),
        (where("cores", "Gt", "1", "2"), False),
        (where("zone", "Like", "a"), False),
    ],
)
def test_every_operator_of_node_affinity(expression: object, matches: bool) -> None:
    affinity = requires(NodeSelectorTerm((expression,)))  # type: ignore[arg-type]
    assert accepts(LABELLED, of(PodSpec(affinity=affinity))) is matches


def test_all_of_a_term_and_one_of_the_terms_must_hold() -> None:
    yes, no = where("zone", "In", "a"), where("zone", "In", "b")
    assert not accepts(LABELLED, of(PodSpec(affinity=requires(term(yes, no)))))
    assert accepts(LABELLED, of(PodSpec(affinity=requires(term(no), term(yes)))))
    assert not accepts(LABELLED, of(PodSpec(affinity=requires(term(no), term(no)))))


def test_no_terms_and_empty_terms_match_nothing() -> None:
    assert not accepts(LABELLED, of(PodSpec(affinity=requires())))
    assert not accepts(LABELLED, of(PodSpec(affinity=requires(term()))))
    assert accepts(LABELLED, of(PodSpec(affinity=requires(term(), term(where("zone", "Exists"))))))
    assert accepts(LABELLED, of(PodSpec(affinity=Affinity(node_affinity=NodeAffinity()))))


def test_selector_and_affinity_must_both_hold() -> None:
    affinity = requires(term(where("zone", "In", "a")))
    assert accepts(LABELLED, of(PodSpec(affinity=affinity, node_selector={"cores": "64"})))
    assert not accepts(LABELLED, of(PodSpec(affinity=affinity, node_selector={"cores": "1"})))


def test_match_fields_name_nodes() -> None:
    nodes = [make_node(name) for name in ("a", "b", "c")]
    field = "metadata.name"

    def chosen(*requirements: object) -> list[str]:
        return accepted(nodes, of(PodSpec(affinity=requires(NodeSelectorTerm((), requirements)))))  # type: ignore[arg-type]

    assert chosen(where(field, "In", "b")) == ["b"]
    assert chosen(where(field, "In", "gone")) == []
    assert chosen(where(field, "NotIn", "b")) == ["a", "c"]
    assert chosen(where(field, "Exists")) == []
    assert chosen(where("metadata.uid", "In", "b")) == []
    assert chosen(where("metadata.labels", "In", "b")) == []


def test_a_pinned_pod_follows_the_name_not_the_row() -> None:
    pinned = of(PodSpec(affinity=requires(term(fields=[where("metadata.name", "In", "b")]))))
    cluster = world(make_node("a"), make_node("b"))
    cluster.remove_node("b")
    cluster.put_node(make_node("c"), 0)
    rows = np.array(list(cluster.nodes.row_of.values()), np.int64)
    assert not eligible(cluster.nodes, pinned, rows).any()


# ---------------------------------------------------------------- models, bandwidth


def test_gpu_models() -> None:
    nodes = [make_node("a", model="A100"), make_node("h", model="H100"), make_node("x")]
    assert accepted(nodes, of(PodSpec())) == ["a", "h", "x"]
    assert accepted(nodes, of(PodSpec(), ("H100",))) == ["h"]
    assert accepted(nodes, of(PodSpec(), ("A100", "H100", "B200"))) == ["a", "h"]
    assert accepted(nodes, of(PodSpec(), ("B200",))) == []


def test_nodes_known_to_have_less_bandwidth_are_passed_over() -> None:
    nodes = [make_node("slow", bandwidth="100Gb"), make_node("fast", bandwidth="200Gb"), make_node("unknown")]
    assert accepted(nodes, of(PodSpec(), bandwidth=200_000)) == ["fast", "unknown"]
    assert accepted(nodes, of(PodSpec(), bandwidth=100_000)) == ["slow", "fast", "unknown"]
    assert accepted(nodes, of(PodSpec())) == ["slow", "fast", "unknown"]


# ---------------------------------------------------------------- preference


def test_preferred_terms_add_up() -> None:
    wish = NodeAffinity(
        preferred=(
            PreferredTerm(10, term(where("zone", "In", "a"))),
            PreferredTerm(3, term(where("disk", "Exists"))),
            PreferredTerm(100, term()),
        )
    )
    nodes = [
        make_node("both", labels={"zone": "a", "disk": ""}),
        make_node("one", labels={"zone": "a"}),
        make_node("none"),
    ]
    cluster = world(*nodes)
    rows = np.array([cluster.nodes.row_of[name] for name in ("both", "one", "none")], np.int64)
    cls = replace(PLAIN, affinity=wish)
    assert preferred_nodes(cluster.nodes, cls, rows).tolist() == [13, 10, 0]


# ---------------------------------------------------------------- kept up to date

labels = st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from(["1", "2"]))
taints = st.lists(st.sampled_from([TAINT, Taint("x", "", "NoExecute")]), max_size=2, unique=True)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.tuples(labels, taints, st.booleans()))), max_size=12
    )
)
def test_what_is_kept_by_class_is_what_a_new_computation_gives(
    steps: list[tuple[str, tuple[dict[str, str], list[Taint], bool] | None]],
) -> None:
    from topo_scheduler.scheduling.placing.model.class_views import Views

    classes = [
        of(PodSpec(node_selector={"k": "1"})),
        of(PodSpec(tolerations=[Toleration("dedicated", "Exists")])),
        of(PodSpec(affinity=requires(term(where("l", "NotIn", "1"))))),
        of(PodSpec(affinity=requires(term(fields=[where("metadata.name", "NotIn", "a")])))),
    ]
    cluster = world()
    views = Views(cluster.around)
    for name, facts in steps:
        if facts is None:
            cluster.remove_node(name)
        else:
            node_labels, spots, cordoned = facts
            cluster.put_node(make_node(name, labels=node_labels, taints=spots, unschedulable=cordoned), 0)
        rows = np.arange(cluster.nodes.rows, dtype=np.int64)
        for cls in classes:
            view = views.get(cls)
            assert np.array_equal(view.eligible, eligible(cluster.nodes, cls, rows))
            assert np.array_equal(view.fit > 0, view.eligible)


@pytest.mark.parametrize("rule", [rule for rule in FILTERS if isinstance(rule, Particular) and rule.by_gpu_needs])
def test_filters_that_are_skipped_for_classes_without_gpu_needs_concern_none_of_them(rule: Particular) -> None:
    wanted = GpuNeeds(memory_bytes=1, architectures=("hopper",), mig_profile="1g.10gb")
    assert not rule.concerns(PLAIN)
    assert rule.concerns(replace(PLAIN, gpu_needs=wanted))
    needy, node = replace(PLAIN, gpu_needs=wanted), make_node("n", gpus=0)
    assert accepts(node, PLAIN) and not accepts(node, needy)
