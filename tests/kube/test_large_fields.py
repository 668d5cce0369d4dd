"""What a tenant writes into one field of an object takes little memory beyond the call, whichever field it is.

The fields are those of the types' definitions, so a new field is tested without a change here.
"""

import gc
import re
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import pytest

from tests.kube.large_fields import NAMESPACE, Make, large_fields, merged, text
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api import annotations
from topo_scheduler.api.annotations import GANG_ID, PREFERRED_DOMAIN
from topo_scheduler.api.groups import READ_OF_PODS, VERSIONS, GroupApi, PodGroupObject
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import PodFailuresSpec
from topo_scheduler.kube.connection.resources import (
    BUDGETS,
    CLAIMS,
    CRONJOBS,
    CSI_CAPACITIES,
    JOBS,
    PODS,
    RESOURCE_CLAIMS,
    Resource,
)
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.kube.reading.owner_chains import owner_of
from topo_scheduler.kube.reading.slimming import slim_item
from topo_scheduler.kube.reading.storage import store_sinks
from topo_scheduler.kube.reading.watched_owners import WatchedOwners
from topo_scheduler.recovery.detection.pod_failures import PodFailures
from topo_scheduler.scheduling import engine as engine_module
from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.state.devices import kept_claims
from topo_scheduler.state.pods import disruption_budgets, kept_classes, kept_profiles, pod_groups
from topo_scheduler.state.pods.constraints import port_of
from topo_scheduler.state.pods.pod_groups import read_group
from topo_scheduler.state.storage import kept_volume_claims, storage_capacities

pytestmark = pytest.mark.unrecorded

MAX_KIB: Final = 48
"""What may stay of an object with about 200 KB in one field."""
OBJECTS: Final = 1
"""Objects that are measured, after one that fills tables of a fixed size."""
OURS: Final = "topology-aware-scheduler"
CHECKED: Final = re.compile(
    r"metadata\.(name|namespace|uid|resourceVersion|\w+Timestamp)|.*\.ports\[\]\.(hostIP|protocol)|.*excess|"
    r"spec\.(nodeSelector\{\}|tolerations\[\].*)|.*\.(topologyKey|namespaces\[\]|operator)|"
    r"status\.allocation\.devices\.results.*|status\.devices(\[\*\]|.*(driver|pool|device|shareID|conditions\[\*\]))|"
    r"status\.devices.*\.(type|status|reason)|"
    r"spec.*\.matchExpressions\[\]\.key|.*Selector\.(matchLabels\{\}|matchExpressions\[\]\.values\[\])"
)
"""Fields that the API server writes itself, or takes only if they are as short as they have to be."""
Read = Callable[[Any], object]


