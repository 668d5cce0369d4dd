"""The whole measurement: a control plane, the daemon on one core, the victim without and with the attacks."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.controlplane import ControlPlane
from tests.controlplane.process import free_ports
from tests.crds import migration_definition
from tests.e2e import device_objects, objects
from tests.e2e.api import Api, Json
from tests.e2e.cluster import Cluster

from . import hostile, victim
from .victim import Victim
from .watching import Watching

ACCOUNT: Final = ("kube-system", "topology-scheduler")
ANOTHER: Final = "another-scheduler"
NINE_ATTACKS: Final = 9
DEVICE_ATTACKS: Final = 6
LEAF: Final = 16
POOL_SHARE: Final = 5
"""One of so many leaves is of the pool that hostile pods select."""
STARTS_SECONDS: Final = 60.0
TENANT_ENDS_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 4000
"""Of simulated kubelets, whose renewals would be most of the load."""
CONFIG: Final = """apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
metrics: {{bindAddress: 127.0.0.1, port: {port}}}
---
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec:
  recovery: {{enabled: true}}
"""
"""The defaults, with recovery, so that users' Migrations are acted upon."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How large, how long, and which attacks. ``rate`` requests a second of the hostile tenant."""

    nodes: int = 1000
    quiet_seconds: float = 60.0
    attack_seconds: float = 240.0
    rate: float = 120.0
    scale: float = 1.0
    only: list[int] = field(default_factory=lambda: list(range(1, 1 + NINE_ATTACKS)))
    log: Path | None = None
    """Where the daemon's log is kept, and beside it what it counted."""
    devices: bool = False
    """Whether the attacks are those by means of devices. Then nodes of the tenant's pool have ResourceSlices."""
    scheduler: str = objects.SCHEDULER
    """That of the tenant's pods. With another one, what is slower is due to the API server, not to the scheduler."""


class Daemon:
    """`topo-scheduler run`, which may use one core."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.log = folder / "scheduler.log"
        config = folder / "scheduler.yaml"
        config.write_text(CONFIG.format(port=self.port))
        self._command = [sys.executable, "-m", "topo_scheduler", "run", "--kubeconfig", str(kubeconfig)]
        self._command += ["--config", str(config)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> int:
        """Start it; return its process id."""
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=log, preexec_fn=_on_one_core, start_new_session=True
            )
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


def _on_one_core() -> None:
    """Use one core at most, and that before the API server and the tenants, where this process may say so."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with suppress(PermissionError):
        os.nice(-15)
    # Linux may weigh the processes of a session against those of others before it weighs them among themselves.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("-15")


async def measure(plan: Plan) -> Json:
    """Measure, and return the report."""
    plane = ControlPlane(with_kwok=True, node_lease_seconds=LEASE_SECONDS)
    await asyncio.to_thread(plane.start)
    try:
        async with Api(plane.kubeconfig) as api:
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            await _prepare(cluster, plan)
            with tempfile.TemporaryDirectory(prefix="topo-attacks-") as folder:
                return await _play(cluster, plane, plan, Path(folder))
    finally:
        await asyncio.to_thread(plane.stop)


async def _prepare(cluster: Cluster, plan: Plan) -> None:
    """Make nodes and namespaces, and give the tenant all rights in its namespace and none elsewhere."""
    await cluster.install()
    await cluster.define(migration_definition())
    nodes = []
    for number in range(plan.nodes):
        leaf = number // LEAF
        pool = "a" if leaf % POOL_SHARE == 0 else "b"
        spine, labels = f"s{leaf // 16}", {hostile.POOL: pool}
        gpus = 0 if plan.devices and pool == "a" else 8
        node = objects.node(f"n{number}", spine=spine, leaf=f"l{leaf}", labels=labels, bandwidth="400Gb", gpus=gpus)
        nodes.append(node)
    await cluster.add_nodes(nodes)
    if plan.devices:
        pool_nodes = (node["metadata"] for node in nodes if node["metadata"]["labels"][hostile.POOL] == "a")
        await cluster.apply(device_objects.BACKING, *(device_objects.slice_of(node["name"]) for node in pool_nodes))
    for name in (hostile.NAMESPACE, victim.NAMESPACE):
        await cluster.add_namespace(name)
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    root = "rbac.authorization.k8s.io"
    metadata = {"name": "everything", "namespace": hostile.NAMESPACE}
    role = {"apiVersion": f"{root}/v1", "kind": "Role", "metadata": metadata, "rules": everything}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": hostile.NAMESPACE}
    binding = {**role, "kind": "RoleBinding", "subjects": [subject]}
    del binding["rules"]
    binding["roleRef"] = {"apiGroup": root, "kind": "Role", "name": "everything"}
    await cluster.apply(role, binding)


