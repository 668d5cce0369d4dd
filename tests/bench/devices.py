"""How well devices are chosen: GPUs of real nodes by bandwidth, and slots of MIG instances by fragmentation.

``python -m tests.bench.devices {gpus,mig,mig-engine,tables} [--seeds N] [--write]``: JSON on stdout. Every policy
sees the same pods.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import product
from statistics import mean, median, stdev
from typing import Final

from tests.devices.gpu_stream import bandwidth_kept, usual_sizes
from tests.devices.mig_stream import WARM_UP, MigLoad, MigOutcome, run_stream
from tests.devices.shapes import dgx_1v, folder, from_file
from tests.docs.results import keep
from topo_scheduler.scheduling.devices.gpu_tables import GpuTables, Shape, shape_of
from topo_scheduler.scheduling.devices.mig_slots import MigSlots
from topo_scheduler.simulation.devices.gpu_choosers import (
    Choose,
    NvidiaBestEffort,
    RandomChoice,
    RocmWeights,
    first_fit,
)
from topo_scheduler.simulation.devices.mig_choosers import ChooseSlot, RandomSlot, packed, spread
from topo_scheduler.simulation.devices.mig_choosers import first_fit as first_slot
from topo_scheduler.state.devices.hardware import HardwareError, NodeHardware, pair_bandwidth
from topo_scheduler.state.devices.mig import GIB, geometry_of

from .device_promises import BEHIND_BOUND_POINTS, MESH_BOUND_PERCENT, MIG_BOUNDS, TABLE_BOUNDS_MS
from .mig_engine import EngineOutcome, run_engine
from .mig_repack import Repacking
from .objects import Json

# ---------------------------------------------------------------- GPUs

GPU_LOAD: Final = 0.9
PODS: Final = 3_000
MakeChooser = Callable[[int], Choose]
"""Takes a seed."""


def is_mesh(hardware: NodeHardware) -> bool:
    """Return whether GPUs have direct links, and not all pairs have the same bandwidth."""
    pairs = pair_bandwidth(hardware)
    count = len(pairs)
    return bool(hardware.links) and len({int(pairs[a, b]) for a in range(count) for b in range(a)}) > 1


def hardware_of_files() -> Iterator[tuple[str, NodeHardware]]:
    """Yield the DGX-1 with V100, then each topology file with at least two GPUs, by name.

    Two files describe no node: one names no GPU, the other is a graph of rings.
    """
    yield "DGX-1 with V100", dgx_1v()
    for path in sorted(folder().rglob("*.xml")):
        name = path.relative_to(folder()).as_posix()
        try:
            hardware = from_file(name)
        except HardwareError:
            continue
        if len(hardware.gpus) > 1:
            yield name.removesuffix(".xml"), hardware


def distinct() -> dict[str, tuple[NodeHardware, int]]:
    """Return hardware by the name of its first file, with the number of files that describe nodes alike."""
    names: dict[object, str] = {}
    kinds: dict[str, tuple[NodeHardware, int]] = {}
    for name, hardware in hardware_of_files():
        first = names.setdefault((shape_of(hardware), hardware.links, hardware.gpu_paths), name)
        kinds[first] = hardware, kinds.get(first, (hardware, 0))[1] + 1
    return kinds


def gpu_choosers(hardware: NodeHardware, tables: GpuTables) -> dict[str, MakeChooser]:
    """Return the policies by name. Those without randomness keep what they computed for other seeds."""
    nvidia, rocm = NvidiaBestEffort(hardware).choose, RocmWeights(hardware).choose
    return {
        "random": lambda seed: RandomChoice(seed).choose,
        "first_fit": lambda _: first_fit,
        "nvidia_best_effort": lambda _: nvidia,
        "rocm": lambda _: rocm,
        "ours": lambda _: tables.choose,
    }


def gpus(seeds: int) -> Json:
    """Measure the bandwidth that pods keep on each kind of node."""
    rows = []
    for name, (hardware, files) in distinct().items():
        tables = GpuTables(shape_of(hardware), usual_sizes(len(hardware.gpus)))
        row: Json = {"node": name, "gpus": len(hardware.gpus), "files": files, "mesh": is_mesh(hardware)}
        for policy, make in gpu_choosers(hardware, tables).items():
            kept = [
                bandwidth_kept(tables, make(seed), seed, pods=PODS, load=GPU_LOAD, beside=policy == "ours")
                for seed in range(seeds)
            ]
            row[policy] = round(100 * mean(outcome.share for outcome in kept), 2)
            row[f"{policy}_lowest"] = round(100 * min(outcome.share for outcome in kept), 2)
            row[f"{policy}_ideal"] = round(100 * mean(outcome.ideal for outcome in kept), 2)
        row["behind_points"] = round(max(row["nvidia_best_effort"], row["rocm"]) - row["ours"], 2)
        _say(f"{name}: {row['ours']} %")
        rows.append(row)
    meshes = [row for row in rows if row["mesh"]]
    below = [row["node"] for row in meshes if row["ours"] < MESH_BOUND_PERCENT]
    return {
        "load_percent": round(100 * GPU_LOAD),
        "pods": PODS,
        "seeds": seeds,
        "rows": rows,
        "nodes": len(rows),
        "meshes": len(meshes),
        "meshes_below_bound": len(below),
        "nodes_below_bound": ", ".join(f"`{name}`" for name in below) or "none",
        "lowest_on_meshes_percent": min(row["ours"] for row in meshes),
        "most_behind_points": max(row["behind_points"] for row in rows),
    }


def result_of_gpus(figures: Json) -> str:
    """Return the result in words."""
    ahead = figures["most_behind_points"] <= BEHIND_BOUND_POINTS
    return (
        f"{'nowhere' if ahead else 'somewhere'} more than {BEHIND_BOUND_POINTS} points below another chooser;"
        f" {figures['meshes_below_bound']} of {figures['meshes']} meshes below {MESH_BOUND_PERCENT:.0f} %"
    )


def tables(repeats: int) -> Json:
    """Measure the CPU time for the tables of each shape with 8 or 16 GPUs, and for the choices from all of its GPUs.

    It is the median of some repeats. Choices from fewer free GPUs take less.
    """
    times_ms: dict[int, list[float]] = {count: [] for count in TABLE_BOUNDS_MS}
    for shape in {shape_of(hardware) for hardware, _ in distinct().values() if len(hardware.gpus) in TABLE_BOUNDS_MS}:
        count = len(shape.pairs)
        weights = usual_sizes(count)
        GpuTables(shape, weights)  # what the first call in a process costs does not count
        times_ms[count].append(median(_milliseconds(shape, weights) for _ in range(repeats)))
    rows: list[Json] = [
        {"gpus": count, "shapes": len(times), "longest_ms": round(max(times), 2), "aim_ms": TABLE_BOUNDS_MS[count]}
        for count, times in times_ms.items()
    ]
    longest = {f"longest_of_{row['gpus']}_ms": row["longest_ms"] for row in rows}
    return {"repeats": repeats, **longest, "rows": rows}


def _milliseconds(shape: Shape, weights: Sequence[int]) -> float:
    began = time.thread_time()
    tables = GpuTables(shape, weights)
    tables.choose(tables.all_gpus, 1)
    return 1000 * (time.thread_time() - began)


def result_of_tables(figures: Json) -> str:
    """Return the result in words."""
    return ", ".join(f"{figures[f'longest_of_{count}_ms']} ms for {count} GPUs" for count in TABLE_BOUNDS_MS)


# ---------------------------------------------------------------- MIG

MODEL: Final = "NVIDIA H100 80GB HBM3"
MEMORY_BYTES: Final = 80 * GIB
FITTED: Final = "fitted"
MIXES: Final[Mapping[str, Mapping[str, int]]] = {
    FITTED: {"1g.10gb": 4, "1g.20gb": 7, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 1, "7g.80gb": 2},
    "equal": {"1g.10gb": 1, "1g.20gb": 1, "2g.20gb": 1, "3g.40gb": 1, "4g.40gb": 1, "7g.80gb": 1},
    "no whole GPU": {"1g.10gb": 8, "1g.20gb": 2, "2g.20gb": 5, "3g.40gb": 4, "4g.40gb": 1},
    "many whole GPUs": {"1g.10gb": 5, "2g.20gb": 1, "3g.40gb": 1, "7g.80gb": 3},
}
"""How often each profile is asked for. ``fitted`` comes nearest to the published shares of five simple policies."""
OF_OTHER_MIXES: Final = frozenset({"spread", "first_fit", "ours"})
OURS: Final = "ours"
SEEDS_OF_OURS: Final = 20
"""Runs of our rule for each run of the other choosers: its verdict is near the bound."""
ENGINE_POLICIES: Final[Mapping[str, int]] = {"engine": 0, "engine_two_moves": 2}
"""What an engine decides, each with the moves that it may plan for a request."""
ENGINES_AT_ONCE: Final = 2
"""Processes."""
MIG_LOADS: Final = (0.7, 0.9)
MIG_GPUS: Final = 24
REQUESTS: Final = 2_000
MakeSlotChooser = Callable[[int], ChooseSlot]


def slot_choosers(slots: MigSlots) -> dict[str, MakeSlotChooser]:
    """Return the policies by name."""
    return {
        "random": lambda seed: RandomSlot(slots, random.Random(seed)),
        "spread": lambda _: spread(slots),
        "first_fit": lambda _: first_slot(slots),
        "packed": lambda _: packed(slots),
        OURS: lambda _: slots.choose,
    }


def mig(seeds: int) -> Json:
    """Measure which share of requests is blocked only by fragmentation, by mix, load and policy."""
    geometry = geometry_of(MODEL, MEMORY_BYTES)
    assert geometry is not None
    repacking, slots = Repacking(geometry, MIG_GPUS), MigSlots(geometry)
    rows: list[Json] = []
    for mix, weights in MIXES.items():
        for load in MIG_LOADS:
            asked = MigLoad(weights, load, MIG_GPUS, REQUESTS)
            for policy, make in slot_choosers(slots).items():
                if mix != FITTED and policy not in OF_OTHER_MIXES:
                    continue
                runs = seeds * SEEDS_OF_OURS if policy == OURS and mix == FITTED else seeds
                outcomes = [run_stream(geometry, make(seed), asked, seed, repacking.fits) for seed in range(runs)]
                rows.append({"mix": mix, "load_percent": round(100 * load), "policy": policy} | _blocked(outcomes))
                _say(f"{mix} {load} {policy}: {rows[-1]['fragmented_percent']} %")
    return {
        "model": MODEL,
        "gpus": MIG_GPUS,
        "requests": REQUESTS - WARM_UP,
        "seeds": seeds,
        "seeds_of_ours": seeds * SEEDS_OF_OURS,
        "fitted": _by_name(rows),
        **{
            f"ours_{end}_at_{row['load_percent']}": row[f"{end}_percent"]
            for row in rows
            if row["mix"] == FITTED and row["policy"] == OURS
            for end in ("lowest", "highest")
        },
        "rows": rows,
    }


def mig_engine(seeds: int) -> Json:
    """Measure the same for the decisions of an engine, without moves and with those that it plans."""
    rows: list[Json] = []
    runs: dict[tuple[float, str], list[Future[EngineOutcome]]] = {}
    with ProcessPoolExecutor(ENGINES_AT_ONCE) as pool:
        for load, policy in product(MIG_LOADS, ENGINE_POLICIES):
            runs[load, policy] = [pool.submit(_run_engine, load, policy, seed) for seed in range(seeds)]
        for (load, policy), submitted in runs.items():
            outcomes = [run.result() for run in submitted]
            plans = sum((outcome.plans for outcome in outcomes), Counter[int]())
            counted = sum(outcome.counted for outcome in outcomes)
            made = {
                "one_move_percent": round(100 * plans[1] / counted, 2),
                "two_moves_percent": round(100 * plans[2] / counted, 2),
            }
            row = {"mix": FITTED, "load_percent": round(100 * load), "policy": policy}
            rows.append(row | _blocked(outcomes) | made)
    return {"seeds": seeds, "fitted": _by_name(rows), "rows": rows}


def _run_engine(load: float, policy: str, seed: int) -> EngineOutcome:
    geometry = geometry_of(MODEL, MEMORY_BYTES)
    assert geometry is not None
    asked = MigLoad(MIXES[FITTED], load, MIG_GPUS, REQUESTS)
    outcome = run_engine(geometry, asked, seed, Repacking(geometry, MIG_GPUS).fits, ENGINE_POLICIES[policy])
    _say(f"{load} {policy} seed {seed}: {100 * outcome.share:.2f} %")
    return outcome


def _by_name(rows: Sequence[Json]) -> Json:
    """Return the figures of the mix that is fitted, by policy and load."""
    return {
        f"{row['policy']}_at_{row['load_percent']}": row["fragmented_percent"] for row in rows if row["mix"] == FITTED
    }


def _blocked(outcomes: Sequence[MigOutcome]) -> Json:
    shares = [100 * outcome.share for outcome in outcomes]
    counted = sum(outcome.counted for outcome in outcomes)
    return {
        "seeds": len(outcomes),
        "fragmented_percent": round(mean(shares), 2),
        "error_percent": round(stdev(shares) / len(shares) ** 0.5, 2) if len(shares) > 1 else None,
        "lowest_percent": round(min(shares), 2),
        "highest_percent": round(max(shares), 2),
        "full_percent": round(100 * sum(outcome.full for outcome in outcomes) / counted, 2),
    }


def result_of_mig(figures: Json) -> str:
    """Return the result in words."""
    percents = {name: figures["fitted"][name] for name in MIG_BOUNDS if figures["fitted"].get(name) is not None}
    kept = sum(value <= MIG_BOUNDS[name] for name, value in percents.items())
    return f"{kept} of {len(percents)} bounds kept: " + ", ".join(f"{value} %" for value in percents.values())


# ---------------------------------------------------------------- command

PARTS: Final = {
    "gpus": ("device_bandwidth", gpus, result_of_gpus),
    "tables": ("gpu_tables", tables, result_of_tables),
    "mig": ("mig_fragmentation", mig, result_of_mig),
    "mig-engine": ("mig_engine", mig_engine, result_of_mig),
}


def main(arguments: list[str]) -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.devices", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    seeds_help = "runs of each policy, with seeds from 0, or repeats of `tables` (default 10)"
    parser.add_argument("--seeds", type=int, default=10, help=seeds_help)
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    given = parser.parse_args(arguments)
    name, measure, result = PARTS[given.part]
    figures = measure(given.seeds)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    _say(result(figures))
    if given.write:
        keep(name, result(figures), figures)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
