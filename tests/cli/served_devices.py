"""ResourceSlices and claims on the API server that commands talk to."""

from functools import partial
from typing import Any

import pytest

from tests.cli.conftest import Served
from tests.state.device_objects import Json
from topo_scheduler.cli import device_listing, engine_snapshot
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Forbidden, NotFound
from topo_scheduler.kube.connection.resources import Resource
from topo_scheduler.kube.reading.listing import list_all

CLAIMS = "resourceclaims.resource.k8s.io"


def publish(served: Served, *objects: Json) -> None:
    """Create slices and claims."""
    store = served.server.store

    def write() -> None:
        for item in objects:
            if "spec" in item:
                store.create("resourceslices.resource.k8s.io", item)
            else:
                namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
                if store.find("namespaces", namespace) is None:
                    store.create("namespaces", {"metadata": {"name": namespace}})
                for entry in item["status"]["reservedFor"]:  # a pod that is gone loses its reservation
                    spec = {"containers": [{"name": "main", "image": "busybox"}]}
                    pod = store.create("pods", {"metadata": {"name": entry["name"]}, "spec": spec}, namespace)
                    entry["uid"] = pod["metadata"]["uid"]
                store.create(CLAIMS, {"metadata": {"name": name}, "spec": {}}, namespace)
                store.modify(CLAIMS, name, namespace, partial(with_status, status=item["status"]), subresource="status")

    served.call(write)


def with_status(item: Json, status: Json) -> Json:
    return {**item, "status": status}


def refuse(served: Served, monkeypatch: pytest.MonkeyPatch, resource: str, status: str) -> None:
    """Have the server refuse to list a kind."""

    async def listing(client: Client, kind: Resource[Any]) -> tuple[list[Any], list[str]]:
        if kind.plural == resource:
            raise {"403": Forbidden, "404": NotFound}[status](int(status), "", "refused")
        return await list_all(client, kind)

    for module in (device_listing, engine_snapshot):
        monkeypatch.setattr(module, "list_all", listing)
