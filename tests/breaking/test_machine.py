"""Whatever happens in whatever order, to whole daemons: what must hold holds after every step, and all ends well.

``HYPOTHESIS_PROFILE=long`` tries for an hour or so what otherwise takes less than a minute.
"""

from hypothesis import HealthCheck, settings

from .machine import LONG_PROFILE, FailureMachine

TestBroken = FailureMachine.TestCase
TestBroken.settings = settings(
    max_examples=2_000 if LONG_PROFILE else 40,
    stateful_step_count=30 if LONG_PROFILE else 12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
