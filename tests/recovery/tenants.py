"""A cluster of several tenants, whose API server compares the names and namespaces of evicted pods."""

from tests.recovery.world import World
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.recovery.model.instructions import EvictPod, RecoveryInstruction


class Tenants(World):
    """Evictions name a pod, and the API server compares its uid: that of another namespace's pod is of no use."""

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Do what recovery wants done."""
        if isinstance(instruction, EvictPod):
            pod = self.pods.get(instruction.pod.uid)
            if pod is not None and (pod.metadata.namespace, pod.metadata.name) != (
                instruction.pod.namespace,
                instruction.pod.name,
            ):
                self.recovery.migrations.evicted(
                    instruction.migration,
                    instruction.pod.uid,
                    reason=MigrationReason.EVICTION_FAILED,
                    message="not found",
                    now=self.now,
                )
                return
        super().carry_out(instruction)
