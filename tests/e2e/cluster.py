"""One cluster for a test, whichever server it stands on."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.controlplane import ControlPlane
from tests.controlplane.flags import KUBELET_DEAD
from tests.ship.manifests import BASE, read
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer
from topo_scheduler.simulation.controllers import ControllerRunner
from topo_scheduler.simulation.kubelet import Kubelet

from . import objects
from .api import Api, ApiError, Json, path
from .objects import PREFIX
from .recorder import Recorder

T = TypeVar("T")
ROOT: Final = Path(__file__).resolve().parents[2]
NOT_READY: Final = "node-not-ready.stage.kwok.x-k8s.io"
WORKLOADS: Final = ("deployments", "statefulsets", "jobs", "replicasets")


class Cluster:
    """What tests do with a cluster."""

    def __init__(
        self,
        api: Api,
        *,
        scheduler_kubeconfig: Path,
        embedded: EmbeddedAPIServer | None = None,
        kubelet: Kubelet | None = None,
        plane: ControlPlane | None = None,
        controllers: ControllerRunner | None = None,
    ) -> None:
        self.api = api
        self.scheduler_kubeconfig = scheduler_kubeconfig
        """For the ServiceAccount of the manifests and no one else."""
        self.recorder = Recorder(api)
        self.overbooked_by_others: set[str] = set()
        """Nodes that other schedulers overbook in this test."""
        self._embedded = embedded
        self._kubelet = kubelet
        self._plane = plane
        self._controllers = controllers
        self.slow = 1.0 if embedded is not None else 3.0
        """How much longer things may take on this server: etcd and controllers are processes of their own."""

    @property
    def server(self) -> EmbeddedAPIServer:
        """The embedded server, for faults; only tests of it ask."""
        assert self._embedded is not None, "this test is for the embedded server"
        return self._embedded

    @asynccontextmanager
    async def without_controllers(self) -> AsyncIterator[None]:
        """Halt all controllers: kube-controller-manager is away."""
        if self._controllers is not None:
            await self._controllers.stop()
        else:
            await asyncio.to_thread(self.plane.halt, "kube-controller-manager")
        try:
            yield
        finally:
            if self._controllers is not None:
                await self._controllers.start()
            else:
                await asyncio.to_thread(self.plane.resume, "kube-controller-manager")

    def let_pods_end_slowly(self, seconds: float) -> dict[str, str]:
        """Let deleted pods take as long as they may, at most so long; return annotations that they need for it."""
        if self._kubelet is not None:
            self._kubelet.stop_seconds = seconds
        return {"pod-delete.stage.kwok.x-k8s.io/delay": f"{round(seconds * 1000)}ms"}

    @property
    def plane(self) -> ControlPlane:
        """The real control plane; only tests of it ask."""
        assert self._plane is not None, "this test is for the real server"
        return self._plane

    @property
    def embedded(self) -> bool:
        """Whether the server is the embedded one."""
        return self._embedded is not None

    # ------------------------------------------------------------ nodes

    async def add_nodes(self, nodes: Iterable[Json]) -> None:
        """Create nodes and wait until pods may run on them."""
        nodes = list(nodes)
        names = {item["metadata"]["name"] for item in nodes}
        for start in range(0, len(nodes), 32):
            await asyncio.gather(*(self.api.create("nodes", item) for item in nodes[start : start + 32]))

        async def usable() -> bool:
            listed = [item for item in await self.api.list("nodes", None) if item["metadata"]["name"] in names]
            return len(listed) == len(names) and all(_usable(item) for item in listed)

        await self.wait_until(usable, 60 + len(nodes) / 20, "all nodes usable")

    async def add_fabric(
        self, shape: Mapping[str, Sequence[int]], *, gpus: int = 8, model: str = "H100", bandwidth: str = "400Gb"
    ) -> list[str]:
        """Create spines of leaves of nodes; ``{"s1": [4, 4]}`` is one spine with two leaves of four.

        Node ``s1-l2-3`` is the third of the second leaf of s1; the leaf's label is ``l2``, which repeats.
        """
        nodes = [
            objects.node(
                f"{spine}-l{leaf}-{number}",
                spine=spine,
                leaf=f"l{leaf}",
                gpus=gpus,
                model=model,
                bandwidth=bandwidth,
            )
            for spine, leaves in shape.items()
            for leaf, size in enumerate(leaves, 1)
            for number in range(1, size + 1)
        ]
        await self.add_nodes(nodes)
        return [item["metadata"]["name"] for item in nodes]

    async def fail_node(self, name: str) -> None:
        """Let a node be not ready. On the embedded server its kubelet does nothing any more; KWOK's goes on."""
        if self._kubelet is not None:
            self._kubelet.fail_node(name)
        else:
            # KWOK breaks nodes that it has seen to, and those were born ready.
            await self.api.patch("nodes", name, {"status": {"phase": "Running"}}, subresource="status")
            await self.label_node(name, {NOT_READY: "true"})

    async def heal_node(self, name: str) -> None:
        """Let a node be ready again."""
        if self._kubelet is not None:
            self._kubelet.heal_node(name)
        else:
            await self.label_node(name, {NOT_READY: None})

    async def kill_kubelet(self, name: str) -> None:
        """Let the kubelet of a node die: its pods neither start nor end any more.

        On the real control plane it takes the grace period until the controller manager says that the node is not
        ready; see `give_up_node`.
        """
        if self._kubelet is not None:
            self._kubelet.fail_node(name)
        else:
            await self.label_node(name, {KUBELET_DEAD: "true"})

    async def give_up_node(self, name: str) -> None:
        """Say of a node with a dead kubelet at once what the controller manager says after the grace period."""
        if self._kubelet is None:
            silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "it is silent"}
            await self.api.patch("nodes", name, {"status": {"conditions": [silent]}}, subresource="status")

    async def label_node(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Change labels of a node; None takes one away."""
        await self.api.patch("nodes", name, {"metadata": {"labels": dict(labels)}})

    # ------------------------------------------------------------ workloads

    async def apply(self, *items: Json) -> list[Json]:
        """Create objects of any kind."""
        return [await self.api.create(objects.PLURALS[item["kind"]], item) for item in items]

    async def occupy(self, node: str, gpus: int = 8) -> Json:
        """Have another scheduler put a pod on a node; delete it by ``free``."""
        item = objects.pod(f"held-{node}", gpus, scheduler="another")
        await self.apply(item)
        await self.api.bind(f"held-{node}", node)
        return item

    async def free(self, node: str) -> None:
        """Delete what `occupy` put on a node."""
        await self.api.delete("pods", f"held-{node}", grace=0)

    async def pods_of(self, name: str, namespace: str = "default") -> list[Json]:
        """The pods of a workload: those whose name begins with its name; in order of their names."""
        pods = await self.api.list("pods", namespace)
        return sorted(
            (p for p in pods if p["metadata"]["name"] == name or p["metadata"]["name"].startswith(f"{name}-")),
            key=lambda item: str(item["metadata"]["name"]),
        )

    async def wait_bound(self, name: str, count: int, timeout: float = 15, namespace: str = "default") -> list[Json]:
        """Wait until a workload has so many pods, all of them bound; return them."""

        async def bound() -> list[Json]:
            pods = [pod for pod in await self.pods_of(name, namespace) if not pod["metadata"].get("deletionTimestamp")]
            return pods if len(pods) == count and all(pod["spec"].get("nodeName") for pod in pods) else []

        return await self.wait_until(bound, timeout, f"{count} pods of {name} bound")

    async def wait_pods(self, name: str, count: int, timeout: float = 15, namespace: str = "default") -> list[Json]:
        """Wait until a workload has so many pods, bound or not."""

        async def there() -> list[Json]:
            pods = await self.pods_of(name, namespace)
            return pods if len(pods) == count else []

        return await self.wait_until(there, timeout, f"{count} pods of {name}")

    async def wait_job_done(self, name: str, timeout: float = 30, namespace: str = "default") -> None:
        """Wait until a Job is complete."""

        async def complete() -> bool:
            conditions = (await self.api.get("jobs", name, namespace)).get("status", {}).get("conditions") or []
            return any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)

        await self.wait_until(complete, timeout, f"Job {name} complete")

    # ------------------------------------------------------------ what is reported

    async def events(self, item: Json, reason: str = "") -> list[Json]:
        """Events regarding an object, oldest first; of one reason when given."""
        namespace = item["metadata"].get("namespace") or "default"
        events = [
            event
            for event in await self.api.list("events", namespace)
            if event.get("regarding", {}).get("uid") == item["metadata"]["uid"]
            and event.get("reportingController") == objects.SCHEDULER
            and (not reason or event["reason"] == reason)
        ]
        return sorted(events, key=lambda event: str(event.get("eventTime")))

    async def notes(self, item: Json, reason: str = "") -> list[str]:
        """The texts of the events regarding an object."""
        return [event.get("note", "") for event in await self.events(item, reason)]

    async def wait_note(self, item: Json, part: str, *, reason: str = "", timeout: float = 15) -> Json:
        """Wait for an event on an object whose text contains a part; return it."""

        async def told() -> Json | None:
            return next((e for e in await self.events(item, reason) if part in e.get("note", "")), None)

        name = item["metadata"]["name"]
        return await self.wait_until(told, timeout, f"event {reason} with {part!r} on {name}")

    async def wait_unschedulable(self, item: Json, timeout: float = 15) -> Json:
        """Wait for PodScheduled=False/Unschedulable on a pod; return the condition."""

        async def marked() -> Json | None:
            return unschedulable(await self.fresh(item))

        return await self.wait_until(marked, timeout, f"{item['metadata']['name']} marked unschedulable")

    async def fresh(self, item: Json) -> Json:
        """A pod as it is now."""
        return await self.api.get("pods", item["metadata"]["name"], item["metadata"]["namespace"])

    # ------------------------------------------------------------ waiting

    async def wait_until(self, look: Callable[[], Awaitable[T | None]], timeout: float, what: str) -> T:
        """Look until what is returned is true, and return it; after the timeout, fail and show the cluster."""
        deadline = time.monotonic() + timeout * self.slow
        pause = 0.01
        while not (seen := await look()):
            if time.monotonic() > deadline:
                state = await self.describe()
                pytest.fail(f"not within {timeout * self.slow:g} s: {what}\n{state}")
            await asyncio.sleep(pause)
            pause = min(0.1 * self.slow, pause * 1.3)  # a look is a list, often of all pods
        return seen

    async def wait_for(self, look: Callable[[], object], timeout: float, what: str) -> None:
        """As `wait_until`, for what can be seen without asking the server."""

        async def seen() -> bool:
            return bool(look())

        await self.wait_until(seen, timeout, what)

    async def holds_for(self, seconds: float, look: Callable[[], Awaitable[bool]], what: str) -> None:
        """Check that something stays true for a while: the only way to see that nothing happens."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not await look():
                pytest.fail(f"no longer so: {what}\n{await self.describe()}")
            await asyncio.sleep(0.05 * self.slow)

    async def describe(self) -> str:
        """What a person would look at first: nodes, pods (ended ones last), and the reasons of pending ones."""
        lines = ["pods:"]
        try:
            events = await self.api.list("events", None)
            said: dict[str, list[str]] = defaultdict(list)
            for event in sorted(events, key=lambda event: str(event.get("eventTime"))):
                uid = (event.get("regarding") or {}).get("uid", "")
                said[uid].append(f"{event.get('reason')}: {event.get('note', '')[:300]}")
            pods = await self.api.list("pods", None)
            for pod in sorted(pods, key=lambda pod: pod["status"].get("phase") == "Succeeded")[:60]:
                meta = pod["metadata"]
                where = pod["spec"].get("nodeName", "-")
                lines.append(f"  {meta['namespace']}/{meta['name']} {pod['status'].get('phase')} on {where}")
                if where == "-":
                    lines += [f"      {text}" for text in said[meta["uid"]][-4:]]
            nodes = await self.api.list("nodes", None)
            lines.append(f"nodes: {len(nodes)}, unusable: {[n['metadata']['name'] for n in nodes if not _usable(n)]}")
        except (ApiError, OSError) as error:
            lines.append(f"  cannot be listed: {error}")
        return "\n".join(lines)

    # ------------------------------------------------------------ set-up and end

    async def install(self) -> None:
        """Apply ServiceAccount and RBAC of the manifests; what is there already stays."""
        for name in ("serviceaccount", "rbac"):
            for item in read(BASE / f"{name}.yaml"):
                try:
                    await self.api.create(objects.PLURALS[item["kind"]], item, "kube-system")
                except ApiError as error:
                    if error.status != 409:
                        raise
        if self.embedded or not self.plane.controllers:
            await self._aggregate()
        else:

            async def aggregated() -> bool:
                return bool((await self.api.get("clusterroles", "topology-scheduler-owners")).get("rules"))

            await self.wait_until(aggregated, 30, "rules of the owners' role filled in")

    async def _aggregate(self) -> None:
        """Fill in the rules of aggregated roles, as a controller does elsewhere."""
        roles = await self.api.list("clusterroles", None)
        for role in roles:
            rules: list[Json] = []
            for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors", []):
                wanted = selector["matchLabels"].items()
                for other in roles:
                    if wanted <= (other["metadata"].get("labels") or {}).items():
                        rules += other.get("rules") or []
            if rules:
                await self.api.patch("clusterroles", role["metadata"]["name"], {"rules": rules})

    async def add_namespace(self, name: str, **labels: str) -> None:
        """Create a namespace that takes pods; one named e2e-… is emptied after the test."""
        if await self.api.find("namespaces", name) is None:
            metadata = {"name": name, "labels": labels}
            await self.api.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        if not self.embedded and self.plane.controllers:

            async def account() -> Json | None:
                return await self.api.find("serviceaccounts", "default", name)

            await self.wait_until(account, 30, f"ServiceAccount default of {name}")

    async def clear(self) -> None:
        """Delete workloads, pods, nodes and the Lease, and wait until they are gone."""

        async def gone() -> bool:
            for pod in await self._delete_all_of("pods", grace=0):
                if pod["metadata"].get("finalizers"):
                    await self._drop_finalizers(pod)
            left = [await self._of_tests(plural) for plural in ("pods", *WORKLOADS)]
            return not any(left)

        async def unclaimed() -> bool:
            return not await self._of_tests("persistentvolumeclaims")

        for plural in (*WORKLOADS, "poddisruptionbudgets"):
            await self._delete_all_of(plural)
        await self.wait_until(gone, 60, "workloads deleted")
        await self._clear_groups()
        await self._delete_all_of("persistentvolumeclaims")
        await self.wait_until(unclaimed, 30, "claims deleted")
        for plural in ("persistentvolumes", "storageclasses", "nodes", *self._device_kinds):
            if await self.api.list(plural, None):
                await self.api.delete_all(plural, None)
        if self._device_kinds:
            await self._delete_all_of("resourceclaimtemplates")
            await self._delete_all_of("resourceclaims")
        if await self.api.find("leases", "topology-scheduler", "kube-system") is not None:
            await self.api.delete("leases", "topology-scheduler", "kube-system")

    @property
    def _device_kinds(self) -> tuple[str, ...]:
        return () if self._plane is not None and self._plane.oldest else ("resourceslices", "deviceclasses")

    async def _of_tests(self, plural: str) -> list[Json]:
        """Return the objects of a kind in the namespaces that tests use. One request, however many namespaces."""

        def used(namespace: str) -> bool:
            return namespace == "default" or namespace.startswith("e2e-")

        return [item for item in await self.api.list(plural, None) if used(item["metadata"]["namespace"])]

    async def _delete_all_of(self, plural: str, *, grace: int | None = None) -> list[Json]:
        """Delete the objects of a kind in the namespaces that tests use; return what was there."""
        objects = await self._of_tests(plural)
        for namespace in {item["metadata"]["namespace"]: None for item in objects}:
            await self.api.delete_all(plural, namespace, grace=grace)
        return objects

    async def _clear_groups(self) -> None:
        """Delete PodGroups, and the definitions of those that are not Kubernetes' own."""
        if self._plane is not None and self._plane.oldest:
            return  # it has none
        await self._delete_all_of("podgroups")
        for item in await self.api.list("customresourcedefinitions", None):
            if item["metadata"]["name"].startswith(("podgroups.", "noderesourcetopologies.")):
                await self.undefine(item["metadata"]["name"])

        async def gone() -> bool:
            return not await self.api.list("podgroups", None)

        await self.wait_until(gone, 30, "PodGroups deleted")

    async def define(self, definition: Json) -> None:
        """Create a CustomResourceDefinition and wait until its kind is served."""
        await self.api.create("customresourcedefinitions", definition)
        name = definition["metadata"]["name"]

        async def served() -> bool:
            conditions = (await self.api.get("customresourcedefinitions", name))["status"].get("conditions") or []
            if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return False
            try:
                await self.api.list(name, None)
            except ApiError:
                return False
            return True

        await self.wait_until(served, 30, f"{name} served")

    async def undefine(self, name: str) -> None:
        """Delete a CustomResourceDefinition and wait until it is gone."""
        await self.api.delete("customresourcedefinitions", name)

        async def gone() -> bool:
            return await self.api.find("customresourcedefinitions", name) is None

        await self.wait_until(gone, 30, f"{name} gone")

    async def _drop_finalizers(self, pod: Json) -> None:
        try:
            await self.api.patch(
                "pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}}, pod["metadata"]["namespace"]
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def set_pod_status(self, item: Json, status: Json) -> None:
        """Write what a kubelet would write."""
        where = path("pods", item["metadata"]["namespace"], item["metadata"]["name"])
        await self.api.request("PATCH", f"{where}/status", {"status": status})


def _usable(node: Json) -> bool:
    taints = node.get("spec", {}).get("taints") or []
    conditions = node["status"].get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)


def nodes_of(pods: Iterable[Json]) -> list[str]:
    """The nodes of pods, in their order."""
    return [pod["spec"].get("nodeName", "") for pod in pods]


def leaves_of(pods: Iterable[Json]) -> set[str]:
    """The leaves of pods on nodes that were named by `Cluster.add_fabric`."""
    return {name.rpartition("-")[0] for name in nodes_of(pods)}


def annotation(pod: Json, name: str) -> str:
    """One of our annotations of a pod; empty when it has none."""
    return str((pod["metadata"].get("annotations") or {}).get(PREFIX + name, ""))


def unschedulable(pod: Json) -> Json | None:
    """The condition that tells autoscalers to add nodes, None when the pod has none."""
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            scheduled: Json = condition
            return scheduled if condition.get("reason") == "Unschedulable" else None
    return None
