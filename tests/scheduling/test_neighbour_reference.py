"""No pod stays pending for lack of an attempt when a pod came or went: a new scheduler finds no node either."""

from typing import Final, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, copies
from topo_scheduler.api.objects import ContainerPort, Pod
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)

HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
HALF: Final = "half"
NODES: Final = 4


class Term(NamedTuple):
    app: str
    key: str
    namespaces: tuple[str, ...]


class Shape(NamedTuple):
    """A pod: its label, namespace, and constraints; ``half`` of the nodes, one of each zone, that it may use."""

    app: str
    namespace: str
    affinity: tuple[Term, ...] = ()
    repels: tuple[Term, ...] = ()
    spread: tuple[tuple[str, str], ...] = ()
    port: bool = False
    half: str = ""


class Event(NamedTuple):
    """A pod comes to a node; or one of those there goes, or gets another label."""

    kind: str
    shape: Shape
    node: int
    which: int


APPS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from([HOST, ZONE])
TERMS = st.lists(st.builds(Term, APPS, KEYS, st.sampled_from([(), ("theirs",)])), max_size=2).map(tuple)
SPREADS = st.lists(st.tuples(APPS, KEYS), max_size=2).map(tuple)
HALVES = st.sampled_from(["", "0", "1"])
SHAPES = st.builds(Shape, APPS, st.sampled_from(["default", "theirs"]), TERMS, TERMS, SPREADS, st.booleans(), HALVES)
OCCUPANTS = st.builds(Shape, APPS, st.sampled_from(["default", "theirs"]), repels=TERMS, port=st.booleans())
EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(["come", "come", "go", "change"]),
        OCCUPANTS,
        st.integers(0, NODES - 1),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=6,
)


def written(terms: tuple[Term, ...]) -> PodAffinity:
    return PodAffinity(
        required=[
            PodAffinityTerm(LabelSelector({"app": term.app}), topology_key=term.key, namespaces=list(term.namespaces))
            for term in terms
        ]
    )


def pod_of(name: str, shape: Shape, node: str = "") -> Pod:
    pod = make_pod(name, labels={"app": shape.app}, namespace=shape.namespace, node=node)
    pod.spec.affinity = Affinity(pod_affinity=written(shape.affinity), pod_anti_affinity=written(shape.repels))
    pod.spec.topology_spread_constraints = [
        TopologySpreadConstraint(key, "DoNotSchedule", 1, label_selector=LabelSelector({"app": app}))
        for app, key in shape.spread
    ]
    pod.spec.node_selector = {HALF: shape.half} if shape.half else {}
    pod.spec.containers[0].ports = [ContainerPort(host_port=80)] if shape.port else []
    return pod


def cluster() -> Driver:
    return Driver(
        [
            make_node(f"n{number}", "s/l", labels={HOST: f"n{number}", ZONE: f"z{number % 2}", HALF: f"{number // 2}"})
            for number in range(NODES)
        ]
    )


@settings(max_examples=400)
@given(st.lists(SHAPES, min_size=1, max_size=3), st.lists(OCCUPANTS, max_size=6), EVENTS)
def test_a_pod_that_stays_pending_fits_nowhere(
    shapes: list[Shape], occupants: list[Shape], events: list[Event]
) -> None:
    d = cluster()
    running = [pod_of(f"runs-{number}", shape, f"n{number % NODES}") for number, shape in enumerate(occupants)]
    d.apply(*running)
    waiting = [pod_of(f"waits-{number}", shape) for number, shape in enumerate(shapes)]
    d.run(*waiting)
    for number, event in enumerate(events):
        chosen = running[event.which % len(running)] if running else None
        match event.kind, chosen:
            case "go", Pod():
                running.remove(chosen)
                d.delete(chosen)
            case "change", Pod():
                chosen.metadata.labels["app"] = "b" if chosen.metadata.labels["app"] == "a" else "a"
                d.apply(chosen)
            case _:
                running.append(pod_of(f"comes-{number}", event.shape, f"n{event.node}"))
                d.apply(running[-1])
        d.settle()
    bound = [pod for pod in d.pods.values() if pod.spec.node_name]
    for pod in waiting:
        if not pod.spec.node_name:
            fresh = cluster()
            fresh.apply(*bound)
            (alone,) = copies([pod])
            assert fresh.run(alone) == {}


def test_a_pod_that_repelled_others_from_a_whole_zone_is_missed_on_its_other_nodes() -> None:
    d = cluster()
    repels = pod_of("repels", Shape("b", "default", repels=(Term("a", ZONE, ()),)), "n0")
    elsewhere = pod_of("elsewhere", Shape("b", "default", repels=(Term("a", ZONE, ()),)), "n1")
    d.apply(repels, elsewhere)
    pod = pod_of("waits", Shape("a", "default", half="1"))
    assert d.run(pod) == {}
    d.delete(repels)
    d.settle()
    assert d.where(pod) == {"waits": "n2"}
