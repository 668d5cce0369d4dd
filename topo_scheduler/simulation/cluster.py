"""Describe a leaf-spine cluster in a few lines of YAML, and generate its nodes.

::

    spines:
      - name: spine-1
        leaves:
          - {name: leaf-1, nodes: 4, gpuModel: NVIDIA-H100-80GB-HBM3, bandwidth: 400Gb}
          - {name: leaf-2, nodes: 3, gpuModel: NVIDIA-A100-SXM4-80GB, bandwidth: 200Gb, down: [2]}

Nodes are numbered across the whole cluster from ``node-1``; numbers in ``down`` count within the leaf.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import Field, model_validator

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.models import Model

H100: Final = "NVIDIA-H100-80GB-HBM3"
GPU_RESOURCE: Final = "nvidia.com/gpu"
MODEL_LABEL: Final = "nvidia.com/gpu.product"


class LeafDescription(Model):
    """A leaf switch and its nodes, which are identical."""

    name: str
    nodes: Annotated[int, Field(ge=1, le=10_000)]
    """Number of nodes."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 8
    """GPUs of each node."""
    gpu_model: str = H100
    """Model of the GPUs, as the GPU operator's label names it; empty for a node without that label."""
    bandwidth: str = ""
    """Network bandwidth of each node, e.g. ``400Gb``; empty for nodes without that label."""
    cpu: str = "128"
    memory: str = "1Ti"
    pods: int = 110
    down: tuple[int, ...] = ()
    """Numbers of the nodes that are not ready, from 1 within the leaf."""

    @model_validator(mode="after")
    def _inside(self) -> "LeafDescription":
        if out_of_range := [number for number in self.down if not 1 <= number <= self.nodes]:
            raise ValueError(f"down names node {out_of_range[0]} of {self.nodes}")
        return self


class SpineDescription(Model):
    """A spine switch and the leaves below it."""

    name: str
    leaves: Annotated[tuple[LeafDescription, ...], Field(min_length=1)]


class ClusterDescription(Model):
    """A whole cluster."""

    spines: Annotated[tuple[SpineDescription, ...], Field(min_length=1)]
    node_prefix: str = "node-"
    """Prefix of the number in node names."""

    @classmethod
    def read(cls, path: Path) -> "ClusterDescription":
        """Read a description from a YAML file; raises ``ValueError`` if it is invalid."""
        return cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Yield the manifest of every node, in fabric order."""
        number = 0
        for spine in self.spines:
            for leaf in spine.leaves:
                for number_in_leaf in range(1, leaf.nodes + 1):
                    number += 1
                    yield node(f"{self.node_prefix}{number}", spine.name, leaf, ready=number_in_leaf not in leaf.down)


def node(name: str, spine: str, leaf: LeafDescription, *, ready: bool = True) -> dict[str, Any]:
    """Return the manifest of one node."""
    labels = {"kubernetes.io/hostname": name, f"{PREFIX}spine": spine, f"{PREFIX}leaf": leaf.name}
    if leaf.gpu_model:
        labels[MODEL_LABEL] = leaf.gpu_model
    if leaf.bandwidth:
        labels[f"{PREFIX}network-bandwidth"] = leaf.bandwidth
    amounts = {"cpu": leaf.cpu, "memory": leaf.memory, "pods": str(leaf.pods)}
    if leaf.gpus:
        amounts[GPU_RESOURCE] = str(leaf.gpus)
    condition = (
        {"status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
        if ready
        else {"status": "False", "reason": "KubeletNotReady", "message": "the node is down"}
    )
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", **condition}],
            "nodeInfo": {"kubeletVersion": "v1.34.0", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }
