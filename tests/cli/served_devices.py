"""ResourceSlices and claims on the API server that commands talk to."""

from functools import partial

from tests.cli.conftest import Served
from tests.state.device_objects import Json

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
