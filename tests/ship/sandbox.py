"""Run a command as a container runtime would: another root, another user, nothing writable but what is named.

bubblewrap does it. Started by root, the command becomes the asked-for user for good, so that permissions of files are
felt; started by another user, a user namespace makes it look so, and only the read-only mounts are felt.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

Mode = Literal["root", "namespace"]

_PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
_SETTINGS = (
    "alternatives",
    "ca-certificates",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "passwd",
    "pki",
    "resolv.conf",
    "ssl",
)


class SandboxUnavailable(RuntimeError):
    """Bubblewrap is not installed or not allowed to work; the message says what to do."""


@dataclass(frozen=True)
class Mount:
    """A folder of this machine, seen at ``target`` inside."""

    source: Path
    target: str
    writable: bool = False

    def arguments(self) -> list[str]:
        """The words that tell bubblewrap."""
        return [*_parents(self.target), "--bind" if self.writable else "--ro-bind", str(self.source), self.target]


@dataclass(frozen=True)
class Sandbox:
    """A root made of this machine's programs and the given mounts; everything else is empty and read-only."""

    mounts: Sequence[Mount] = ()
    scratch: Sequence[str] = ()
    """Folders that are empty, in memory and writable."""
    folders: Sequence[str] = ("/tmp",)
    """Folders that exist, empty and read-only."""
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int = 0
    gid: int = 0
    network: bool = False
    workdir: str = "/"

    def run(self, command: Sequence[str], *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; what it says on both channels is in ``stdout``."""
        return subprocess.run(
            self.arguments(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command and leave it running; it dies with this process at the latest."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self.arguments(command), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    def arguments(self, command: Sequence[str]) -> list[str]:
        """The whole command line."""
        mode = available_mode()
        words = ["bwrap", "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
        if not self.network:
            words.append("--unshare-net")
        if mode == "namespace":
            words += ["--unshare-user", "--uid", str(self.uid), "--gid", str(self.gid)]
        words += _system()
        for folder in self.folders:
            words += _folder(folder)
        for folder in self.scratch:
            words += ["--tmpfs", folder]
        for mount in self.mounts:
            words += mount.arguments()
        words += _python()
        words += ["--dev", "/dev", "--proc", "/proc", "--remount-ro", "/", "--chdir", self.workdir, "--clearenv"]
        for name, value in self.environment.items():
            words += ["--setenv", name, value]
        words.append("--")
        if mode == "root" and self.uid:
            words += ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--no-new-privs"]
            words += ["--inh-caps=-all", "--bounding-set=-all"]
        return [*words, *command]


def _folder(path: str) -> list[str]:
    return ["--perms", "0755", "--dir", path]


def _parents(target: str) -> list[str]:
    """Make the folders above a mount; bubblewrap would make them for root only."""
    above = [str(parent) for parent in PurePosixPath(target).parents]
    return [word for parent in reversed(above[:-1]) for word in _folder(parent)]


def _system() -> list[str]:
    words = _folder("/etc")
    for path in [*(Path("/", name) for name in _PROGRAMS), *(Path("/etc", name) for name in _SETTINGS)]:
        if path.is_symlink() and path.parent == Path("/"):
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path.resolve()), str(path)]
    return words


def _python() -> list[str]:
    """Bring the interpreter along when it is no part of the system, wherever it is installed."""
    prefixes = {Path(sys.base_prefix), Path(sys.base_exec_prefix), base_python().parent.parent}
    mounts = [Mount(prefix, str(prefix)) for prefix in sorted(prefixes) if not prefix.is_relative_to("/usr")]
    return [word for mount in mounts for word in mount.arguments()]


def base_python() -> Path:
    """The interpreter outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


@functools.cache
def available_mode() -> Mode:
    """How a sandbox can be made here.

    Raises:
        SandboxUnavailable: it can't, and why.
    """
    if shutil.which("bwrap") is None:
        raise SandboxUnavailable(
            "bubblewrap is not installed. It starts the image as a cluster would, without a container engine: "
            "apt-get install bubblewrap (or the package of that name of your system)."
        )
    said: list[str] = []
    modes: tuple[Mode, ...] = ("root", "namespace") if os.geteuid() == 0 else ("namespace",)
    for mode in modes:
        if error := _refusal(mode):
            said.append(error)
        else:
            return mode
    raise SandboxUnavailable(
        f"bubblewrap is installed but may not work here: {'; '.join(said)}. It needs root with CAP_SYS_ADMIN, or "
        "user namespaces for all users (sysctl kernel.unprivileged_userns_clone=1 and "
        "kernel.apparmor_restrict_unprivileged_userns=0 where they exist)."
    )


def _refusal(mode: Mode) -> str:
    words = ["bwrap", "--unshare-net", "--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    if mode == "namespace":
        words += ["--unshare-user", "--uid", "12345", "--gid", "0"]
    else:
        words += ["setpriv", "--reuid=12345", "--regid=0", "--clear-groups"]
    done = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=30, check=False)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""