@pytest.fixture(autouse=True)
def _low_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a budget of memory takes nothing."""
    monkeypatch.setattr(engine_module, "MAX_LARGE_BYTES", 0)
    for module in (disruption_budgets, kept_classes, kept_profiles, kept_claims, kept_volume_claims, pod_groups):
        for name in vars(module):
            if re.fullmatch(r"MAX_.*BYTES(_OF_NAMESPACE)?|MAX_RESERVATIONS.*", name) and not name.endswith(
                "SPEC_BYTES"
            ):
                monkeypatch.setattr(module, name, 0)
    for name in ("MAX_BYTES_OF_NAMESPACE", "MAX_BYTES"):
        if hasattr(storage_capacities, name):
            monkeypatch.setattr(storage_capacities, name, 0)


def object_of(number: int, **parts: Any) -> dict[str, Any]:
    """Return a small object."""
    meta = {"name": f"o{number}", "namespace": NAMESPACE, "uid": f"u{number}", "resourceVersion": "1"}
    return {"metadata": {**meta, "creationTimestamp": "2023-11-14T22:13:20Z"}, **parts}


def kept_kib(resource: Resource[Any], base: Callable[[int], Any], make: Make, read: Read) -> float:
    """Return how much memory stays of an object, in KiB."""
    codec = Codec(resource)
    small = [base(number) for number in range(2)]
    large = [merged(base(number), make(number)) for number in range(2, 3 + OBJECTS)]
    lines = [msgspec.json.encode({"type": "ADDED", "object": item}) for item in (*small, *large)]
    del large

    def apply(lines: Iterable[bytes]) -> None:
        for line in lines:
            _, item = codec.event(line)
            assert isinstance(item, resource.type), item
            slim_item(item)
            read(item)

    tracemalloc.start()
    try:
        apply(lines[:-OBJECTS])
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        apply(lines[-OBJECTS:])
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / OBJECTS / 1024


def too_large(
    resource: Resource[Any],
    base: Callable[[int], Any],
    new: Callable[[], Read],
    leave_out: str = "",
    fields: Iterable[tuple[str, Make]] | None = None,
) -> list[str]:
    """Return the fields of which too much stays."""
    left_out = re.compile(leave_out or "-")
    gc.collect()
    gc.freeze()
    try:
        sizes: dict[str, float] = {}
        for path, make in large_fields(resource.type) if fields is None else fields:
            if CHECKED.fullmatch(path) or left_out.match(path):
                continue
            size = kept_kib(resource, base, make, new())
            if size > MAX_KIB:  # unless a table of the process just grew
                size = kept_kib(resource, base, make, new())
            sizes[path] = size
    finally:
        gc.unfreeze()
    return [f"{path}: {size:.0f} KiB" for path, size in sizes.items() if size > MAX_KIB]


# ---------------------------------------------------------------- pods


def pod_of(number: int, *, ours: bool = True, node: str = "s-l1-0") -> dict[str, Any]:
    """Return a small pod; one that this scheduler bound is of a gang of Volcano."""
    amounts = {"cpu": "1m", "memory": "1"}
    containers = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]
    spec = {"schedulerName": OURS if ours else "other", "containers": containers}
    pod = object_of(number, spec=spec | ({"nodeName": node} if node else {}))
    if ours and node:
        pod["metadata"]["annotations"] = {GANG_ID: f"{NAMESPACE}/podgroups.{GroupApi.VOLCANO}/g"}
    return pod


def nominated_pod_of(number: int) -> dict[str, Any]:
    """Return a pending pod of another scheduler, with a nomination."""
    return merged(pod_of(number, ours=False, node=""), {"status": {"nominatedNodeName": "s-l1-0"}})


def succeeded_pod_of(number: int) -> dict[str, Any]:
    """Return a pod that has ended."""
    state = {"terminated": {"finishedAt": "2023-11-14T22:23:20Z"}}
    status = {
        "phase": "Succeeded",
        "startTime": "2023-11-14T22:13:20Z",
        "containerStatuses": [{"name": "c", "state": state}],
    }
    return merged(pod_of(number), {"status": status})


_TERMS_LIKE_OTHERS: Final = r"spec\.affinity\.podAffinity|.*podAntiAffinity\.preferred|"
_LEFT_OUT: Final[Mapping[Callable[[int], Any], str]] = {
    pod_of: r"spec\.affinity\.podAffinity",
    nominated_pod_of: _TERMS_LIKE_OTHERS + r"status|metadata|spec\.initContainers|spec\.affinity\.nodeAffinity",
    succeeded_pod_of: r"spec\.(?!containers|schedulerName|nodeName)|status\.initContainer",
}
"""Fields of the same types as others, and those that are read as of other pods."""


def new_reader_of_pods() -> Read:
    """Return what an engine and recovery do with a pod that appears, until it is bound."""
    driver = Driver(fabric({"s/l1": 1}))
    failures = PodFailures(OURS, PodFailuresSpec(), 0.0)

    def read(pod: Pod) -> None:
        driver.engine.pods_applied([pod], driver.now)
        failures.applied([pod], driver.now)
        for said in driver.step(1):
            if isinstance(said, Bind):
                pod.spec.node_name = said.node
                pod.metadata.annotations = {**pod.metadata.annotations, **said.annotations}
                driver.engine.pods_applied([pod], driver.now)
        if not pod.spec.node_name and pod.spec.scheduler_name == OURS:
            driver.engine.pod_deleted(pod.metadata.uid, driver.now)  # what is pending has a budget
        driver.step(1)
        driver.forget()
        driver.flight.clear()
        driver.tried.clear()
        port_of.cache_clear()  # it has a fixed size

    return read


@pytest.mark.parametrize("make", _LEFT_OUT)
def test_of_a_pod_that_is_not_pending_little_is_kept(make: Callable[[int], Any]) -> None:
    assert not too_large(PODS, make, new_reader_of_pods, _LEFT_OUT[make])


@pytest.mark.parametrize("make", [pod_of, succeeded_pod_of])
def test_of_an_annotation_that_is_read_little_is_kept(make: Callable[[int], Any]) -> None:
    read = {name for name in vars(annotations).values() if isinstance(name, str) and name.startswith(PREFIX)}
    fields = [
        (name, lambda number, name=name: {"metadata": {"annotations": {name: text(number)}}})
        for name in sorted(read | READ_OF_PODS)
    ]
    assert {GANG_ID, PREFERRED_DOMAIN} <= read
    assert not too_large(PODS, make, new_reader_of_pods, fields=fields)


def test_of_a_pod_that_the_scheduler_bound_little_is_kept() -> None:
    leave_out = _TERMS_LIKE_OTHERS + r"status|.*preferred|spec\.(initContainers|schedulingGroup|workloadRef)"
    assert not too_large(PODS, lambda number: pod_of(number, node=""), new_reader_of_pods, leave_out)


# ---------------------------------------------------------------- other kinds


def new_store(resource: Resource[Any]) -> Read:
    """Return what stores an object of volumes or devices."""
    world = Driver(fabric({"s/l1": 1})).engine.world
    sinks = store_sinks(world.around.storage, world.inventory)
    sink = next(sink for sink in sinks if sink.resource is resource)
    return lambda item: sink.applied([item])


@pytest.mark.parametrize("resource", [CLAIMS, CSI_CAPACITIES, RESOURCE_CLAIMS], ids=lambda resource: resource.kind)
def test_of_a_claim_and_of_a_capacity_little_is_kept(resource: Resource[Any]) -> None:
    assert not too_large(resource, object_of, lambda: new_store(resource))


def test_of_a_budget_little_is_kept() -> None:
    def new() -> Read:
        engine = Driver(fabric({"s/l1": 1})).engine
        return lambda budget: engine.budgets_applied([budget])

    assert not too_large(BUDGETS, object_of, new)


@pytest.mark.parametrize("resource", [JOBS, CRONJOBS], ids=lambda resource: resource.kind)
def test_of_an_owner_little_is_kept(resource: Resource[Any]) -> None:
    def new() -> Read:
        owners = WatchedOwners()
        return lambda item: owners.put(owner_of(resource, item))

    assert not too_large(resource, object_of, new)


@pytest.mark.parametrize("api", GroupApi)
def test_of_a_pod_group_little_is_kept(api: GroupApi) -> None:
    resource = Resource(str(api), VERSIONS[api][0], "podgroups", "PodGroup", PodGroupObject)

    def new() -> Read:
        engine = Driver(fabric({"s/l1": 1})).engine
        return lambda item: engine.groups_applied([read_group(api, VERSIONS[api][0], item)], 0.0)

    assert not too_large(resource, object_of, new)
