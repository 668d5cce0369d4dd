"""Migrations of a tenant with any values in spec and status: each is refused, or planned, and harms no other."""

import time
from typing import Final

import pytest

from tests.kube.odd_objects import Generator, Json, written
from topo_scheduler.api.migrations import Cause, Migration, Move, Phase
from topo_scheduler.api.recovery import DefragmentationSpec, RecoverySpec
from topo_scheduler.kube.connection.odd_json import readable
from topo_scheduler.kube.writing.migrations import Unreadable, read_migration
from topo_scheduler.recovery.controller.disabled import malformed, without_recovery
from topo_scheduler.recovery.model.instructions import (
    CountRecoveryFailure,
    PhaseDuration,
    Warn,
)
from topo_scheduler.recovery.model.seating import vacant

from .tenants import Tenants
from .world import World, copy_of

NAMESPACE: Final = "hostile"
LONGEST_SECONDS: Final = 0.3
SEEDS: Final = 25


def odd_migration(generator: Generator, number: int, uids: list[str]) -> dict[str, Json]:
    """Return a Migration that names pods of the tenant, of others, and ones that do not exist."""
    item = generator.object(Migration)
    random = generator.random
    pods = [{"name": uid, "uid": generator.pick("", uid)} for uid in random.sample(uids, random.randrange(1, 4))]
    spec = item["spec"] if isinstance(item.get("spec"), dict) else {}
    if random.random() < 0.8:
        spec["pods"] = pods
        spec["schedulerName"] = generator.pick("", "", "topology-aware-scheduler", "not-running")
    spec["reason"] = generator.pick(*Cause, spec.get("reason", ""))
    item["spec"] = spec
    status = item.get("status")
    if isinstance(status, dict) and random.random() < 0.7:
        status["phase"] = generator.pick(*Phase)
        status["schedulerName"] = generator.pick("", "", "topology-aware-scheduler", "not-running")
        moves = status.get("moves")
        moves = [move for move in moves if isinstance(move, dict)] if isinstance(moves, list) else []
        for move in moves:
            move |= {"uid": generator.pick(*uids), "from": "s1-l1-1", "to": generator.pick("s1-l1-2", "s2-l1-1", "")}
        status["moves"] = moves
    item["metadata"] = {
        "name": f"odd-{number}",
        "namespace": NAMESPACE,
        "uid": f"migration-odd-{number}",
        "creationTimestamp": generator.pick("2023-11-14T22:13:20Z", "9999-12-31T23:59:59Z", None),
    }
    return item


class Play:
    """Runs one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = Generator(seed, (0.0, 0.02, 0.05)[seed % 3], (0.2, 0.5, 0.7)[seed // 3 % 3], bulk=0.01)
        spec = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True, mig_slots=True))
        self.world = Tenants(spec, {"s1/l1": 3, "s1/l2": 3, "s2/l1": 3})
        self.slow: list[float] = []
        self.unreadable: list[Unreadable] = []

    def run(self) -> None:
        """A tenant writes Migrations, while a node of another tenant's gang fails."""
        world = self.world
        gang = world.gang("good", 2)
        world.run()
        tenants = [
            world.put(f"h{n}", node, 1, namespace=NAMESPACE)
            for n, node in enumerate(("s1-l1-3", "s1-l2-1", "s2-l1-1", "s2-l1-2"))
        ]
        uids = [pod.metadata.uid for pod in (*tenants, *gang)] + ["missing"]
        for number in range(20):
            self.write(odd_migration(self.generator, number % 8, uids))
            began = time.thread_time()
            world.run(self.generator.pick(0.0, 1.0, 30.0))
            self.slow.append(time.thread_time() - began)
            if number == 10:
                world.fail(gang[0].spec.node_name)
        world.run(300.0, 10.0)
        for key in [key for key in world.migrations if key.startswith(NAMESPACE)]:
            world.cancel(key)
        if gang[0].metadata.uid in world.pods:
            world.finish_pod(gang[0].metadata.uid)
        world.run(1000.0, 50.0)

    def write(self, item: dict[str, Json]) -> None:
        """The API server takes a Migration, and the scheduler reads it."""
        world = self.world
        world.revision += 1
        item["metadata"]["resourceVersion"] = str(world.revision)
        parsed = read_migration(readable(written(item)))
        if isinstance(parsed, Unreadable):
            answer = malformed(parsed, world.scheduler, world.now)
            self.unreadable.append(parsed)
            assert answer is None or parsed.name
            return
        without_recovery(parsed, world.scheduler, world.now)
        if parsed.key in world.migrations:
            world.cancel(parsed.key)
        world.migrations[parsed.key] = parsed
        world.recovery.migration_seen(copy_of(parsed), world.now)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_migrations_with_any_values_harm_no_others(seed: int) -> None:
    play = Play(seed)
    play.run()
    world = play.world
    assert not [instruction for instruction in world.emitted if isinstance(instruction, CountRecoveryFailure)]
    assert not [
        instruction
        for instruction in world.emitted
        if isinstance(instruction, Warn) and "failed during" in instruction.message
    ]
    assert len(world.nodes_of("good-")) == 2, "the gang of another tenant runs again"
    assert max(play.slow[1:]) < LONGEST_SECONDS
    world.check()


def test_amounts_of_seats_do_not_overflow() -> None:
    """Two seats with 2**63 - 1 GPUs each would make a full node look empty."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2})
    requests = {"nvidia.com/gpu": 2**63 - 1}
    assert not vacant(
        world.view, [Move(uid="a", to="s1-l1-1", requests=requests), Move(uid="b", to="s1-l1-1", requests=requests)]
    )
    move = {"pod": "h", "uid": "h", "from": "s1-l1-1", "to": "s1-l1-2"}
    for amount, accepted in ((2**53, True), (2**53 + 1, False), (-1, False)):
        status = {"phase": "Placing", "moves": [{**move, "requests": {"nvidia.com/gpu": amount}}]}
        item = {"metadata": {"name": "m", "namespace": "hostile"}, "spec": {"pods": [{"name": "h"}]}, "status": status}
        parsed = read_migration(written(item))
        assert isinstance(parsed, Migration) is accepted
        assert accepted or "status.moves[].requests" in parsed.message  # type: ignore[union-attr]


def test_a_migration_with_deep_metadata_is_read() -> None:
    """It was not: while recovery was off, answering it was an internal error, every five seconds."""
    for value in ("[" * 5_000 + "]" * 5_000, r'"\ud800"'):
        metadata = f'"metadata":{{"name":"m","namespace":"hostile","managedFields":{value}}}'
        migration = read_migration(f'{{{metadata},"spec":{{"pods":[{{"name":"h"}}]}}}}'.encode())
        assert isinstance(migration, Migration)
        assert [pod.name for pod in migration.spec.pods] == ["h"]


def test_a_phase_that_does_not_exist_is_no_label_of_the_metrics() -> None:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2})
    world.put("p", "s1-l1-1", 1, namespace=NAMESPACE)
    world.run(1)
    world.request("m", "p", namespace=NAMESPACE, avoid=["s1"])
    world.run(1)

    def edit(migration: Migration) -> None:
        migration.status.phase = "Invented"
        migration.status.times = {"Invented": "2023-11-14T22:13:20Z"}

    world.edit(f"{NAMESPACE}/m", edit)
    world.run(1)
    assert world.migrations[f"{NAMESPACE}/m"].status.phase != "Invented", "recovery goes on with it"
    phases = {instruction.phase for instruction in world.emitted if isinstance(instruction, PhaseDuration)}
    assert phases <= {*(phase.value for phase in Phase), "total"}
