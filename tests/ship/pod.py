"""The container of the Deployment, started as a kubelet starts it: same arguments, variables, mounts and rights."""

import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil

from tests.controlplane.process import free_ports

from .image import Image
from .manifests import Object, container, one
from .sandbox import Mount, Sandbox

RANDOM_UID = 12345
"""A user of no name, with group 0, as OpenShift gives."""


@dataclass(frozen=True)
class Pod:
    """A pod of the Deployment in ``objects``, whose volumes live under ``scratch``."""

    image: Image
    objects: Sequence[Object]
    scratch: Path
    uid: int = RANDOM_UID
    gid: int = 0
    with_cache: bool = True
    """Whether the emptyDir is there; without it nothing at all is writable."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the environment has besides what image and Deployment say."""
    mounts: Sequence[Mount] = ()
    """Further mounts, such as the token of a service account."""
    network: bool = False

    def sandbox(self) -> Sandbox:
        """Where its commands run."""
        box = container(self.objects)
        assert box["securityContext"]["readOnlyRootFilesystem"], "or the sandbox would be stricter than the cluster"
        assert self.uid, "runAsNonRoot"
        named = {item["name"]: item["value"] for item in box["env"]}
        return Sandbox(
            mounts=[*self.image.mounts(writable=False), *self._volumes(box), *self.mounts],
            environment={**self.image.environment, **named, **self.variables},
            uid=self.uid,
            gid=self.gid,
            network=self.network,
            workdir=self.image.workdir,
        )

    def command(self) -> list[str]:
        """What the container runs."""
        return [*self.image.entrypoint, *container(self.objects)["args"]]

    @contextmanager
    def start(self, server: str, *, prefix: Sequence[str] = ()) -> Iterator["Running"]:
        """Start the container on this machine's network, where the API server is, and a free port of it."""
        host, port = server.removeprefix("https://").split(":")
        (metrics_port,) = free_ports(1)
        variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, **self.variables}
        log = self.scratch / "container.log"
        sandbox = replace(self, variables=variables, network=True).sandbox()
        process = sandbox.start([*prefix, *self.command(), f"--metrics-port={metrics_port}"], log)
        try:
            yield Running(process, metrics_port, log)
        finally:
            process.kill()  # what runs inside dies with it
            process.wait()

    def _volumes(self, box: Object) -> list[Mount]:
        volumes = {
            volume["name"]: volume for volume in one(self.objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
        }
        mounts = []
        for mount in box["volumeMounts"]:
            folder = self.scratch / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                _project(one(self.objects, "ConfigMap", volume["configMap"]["name"])["data"], folder)
                mounts.append(Mount(folder, mount["mountPath"]))
            elif self.with_cache:
                folder.chmod(0o777)
                mounts.append(Mount(folder, mount["mountPath"], writable=True))
        return mounts


@dataclass(frozen=True)
class Running:
    """A container that was started."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str, token: str = "") -> str:
        """What it answers to GET, by TLS without a look at the certificate, as the kubelet asks."""
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
        )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", headers=headers)
        with opener.open(request, timeout=5) as answer:
            return str(answer.read().decode())

    def wait_ready(self, seconds: float = 60) -> None:
        """Wait for /readyz; fail when the process ends instead."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.get("/readyz")
                return
            except HTTPError as error:
                error.close()
            except OSError:
                pass
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.said()}"
            assert time.monotonic() < deadline, f"not ready after {seconds} s:\n{self.said()}"
            time.sleep(0.1)

    def terminate(self, seconds: float = 40) -> int:
        """End it as a kubelet does, and return its exit code."""
        inside = psutil.Process(self.process.pid).children(recursive=True)
        inside[-1].terminate()
        return self.process.wait(seconds)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")


def service_account(folder: Path, *, token: str, authority: bytes) -> Mount:
    """The volume that a ServiceAccount's pod gets."""
    folder.mkdir(parents=True)
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(authority)
    (folder / "namespace").write_text("kube-system")
    return Mount(folder, "/var/run/secrets/kubernetes.io/serviceaccount")


def _project(data: Mapping[str, Any], folder: Path) -> None:
    """Write a ConfigMap as a kubelet does: a hidden folder, a link to it, and a link for each key."""
    hidden = folder / "..2026_01_01_00_00_00.000000000"
    if hidden.exists():
        return
    hidden.mkdir()
    (folder / "..data").symlink_to(hidden.name)
    for key, text in data.items():
        (hidden / key).write_text(text)
        (folder / key).symlink_to(Path("..data", key))
