"""Pods that run before a test begins, and the pods that may preempt them or wait for their end."""

from tests.helpers import make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Pod


def fill_nodes(d: Driver, *nodes: str) -> list[Pod]:
    """Fill nodes of 8 GPUs with running pods of another scheduler."""
    there = [make_pod(f"busy-{node}", gpus=8, scheduler="other", node=node, phase="Running") for node in nodes]
    d.apply(*there)
    return there
