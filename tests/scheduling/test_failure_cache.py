"""A workload that is refused again without an attempt gets the reason and the place it would get by one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, configured, fabric, gang
from topo_scheduler.scheduling.instructions import BindOutcome, Instruction, RecordDecision
from topo_scheduler.scheduling.queueing.failure_cache import FailureCache

SPEC = "{preemption: {enabled: %s}, reservation: {after: 10s, afterWithoutEstimates: 30s}}"


@contextmanager
def attempts_only() -> Iterator[None]:
    """Try every workload whenever its turn comes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FailureCache, "again", lambda *_: None)
        yield


@contextmanager
def counted(counts: list[str]) -> Iterator[None]:
    """Note which workloads are refused without an attempt."""
    again = FailureCache.again

    def noted(self: FailureCache, workload: object, now: float, clock: Callable[[], float]) -> list[Instruction] | None:
        instructions = again(self, workload, now, clock)  # type: ignore[arg-type]
        if instructions is not None:
            counts.append(workload.id)  # type: ignore[attr-defined]
        return instructions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FailureCache, "again", noted)
        yield


def comparable(said: list[Instruction]) -> list[Instruction]:
    """Return what was said, but for what charges for the time of an attempt leave in the counter of the state."""
    return [
        replace(instruction, decision=msgspec.structs.replace(instruction.decision, generation=0))
        if isinstance(instruction, RecordDecision)
        else instruction
        for instruction in said
    ]


Moves = list[tuple[str, int, int, int]]


def play(moves: Moves, *, preemption: bool) -> list[Instruction]:
    """Let jobs come, end and be deleted, nodes be cordoned and time pass; return all that was said."""
    nodes = fabric({"s1/l1": 2, "s1/l2": 2, "s2/l3": 3})
    d = Driver(nodes, configured(SPEC % str(preemption).lower()))
    d.engine.budgets_known()
    for number, (what, first, second, third) in enumerate(moves):
        bound = sorted((pod for pod in d.pods.values() if pod.spec.node_name), key=lambda pod: pod.metadata.name)
        waiting = sorted((pod for pod in d.pods.values() if not pod.spec.node_name), key=lambda pod: pod.metadata.name)
        if what == "come":
            name = f"job-{number}"
            pods = (
                gang(first, name=name, gpus=(2, 4, 8)[second])
                if first > 1
                else [make_pod(name, gpus=(1, 2, 8)[second])]
            )
            for pod in pods:
                pod.metadata.uid = f"uid-{pod.metadata.name}"
                pod.metadata.namespace = f"team-{third % 2}"
                pod.metadata.creation_timestamp, pod.spec.restart_policy = timestamp(d.now), "Never"
                pod.spec.priority = 10 * (third // 2)
                if third % 3:
                    pod.metadata.annotations["topology.scheduler/expected-duration"] = f"{20 * third}s"
            d.apply(*pods)
        elif what == "end" and bound:
            pod = bound[first % len(bound)]
            d.finish(pod)
            d.delete(pod)
        elif what == "delete" and waiting:
            d.delete(waiting[first % len(waiting)])
        elif what == "cordon":
            node = nodes[first % len(nodes)]
            node.spec.unschedulable = not node.spec.unschedulable
            d.nodes(node)
        elif what == "refuse" and bound:
            pod = bound[first % len(bound)]
            d.finish(pod, "Failed", "OutOfcpu")
            d.delete(pod)
        elif what == "other":
            pod = make_pod(
                f"other-{number}",
                gpus=1 + first % 4,
                scheduler="another",
                node=nodes[second].metadata.name,
                uid=f"uid-{number}",
            )
            d.apply(pod)
        d.settle(3.0 * third)
        for said in d.preempted():
            d.evict(*(pod for pod in list(d.pods.values()) if pod.metadata.name == said))
    return comparable(d.said)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "end", "end", "delete", "cordon", "refuse", "other"]),
        st.integers(1, 5),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=40)
@given(moves=MOVES, preemption=st.booleans())
def test_what_is_said_and_done_is_as_if_each_had_been_tried(moves: Moves, preemption: bool) -> None:
    with attempts_only():
        expected = play(moves, preemption=preemption)
    assert play(moves, preemption=preemption) == expected


def refused_by_kubelet(d: Driver) -> None:
    """A kubelet refuses a pod of another tenant."""
    pod = make_pod("evil", namespace="evil", gpus=1)
    d.run(pod)
    d.finish(pod, "Failed", "OutOfcpu")
    d.delete(pod)


def refused_by_api_server(d: Driver) -> None:
    """A policy of the API server refuses the Binding of a pod of another tenant."""
    pod = make_pod("evil", namespace="evil", gpus=1)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.REJECTED, "denied by a policy")
    d.delete(pod)


@pytest.mark.parametrize("before", [lambda _: None, refused_by_kubelet, refused_by_api_server])
def test_of_many_that_ask_the_same_one_is_tried(before: Callable[[Driver], None]) -> None:
    d = Driver(fabric({"s1/l1": 5}))
    before(d)
    running = [make_pod(f"r{n}", gpus=8, created=n) for n in range(5)]
    d.run(*running)
    for number in range(50):
        d.apply(*gang(2, name=f"job-{number}"))
    d.settle()
    known: list[str] = []
    with counted(known):
        d.forget()
        d.finish(running[0])
        d.delete(running[0])
        d.settle(1.0)
        assert len(d.decisions()) == 50
        assert len(known) == 49
        # Room for one of them: the first is placed, and it is found once that there is none for the others.
        d.forget()
        known.clear()
        d.finish(running[1])
        d.delete(running[1])
        d.settle(1.0)
        assert len(d.binds()) == 2
        assert len(known) >= 47
