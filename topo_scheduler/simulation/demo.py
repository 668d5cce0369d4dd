"""The cluster of the demo: server, controllers and kubelet in this process, and the examples that run on it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from topo_scheduler.api.process import API_VERSION, LeaderElection
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer, Store, StoreEvent
from topo_scheduler.simulation.cluster import ClusterDescription
from topo_scheduler.simulation.controllers import controllers
from topo_scheduler.simulation.kubelet import Kubelet

_HERE: Final = Path(__file__).parent
DESCRIPTION: Final = _HERE / "demo.yaml"
"""What the cluster looks like."""
SEED: Final = 8
"""Of the generated names: the demo shows the same ones each time."""


def examples_folder() -> Path:
    """Return the folder of the examples: part of an installed package, or that of the checkout.

    Raises:
        FileNotFoundError: there is neither.
    """
    for folder in (_HERE / "examples", _HERE.parent.parent / "examples"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError("the examples are not installed: neither in the package nor beside it")


def example_files(folder: Path) -> tuple[list[Path], Path | None]:
    """Return the manifests of a folder in order, and the file with the scheduler's configuration."""
    manifests, config = [], None
    for path in sorted(folder.glob("*.yaml")):
        if any(document.get("apiVersion") == API_VERSION for document in documents(path)):
            config = path
        else:
            manifests.append(path)
    return manifests, config


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a YAML file."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document is not None:
            yield document


@asynccontextmanager
async def embedded_cluster(
    description: ClusterDescription, *, port: int = 0, run_seconds: float | None = None
) -> AsyncIterator[EmbeddedAPIServer]:
    """Run a cluster while the context lasts: its nodes are there, its controllers and kubelet at work.

    Args:
        description: which nodes.
        port: where the server listens on the loopback interface; 0 takes a free port.
        run_seconds: how long pods of Jobs run; None is for ever.

    Raises:
        OSError: the port is taken.
    """
    server = EmbeddedAPIServer(Store(seed=SEED))
    await server.start(port=port)
    try:
        for node in description.nodes():
            server.store.create("nodes", node)
        async with controllers(server.store), Kubelet(server.store, run_seconds=run_seconds):
            yield server
    finally:
        await server.stop()


def publish_configuration(store: Store, path: Path | None) -> None:
    """Create the ConfigMap of the manifests from a file, so that commands read what the scheduler runs with."""
    text = path.read_text(encoding="utf-8") if path is not None else "# All defaults.\n"
    body = {"metadata": {"name": "topology-scheduler-config"}, "data": {"config.yaml": text}}
    store.create("configmaps", body, "kube-system")


def release_lease(store: Store, election: LeaderElection) -> None:
    """Leave a Lease as a replica does that ended orderly: then the next leader need not wait out its binds."""
    store.create(
        "leases.coordination.k8s.io",
        {
            "metadata": {"name": election.resource_name, "namespace": election.resource_namespace},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0},
        },
        election.resource_namespace,
    )


def submit(store: Store, path: Path, namespace: str = "default") -> int:
    """Create the objects of a file, as ``kubectl apply -f`` would for the first time.

    Returns:
        How many pods there will be because of it.

    Raises:
        ValueError: an object of a kind that this server does not serve.
    """
    pods = 0
    for document in documents(path):
        kind = store.kinds.of(document.get("apiVersion", ""), document.get("kind", ""))
        if kind is None:
            raise ValueError(f"{path}: {document.get('apiVersion')} {document.get('kind')} is not served here")
        store.create(kind, document, document.get("metadata", {}).get("namespace") or namespace)
        pods += _pods_of(document)
    return pods


def _pods_of(document: dict[str, Any]) -> int:
    count = document.get("spec", {}).get({"Job": "parallelism"}.get(document["kind"], "replicas"), 1)
    return int(count) if document["kind"] in ("Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet") else 0


async def until(store: Store, holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds that depends on the store alone; return whether it came to that in time."""
    changed = asyncio.Event()

    def notice(table: str, event: StoreEvent) -> None:
        changed.set()

    store.observe(notice)
    try:
        async with asyncio.timeout(seconds):
            while not holds():
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return False
    finally:
        store.ignore(notice)
    return True
