"""Child processes that cannot outlive their parent, and that explain themselves when they die."""

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from .binaries import ControlPlaneUnavailable

_LAUNCHER = str(Path(__file__).with_name("launch.py"))
_LOG_TAIL = 4000
# The kernel sends the death signal when the *thread* that forked ends. So one thread, which lives as long as this
# process does, forks all children.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="controlplane-forker")


class Process:
    """One program with its log file, in a process group of its own."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        if self._child is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._child.pid

    def start(self) -> None:
        """Start the program; what it prints is appended to its log."""
        self._child = _forker.submit(self._fork).result()
        atexit.register(self.stop)

    def stop(self, grace: float = 5.0) -> None:
        """Ask the program's group to end, then insist."""
        child, self._child = self._child, None
        if child is None:
            return
        atexit.unregister(self.stop)
        for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, None)):
            if child.poll() is not None:
                break
            os.killpg(child.pid, sign)  # not reaped yet, so the number is still its own
            with suppress(subprocess.TimeoutExpired):
                child.wait(patience)

    def require_alive(self) -> None:
        """Raise with the end of the log when the program has died."""
        if self._child is not None and self._child.poll() is not None:
            raise ControlPlaneUnavailable(
                f"{self.name} ended with code {self._child.returncode}. The end of {self.log}:\n{self.tail()}"
            )

    def tail(self) -> str:
        """The end of the program's log."""
        text = self.log.read_bytes().decode(errors="replace") if self.log.exists() else ""
        return text[-_LOG_TAIL:] or "(the log is empty)"

    def _fork(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback interface, no two alike."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def wait_until(ready: Callable[[], bool], process: Process, deadline: float) -> None:
    """Wait until ``ready`` says so; raise, with the log's end, when the process dies or time is up."""
    while not ready():
        process.require_alive()
        if time.monotonic() > deadline:
            raise ControlPlaneUnavailable(
                f"{process.name} did not become ready in time. The end of {process.log}:\n{process.tail()}"
            )
        time.sleep(0.05)
