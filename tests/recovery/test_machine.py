"""Whatever happens in whatever order: no GPU twice, no seat left behind, and every gang whole again in the end."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.recovery.world import Kill, World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec

LEAVES = {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4}
NODES = [f"{leaf.replace('/', '-')}-{n}" for leaf, count in LEAVES.items() for n in range(1, count + 1)]


class Failing(RuleBasedStateMachine):
    """Nodes fail and heal, the daemon is killed at writes, people ask for moves and cancel them."""

    def __init__(self) -> None:
        super().__init__()
        self.gangs: dict[str, int] = {}

    @initialize(force=st.booleans(), at_once=st.sampled_from([1, 8]))
    def begin(self, force: bool, at_once: int) -> None:
        """A cluster with two gangs."""
        limits = RecoveryLimits(at_once=at_once)
        spec = RecoverySpec(
            enabled=True, force_delete=force, debounce=5, reservation_timeout=60, quarantine=30, limits=limits
        )
        self.world = World(spec, LEAVES)
        for name, size in (("a", 2), ("b", 1)):
            self.gangs[name] = size
            self.world.gang(name, size)
        self.world.run()

    @precondition(lambda self: len(self.gangs) < 4)
    @rule(size=st.integers(1, 2))
    def arrive(self, size: int) -> None:
        """A gang arrives."""
        name = "abcd"[len(self.gangs)]
        self.gangs[name] = size
        self.world.gang(name, size)
        self.world.run()

    @rule(node=st.sampled_from(NODES), ready=st.sampled_from(["False", "Unknown"]))
    def fail(self, node: str, ready: str) -> None:
        """A node falls silent."""
        self.world.fail(node, ready=ready)
        self.world.run()

    @rule(node=st.sampled_from(NODES))
    def heal(self, node: str) -> None:
        """A node comes back; what was terminating there ends."""
        self.world.heal(node)
        for uid in [uid for uid, pod in self.world.pods.items() if pod.spec.node_name == node]:
            if self.world.pods[uid].metadata.deletion_timestamp:
                self.world.finish_pod(uid)
        self.world.run()

    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.world.run(seconds)

    @rule(write=st.integers(0, 6), after=st.booleans(), seconds=st.integers(1, 12))
    def kill(self, write: int, after: bool, seconds: int) -> None:
        """The daemon is killed at one of its next writes."""
        self.world.kill = Kill(write, after)
        self.world.run(seconds)
        self.world.kill = Kill()

    @rule()
    def restart(self) -> None:
        """The daemon starts again."""
        self.world.start()
        self.world.run()

    @rule(data=st.data())
    def request(self, data: st.DataObject) -> None:
        """A user asks for a move."""
        bound = sorted(pod.metadata.name for pod in self.world.pods.values() if pod.spec.node_name)
        if bound:
            self.world.request(f"by-hand-{self.world.revision}", data.draw(st.sampled_from(bound)))
            self.world.run()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A user deletes a Migration."""
        if self.world.migrations:
            self.world.cancel(data.draw(st.sampled_from(sorted(self.world.migrations))))
            self.world.run()

    @invariant()
    def nothing_twice(self) -> None:
        """What must hold at every moment."""
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Once all is well, every gang runs whole and no Migration is left hanging."""
        if not hasattr(self, "world"):
            return
        for node in NODES:
            self.heal(node)
        self.world.run(400, step=5)
        self.world.check()
        for name, size in self.gangs.items():
            assert len(self.world.nodes_of(f"{name}-")) == size, name
        assert not self.world.d.engine.preempting.replacements
        for migration in self.world.migrations.values():
            reserved = next(
                (condition.reason for condition in migration.status.conditions if condition.type == "Reserved"), ""
            )
            assert migration.phase is not None, migration
            # A Migration that there is no room for waits.
            assert migration.phase.over or (migration.phase is Phase.PLANNED and reserved == "NoRoom"), migration


TestFailing = Failing.TestCase
TestFailing.settings = settings(
    max_examples=25, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
