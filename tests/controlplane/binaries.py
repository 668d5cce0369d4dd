"""Where the control plane's programs come from: a directory that is named, or one ``go build`` per module, kept.

A build is kept under a name made of everything that goes into it. So nothing is built twice, and after a change of a
version or of a source line no old binary can run.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Version = Literal["current", "oldest"]

BIN_VARIABLE = "TOPO_CONTROLPLANE_BIN"
HERE = Path(__file__).resolve().parent

PROGRAMS: dict[str, tuple[str, ...]] = {
    "go": (
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "keygen",
        "kube-filters",
        "kube-allocator",
        "kube-cel",
    ),
    "go-kwok": ("kwok",),
    "go-oldest": ("kube-apiserver-oldest",),
}
"""The Go modules of the control plane and the programs each of them builds."""

PEERS: dict[str, tuple[str, ...]] = {"go-kai": ("kai-scheduler", "kai-binder")}
"""The Go modules of other schedulers: the benchmark asks for them, and nothing else builds them."""


class ControlPlaneUnavailable(RuntimeError):
    """The control plane can neither be found nor built, or it did not start; the message says what to do."""


def modules_for(version: Version = "current") -> tuple[str, ...]:
    """The modules a control plane of this version takes its programs from."""
    return ("go", "go-kwok") if version == "current" else ("go", "go-kwok", "go-oldest")


def build(dest: Path | None = None, *, modules: Iterable[str] = modules_for()) -> Path:
    """Return a directory that holds every program of ``modules``, building those that are missing.

    Without ``dest`` it is the directory named by ``TOPO_CONTROLPLANE_BIN``, which is only read, never
    built into; without that, a cache directory of the user's.
    """
    wanted = tuple(modules)
    named = os.environ.get(BIN_VARIABLE)
    if dest is None and named:
        return _named_directory(Path(named), wanted)
    go = _go_command()
    dest = dest if dest is not None else _cache_directory(go, wanted)
    if _missing(dest, wanted):
        dest.mkdir(parents=True, exist_ok=True)
        with _locked(dest / ".lock"):
            for module in wanted:
                if _missing(dest, [module]):
                    _build_module(go, module, dest)
    return dest


def kubernetes_version(module: str) -> str:
    """The Kubernetes version a module asks for, such as ``v1.36.3``."""
    match = re.search(r"^\s*(?:require\s+)?k8s\.io/kubernetes (v\S+)", _go_mod(module), re.MULTILINE)
    if match is None:
        raise ValueError(f"{module}/go.mod does not require k8s.io/kubernetes")
    return match[1]


def _programs(module: str) -> tuple[str, ...]:
    return (PROGRAMS | PEERS)[module]


def _missing(directory: Path, modules: Iterable[str]) -> list[str]:
    programs = [name for module in modules for name in _programs(module)]
    return [name for name in programs if not os.access(directory / name, os.X_OK)]


def _named_directory(directory: Path, modules: Iterable[str]) -> Path:
    if missing := _missing(directory, modules):
        raise ControlPlaneUnavailable(
            f"{BIN_VARIABLE} names {directory}, which has no executable {', '.join(missing)}. "
            f"Put the missing ones there (see tests/controlplane/README.md), or unset {BIN_VARIABLE} "
            "to have them built with go."
        )
    return directory


def _go_command() -> str:
    go = shutil.which("go")
    if go is None:
        needed = re.search(r"^go (\S+)", _go_mod("go"), re.MULTILINE)
        raise ControlPlaneUnavailable(
            "The tests against a real control plane need its binaries, and there is no `go` command on PATH "
            f"to build them with. Install Go {needed[1] if needed else ''} or newer, or set {BIN_VARIABLE} to a "
            f"directory that holds {', '.join(PROGRAMS['go'] + PROGRAMS['go-kwok'])}. "
            'To leave these tests out, run pytest -m "not real".'
        )
    return go


def _cache_directory(go: str, modules: Iterable[str]) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "topo-scheduler" / "controlplane" / _fingerprint(go, modules)


def _fingerprint(go: str, modules: Iterable[str]) -> str:
    """Name everything a build is made of: the toolchain, the modules' versions, the sources and the flags here.

    A peer counts only where the caller asks for it: its next version leaves the control plane as it is.
    """
    target = subprocess.run(
        [go, "env", "GOVERSION", "GOOS", "GOARCH"], cwd=HERE / "go", check=True, capture_output=True
    )
    digest = hashlib.sha256(target.stdout)
    for module in (*PROGRAMS, *(peer for peer in PEERS if peer in modules)):
        digest.update(_link_flags(module).encode())
        sources = (p for p in (HERE / module).rglob("*") if p.name in ("go.mod", "go.sum") or p.suffix == ".go")
        for path in sorted(sources):
            digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _build_module(go: str, module: str, dest: Path) -> None:
    print(f"controlplane: building {', '.join(_programs(module))} (minutes, the first time)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=dest, prefix=".building-") as staging:
        command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", _link_flags(module), "-o", staging + "/"]
        done = subprocess.run(
            [*command, "./cmd/..."],
            cwd=HERE / module,
            env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ControlPlaneUnavailable(
                f"`go build` of tests/controlplane/{module} failed with code {done.returncode}. It needs the Go "
                "module proxy (or a filled module cache) and some 6 GB of disk. The end of its output:\n"
                + done.stdout[-3000:]
            )
        for program in _programs(module):
            (Path(staging) / program).replace(dest / program)


def _link_flags(module: str) -> str:
    """Leave out debug symbols, and say the version: without that clients see v0.0.0."""
    flags = ["-s", "-w"]
    if module in ("go", "go-oldest"):
        version = kubernetes_version(module)
        major, minor = version.removeprefix("v").split(".")[:2]
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")  # of servers, of old servers
        flags += [f"-X {package}.{key}={value}" for package in packages for key, value in values.items()]
    return " ".join(flags)


def _go_mod(module: str) -> str:
    return (HERE / module / "go.mod").read_text()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process build at a time: the others wait, and find the work done."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
