"""The server under test: ``--apiserver=embedded`` (the default), ``real`` or ``oldest``."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import yaml

from topo_scheduler.simulation.apiserver import EmbeddedAPIServer

from .client import Client, Target, connect

GATES = {"GenericWorkload": True}
"""PodGroups are alpha in Kubernetes 1.36: off unless asked for."""
ALPHA = ("scheduling.k8s.io/v1alpha2=true",)


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """One server for the whole suite, with RBAC on; we are its administrator."""
    wanted = request.config.getoption("--apiserver")
    if wanted == "embedded":
        yield from _embedded()
        return
    from tests.controlplane import ControlPlane

    if wanted == "oldest":
        plane = ControlPlane(version="oldest", with_controller_manager=False)
    else:
        plane = ControlPlane(with_controller_manager=False, feature_gates=GATES, runtime_config=ALPHA)
    with plane:
        yield Target(plane.url, plane.token, ca_file=str(plane.ca_file), oldest=wanted == "oldest")


def _embedded() -> Iterator[Target]:
    """An embedded server on a loop of its own, as the tests' loops come and go."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded-apiserver")
    thread.start()
    server = EmbeddedAPIServer(rbac=True)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    config = yaml.safe_load(yaml.safe_dump(server.kubeconfig()))
    try:
        yield Target(server.url, config["users"][0]["user"]["token"], embedded=True)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
async def api(target: Target, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client with a namespace of this test's own."""
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:10]
    async with connect(target, f"contract-{digest}") as client:
        yield client
