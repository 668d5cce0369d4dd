"""Tables of GPUs follow what pods usually ask for, and arrive from outside of decisions."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.devices.shapes import from_file
from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.annotations import GPU_INDEX
from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.recording import checkpoint
from topo_scheduler.runtime.gpu_tables import GpuTableWork
from topo_scheduler.scheduling.devices import shape_tables
from topo_scheduler.scheduling.devices.shape_tables import ShapeTables, TableRequest, compute, weights_of
from topo_scheduler.state.devices.hardware import Gpu, GpuLink, NodeHardware
from topo_scheduler.state.devices.node_hardware import NodeGpus

V100 = "Tesla-V100-SXM2-16GB"
SHARED = {GPU_SHARING: "true"}


def tables_of(d: Driver) -> ShapeTables:
    sets = d.engine.world.around.gpu_sets
    assert sets is not None
    return sets.tables


def chosen_beside(d: Driver, taken: str, gpus: int = 1) -> list[int]:
    """Return the GPUs of a pod that asks for close ones on a node with GPUs in use."""
    d.apply(make_pod("taken", gpus=len(taken.split(",")), node="probe", annotations={GPU_INDEX: taken}))
    pod = make_pod("asks", gpus=gpus, annotations={"gpu-locality": "nvlink"})
    assert d.run(pod) == {"asks": "probe"}
    return [int(index) for index in pod.metadata.annotations[GPU_INDEX].split(",")]


def busy_with(size: int) -> Driver:
    """Return a cluster in which most pods have a number of GPUs, and an empty node."""
    nodes = [make_node(f"n{number}", "s1/l1", model="NVIDIA-L40S") for number in range(24)]
    d = Driver([*nodes, make_node("probe", "s1/l2", model=V100, labels=SHARED)])
    for number in range(24):
        d.apply(*[make_pod(f"p{number}-{at}", gpus=size, node=f"n{number}") for at in range(8 // size)])
    d.settle()
    return d


@pytest.mark.parametrize(("usual", "chosen"), [(2, [2, 3]), (3, [0, 4])])
def test_what_stays_free_is_what_this_cluster_usually_asks_for(usual: int, chosen: list[int]) -> None:
    """Of GPUs 0 to 4 of a DGX-1, 0 and 4 share as much as 2 and 3. Without 2 and 3, 0 and 4 are a good pair.

    Without 0 and 4, the others are a ring of three with more than one link.
    """
    assert chosen_beside(busy_with(usual), "5,6,7", 2) == chosen


def test_weights_follow_the_pods_rarely() -> None:
    d = busy_with(2)
    tables = tables_of(d)
    chosen_beside(d, "5,6,7", 2)
    before = tables.version
    for number in range(60):
        d.delete(
            *[d.pods[uid] for uid in [uid for uid, pod in d.pods.items() if pod.metadata.name == f"p{number % 24}-0"]]
        )
        d.apply(make_pod(f"p{number % 24}-0", gpus=2 if number % 3 else 1, node=f"n{number % 24}"))
        d.settle()
    assert tables.version == before
    for number in range(24):
        d.delete(*[pod for pod in list(d.pods.values()) if pod.metadata.name.startswith(f"p{number}-")])
        d.apply(make_pod(f"q{number}", gpus=8, node=f"n{number}"))
        d.settle()
    assert before < tables.version <= before + 4
    assert max(range(17), key=lambda size: tables.weights[size]) == 8


def test_weights_are_bounded_whatever_pods_ask() -> None:
    weights = weights_of({0: 10**9, 1: 10**9, 3: 10**9, 16: 1, 17: 10**9, 10**6: 5})
    assert len(weights) == 17 and not weights[0] and not weights[1]
    assert weights[3] == max(weights) and 98 <= sum(weights) <= 102


# ---------------------------------------------------------------- tables that are computed elsewhere


def deferred(*nodes: tuple[str, str]) -> Driver:
    d = Driver([make_node(name, "s1/l1", model=model) for name, model in nodes])
    d.engine.defer_gpu_tables()
    return d


def wants_bandwidth(name: str, gpus: int = 8) -> Pod:
    return make_pod(name, gpus=gpus, annotations={"gpu-min-bandwidth": "80G"})


def test_a_bandwidth_that_is_not_known_yet_stays_pending_until_the_tables_are_there() -> None:
    """A ring over all GPUs of a DGX-1 runs at 50 GB/s, which takes the tables to find."""
    d = deferred(("n", V100))
    pod = wants_bandwidth("p")
    assert d.run(pod) == {}
    assert "the bandwidth of rings over its GPUs is not computed yet" in d.told(pod, Reason.FAILED_SCHEDULING)[-1]
    (request,) = tables_of(d).take_wanted()
    assert tables_of(d).take_wanted() == []
    d.engine.gpu_tables_ready(*request)
    d.settle()
    assert pod.spec.node_name == "n"


def test_below_a_switch_no_pod_waits_for_tables() -> None:
    d = deferred(("n", "NVIDIA-H100-80GB-HBM3"))
    pods = [make_pod(f"p{n}", gpus=4, annotations={"gpu-min-bandwidth": "400G"}) for n in range(2)]
    assert d.run(*pods) == {"p0": "n", "p1": "n"}


def test_tables_of_nodes_that_went_meanwhile_change_nothing() -> None:
    d = deferred(("n", V100))
    d.run(pod := wants_bandwidth("p"))
    d.engine.gpu_tables_ready(4711, [0] * 17)
    d.settle(30)
    assert not pod.spec.node_name and not tables_of(d).version


def test_new_weights_are_computed_while_the_former_tables_decide() -> None:
    d = busy_with(2)
    d.engine.defer_gpu_tables()
    chosen_beside(d, "5,6,7", 2)
    (request,) = tables_of(d).take_wanted()
    d.engine.gpu_tables_ready(*request)
    version = tables_of(d).version
    for number in range(24):
        d.delete(*[pod for pod in list(d.pods.values()) if pod.metadata.name.startswith(f"p{number}-")])
        d.apply(*[make_pod(f"q{number}-{at}", gpus=3, node=f"n{number}") for at in range(2)])
    d.settle()
    (following,) = tables_of(d).take_wanted()
    assert following.kind == request.kind and following.weights != request.weights
    assert tables_of(d).version == version
    d.engine.gpu_tables_ready(*following)
    d.delete(next(pod for pod in d.pods.values() if pod.metadata.name == "asks"))
    pod = make_pod("again", gpus=2, annotations={"gpu-locality": "nvlink"})
    assert d.run(pod) == {"again": "probe"}
    assert pod.metadata.annotations[GPU_INDEX] == "0,4"


@pytest.mark.unrecorded
def test_a_checkpoint_keeps_which_tables_decide() -> None:
    d = deferred(("n", V100))
    d.run(wants_bandwidth("p"))
    d.engine.gpu_tables_ready(*tables_of(d).take_wanted()[0])
    data = checkpoint.dump(d.engine, d.engine.arrivals._resolve, "notifier")
    again = checkpoint.load(data, d.engine.arrivals._resolve, d.engine.extensions)
    sets, hardware = again.world.around.gpu_sets, d.engine.world.hardware.kinds[0].hardware
    assert sets is not None and len(data) < 1_000_000
    assert sets.tables.of(hardware).ring(255) == tables_of(d).of(hardware).ring(255) == 50_000


def hardware(number: int, gpus: int = 2) -> NodeHardware:
    return NodeHardware(tuple(Gpu(index) for index in range(gpus)), links=(GpuLink(0, 1, 1, 1_000 + number),))


@pytest.mark.unrecorded
def test_tables_in_use_never_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_tables, "MAX_SMALL_TABLES", 3)
    d = Driver([make_node(f"n{number}", "s1/l1", model=V100) for number in range(5)])
    d.engine.defer_gpu_tables()
    tables, world = tables_of(d), d.engine.world
    for number in range(5):
        world.hardware.kinds[number] = NodeGpus(hardware(number))
        world.nodes.gpus.kind[number] = number
    assert [tables.put(TableRequest(number, tables.weights)) for number in range(5)] == [True] * 3 + [False] * 2
    tables.of(hardware(4))
    assert tables.take_wanted() == []
    world.nodes.gpus.kind[0] = 1  # no node has the first kind any more
    assert tables.put(TableRequest(4, tables.weights))
    assert not tables.put(TableRequest(3, tables.weights))


@pytest.mark.unrecorded
async def test_the_loop_turns_while_tables_of_16_gpus_are_computed() -> None:
    d = deferred(("n", V100))
    tasks: list[asyncio.Task[None]] = []
    done = asyncio.Event()

    def start(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.create_task(work, name=name))

    work = GpuTableWork(d.engine, start, done.set)
    large = from_file("rccl/topo_16p1h.xml")
    d.engine.world.hardware.kinds[0] = NodeGpus(large)
    compute(hardware(0), ())  # compiles the kernels
    tables_of(d).of(large)
    work.look()
    work.look()
    started, turns = time.perf_counter(), 0
    while not done.is_set():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 10 * (time.perf_counter() - started)  # 100 a second on an idle machine
    assert len(tasks) == 1 and tables_of(d).of(large).ring(0xFFFF) == 50_000


@pytest.mark.unrecorded
async def test_tables_that_cannot_be_computed_leave_the_approximate_choice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    d = deferred(("n", V100))
    tasks: list[asyncio.Task[None]] = []
    work = GpuTableWork(d.engine, lambda job, name: tasks.append(asyncio.create_task(job)), lambda: None)

    def fails(hardware: NodeHardware, weights: object) -> None:
        raise MemoryError

    monkeypatch.setattr("topo_scheduler.runtime.gpu_tables.compute", fails)
    d.run(wants_bandwidth("p"))
    work.look()
    await asyncio.gather(*tasks)
    assert "tables of a node with 8 GPUs could not be computed" in caplog.text
    assert d.run(wants_bandwidth("q", 2)) == {"q": "n"}
    work.look()
    assert len(tasks) == 1
