"""A production cluster filled by the protocol of FGD, against what its authors published."""

from dataclasses import replace

import pytest

from tests.e2e.real_input import data
from tests.fragmentation.experiment import PUBLISHED, Result, arrivals, class_of, run, typical
from tests.fragmentation.openb import Machine, Want, machines, wants
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE


def filled(trace: str, seed: int, scoring: str, *, learned: bool = False) -> Result:
    folder = data("openb", "openb_node_list_gpu_node.csv").parent
    return run(machines(folder), wants(folder, trace), trace, seed, scoring, learned=learned)


@pytest.mark.parametrize("trace", ["default", "gpushare60", "multigpu30"])
def test_more_is_allocated_than_the_authors_of_fgd_published(trace: str) -> None:
    result = filled(trace, 42, "fragmentation")
    assert result.allocated > PUBLISHED[trace] + 0.3
    assert result.placed < result.arrived, "it is filled until pods no longer fit"


def test_more_is_allocated_even_while_typical_pods_are_learned() -> None:
    assert filled("gpushare60", 42, "fragmentation", learned=True).allocated > PUBLISHED["gpushare60"] + 0.3


def test_fgd_is_as_published() -> None:
    assert filled("gpuspec10", 42, "fgd").allocated == pytest.approx(PUBLISHED["gpuspec10"], abs=0.6)


def made_up() -> tuple[list[Machine], list[Want]]:
    cluster = [Machine(f"n{n}", 32_000, 131_072, 4, "AB"[n % 2]) for n in range(12)]
    pods = [
        Want(f"p{n}", 1000 * (1 + n % 4), 4096, *((1, 1000), (1, 460), (2, 1000), (0, 0), (4, 1000))[n % 5], ())
        for n in range(40)
    ]
    return cluster, pods


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    cluster, pods = made_up()
    assert arrivals(pods, 48_000, 1) == arrivals(pods, 48_000, 1) != arrivals(pods, 48_000, 2)

    def told(result: Result) -> Result:
        return replace(result, seconds=0.0)

    for learned in (False, True):
        first, again = (run(cluster, pods, "made up", 1, "fragmentation", learned=learned) for _ in range(2))
        assert told(first) == told(again)
        assert 80 < first.allocated <= 100


def test_arrivals_ask_for_nearly_130_percent() -> None:
    _, pods = made_up()
    order = arrivals(pods, 48_000, 7)
    assert 1.3 * 48_000 - 4000 <= sum(want.asked for want in order) <= 1.3 * 48_000
    assert set(order) == set(pods)


def test_a_pod_of_the_trace_becomes_a_class() -> None:
    half, two = class_of(Want("a", 1000, 1, 1, 460, ("A",))), class_of(Want("b", 1000, 1, 2, 1000, ()))
    assert (half.amount(GPU_SHARE), half.amount(GPU), half.models) == (460, 0, ("A",))
    assert (two.amount(GPU_SHARE), two.amount(GPU)) == (0, 2)
    assert typical([Want("a", 1000, 1, 1, 460, ("A",))])[0][0].models == ("A",)
