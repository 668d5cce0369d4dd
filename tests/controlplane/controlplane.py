"""Start, use and stop a real Kubernetes control plane on the loopback interface."""

import base64
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import client, flags
from .binaries import Version, build, modules_for
from .client import Json
from .process import Process, free_ports, wait_until


@dataclass(frozen=True)
class Usage:
    """What a component has used so far."""

    cpu_seconds: float
    rss_mib: float


class ControlPlane:
    """etcd, kube-apiserver and what else is asked for, all on 127.0.0.1, gone when the block ends.

    RBAC is on; the one identity made here is in ``system:masters``, further ones come from
    :meth:`kubeconfig_for_service_account`. ``arguments`` adds flags to a component by its name, or overrides those
    set here. Without a controller manager there are no ServiceAccounts, and new nodes keep their taint. So the
    two admission plugins that count on it are off.
    """

    def __init__(
        self,
        *,
        version: Version = "current",
        with_controller_manager: bool | None = None,
        with_kwok: bool = False,
        with_scheduler: bool = False,
        scheduler_config: Path | Mapping[str, Any] | None = None,
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: Sequence[str] = (),
        priority_and_fairness: bool = True,
        etcd_fsync: bool = False,
        node_lease_seconds: int = 40,
        arguments: Mapping[str, Sequence[str]] | None = None,
        binaries: Path | None = None,
        start_timeout: float = 90.0,
    ) -> None:
        self._oldest = version == "oldest"
        if self._oldest and (with_controller_manager or with_scheduler):
            raise ValueError("there is no controller manager and no scheduler of the oldest version here")
        self._with_controller_manager = not self._oldest if with_controller_manager is None else with_controller_manager
        self._with_kwok = with_kwok
        self._with_scheduler = with_scheduler
        self._scheduler_config = scheduler_config
        self._feature_gates = feature_gates or {}
        self._runtime_config = runtime_config
        self._priority_and_fairness = priority_and_fairness
        self._etcd_fsync = etcd_fsync
        self._node_lease_seconds = node_lease_seconds
        self._arguments = arguments or {}
        self._binaries = binaries
        self._start_timeout = start_timeout
        self._processes: dict[str, Process] = {}
        self._ports: dict[str, int] = {}
        self._directory: Path | None = None
        self.token = secrets.token_hex(16)
        self.url = ""

    # ---------------------------------------------------------------- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Build what is missing, start everything, and return when it is ready to serve."""
        if self._directory is not None:
            raise RuntimeError("this control plane is already up")
        programs = self._binaries or build(modules=modules_for("oldest" if self._oldest else "current"))
        self._directory = Path(tempfile.mkdtemp(prefix="topo-controlplane-"))
        try:
            self._start(programs, time.monotonic() + self._start_timeout)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill everything that was started and remove its data. Safe to call twice."""
        while self._processes:
            _, process = self._processes.popitem()
            process.stop(grace=0)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def restart(self, component: str, *, grace: float = 5.0) -> None:
        """End one component and start it again on its old address and data; ``grace=0`` is a crash."""
        self.halt(component, grace=grace)
        self.resume(component)

    def halt(self, component: str, *, grace: float = 0.0) -> None:
        """End one component, until it is resumed."""
        self._processes[component].stop(grace)

    def resume(self, component: str) -> None:
        """Start a component again on its old address and data, and return when it is ready to serve."""
        self._processes[component].start()
        self._wait(component, time.monotonic() + self._start_timeout)

    # ----------------------------------------------------------------- use

    @property
    def directory(self) -> Path:
        """Where keys, data and kubeconfigs are."""
        if self._directory is None:
            raise RuntimeError("this control plane is not up")
        return self._directory

    @property
    def oldest(self) -> bool:
        """Whether it is the oldest supported version."""
        return self._oldest

    @property
    def controllers(self) -> bool:
        """Whether there is a kube-controller-manager."""
        return self._with_controller_manager

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.directory / "admin.kubeconfig"

    @property
    def ca_file(self) -> Path:
        """The certificate of the API server together with the authority that signed it."""
        return self.directory / "pki" / "apiserver.crt"

    @property
    def logs(self) -> dict[str, Path]:
        """The log file of every component."""
        return {name: process.log for name, process in self._processes.items()}

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """Make one request of the API as the administrator; 400 and above is a :class:`client.ApiError`.

        The body of a PATCH is a merge patch.
        """
        return client.request(method, self.url + path, body, token=self.token, ca_file=self.ca_file)

    def kubeconfig_for_service_account(
        self, namespace: str, name: str, *, seconds: int = 86_400, pod: str = ""
    ) -> Path:
        """Write a kubeconfig with a fresh token of an existing ServiceAccount, by TokenRequest.

        With ``pod``, which runs as that account, the token is valid while the pod exists, and audit logs name the pod.
        """
        spec: Json = {"expirationSeconds": seconds}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
        answer = self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        path = self.directory / f"{namespace}-{name}.kubeconfig"
        self._write_kubeconfig(path, answer["status"]["token"])
        return path

    def address(self, component: str) -> str:
        """The base URL a component serves its own endpoints at, such as ``/metrics``."""
        scheme = "http" if component in ("etcd", "kwok") else "https"
        return f"{scheme}://127.0.0.1:{self._ports[component]}"

    def usage(self) -> dict[str, Usage]:
        """CPU time and resident memory of every component since its start (Linux only)."""
        ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        used = {}
        for name, process in self._processes.items():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            cpu = (int(fields[11]) + int(fields[12])) / ticks
            used[name] = Usage(cpu, int(fields[21]) * page / 2**20)
        return used

    # --------------------------------------------------------------- start

    def _start(self, programs: Path, deadline: float) -> None:
        (self.directory / "logs").mkdir()
        names = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kwok", "kube-scheduler")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = self.address("kube-apiserver")
        self._prepare_keys(programs)
        for name in self._components():
            program = "kube-apiserver-oldest" if self._oldest and name == "kube-apiserver" else name
            command: list[str | Path] = [programs / program, *self._flags(name), *self._arguments.get(name, ())]
            self._processes[name] = Process(name, command, self.directory / "logs" / f"{name}.log")
            self._processes[name].start()
            self._wait(name, deadline)

    def _components(self) -> list[str]:
        optional = {
            "kube-controller-manager": self._with_controller_manager,
            "kwok": self._with_kwok,
            "kube-scheduler": self._with_scheduler,
        }
        return ["etcd", "kube-apiserver", *(name for name, wanted in optional.items() if wanted)]

    def _flags(self, name: str) -> list[str]:
        ports, pki, gates = self._ports, self.directory / "pki", self._feature_gates
        lease = self._node_lease_seconds
        match name:
            case "etcd":
                data = self.directory / "etcd"
                return flags.etcd(data, ports[name], ports["etcd-peer"], fsync=self._etcd_fsync)
            case "kube-apiserver":
                return flags.kube_apiserver(
                    pki,
                    ports[name],
                    ports["etcd"],
                    controllers=self._with_controller_manager,
                    priority_and_fairness=self._priority_and_fairness,
                    feature_gates=gates,
                    runtime_config=self._runtime_config,
                )
            case "kube-controller-manager":
                kept = lease if self._with_kwok else None
                return flags.kube_controller_manager(
                    self.kubeconfig, pki, ports[name], lease_seconds=kept, feature_gates=gates
                )
            case "kwok":
                return flags.kwok(self.kubeconfig, ports[name], lease_seconds=lease)
            case _:
                target = self.directory / "scheduler-config.json"
                config = flags.scheduler_config(self._scheduler_config, self.kubeconfig, target)
                return flags.kube_scheduler(config, pki, ports[name], feature_gates=gates)

    def _wait(self, name: str, deadline: float) -> None:
        """Wait until a component serves; what the next one needs of it is there then, too."""
        default = f"{self.url}/api/v1/namespaces/default"
        own, more = {
            "etcd": ("/health", []),
            "kube-apiserver": ("/readyz", [default]),
            "kube-controller-manager": ("/healthz", [f"{default}/serviceaccounts/default"]),
            "kwok": ("/healthz", []),
            "kube-scheduler": ("/readyz", []),
        }[name]
        urls = [self.address(name) + own, *more]

        def ready() -> bool:
            return all(client.answers(url, self.token if url.startswith(self.url) else "") for url in urls)

        wait_until(ready, self._processes[name], deadline)
        if name == "kube-apiserver":
            self._write_kubeconfig(self.kubeconfig, self.token)

    def _prepare_keys(self, programs: Path) -> None:
        pki = self.directory / "pki"
        pki.mkdir()
        subprocess.run([programs / "keygen", pki / "service-accounts.key"], check=True)
        (pki / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        authority = base64.b64encode(self.ca_file.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config, indent=1))  # JSON is YAML
        path.chmod(0o600)
