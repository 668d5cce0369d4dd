"""A cluster's life for an engine, from a seed: jobs come and end, binds fail, nodes go down, priorities differ."""

import random
import time
from collections import deque

from tests.helpers import make_node, make_pod, owner
from tests.recording.making import HeardDriver
from tests.scheduling.driver import configured, gang
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.scheduling.instructions import BindOutcome, Instruction, Nominate, Preempt
from topo_scheduler.state.pods.workloads import Stage

CONFIGS = (configured(), configured("{topologyConstraints: {enforcement: preferred, maxNodesPerLeaf: 8}}"))
SHARING = {"topology.scheduler/gpu-sharing": "true"}
SIZES = (1, 1, 1, 2, 2, 4, 4, 8, 16)
LUCK = (BindOutcome.BOUND,) * 12 + (BindOutcome.REJECTED, BindOutcome.UNKNOWN, BindOutcome.GONE)


class Traffic:
    """Drives an engine until it has made so many decisions."""

    def __init__(self, d: HeardDriver, seed: int, leaves: int = 50, per_leaf: int = 20) -> None:
        self.d = d
        self.decisions = 0
        self._random = random.Random(seed)
        self._number = 0
        self._running: deque[tuple[float, list[Pod]]] = deque()
        self._nodes = [
            make_node(f"n{leaf}-{n}", f"s{leaf // 10}/l{leaf}", gpus=8, labels={} if leaf % 5 else SHARING)
            for leaf in range(leaves)
            for n in range(per_leaf)
        ]
        d.clock = time.perf_counter
        d.nodes(*self._nodes)
        d.engine.budgets_known()

    def run(self, decisions: int) -> None:
        """Go on until so many decisions were made in all."""
        while self.decisions < decisions:
            self._turn()

    def _turn(self) -> None:
        d, chance = self.d, self._random
        d.now += chance.choice((0.01, 0.1, 1.0))
        for _ in range(chance.randrange(4)):
            self._submit()
        if chance.random() < 0.05:
            self._node_changes(chance.choice(self._nodes))
        if chance.random() < 0.005:
            d.engine.configure(chance.choice(CONFIGS))
        while self._running and (self._running[0][0] < d.now or len(self._running) > 400):
            d.delete(*self._running.popleft()[1])
        self._answer(d.step())

    def _submit(self) -> None:
        d, chance = self.d, self._random
        self._number += 1
        size, gpus, name = chance.choice(SIZES), chance.choice((1, 2, 4, 8, 8)), f"job-{self._number}"
        if size == 1 and gpus == 1:
            pods = [make_pod(name, created=d.now, annotations={"gpu-fraction": chance.choice(("0.5", "0.3"))})]
        elif size == 1:
            pods = [make_pod(name, gpus=gpus, created=d.now, priority=chance.choice((0, 0, 0, 5)))]
        else:
            pods = gang(size, gpus=gpus, name=name, controlled=chance.random() < 0.5)
            if pods[0].metadata.controller is not None:
                d.own(owner("ReplicaSet", name, {"gang-size": str(size)}))
        d.apply(*pods)
        self._running.append((d.now + chance.uniform(5, 120), pods))

    def _node_changes(self, node: Node) -> None:
        name, labels = node.metadata.name, node.metadata.labels
        path = f"{labels['topology.scheduler/spine']}/{labels['topology.scheduler/leaf']}"
        kept = {key: value for key, value in labels.items() if key in SHARING}
        self.d.nodes(make_node(name, path, gpus=8, labels=kept, ready=self._random.random() < 0.7))

    def _answer(self, said: list[Instruction]) -> None:
        d, chance = self.d, self._random
        self.decisions += len(d.decisions())
        d.forget()
        for uid in list(d.flight):
            if uid not in d.pods:
                del d.flight[uid]
            elif not d.refused(uid):
                outcome = chance.choice(LUCK)
                d.answer(uid, outcome if outcome is not BindOutcome.GONE else BindOutcome.TAKEN)
        for instruction in said:
            if isinstance(instruction, Preempt) and instruction.pod.uid in d.pods:
                d.evict(d.pods[instruction.pod.uid])
            elif isinstance(instruction, Nominate) and instruction.pod.uid in d.pods:
                pod = d.pods[instruction.pod.uid]
                membership = d.engine.workloads.of_pod(instruction.pod.uid)
                if membership is not None and membership[1].stage is Stage.PENDING:
                    pod.status.nominated_node_name = instruction.node
                    d.apply(pod)
