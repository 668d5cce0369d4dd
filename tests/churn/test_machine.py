"""Some hours in which everything breaks while a tenant attacks; with ``HYPOTHESIS_PROFILE=long`` more than 24."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.breaking.machine import LONG_PROFILE

from .machine import HostileDays


class _Days(HostileDays):
    share = 0.01 if LONG_PROFILE else 0.1
    longest = 7_200 if LONG_PROFILE else 600


TestHostileDays = _Days.TestCase
TestHostileDays.settings = settings(
    max_examples=16 if LONG_PROFILE else 3,
    stateful_step_count=30 if LONG_PROFILE else 12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink hours of churn would take hours
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", autouse=True)
def lived(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    print(f"lived {HostileDays.total / 3600:.1f} virtual hours, with {HostileDays.hostile} hostile pods")
