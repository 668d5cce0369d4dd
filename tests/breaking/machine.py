"""A state machine for property tests: whole daemons in a cluster where anything fails."""

import asyncio
import os
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topo_scheduler.api.config import Configuration
from topo_scheduler.simulation.apiserver import BreakWatch, Delay, Disconnect, Refuse

from .invariants import caught_up, gpus_of, no_gpu_twice, settled
from .loop import VirtualLoop
from .world import ALONE, ELECTED, LEAVES, MIGRATIONS, Process, World, cluster, configured

NODES: Final = [f"{leaf.replace('/', '-')}-{n}" for leaf, count in LEAVES.items() for n in range(1, count + 1)]
MAX_GANGS: Final = 4
WRITES: Final = ["pods/binding", "pods/eviction", "migrations", "migrations/status", "events", "pods/status"]
FAULTS: Final = [
    Disconnect(applied=True),
    Disconnect(applied=False),
    Refuse(500),
    Refuse(409),
    Refuse(429, retry_after=1),
    Delay(3.0),
]
REST_SECONDS: Final = 700.0
"""Seconds after which seats, quarantines and pauses of all kinds are over."""


class FailureMachine(RuleBasedStateMachine):
    """A cluster with workloads in which nodes, writes, watches and daemons fail."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.number = 0
        self.gone: set[str] = set()

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, seconds: float) -> None:
        self.do(self._run(seconds))

    async def _run(self, seconds: float) -> None:
        """Let time pass; a process that falls meanwhile is followed by another one."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            await self.world.run(min(0.25, end - self.loop.time()))
            for process in [replica for replica in self.world.processes if replica.killed]:
                await process.bury()
                self.world.processes.remove(process)
                self._start()

    def _start(self) -> None:
        """Start a replica, of which the clock is wrong by minutes where there are several."""
        skew = self.skew * (len(self.world.processes) % 2)
        self.world.start(self.configuration, skew=skew)

    def name(self, what: str) -> str:
        self.number += 1
        return f"{what}-{self.number}"

    @property
    def leader(self) -> Process | None:
        return self.world.leader

    @initialize(
        replicas=st.sampled_from([1, 1, 2]),
        skew=st.sampled_from([0.0, -300.0, 300.0]),
        force=st.booleans(),
        at_once=st.sampled_from([1, 8]),
    )
    def begin(self, replicas: int, skew: float, force: bool, at_once: int) -> None:
        """Replicas start, and a gang runs."""
        self.skew = skew
        self.configuration: Configuration = configured(
            ALONE if replicas == 1 else ELECTED,
            force_delete=force,
            reservation_timeout=60.0,
            quarantine=30.0,
            limits={"at_once": at_once},
        )
        self.context = cluster(LEAVES)
        self.world: World = self.do(self.context.__aenter__())
        for _ in range(replicas):
            self._start()
        self.do(self.world.leading())
        self.began()
        self.world.gang(self.name("gang"), 3)
        self.run(2.0)

    def began(self) -> None:
        """What is there from the beginning."""

    # ------------------------------------------------------------ what users do

    @precondition(lambda self: len(self.world.gangs) < MAX_GANGS)
    @rule(size=st.integers(1, 3), policy=st.sampled_from(["replace", "replace", "restart-gang"]))
    def a_gang_comes(self, size: int, policy: str) -> None:
        """And stays."""
        said = {"on-failure": policy} if size > 1 else {}
        self.world.gang(self.name("gang"), size, said=said)
        self.run(0.5)

    @rule(size=st.integers(1, 4), seconds=st.integers(1, 40))
    def a_gang_comes_that_ends(self, size: int, seconds: int) -> None:
        """Its pods finish."""
        self.world.gang(self.name("short"), size, run=float(seconds))
        self.run(0.5)

    @rule(count=st.integers(1, 3), gpus=st.sampled_from([1, 4]))
    def pods_alone_come(self, count: int, gpus: int) -> None:
        """Pods of a ReplicaSet."""
        if self.number < 12:
            self.world.replicas(self.name("alone"), count, gpus=gpus)
        self.run(0.5)

    @precondition(lambda self: self.world.gangs)
    @rule(data=st.data())
    def a_gang_is_deleted(self, data: st.DataObject) -> None:
        """By the user who made it."""
        name = data.draw(st.sampled_from(sorted(self.world.gangs)))
        del self.world.gangs[name]
        self.world.delete("jobs.batch", name)
        self.run(0.5)

    @rule(data=st.data())
    def a_move_is_asked_for(self, data: st.DataObject) -> None:
        """By hand."""
        bound = sorted(
            pod["metadata"]["name"] for pod in self.world.pods(bound=True) if pod["metadata"]["namespace"] == "default"
        )
        if bound:
            self.world.request(self.name("asked"), data.draw(st.sampled_from(bound)))
        self.run(0.5)

    @rule(data=st.data())
    def a_migration_is_deleted(self, data: st.DataObject) -> None:
        """Which cancels it."""
        migrations = sorted(
            name
            for name, migration in self.world.migrations().items()
            if migration["metadata"]["namespace"] == "default"
        )
        if migrations:
            self.world.delete(MIGRATIONS, data.draw(st.sampled_from(migrations)))
        self.run(0.5)

    @rule(node=st.sampled_from(NODES), gpus=st.sampled_from([1, 4, 8]))
    def another_scheduler_binds(self, node: str, gpus: int) -> None:
        """Where there is room at the moment."""
        used = sum(gpus_of(pod) for pod in self.world.pods(bound=True) if pod["spec"]["nodeName"] == node)
        deciding = self.leader is not None and self.leader.engine.outcomes.in_flight
        if node not in self.gone and used + gpus <= 8 and not deciding:
            self.world.foreign(self.name("other"), node, gpus=gpus)
        self.run(0.5)

    # ------------------------------------------------------------ what breaks

    @rule(node=st.sampled_from(NODES), seconds=st.sampled_from([0.5, 6.0]))
    def a_node_fails(self, node: str, seconds: float) -> None:
        """It falls silent."""
        if node not in self.gone:
            self.world.fail(node)
        self.run(seconds)

    @rule(node=st.sampled_from(NODES))
    def a_node_heals(self, node: str) -> None:
        """It comes back, or was well."""
        self._heal(node)
        self.run(0.5)

    def _heal(self, node: str) -> None:
        if node in self.gone:
            self.gone.discard(node)
            spine, leaf, number = node.split("-")
            self.world.add_node(f"{spine}/{leaf}", int(number))
        self.world.heal(node)

    @rule(node=st.sampled_from(NODES), times=st.integers(1, 3))
    def a_node_flaps(self, node: str, times: int) -> None:
        """It falls silent for a moment, again and again."""
        for _ in range(times if node not in self.gone else 0):
            self.world.fail(node)
            self.run(1.0)
            self.world.heal(node)
            self.run(1.0)

    @rule(leaf=st.sampled_from(sorted(LEAVES)))
    def a_leaf_fails(self, leaf: str) -> None:
        """All its nodes fall silent."""
        names = [name for name in NODES if name.startswith(leaf.replace("/", "-")) and name not in self.gone]
        self.world.fail(*names)
        self.run(6.0)

    @rule(node=st.sampled_from(NODES))
    def a_node_is_deleted(self, node: str) -> None:
        """Its pods go with it."""
        if node not in self.gone and len(self.gone) < 3:
            self.gone.add(node)
            self.world.delete_node(node)
        self.run(0.5)

    @rule(
        how=st.sampled_from(["drop", "end", "expire", "truncate", "silence", "repeat"]),
        after=st.integers(0, 2),
        resource=st.sampled_from([None, "pods", "nodes", MIGRATIONS]),
    )
    def watches_break(self, how: Any, after: int, resource: str | None) -> None:
        """Those that are open."""
        self.world.server.break_watches(BreakWatch(how, after), resource)
        self.run(0.5)

    @rule(fault=st.sampled_from(FAULTS), resource=st.sampled_from(WRITES), times=st.integers(1, 2))
    def a_write_goes_wrong(self, fault: Any, resource: str, times: int) -> None:
        """One of the next, or its answer."""
        self.world.server.faults.add(
            fault, resource=resource, times=times, where=lambda info: info.verb not in ("get", "list", "watch")
        )
        self.run(0.5)

    @rule(seconds=st.sampled_from([1.0, 20.0, 60.0]))
    def the_server_is_away(self, seconds: float) -> None:
        """Nobody reaches it."""
        self.world.server.go_dark()
        self.run(seconds)
        self.world.server.down = False
        self.run(1.0)

    # ------------------------------------------------------------ what becomes of daemons

    @precondition(lambda self: self.leader is not None)
    @rule(write=st.integers(0, 8), after=st.booleans(), seconds=st.sampled_from([1.0, 8.0]))
    def the_daemon_is_killed_at_a_write(self, write: int, after: bool, seconds: float) -> None:
        """If it makes so many."""
        assert self.leader is not None
        knife = self.leader.wire.knife
        knife.count, knife.write, knife.after = 0, write, after
        self.run(seconds)
        knife.write = -1

    @precondition(lambda self: self.leader is not None)
    @rule()
    def the_daemon_is_killed(self) -> None:
        """At a moment like any other."""
        assert self.leader is not None
        self.do(self.leader.kill())
        self.run(1.0)

    @precondition(lambda self: self.leader is not None)
    @rule()
    def the_daemon_is_ended(self) -> None:
        """In order, and started again."""
        assert self.leader is not None
        self.do(self.leader.end())
        self.run(1.0)

    @precondition(lambda self: self.leader is not None)
    @rule(seconds=st.sampled_from([1.0, 40.0, 90.0]))
    def the_daemon_sleeps(self, seconds: float) -> None:
        """And wakes up late, believing what it believed."""
        process = self.leader
        assert process is not None
        process.sleep()
        self.run(seconds)
        process.wake()
        self.run(1.0)

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        """And nothing happens."""
        self.run(float(seconds))

    # ------------------------------------------------------------ what holds

    @invariant()
    def nothing_is_used_twice_and_what_is_believed_is_so(self) -> None:
        """At every moment but for the blink of an eye."""
        if hasattr(self, "world") and self.leader is not None:
            no_gpu_twice(self.world)
            self.do(caught_up(self.world))

    def teardown(self) -> None:
        """Once all is well, and time has passed, nothing is half done and nothing is left behind."""
        try:
            if hasattr(self, "world"):
                self.do(self._end_well())
        finally:
            if hasattr(self, "world"):
                self.do(self.context.__aexit__(None, None, None))
            self.do(asyncio.sleep(0))
            self.loop.close()

    async def _end_well(self) -> None:
        self.world.server.faults.clear()
        for node in NODES:
            self._heal(node)
        await self._run(REST_SECONDS)
        await settled(self.world)


LONG_PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE") == "long"