async def _play(cluster: Cluster, plane: ControlPlane, plan: Plan, folder: Path) -> Json:
    kubeconfig = await asyncio.to_thread(plane.kubeconfig_for_service_account, *ACCOUNT)
    daemon = Daemon(kubeconfig, folder)
    watched = Victim(cluster.api)
    pid = await daemon.start()
    try:
        await watched.start()
        anchor = await _anchor(cluster)
        watching = Watching(pid, daemon.port, cluster.api, plane)
        await watching.start()
        quiet = await watched.load(plan.quiet_seconds)
        seen_quiet = await watching.stop()
        _tell("quiet", quiet.summary(), seen_quiet)
        tenant = await _start_tenant(plane, plan, anchor)
        await watching.start()
        attacked = await watched.load(plan.attack_seconds)
        seen = await watching.stop()
        _tell("attacked", attacked.summary(), seen)
        if plan.log is not None:
            plan.log.with_suffix(".metrics").write_text(await watching.metrics())
        output, _ = await asyncio.wait_for(tenant.communicate(), TENANT_ENDS_SECONDS + plan.attack_seconds)
        return {
            "nodes": plan.nodes,
            "scale": plan.scale,
            "attacks": plan.only,
            "scheduler": plan.scheduler,
            "quiet": {**quiet.summary(), **seen_quiet},
            "attacked": {**attacked.summary(), **seen},
            "tenant": json.loads(output.decode().splitlines()[-1]) if output else {},
            "alive": daemon.alive,
            "terms": await _terms(cluster),
            "faults": _faults(daemon.log),
        }
    except BaseException:
        sys.stderr.write(daemon.log.read_text()[-8000:])
        raise
    finally:
        if plan.log is not None:
            shutil.copy(daemon.log, plan.log)
        await watched.stop()
        await daemon.kill()


async def _anchor(cluster: Cluster) -> str:
    """Create a gang of the victim that keeps running; return the uid of its Job, which the tenant borrows."""
    job = objects.gang("anchor", victim.GANG, namespace=victim.NAMESPACE)
    uid = str((await cluster.api.create("jobs", job, victim.NAMESPACE))["metadata"]["uid"])
    await cluster.wait_bound("anchor", victim.GANG, STARTS_SECONDS, victim.NAMESPACE)
    return uid


async def _start_tenant(plane: ControlPlane, plan: Plan, borrowed_uid: str) -> asyncio.subprocess.Process:
    kubeconfig = await asyncio.to_thread(plane.kubeconfig_for_service_account, hostile.NAMESPACE, "default")
    arguments = ["--kubeconfig", str(kubeconfig), "--seconds", str(plan.attack_seconds), "--rate", str(plan.rate)]
    arguments += ["--nodes", str(plan.nodes)]
    arguments += ["--scheduler", plan.scheduler, *(["--devices"] if plan.devices else [])]
    arguments += ["--scale", str(plan.scale), "--borrowed-uid", borrowed_uid, "--only", *map(str, plan.only)]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.attacks.tenant", *arguments), stdout=asyncio.subprocess.PIPE
    )


async def _terms(cluster: Cluster) -> int:
    """Return how often the Lease was taken: one means that no other process, nor a new term, was needed."""
    lease = await cluster.api.get("leases", "topology-scheduler", "kube-system")
    return int(lease["spec"].get("leaseTransitions") or 0) + 1


def _faults(log: Path) -> list[str]:
    """Return the first errors that the daemon logged."""
    errors = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("level") in ("ERROR", "CRITICAL"):
            errors.append(f"{entry.get('message', '')}"[:300])
    return errors[:20]


def _tell(phase: str, pending: Json, seen: Json) -> None:
    print(f"{phase}: {json.dumps(pending | seen)}", file=sys.stderr, flush=True)
