"""A cluster whose API server does not say whether nodes exist."""

from tests.recovery.world import RECOVERY_ENABLED, World
from topo_scheduler.recovery.model.instructions import FindNode, RecoveryInstruction

LEAVES = {f"s1/l{number}": 4 for number in range(1, 5)}
FORCED = RECOVERY_ENABLED.model_copy(update={"force_delete": True})


class SilentServer(World):
    """A cluster whose API server does not say whether nodes exist; the test does."""

    def __post_init__(self) -> None:
        self.finds: list[str] = []
        super().__post_init__()

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Do what recovery wants done, but leave questions about nodes open."""
        if isinstance(instruction, FindNode):
            self.finds.append(instruction.name)
        else:
            super().carry_out(instruction)
