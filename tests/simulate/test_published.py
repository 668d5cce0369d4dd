"""Baselines come out as their authors published them, on the authors' own trace and by their protocol."""

from statistics import mean

import pytest

from tests.e2e.real_input import data
from tests.simulate.published import FILL, NODES, POLICIES, PUBLISHED
from topo_scheduler.simulation.policies.names import read_policies
from topo_scheduler.simulation.tasks import Task, run

SEEDS = (42, 43, 44)
NEAR = 0.5
"""Percent of all GPUs: a mean of three seeds is off by so much at most; `tests.simulate.published` takes all ten."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", POLICIES)
def test_baselines_allocate_what_was_published(policy: str) -> None:
    nodes, pods = data("openb", NODES), data("openb", "openb_pod_list_default.csv")
    (parsed_policy,) = read_policies(policy)
    runs = [run(Task(parsed_policy, seed, str(nodes), str(pods), FILL)).run for seed in SEEDS]
    published = PUBLISHED["default"][POLICIES.index(policy)]
    assert mean(result.gpu_allocated_percent for result in runs) == pytest.approx(published, abs=NEAR)
    assert all(result.started < result.arrived for result in runs), "it is filled until pods no longer fit"
