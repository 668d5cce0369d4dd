"""An engine that odd objects of tenants reach through reflectors, beside a tenant whose pods are ordinary."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.bounds import check_containers
from tests.helpers import make_node, make_pod, timestamp
from tests.scheduling.device_driver import DeviceDriver
from tests.scheduling.driver import fabric
from topo_scheduler.api.devices import ExactDeviceRequest, ResourceClaim
from topo_scheduler.api.groups import VERSIONS, GroupApi, PodGroupObject
from topo_scheduler.api.objects import DisruptionBudget, Job, PartialObject, Pod, Taint, Toleration
from topo_scheduler.api.storage import PersistentVolumeClaim
from topo_scheduler.kube.connection.resources import (
    BUDGETS,
    CLAIMS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICASETS,
    RESOURCE_CLAIMS,
    Resource,
)
from topo_scheduler.kube.reading.owner_chains import Chain
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.kube.reading.sinks import Batch, Calls, Deleted
from topo_scheduler.scheduling.barrier import FAULT
from topo_scheduler.scheduling.instructions import CountFailure, Instruction, LogWarning
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.state.pods.pod_groups import GroupKey, Serving, read_group

from .odd_objects import Generator, Json, written

NAMESPACE: Final = "hostile"
LONGEST_SECONDS: Final = 0.3
GROUPS: Final = tuple(GroupApi)


class Scene(DeviceDriver):
    """What a daemon has between its watches and its writes."""

    def __init__(self) -> None:
        self.owners = OwnerDirectory(None)  # type: ignore[arg-type]  # nothing is read
        nodes = fabric({"s1/l1": 2, "s2/l1": 2}, gpus=4)
        taint = Taint("pool", "other", "NoSchedule")
        nodes.append(make_node("s3-l1-1", "s3/l1", labels={"pool": "other"}, taints=[taint]))
        super().__init__(nodes)
        self.engine.budgets_known()
        self.revision = 1000
        self.longest = 0.0
        self.slow: list[tuple[float, str]] = []
        self.faults: list[str] = []
        self.reflectors: dict[str, tuple[Reflector[Any], Any]] = {}
        self.alive: dict[tuple[str, str], dict[str, Json]] = {}
        storage = self._sinks
        self._version = 1_000_000
        pods: Calls[Pod] = Calls(lambda pods: self.apply(*pods), self._pods_deleted)
        budgets = Calls(self.engine.budgets_applied, self._budgets_deleted)
        spaces = Calls(self.engine.namespaces_applied, self._spaces_deleted)
        self._follow("pods", PODS, pods)
        self._follow("budgets", BUDGETS, budgets)
        self._follow("namespaces", NAMESPACES, spaces)
        self._follow("resourceclaims", RESOURCE_CLAIMS, Calls(self._claims_applied, self._claims_deleted))
        self._follow("volumeclaims", CLAIMS, storage["persistentvolumeclaims"])
        self._follow("jobs", JOBS, self.owners.sink(JOBS))
        self._follow("replicasets", REPLICASETS, self.owners.sink(REPLICASETS))
        for api in GROUPS:
            version = VERSIONS[api][-1]
            resource = Resource(str(api), version, "podgroups", "PodGroup", PodGroupObject)
            self.engine.groups_served(api, Serving.LISTED, self.now, self.now)
            self._follow(f"podgroups.{api}", resource, self._groups(api, version))

    def _follow(self, name: str, resource: Resource[Any], sink: Any) -> None:
        self.reflectors[name] = Reflector(None, resource, sink), sink  # type: ignore[arg-type]

    def _groups(self, api: GroupApi, version: str) -> Calls[PodGroupObject]:
        def applied(objects: Sequence[PodGroupObject]) -> None:
            self.engine.groups_applied([read_group(api, version, item) for item in objects], self.now)

        def deleted(references: Sequence[Deleted]) -> None:
            for deletion in references:
                self.engine.group_deleted(GroupKey(api, deletion.namespace, deletion.name), deletion.uid, self.now)

        return Calls(applied, deleted)

    def _pods_deleted(self, references: Sequence[Deleted]) -> None:
        for deletion in references:
            self.pods.pop(deletion.uid, None)
            self.engine.pod_deleted(deletion.uid, self.now)

    def _claims_applied(self, claims: Sequence[ResourceClaim]) -> None:
        for claim in claims:
            self.put_claim(claim)

    def drop_claim(self, name: str, namespace: str = NAMESPACE) -> None:
        """A claim vanishes, unless a write deleted it already."""
        if (namespace, name) in self.claims:
            super().drop_claim(name, namespace)

    def _claims_deleted(self, references: Sequence[Deleted]) -> None:
        for deletion in references:
            self.drop_claim(deletion.name, deletion.namespace)

    def _budgets_deleted(self, references: Sequence[Deleted]) -> None:
        for deletion in references:
            self.engine.budget_deleted(deletion.namespace, deletion.name)

    def _spaces_deleted(self, references: Sequence[Deleted]) -> None:
        for deletion in references:
            self.engine.namespace_deleted(deletion.name)

    def _resolve(self, pod: Pod) -> Lineage | None:
        chain = self.owners.resolve(pod.metadata)
        if not isinstance(chain, Chain):
            return Lineage()
        return Lineage(chain.owners, chain.complaint, chain.gone, chain.doubt)

    # ------------------------------------------------------------ what happens

    def event(self, kind: str, item: dict[str, Json], type_: str = "MODIFIED") -> None:
        """An object appears, changes or vanishes, by its watch."""
        self.revision += 1
        metadata = item["metadata"]
        metadata["resourceVersion"] = str(self.revision)
        key = kind, f"{metadata.get('namespace', '')}/{metadata['name']}"
        if type_ == "DELETED":
            self.alive.pop(key, None)
        else:
            self.alive[key] = item
        line = written({"type": type_, "object": item})
        reflector, sink = self.reflectors[kind]
        batch: Batch[Any] = Batch(sink)

        def arrive() -> None:
            reflector._event(line, batch)
            batch.flush()

        self.timed(arrive, f"{kind} {len(line)} bytes")
        # The page of a list goes another way.
        page = b'{"metadata":{"resourceVersion":"1"},"items":[' + written(item) + b"]}"
        for objects in reflector._codec.page(page)[1]:
            assert len(objects) == 1, objects

    def timed(self, do: Callable[[], Any], what: str) -> Any:
        """Do something, and note how long it took."""
        began = time.thread_time()
        result = do()
        took = time.thread_time() - began
        if took > LONGEST_SECONDS:
            self.slow.append((took, what))
        self.longest = max(self.longest, took)
        return result

    def turn(self, seconds: float) -> None:
        """Let time pass; everything due is done, explained and answered."""
        before = len(self.said)
        self.timed(lambda: self.step(seconds), "step")
        for uid in list(self.flight):
            if uid in self.pods:
                self.answer(uid)
            else:
                del self.flight[uid]
        self.timed(self.explain, "explain")
        self._note(self.said[before:])

    def ordinary(self, turn: int) -> None:
        """The pod of another tenant appears."""
        pod = make_pod(f"ordinary-{turn}", namespace="other", cpu="1m", memory="1Mi")
        pod.spec.node_selector = {"pool": "other"}
        pod.spec.tolerations = [Toleration("pool", "Equal", "other", "NoSchedule")]
        self.neighbour = pod
        self.apply(pod)

    def ordinary_is_bound(self) -> None:
        """It is bound as if the hostile tenant was not there."""
        self.turn(0.0)
        if not self.neighbour.spec.node_name:
            self.faults.append("the pod of another tenant is not bound")
        self.delete(self.neighbour)

    def end(self) -> None:
        """All odd objects are deleted: nothing of them is left."""
        for (kind, _), item in list(self.alive.items()):
            self.event(kind, item, "DELETED")
        for _ in range(6):
            self.turn(700.0)
        for name, (reflector, _) in self.reflectors.items():
            if len(reflector) or reflector.undecodable:
                self.faults.append(f"{name}: {len(reflector)} and {reflector.undecodable} are left")
        nodes = self.engine.world.nodes
        if nodes.requested.any():
            self.faults.append("resources are left")
        if self.engine.world.inventory.claims:
            self.faults.append("claims are left")
        if self.engine.world.links.reserved.any():
            self.faults.append("bandwidth is left")
        check_containers(self.engine, "engine", 0, len(nodes), others=("engine.world.links",), slack=16)

    def _note(self, said: Sequence[Instruction]) -> None:
        for instruction in said:
            if isinstance(instruction, CountFailure) and instruction.kind == FAULT:
                self.faults.append(str(instruction))
            if isinstance(instruction, LogWarning) and "failed during" in instruction.message:
                self.faults.append(instruction.message)


def odd_pod(generator: Generator, number: int) -> dict[str, Json]:
    """Return a pod of the hostile tenant."""
    item = generator.object(Pod)
    random = generator.random
    spec = item["spec"] if isinstance(item.get("spec"), dict) else {}
    if random.random() < 0.8:
        spec["schedulerName"] = "topology-aware-scheduler"
    if random.random() < 0.8:
        spec.pop("nodeName", None)
    if random.random() < 0.6 or not spec.get("containers"):
        gpus = generator.pick("1", "0", "2")
        limits = {"nvidia.com/gpu": gpus}
        spec["containers"] = [{"name": "main", "resources": {"requests": {"cpu": "1", **limits}, "limits": limits}}]
    for name in ("schedulingGates", "workloadRef", "schedulingGroup", "resourceClaims", "volumes"):
        if random.random() < 0.7:
            spec.pop(name, None)
    if random.random() < 0.3:
        spec["resourceClaims"] = [
            {"name": name, "resourceClaimName": name} for name in ("a", "b", "c") if random.random() < 0.5
        ]
        spec["containers"] = [{"name": "main"}]
    if random.random() < 0.1:
        spec["schedulingGroup"] = {"podGroupName": generator.pick("a", "b", "c")}
    item["spec"] = spec
    if random.random() < 0.7:
        item["status"] = {"phase": "Pending"}
    spec["priority"] = 0  # admission takes it from a class
    metadata: dict[str, Json] = {
        "name": f"odd-{number}",
        "namespace": NAMESPACE,
        "uid": f"odd-{number}",
        "creationTimestamp": timestamp(number),
        "annotations": generator.annotations(),
        "labels": generator.labels(),
    }
    if random.random() < 0.3:
        metadata["ownerReferences"] = [reference(generator) for _ in range(generator.pick(1, 1, 2, 3))]
    if random.random() < 0.1:
        metadata["deletionTimestamp"] = generator._string("deletionTimestamp")
        metadata["deletionGracePeriodSeconds"] = generator.pick(0, 30, -1, 2**63 - 1)
    item["metadata"] = metadata
    item.pop("topology.scheduler/excess", None)
    return item


def reference(generator: Generator) -> dict[str, Json]:
    """Return a reference to an owner."""
    kind = generator.pick("Job", "ReplicaSet", "Widget")
    name = generator.pick("a", "b", "c")
    group = {"Job": "batch/v1", "ReplicaSet": "apps/v1"}.get(kind, "x/v1")
    usual = {"apiVersion": group, "kind": kind, "name": name, "uid": f"{kind}-{name}", "controller": True}
    if generator.random.random() < 0.3:
        usual[generator.pick(*usual)] = generator._text_of(("",))
        usual["controller"] = generator.pick(True, False)
    return usual


def odd_other(generator: Generator, kind: str, type_: type[Any]) -> dict[str, Json]:
    """Return an object of another kind."""
    name = generator.pick("a", "b", "c")
    metadata: dict[str, Json] = {"name": name, "uid": f"{kind}-{name}", "annotations": generator.annotations()}
    metadata["labels"] = generator.labels()
    if kind != "namespaces":
        metadata["namespace"] = NAMESPACE
    else:
        metadata["name"] = NAMESPACE
    if kind in ("jobs", "replicasets"):
        metadata["uid"] = f"{'Job' if kind == 'jobs' else 'ReplicaSet'}-{name}"
        if generator.random.random() < 0.4:
            metadata["ownerReferences"] = [reference(generator)]
    elif generator.random.random() < 0.3:
        number = generator.random.randrange(8)
        metadata["ownerReferences"] = [
            {"kind": "Pod", "name": f"odd-{number}", "uid": f"odd-{number}", "controller": True, "apiVersion": "v1"}
        ]
    item = generator.object(type_)
    item.pop("apiVersion", None)
    item.pop("kind", None)
    if kind.startswith("podgroups") and generator.random.random() < 0.7:
        item["spec"] = group_spec(generator)
    if kind == "resourceclaims":
        _fields(item).pop("topology.scheduler/excess", None)
        if generator.random.random() < 0.7:
            item.pop("status", None)
        if generator.random.random() < 0.7:
            exactly = generator.object(TYPES["request"])
            exactly |= {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": generator.pick(1, 1, 2)}
            for field in ("selectors", "capacity", "tolerations"):
                if generator.random.random() < 0.4:
                    exactly.pop(field, None)
            item["spec"] = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    item["metadata"] = metadata
    return item


def group_spec(generator: Generator) -> dict[str, Json]:
    """Return the spec of a PodGroup with fields that are read."""
    anything = generator.anything
    fields: dict[str, Json] = {
        "minMember": generator.pick(1, 2, 0, anything(3)),
        "priority": generator.pick(1, 2**63 - 1, -(2**63), anything(3)),
        "schedulingPolicy": generator.pick(
            {"gang": {"minCount": generator.pick(1, 2, anything(3))}}, {"basic": {}}, anything()
        ),
        "schedulingConstraints": generator.pick({"topology": [{"key": generator._text_of(("a",))}]}, anything()),
        "disruptionMode": anything(),
        "networkTopology": generator.pick(
            {"mode": "hard", "highestTierAllowed": generator.pick(1, anything(3))}, anything()
        ),
        "subGroupPolicy": generator.pick(
            [
                {
                    "name": "a",
                    "matchLabelKeys": ["app"],
                    "networkTopology": {"highestTierAllowed": 1},
                    "labelSelector": anything(),
                }
            ],
            [anything()],
            anything(),
        ),
    }
    return {name: value for name, value in fields.items() if generator.random.random() < 0.5}


TYPES: Final[dict[str, type[Any]]] = {
    "request": ExactDeviceRequest,
    "budgets": DisruptionBudget,
    "namespaces": PartialObject,
    "resourceclaims": ResourceClaim,
    "volumeclaims": PersistentVolumeClaim,
    "jobs": Job,
    "replicasets": PartialObject,
    **{f"podgroups.{api}": PodGroupObject for api in GROUPS},
}


def play(seed: int, turns: int = 12, bulk: float = 0.02) -> Scene:
    """Let a tenant write odd objects for a while, and then delete them all."""
    generator = Generator(seed, (0.0, 0.01, 0.05)[seed % 3], (0.1, 0.2, 0.35)[seed // 3 % 3], bulk if seed % 2 else 0.0)
    scene = Scene()
    number = 0
    for turn in range(turns):
        for _ in range(generator.random.randrange(1, 6)):
            if generator.random.random() < 0.5:
                item = odd_pod(generator, number % 8)
                bound = scene.pods.get(item["metadata"]["uid"])
                if bound is not None and bound.spec.node_name:
                    item["spec"]["nodeName"] = bound.spec.node_name  # it never changes
                scene.event("pods", item)
                number += 1
            else:
                kind = generator.pick(*(kind for kind in TYPES if kind != "request"))
                scene.event(kind, odd_other(generator, kind, TYPES[kind]))
        if generator.random.random() < 0.3 and scene.alive:
            (kind, _), item = generator.random.choice(list(scene.alive.items()))
            scene.event(kind, item, "DELETED")
        scene.ordinary(turn)
        scene.turn(generator.pick(0.0, 1.0, 30.0, 700.0))
        scene.ordinary_is_bound()
    scene.end()
    return scene


def _fields(item: dict[str, Json]) -> dict[str, Json]:
    spec = item.get("spec")
    return spec if isinstance(spec, dict) else {}
