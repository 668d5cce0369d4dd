"""Objects that exist on the API server of a test, and writes to them."""

from typing import Any

from topo_scheduler.api.devices import AllocatedDevice, Allocation, DeviceAllocation
from topo_scheduler.state.devices.claim_writes import AllocateClaim, consumer
from topo_scheduler.state.storage.storage_objects import ReserveVolume, SelectNode

from .world import Json, World

CLAIMS = "resourceclaims.resource.k8s.io"
KEY = ("default", "c")
CHOSEN = Allocation(DeviceAllocation([AllocatedDevice("gpus", "gpu.example.com", "n1", "gpu-3")]))


def made_claim(w: World, spec: Json | None = None, **changed: Any) -> AllocateClaim:
    """A claim, and the write that allocates it."""
    new = {"metadata": {"name": "c", "finalizers": ["a/b"]}, "spec": spec or {}}
    claim = w.server.store.create(CLAIMS, new, "default")
    meta = claim["metadata"]
    write: dict[str, Any] = {
        "key": KEY,
        "uid": meta["uid"],
        "version": meta["resourceVersion"],
        "finalizers": ("a/b",),
        "allocation": CHOSEN,
        "reserved_for": (),
        "pod": consumer("p", "uid-p"),
    }
    return AllocateClaim(**{**write, **changed})


def made_volume(w: World) -> tuple[ReserveVolume, SelectNode]:
    """A volume and a claim, and both ways to bring them together."""
    store = w.server.store
    volume = store.create("persistentvolumes", {"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"}}})
    claim = store.create("persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": {}}, "default")
    key = ("default", "data")
    volume_meta, claim_meta = volume["metadata"], claim["metadata"]
    reserve = ReserveVolume(
        "pv",
        volume_meta["uid"],
        volume_meta["resourceVersion"],
        key,
        claim_meta["uid"],
        claim_meta["resourceVersion"],
        True,
    )
    return reserve, SelectNode(key, claim_meta["uid"], claim_meta["resourceVersion"], "n1")
