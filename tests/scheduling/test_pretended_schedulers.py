"""A tenant pretends that another scheduler is about to place pods everywhere: a pod that meets this waits once."""

from collections.abc import Callable

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Pod


def waits(d: Driver, gpus: int, bother: Callable[[], None]) -> list[float]:
    """Return how long pods of another namespace wait, one after the other."""
    delays = []
    for number in range(2):
        victim: Pod = make_pod(f"v{number}", gpus=gpus, namespace="victim")
        d.apply(victim)
        began = d.now
        d.settle()
        while not victim.spec.node_name and d.now < began + 300:
            bother()
            d.settle(1)
        delays.append(d.now - began)
    return delays


def pretended() -> list[Pod]:
    """Pods of a tenant for a scheduler that does not exist: one on each of two nodes, and one that needs a node."""
    pods = [make_pod(f"t{i}", scheduler="no", node=f"n{i}", namespace="hostile", phase="Running") for i in range(2)]
    return [*pods, make_pod("w", gpus=8, scheduler="no", namespace="hostile")]


def test_a_pod_for_a_scheduler_that_does_not_exist() -> None:
    d = Driver([make_node(f"n{i}", "s/l", gpus=8) for i in range(2)], leaves_room=True)
    mine = pretended()

    def bother() -> None:
        """The tenant edits them all, so that they seem to be about to be placed."""
        d.apply(*mine)

    bother()
    d.settle(1)
    first, second = waits(d, 1, bother)
    assert first <= 60
    assert second == 0


def test_pods_that_the_tenant_puts_on_nodes_itself() -> None:
    d = Driver([make_node(f"n{i}", "s/l", gpus=8) for i in range(2)], leaves_room=True)
    made: list[Pod] = []

    def bother() -> None:
        """One comes to each node, and its kubelet refuses it."""
        for node in ("n0", "n1"):
            made.append(make_pod(f"b{len(made)}", gpus=4, scheduler="no", node=node, namespace="hostile"))
            d.apply(made[-1])
            d.finish(made[-1], "Failed", "OutOfcpu")

    for _ in range(3):
        bother()
        d.settle(1)
    first, second = waits(d, 8, bother)
    assert first <= 61
    assert second <= 3


def test_a_namespace_is_believed_again_once_a_pod_of_it_was_placed() -> None:
    d = Driver([make_node("n0", gpus=0, cpu="6")], leaves_room=True)
    d.apply(make_pod("runs", scheduler="other", node="n0", namespace="team", phase="Running"))
    stuck = make_pod("stuck", cpu="2", scheduler="other", namespace="team")
    d.apply(stuck)
    assert d.run(make_pod("first", cpu="2")) == {}
    for _ in range(61):
        d.tell_again(stuck)
        d.settle(1)
    assert d.run(make_pod("second", cpu="1")) == {"second": "n0"}
    stuck.spec.node_name = "n0"
    d.apply(stuck)
    d.apply(make_pod("next", cpu="1", scheduler="other", namespace="team"))
    d.step(0.1)
    assert d.engine.world.kept


def test_small_pods_that_are_placed_prove_nothing_of_a_large_one_that_is_not() -> None:
    nodes = [*(make_node(f"n{i}", "s/l", gpus=8) for i in range(2)), make_node("elsewhere", "s/l", gpus=0)]
    d = Driver(nodes, leaves_room=True)
    mine = pretended()

    def bother() -> None:
        """Another scheduler, which does exist, places a small pod of the tenant now and then."""
        if not round(d.now) % 20:
            small = make_pod(f"small{d.now}", cpu="1m", scheduler="default-scheduler", namespace="hostile")
            d.apply(small)
            small.spec.node_name = "elsewhere"
            d.apply(small)
            d.delete(small)
        d.apply(*mine)

    bother()
    d.settle(1)
    first, second = waits(d, 1, bother)
    assert first <= 60
    assert second <= 3


def test_a_large_pod_that_was_placed_is_not_doubted_for_small_ones_after_it() -> None:
    d = Driver([make_node(f"n{i}", gpus=0, cpu="6") for i in range(2)], leaves_room=True)
    d.apply(make_pod("runs", scheduler="other", node="n0", namespace="team", phase="Running"))
    large = make_pod("large", cpu="4", scheduler="other", namespace="team")
    d.apply(large)
    large.spec.node_name = "n1"
    d.apply(large)
    assert d.run(make_pod("waits", cpu="5")) == {}
    for number in range(130):
        small = make_pod(f"small{number}", cpu="1m", scheduler="other", namespace="team")
        d.apply(small)
        small.spec.node_name = "n1"
        d.apply(small)
        d.settle(1)
        d.delete(small)
    d.apply(make_pod("next", cpu="4", scheduler="other", namespace="team"))
    d.step(0.1)
    assert "team" not in d.engine.contention._doubted
    assert d.engine.world.kept


def test_a_pod_that_was_placed_once_does_not_prove_for_ever_that_others_are() -> None:
    nodes = [*(make_node(f"n{i}", "s/l", gpus=8) for i in range(2)), make_node("elsewhere", "s/l", gpus=8)]
    d = Driver(nodes, leaves_room=True)
    d.apply(make_pod("full", gpus=8, node="elsewhere", namespace="other", phase="Running"))
    mine = pretended()

    def bother() -> None:
        d.apply(*mine)

    bother()
    d.settle(1)
    assert waits(d, 1, bother)[1] == 0
    placed = make_pod("placed", gpus=8, scheduler="default-scheduler", namespace="hostile")
    d.apply(placed)
    placed.spec.node_name = "elsewhere"
    d.apply(placed)
    d.settle(1)
    d.delete(placed)
    first, second = waits(d, 1, bother)
    assert first <= 60
    assert second == 0
