"""Commands as processes of their own: what they cost until their first request."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
SIMPLE_COMMANDS: Final[dict[tuple[str, ...], int]] = {
    ("check-config", str(_ROOT / "manifests" / "install.yaml")): 0,
    ("topology",): 1,
    ("explain", "any"): 1,
    ("drain", "any"): 1,
}
"""Commands that only read or ask, with the exit status where no API server answers."""


def write_unreachable(path: Path) -> str:
    """Write a kubeconfig whose server refuses connections, and return its path."""
    config = {
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "users": [{"name": "none", "user": {"token": "x"}}],
        "current-context": "none",
    }
    path.write_text(json.dumps(config))
    return str(path)


def arguments_of(command: tuple[str, ...], kubeconfig: str) -> list[str]:
    """Return the arguments of Python that run a simple command with a kubeconfig, if it asks a cluster."""
    return ["-m", "topo_scheduler", *command, *(("--kubeconfig", kubeconfig) if SIMPLE_COMMANDS[command] else ())]


def cpu_seconds(*arguments: str, status: int = 0) -> float:
    """Return the CPU time of a Python process, which must end with this exit status."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=_ROOT, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert answer.returncode == status, answer.stderr
    assert not status or "Cannot connect to host 127.0.0.1:9 " in answer.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
