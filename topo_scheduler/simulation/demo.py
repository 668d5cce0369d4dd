"""The demo cluster: API server, controllers and kubelet in this process, and the example manifests."""

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
from topo_scheduler.simulation.demo_devices import publish
from topo_scheduler.simulation.kubelet import Kubelet
from topo_scheduler.state.topology.natural_sort import natural_key

_HERE: Final = Path(__file__).parent
DESCRIPTION: Final = _HERE / "demo.yaml"
"""The file that describes the cluster."""
SEED: Final = 8
"""Seed of the generated names, so that the demo shows the same names each time."""


def examples_folder() -> Path:
    """Return the folder of the examples, of the installed package or of the checkout.

    Raises:
        FileNotFoundError: neither exists.
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


def claim_files(folder: Path) -> list[Path]:
    """Return the manifests with ResourceClaims in order, which need the devices of the demo."""
    return sorted((folder / "claims").glob("*.yaml"))


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a YAML file."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document is not None:
            yield document


@asynccontextmanager
async def embedded_cluster(
    description: ClusterDescription, *, port: int = 0, run_seconds: float | None = None
) -> AsyncIterator[EmbeddedAPIServer]:
    """Run a cluster with nodes, controllers and kubelet while the context lasts.

    Args:
        description: its nodes.
        port: port of the server on the loopback interface; 0 takes a free port.
        run_seconds: how long pods of Jobs run, in seconds; None is for ever.

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
    """Create the ConfigMap of the manifests from a file, so that commands read the configuration of the scheduler."""
    text = path.read_text(encoding="utf-8") if path is not None else "# All defaults.\n"
    body = {"metadata": {"name": "topology-scheduler-config"}, "data": {"config.yaml": text}}
    store.create("configmaps", body, "kube-system")


def publish_devices(store: Store) -> None:
    """Create the ResourceSlices of the last two nodes: one with GPUs that can be split, one with whole ones."""
    split, whole = sorted((obj.key.name for obj in store.list("nodes")), key=natural_key)[-2:]
    publish(store, whole=[(whole, 4)], mig=[(split, 2)])


def release_lease(store: Store, election: LeaderElection) -> None:
    """Create a released Lease, as after a graceful shutdown, so that the first leader starts without delay."""
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
        The number of pods that the objects create.

    Raises:
        ValueError: an object of a kind that this server does not serve.
    """
    pods = 0
    for document in documents(path):
        kind = store.kinds.kind_of(document.get("apiVersion", ""), document.get("kind", ""))
        if kind is None:
            raise ValueError(f"{path}: {document.get('apiVersion')} {document.get('kind')} is not served here")
        store.create(kind, document, document.get("metadata", {}).get("namespace") or namespace)
        pods += _pods_of(document)
    return pods


def _pods_of(document: dict[str, Any]) -> int:
    count = document.get("spec", {}).get({"Job": "parallelism"}.get(document["kind"], "replicas"), 1)
    return int(count) if document["kind"] in ("Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet") else 0


async def until(store: Store, holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition on the store holds; return whether it held within ``seconds``."""
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
