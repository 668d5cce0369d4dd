"""The machine in which everything breaks that can, on a cluster in which life goes on and a tenant attacks.

Each rule of `tests.breaking.test_machine` may come at any moment: killed and sleeping leaders, writes that go wrong, a
server that no client reaches, nodes and leaves that fail. Between them hours pass.
"""

import asyncio
import logging
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.attacks.hostile import NAMESPACE
from tests.breaking.machine import NODES, FailureMachine
from tests.breaking.world import MIGRATIONS

from .tenant import HostileChurn
from .watch import Watch

PODS: Final = 50
"""Of all other tenants, on 12 nodes of 8 GPUs."""
CALM: Final = 10.0
LOOKS_SECONDS: Final = 5.0
RECOVERS_SECONDS: Final = 150.0
"""In which a daemon has taken over whatever happened before, and nothing half done is left."""
SEED: Final = 1


class HostileDays(FailureMachine):
    """Whole daemons, everything that breaks, ordinary churn, and a share of hostile pods."""

    share = 0.01
    """Of all pods, at most."""
    longest = 7_200
    """Seconds that pass at most at once."""
    total = 0.0
    """Virtual seconds that all examples lived through."""
    hostile = 0
    """Hostile pods of all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.violations: list[str] = []

    def name(self, what: str) -> str:
        """Return a name that churn does not give."""
        return f"rule-{super().name(what)}"

    def began(self) -> None:
        """Let life begin."""
        self.churn = HostileChurn(self.world, PODS, seed=SEED, share=self.share, calm=CALM)
        self.watch = Watch(self.world, self.violations, level=logging.CRITICAL)
        self.living = self.loop.create_task(self.churn.run())
        self.began_at = self.loop.time()

    @rule(share=st.integers(1, 4))
    def hours_pass(self, share: int) -> None:
        """All nodes are well again, and life goes on."""
        self.do(self._watched(self.longest * share / 4))

    async def _watched(self, seconds: float) -> None:
        self.world.server.faults.clear()
        for node in NODES:
            self._heal(node)
        await self._run(RECOVERS_SECONDS)
        end = self.loop.time() + seconds
        self.watch.excuse()
        while self.loop.time() < end:
            await self._run(LOOKS_SECONDS)
            leader = self.leader
            assert leader is not None, "no replica leads"
            self.watch.look(leader)
            if self.watch.looks % 12 == 0:
                self.watch.passed_over(leader)
            self._nothing_wrong()

    def _nothing_wrong(self) -> None:
        if self.living.done():
            self.living.result()
        assert not self.violations, "\n".join(self.violations)

    def nothing_is_used_twice_and_what_is_believed_is_so(self) -> None:
        """As in the machine; and no violation was seen."""
        super().nothing_is_used_twice_and_what_is_believed_is_so()
        if hasattr(self, "living"):
            self._nothing_wrong()

    async def _end_well(self) -> None:
        try:
            await self._watched(self.longest)
        finally:
            HostileDays.total += self.loop.time() - self.began_at
            HostileDays.hostile += self.churn.made
            self.living.cancel()
            await asyncio.wait([self.living])
        for table in ("pods", MIGRATIONS):
            for record in self.world.store.list(table):
                if record.key.namespace == NAMESPACE:
                    self.churn._delete(table, record.key.name)
        await super()._end_well()
