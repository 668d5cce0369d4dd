"""The same input gives the same decision, whatever row a node happens to have."""

import os
import random
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from tests.scheduling.reference import Machine
from tests.scheduling.reference_clusters import clusters
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.api.selectors import LabelSelector, TopologySpreadConstraint
from topo_scheduler.scheduling.instructions import Instruction, RecordDecision
from topo_scheduler.state.decision import Decision


def nodes_of(machines: list[Machine]) -> list[Node]:
    return [
        make_node(
            machine.name,
            "/".join("" if part == UNLABELLED else part for part in machine.place),
            gpus=machine.gpus,
            cpu=machine.cpu,
            model=machine.model,
            unschedulable=not machine.usable,
        )
        for machine in machines
    ]


def load_of(machines: list[Machine]) -> list[Pod]:
    return [
        make_pod(f"load-{m.name}", uid=f"load-{m.name}", gpus=m.used_gpus, cpu="0", node=m.name, scheduler="other")
        for m in machines
        if m.used_gpus
    ]


def plain(said: list[Instruction]) -> list[object]:
    """Say the same without rows and generations, which depend on how the engine came to know what it knows."""
    return [
        _plain(instruction.decision) if isinstance(instruction, RecordDecision) else instruction for instruction in said
    ]


def _plain(decision: Decision) -> Decision:
    return replace(decision, generation=0, seats=tuple(replace(seat, row=0) for seat in decision.seats))


wishes = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.integers(0, 3),
            "size": st.integers(1, 4),
            "placement-strategy": st.sampled_from(["consolidated", "distributed", "balanced"]),
            "latency-sensitive": st.sampled_from(["true", "false"]),
            "placement": st.sampled_from(["required", "preferred"]),
            "gpu-model-mixed": st.sampled_from(["true", "false"]),
        }
    ),
    min_size=1,
    max_size=4,
)


def pods_of(wishes: list[dict[str, object]]) -> list[Pod]:
    pods = []
    for number, wish in enumerate(wishes):
        annotations = {key: value for key, value in wish.items() if isinstance(value, str)}
        size = int(str(wish["size"]))
        if size > 1:
            annotations |= {"gang-name": f"g{number}", "gang-size": str(size)}
        for member in range(size):
            name = f"p{number}-{member}"
            gpus = int(str(wish["gpus"]))
            pods.append(make_pod(name, uid=name, gpus=gpus, cpu="1", annotations=annotations, created=number))
    return pods


@settings(deadline=None, max_examples=80)
@given(clusters(), wishes, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_became_known_decides_nothing(
    machines: list[Machine], wishes: list[dict[str, object]], shuffler: random.Random
) -> None:
    said = []
    for shuffled in (False, True):
        nodes, load = nodes_of(machines), load_of(machines)
        d = Driver()
        if shuffled:
            # Rows are used again, in another order, by nodes that come and go.
            d.nodes(*[make_node(f"gone-{number}") for number in range(5)])
            for number in shuffler.sample(range(5), 5):
                d.drop_node(f"gone-{number}")
            shuffler.shuffle(nodes)
            shuffler.shuffle(load)
        d.nodes(*nodes)
        d.apply(*load)
        d.step()
        d.forget()
        d.apply(*pods_of(wishes))
        d.settle()
        d.step(10)
        said.append(plain(d.said))
    assert said[0] == said[1]


spreads = st.tuples(st.integers(2, 5), st.sampled_from(["kubernetes.io/hostname", "zone"]), st.sampled_from("148"))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("ab")), min_size=2, max_size=7), spreads, st.randoms())
def test_gangs_with_spread_go_to_the_same_nodes_in_whatever_order_nodes_became_known(
    leaves_and_zones: list[tuple[int, str]], gang: tuple[int, str, str], shuffler: random.Random
) -> None:
    size, key, cpu = gang
    wish = {"gang-name": "g", "gang-size": str(size), "placement": "preferred"}
    nodes = [
        make_node(f"n{number}", f"s1/l{leaf}", cpu="8", labels={"zone": zone, "kubernetes.io/hostname": f"n{number}"})
        for number, (leaf, zone) in enumerate(leaves_and_zones)
    ]
    where = []
    for shuffled in (False, True):
        if shuffled:
            shuffler.shuffle(nodes)
        pods = [
            make_pod(f"p{n}", cpu=cpu, uid=f"p{n}", labels={"gang": "g"}, annotations=wish, created=n)
            for n in range(size)
        ]
        for pod in pods:
            selector = LabelSelector(match_labels={"gang": "g"})
            spread = TopologySpreadConstraint(key, "DoNotSchedule", 1, label_selector=selector)
            pod.spec.topology_spread_constraints = [spread]
        where.append(Driver(nodes).run(*pods))
    assert where[0] == where[1]


@settings(deadline=None, max_examples=30)
@given(clusters(), wishes)
def test_the_same_events_give_the_same_instructions_byte_for_byte(
    machines: list[Machine], wishes: list[dict[str, object]]
) -> None:
    said = []
    for _ in range(2):
        d = Driver(nodes_of(machines))
        d.apply(*load_of(machines), *pods_of(wishes))
        d.settle()
        said.append(repr(d.said))
    assert said[0] == said[1]


def test_nothing_depends_on_how_strings_are_hashed() -> None:
    program = (
        "from tests.helpers import make_pod\n"
        "from tests.scheduling.driver import Driver, fabric\n"
        "d = Driver(fabric({f's{n % 3}/l{n}': 3 for n in range(9)}))\n"
        "names = {'gang-name': 'g', 'gang-size': '5', 'gpu-cuont': '1', 'typo': '2'}\n"
        "d.apply(*[make_pod(f'p{n}', gpus=3 + n % 2, annotations=names) for n in range(5)])\n"
        "d.apply(*[make_pod(f'q{n}', gpus=9 * (n % 2), uid=f'q{n}') for n in range(9)])\n"
        "d.settle()\n"
        "print(d.said)\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(said.pop()) > 1000
