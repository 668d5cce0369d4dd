"""One replica of the daemon as a process of its own, under a token of its own."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.controlplane import ControlPlane

ACCOUNT = ("kube-system", "topology-scheduler")


class ReplicaProcess:
    """`topo-scheduler run`, with leader election. Its token is bound to a pod, which the audit log names."""

    def __init__(self, plane: ControlPlane, number: int, folder: Path, flags: list[str]) -> None:
        self.name = f"replica-{number}"
        namespace, account = ACCOUNT
        containers = [{"name": "scheduler", "image": "scheduler"}]
        pod = {"metadata": {"name": self.name}, "spec": {"serviceAccountName": account, "containers": containers}}
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        issued = plane.kubeconfig_for_service_account(namespace, account, pod=self.name)
        kubeconfig = folder / f"{self.name}.kubeconfig"
        kubeconfig.write_bytes(issued.read_bytes())
        self.log = folder / f"{self.name}.log"
        self._output = self.log.open("wb")
        command = [sys.executable, "-m", "topo_scheduler", "run", "--kubeconfig", str(kubeconfig)]
        command += ["--bind-address", "127.0.0.1", "--metrics-port", "0", *flags]
        # As in an image, where the modules are compiled; not into the working tree.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "topo-failover-bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._stopped = False
        self.started = time.time()
        """When its process began, seconds since the epoch."""
        self._process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT, env=environment)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has taken: unlike its time, that of a busy machine too."""
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self._process.poll() is None

    @property
    def running(self) -> bool:
        """Whether it is alive and not stopped."""
        return self.alive and not self._stopped

    def stop(self) -> None:
        """Stop it as a suspended machine does: SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self._stopped = True

    def wake(self) -> None:
        """Let it go on: SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self._stopped = False

    def kill(self) -> None:
        """End it at once: SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def end(self) -> None:
        """End it in order: SIGTERM, and SIGKILL if it takes longer than a pod has."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()
