"""What must hold of a cluster, and of what a daemon believes of it."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tests.e2e.objects import NVIDIA, SCHEDULER
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.kube.connection.resources import NODES, PODS
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.simulation.apiserver import Json
from topo_scheduler.state.pods.pod_groups import Serving
from topo_scheduler.state.pods.workloads import Stage

from .world import Process, World, owner_of

LANDS_SECONDS: Final = 5.0
"""In which what was written last is there, and is known to be."""


HALF_SECONDS: Final = 20.0
"""In which a partially bound gang is completed or rolled back: 5 s until that is decided, and its evictions."""


def gpus_of(pod: Json) -> int:
    """Return the GPUs a pod asks for."""
    return sum(int(container["resources"].get("limits", {}).get(NVIDIA, 0)) for container in pod["spec"]["containers"])


def no_gpu_twice(world: World) -> None:
    """No node runs pods of more GPUs than it has."""
    used: Counter[str] = Counter()
    for pod in world.pods(bound=True):
        used[pod["spec"]["nodeName"]] += gpus_of(pod)
    for record in world.store.list("nodes"):
        has = int(record["status"]["allocatable"].get(NVIDIA, 0))
        assert used[record.key.name] <= has, f"{record.key.name} runs pods of {used[record.key.name]} GPUs"


def partially_bound_gangs(world: World) -> list[str]:
    """Return the gangs of which some members are bound and others are not."""
    bound: Counter[str] = Counter(owner_of(pod) for pod in world.pods(bound=True))
    return [
        f"{name}: {bound[name]} of {size} are bound" for name, size in world.gangs.items() if 0 < bound[name] < size
    ]


def no_partially_bound_gang(world: World) -> None:
    """A gang runs whole, or not at all."""
    assert not partially_bound_gangs(world)


async def no_gang_stays_half(world: World) -> None:
    """Once nothing goes wrong any more, a partially bound gang is completed or rolled back before long."""
    end = world.loop.time() + HALF_SECONDS
    while half := partially_bound_gangs(world):
        assert world.loop.time() < end, f"{half} for {HALF_SECONDS:g} s after the last fault"
        await world.run(0.1)


def believed(engine: Engine) -> dict[str, str]:
    """Return the node of each pod that holds room in a ledger, by uid."""
    return {uid: entry.node for uid, entry in engine.world.ledger.items()}


def true(world: World) -> dict[str, str]:
    """Return the node of each pod that holds room, by uid."""
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in world.pods(bound=True)}


async def caught_up(world: World) -> None:
    """What the daemon believes becomes what is: at once, or when its watches have come back."""
    process = await world.leading()

    def agrees() -> bool:
        leader = world.leader
        return leader is not None and believed(leader.engine) == true(world) and not leader.engine.outcomes.in_flight

    await world.until(agrees, 150.0, step=0.05)
    leader = world.leader or process
    _charged(leader.engine)


def _charged(engine: Engine) -> None:
    """A node is charged with what its pods hold, and with what is held for others."""
    fresh: Counter[tuple[int, int]] = Counter()
    entries = [entry for _, entry in engine.world.ledger.items()]
    for entry in entries:
        for column, amount in entry.amounts:
            fresh[entry.row, column] += amount
    for row, amounts in engine.world.kept.items():
        for column, amount in amounts:
            fresh[row, column] += amount
    for (row, column), amount in fresh.items():
        if row >= 0:
            assert int(engine.world.nodes.requested[row, column]) == amount
    assert int(engine.world.nodes.requested.sum()) == sum(n for (row, _), n in fresh.items() if row >= 0)


async def nothing_left(world: World) -> Process:
    """Nothing is reserved, and no Migration hangs, once all writes under way have landed; return the leader."""
    end = world.loop.time() + LANDS_SECONDS
    while left := _left(world, (process := await world.leading()).engine):
        assert world.loop.time() < end, f"{left} after {LANDS_SECONDS:g} s"
        await world.run(0.05)
    return process


def _left(world: World, engine: Engine) -> dict[str, object]:
    """What is held, under way, or not over."""
    seats, outcomes = engine.preempting.replacements, engine.outcomes
    held = {
        "seats of Migrations that are over": len(seats) or seats.taken,
        "nominations": len(engine.preempting.nominations),
        "in flight": outcomes.in_flight,
        "held back": len(outcomes.admission_backoff),
    }
    schedulers = {pod["metadata"]["name"]: pod["spec"].get("schedulerName") for pod in world.pods(bound=True)}
    hanging = {
        name: migration.get("status") or {}
        for name, migration in world.migrations().items()
        if migration.get("status") or not _of_another_scheduler(migration, schedulers)
    }
    return {what: how for what, how in held.items() if how} | {
        f"Migration {name}": status for name, status in hanging.items() if not _over(status)
    }


def _of_another_scheduler(migration: Json, schedulers: Mapping[str, str | None]) -> bool:
    """Whether another scheduler placed the first pod: this one answers only once that has not answered for minutes."""
    named = [schedulers[pod["name"]] for pod in migration["spec"]["pods"] if pod["name"] in schedulers]
    return bool(named) and named[0] != SCHEDULER


def _over(status: Json) -> bool:
    """Whether a Migration has ended, or waits for room without holding any."""
    why = next(
        (condition["reason"] for condition in status.get("conditions") or () if condition["type"] == "Reserved"), ""
    )
    phase = status.get("phase")
    return phase in ("Done", "Failed", "Cancelled") or (phase == "Planned" and why == "NoRoom")


def as_if_rebuilt(world: World, process: Process) -> None:
    """An engine that reads only what there is believes the same, and finds nothing that could be bound."""
    term = process.daemon.term
    assert term is not None
    engine, now = term.engine, process.daemon._clock()
    fresh = Engine(process.daemon.configuration, term._resolve, epoch=engine.world.epoch)
    for api in GroupApi:
        fresh.groups_served(api, Serving.ABSENT, now, now)
    fresh.budgets_known()
    nodes, pods = Codec(NODES), Codec(PODS)
    fresh.nodes_applied([nodes.one(record.encoded()) for record in world.store.list("nodes")], now)
    fresh.pods_applied([pods.one(record.encoded()) for record in world.store.list("pods")], now)
    assert believed(fresh) == believed(engine)
    assert _requested(fresh) == _requested(engine)
    assert _waiting(fresh) == _waiting(engine)
    said = fresh.step(now, lambda: 0.0)
    assert not [instruction for instruction in said if isinstance(instruction, Bind)], (
        "something could be bound, and the leader does not bind it"
    )


def _requested(engine: Engine) -> dict[str, dict[str, int]]:
    nodes = engine.world.nodes
    return {
        name: {nodes.resources.names[column]: int(n) for column, n in enumerate(nodes.requested[row]) if n}
        for name, row in nodes.row_of.items()
    }


def _waiting(engine: Engine) -> dict[str, list[str]]:
    pending = {
        workload.id: sorted(member.uid for member in workload.at(Stage.PENDING)) for workload in engine.workloads
    }
    return {id_: uids for id_, uids in pending.items() if uids}


async def settled(world: World) -> None:
    """All of this, once all has come to rest."""
    await caught_up(world)
    await no_gang_stays_half(world)
    process = await nothing_left(world)
    no_gpu_twice(world)
    no_partially_bound_gang(world)
    as_if_rebuilt(world, process)
