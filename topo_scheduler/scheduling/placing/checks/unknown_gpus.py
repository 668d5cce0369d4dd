"""GPUs that no node has, as annotations ask for them: often a typing error, or a model's name for its architecture."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from topo_scheduler.api.gpu_needs import GpuNeeds, memory_text, mig_resource_suffix
from topo_scheduler.api.text import few_of
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.rules.gpu_filters import enough_memory
from topo_scheduler.state.nodes.gpu_facts import MigOffer
from topo_scheduler.state.nodes.node_table import Int64, NodeTable

_MAX_NAMED: Final = 6


def unknown_gpus(nodes: NodeTable, query: PlacementQuery) -> str:
    """Return the message for a workload that requires GPUs which no node has, whatever is free; empty if none.

    It names what there is instead, as users must write it.
    """
    for cls, _ in query.groups:
        needs = cls.gpu_needs
        if needs is not None and needs.required and not cls.by_claims_alone:
            rows = np.flatnonzero(nodes.exists).astype(np.int64)
            single = cls.gpus > 0
            profile = _profile(nodes, needs, rows, single=single)
            messages = (_memory(nodes, needs, rows), _architecture(nodes, needs, rows), profile)
            if message := "; ".join(filter(None, messages)):
                return message
    return ""


def _memory(nodes: NodeTable, needs: GpuNeeds, rows: Int64) -> str:
    if not needs.memory_bytes or enough_memory(nodes, needs, rows).any():
        return ""
    largest_bytes = int(nodes.gpus.memory[rows].max(initial=0))
    there_are = (
        f"the largest have {memory_text(largest_bytes)}" if largest_bytes else "the memory of no node's GPUs is known"
    )
    return f"no node has GPUs with {memory_text(needs.memory_bytes)} of memory: {there_are}"


def _architecture(nodes: NodeTable, needs: GpuNeeds, rows: Int64) -> str:
    numbers = np.unique(nodes.gpus.architecture[rows]).tolist()
    names = sorted(nodes.gpus.architectures[number] for number in numbers if number >= 0)
    if not needs.architectures or not set(needs.architectures).isdisjoint(names):
        return ""
    there_are = f"there are {few_of(names, _MAX_NAMED)}" if names else "that of no node's GPUs is known"
    return f"no node has GPUs of the architecture {few_of(needs.architectures)}: {there_are}"


def _profile(nodes: NodeTable, needs: GpuNeeds, rows: Int64, *, single: bool) -> str:
    """Return the message on a MIG profile. ``single``: the limits name the resource of whole GPUs."""
    numbers = np.unique(nodes.gpus.mig[rows]).tolist()
    offers = [nodes.gpus.mig_offers[number] for number in numbers if number >= 0]
    names = sorted({profile for offer in offers for profile in offer.profiles})
    if not needs.mig_profile:
        return ""
    if needs.mig_profile in names:
        strategies = {offer.strategy for offer in offers if needs.mig_profile in offer.profiles}
        if strategies & {"single"} if single else strategies - {"single"}:
            return ""
        limits = "nvidia.com/gpu" if not single else f"nvidia.com/mig-{mig_resource_suffix(needs.mig_profile)}"
        return f"nodes with the profile {needs.mig_profile} offer it as {limits}: set the limits on that resource"
    if not names:
        return "no node offers MIG devices as a resource" + _by_labels(offers)
    there_are = few_of(names, _MAX_NAMED)
    return f"no node offers MIG devices of the profile {needs.mig_profile}: there are {there_are}{_by_labels(offers)}"


def _by_labels(offers: Sequence[MigOffer]) -> str:
    """Return what labels of nodes say of MIG."""
    configs = sorted({offer.config for offer in offers if offer.config})
    named = f"; the nodes' MIG configurations are {few_of(configs, _MAX_NAMED)}" if configs else ""
    if any(offer.capable for offer in offers):
        return f"{named}; by their labels some nodes are MIG-capable: another configuration may provide the profile"
    if any(offer.capable is False for offer in offers):
        return f"{named}; by their labels no nodes are MIG-capable"
    return named
