"""Filters for what is known of the GPUs of a node, for pods that ask for it by annotation.

What is not known of a node does not meet a request.
"""

from typing import Final, cast

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.scheduling.extensions.extension import Nodes
from topo_scheduler.state.devices.node_hardware import MEMORY_PERCENT
from topo_scheduler.state.nodes.gpu_facts import GpuFacts
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.classes import PodClass

Bool = npt.NDArray[np.bool_]


def _gpus(nodes: Nodes) -> GpuFacts:
    return cast("NodeTable", nodes).gpus  # filters of the scheduler itself get the table


def enough_memory(nodes: Nodes, needs: GpuNeeds, rows: Int64) -> Bool:
    """Return the rows whose GPUs have enough memory."""
    enough: Bool = _gpus(nodes).memory[rows] // MEMORY_PERCENT * 100 >= needs.memory_bytes
    return enough


def right_architecture(nodes: Nodes, needs: GpuNeeds, rows: Int64) -> Bool:
    """Return the rows whose GPUs have an acceptable architecture."""
    names = _gpus(nodes).architectures
    accepted = np.array([number for number, name in enumerate(names) if name in needs.architectures], np.int64)
    right: Bool = np.isin(_gpus(nodes).architecture[rows], accepted)
    return right


def right_profile(nodes: Nodes, needs: GpuNeeds, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows that offer MIG devices of the profile by the resource that the pod's limits name.

    With the strategy ``single`` that is the resource of whole GPUs, with ``mixed`` one for each profile.
    """
    single = cls.gpus > 0
    accepted = [
        number
        for number, offer in enumerate(_gpus(nodes).mig_offers)
        if needs.mig_profile in offer.profiles and (offer.strategy == "single") == single
    ]
    right: Bool = np.isin(_gpus(nodes).mig[rows], np.array(accepted, np.int64))
    return right


# ---------------------------------------------------------------- as filters


_NOTHING: Final = GpuNeeds()


def _required(cls: PodClass) -> GpuNeeds:
    """Return what a class requires of the GPUs of a node; not of those that only claims give it, device by device."""
    if cls.gpu_needs is None or not cls.gpu_needs.required or cls.by_claims_alone:
        return _NOTHING
    return cls.gpu_needs


def _all(rows: Int64) -> Bool:
    return np.ones(len(rows), np.bool_)


def counts_gpus(cls: PodClass) -> bool:
    """Return whether the number of GPUs of a node is a reason of its own: for pods that ask more of them."""
    return cls.gpus > 0 and cls.gpu_needs is not None and cls.gpu_needs.required


def count_accepts(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows whose nodes have as many GPUs as a pod asks for, whether free or not."""
    return nodes.allocatable[rows, GPU] >= cls.gpus if counts_gpus(cls) else _all(rows)


def asks_memory(cls: PodClass) -> bool:
    """Return whether a class requires memory of its GPUs."""
    return _required(cls).memory_bytes > 0


def memory_is_known(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows whose GPUs have a known size of memory."""
    return _gpus(nodes).memory[rows] > 0 if asks_memory(cls) else _all(rows)


def memory_accepts(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows whose GPUs have the memory that a class requires."""
    return enough_memory(nodes, _required(cls), rows) if asks_memory(cls) else _all(rows)


def asks_architecture(cls: PodClass) -> bool:
    """Return whether a class requires an architecture."""
    return bool(_required(cls).architectures)


def architecture_is_known(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows whose GPUs have a known architecture."""
    return _gpus(nodes).architecture[rows] >= 0 if asks_architecture(cls) else _all(rows)


def architecture_accepts(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows whose GPUs have an architecture that a class requires."""
    return right_architecture(nodes, _required(cls), rows) if asks_architecture(cls) else _all(rows)


def asks_profile(cls: PodClass) -> bool:
    """Return whether a class requires a MIG profile."""
    return bool(_required(cls).mig_profile)


def profile_accepts(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows that offer the MIG profile that a class requires."""
    return right_profile(nodes, _required(cls), cls, rows) if asks_profile(cls) else _all(rows)
