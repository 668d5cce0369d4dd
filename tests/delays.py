"""API servers that are slow, and not always equally slow."""

import random

from topo_scheduler.simulation.apiserver import Delay
from topo_scheduler.simulation.apiserver.faults import FaultRule


def random_delays(*seconds: float, resource: str | None = None) -> list[FaultRule]:
    """Return rules that delay each request by one of these times, chosen at random."""
    chance = random.Random(7)

    def rule(each: float, left: int) -> FaultRule:
        return FaultRule(Delay(each), resource=resource, where=lambda _: chance.random() < 1 / left)

    return [rule(each, len(seconds) - number) for number, each in enumerate(seconds)]
