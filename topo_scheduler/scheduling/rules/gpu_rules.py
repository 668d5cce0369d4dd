"""Rules for what a pod asks of its GPUs by annotation: number, memory, architecture, MIG, and how close they are."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.devices.device_score import BEST_SCORE, DeviceScores, topology_parts, use_scores
from topo_scheduler.scheduling.devices.plugin_choice import set_of
from topo_scheduler.scheduling.rules.gpu_filters import Bool, enough_memory, right_architecture, right_profile
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass


def asks_close_gpus(cls: PodClass) -> bool:
    """Return whether it matters to a class how close the GPUs of a pod are to each other."""
    return cls.gpu_needs is not None and cls.gpu_needs.close and cls.gpus > 1


def needs_close_gpus(cls: PodClass) -> bool:
    """Return whether nodes are excluded for a class if their free GPUs are not close to each other."""
    return cls.gpu_needs is not None and cls.gpu_needs.required and asks_close_gpus(cls)


def prefers_gpus(cls: PodClass) -> bool:
    """Return whether a class prefers some GPUs to others."""
    return cls.gpu_needs is not None and not cls.gpu_needs.required


def prefers_close_gpus(cls: PodClass) -> bool:
    """Return whether a class prefers nodes whose free GPUs are close to each other."""
    return cls.gpu_needs is not None and not cls.gpu_needs.required and asks_close_gpus(cls)


def close_gpu_limits(context: FilterContext, cls: PodClass, rows: Int64, *, empty: bool) -> Int64:
    """Return how many pods of a class each row takes with GPUs as close as they ask (int64 of the length of rows)."""
    if context.gpu_sets is None or cls.gpu_needs is None or not len(rows):
        return np.zeros(len(rows), np.int64)
    row_fits = context.gpu_sets.fits(cls.gpu_needs.closeness(), cls.gpus, rows, empty=empty)
    return np.array([fit.pods for fit in row_fits.fits], np.int64)[row_fits.of_row]


def close_gpu_rejections(context: FilterContext, cls: PodClass, rows: Int64) -> Iterator[tuple[str, Bool]]:
    """Yield reasons, and the rows that each rejects."""
    if not needs_close_gpus(cls) or context.gpu_sets is None or cls.gpu_needs is None or not len(rows):
        return
    causes = context.gpu_sets.shortages(cls.gpu_needs.closeness(), cls.gpus, rows)
    for cause in sorted(set(filter(None, causes))):
        yield f"{NodeReason.GPU_CLOSENESS}: {cause}", np.array([other == cause for other in causes], np.bool_)


def device_scores(context: FilterContext, cls: PodClass, rows: Int64) -> DeviceScores:
    """Return the score of each row for a pod of a class that asks how close its GPUs are."""
    topology = np.zeros(len(rows), np.int64)
    if context.gpu_sets is not None and cls.gpu_needs is not None:
        topology = context.gpu_sets.topologies(cls.gpu_needs.closeness(), cls.gpus, rows)
    return DeviceScores(topology, *use_scores(context.nodes, cls, rows))


def device_score_of(context: FilterContext, cls: PodClass, row: int, indexes: Sequence[int]) -> dict[str, int] | None:
    """Return the score of the GPUs that a pod gets on a row, by its parts; None if it does not ask for close ones."""
    sets = context.gpu_sets
    gpus = sets.hardware.of(row) if sets is not None else None
    if sets is None or gpus is None or not indexes or not asks_close_gpus(cls):
        return None
    topology = topology_parts(gpus, set_of(indexes), sets.tables.of)
    resources, balance = use_scores(context.nodes, cls, np.array([row], np.int64))
    scores = DeviceScores(np.array([sum(topology)], np.int64), resources, balance)
    of_topology = {name.replace("_", "-"): part for name, part in topology._asdict().items()}
    of_node = {name: int(part[0]) for name, part in scores._asdict().items()}
    return {"total": int(scores.total[0]), **of_node, **of_topology}


def met_wishes(context: FilterContext, cls: PodClass, rows: Int64) -> Int64:
    """Return which share of what a class prefers of its GPUs each row meets: 0 to 100 (int64 of the length of rows)."""
    needs, nodes = cls.gpu_needs, context.nodes
    total = np.zeros(len(rows), np.int64)
    if needs is None or needs.required:
        return total
    met: list[Bool] = []
    if needs.memory_bytes:
        met.append(enough_memory(nodes, needs, rows))
    if needs.architectures:
        met.append(right_architecture(nodes, needs, rows))
    if needs.mig_profile:
        met.append(right_profile(nodes, needs, cls, rows))
    if prefers_close_gpus(cls) and context.gpu_sets is not None:
        strict = replace(cls, gpu_needs=GpuNeeds(needs.locality, needs.bandwidth))
        met.append(close_gpu_limits(context, strict, rows, empty=False) > 0)
    for rows_met in met:
        total += rows_met
    return BEST_SCORE * total // max(1, len(met))
