"""The whole engine under any order of events."""

from hypothesis import HealthCheck, settings

from tests.scheduling.engine_machine import EngineMachine

TestCluster = EngineMachine.TestCase
TestCluster.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
