"""What a command imports: packages that take long to import only where the command uses them."""

import subprocess
import sys
from typing import Final

import pytest

from tests.cli.conftest import RECOVERS, ROOT, Served

NEVER: Final = {"kopf", "prometheus_client", "scipy.linalg", "pandas", "matplotlib"}
"""No command that only reads or drains uses one of these."""
COMPILED: Final = {"numba", "llvmlite", "topo_scheduler.kernels.fit"}
CLUSTER: Final = {"numpy", "aiohttp", "rich", "kubernetes_asyncio"}
"""Imported by commands that ask a cluster; kubernetes_asyncio reads the kubeconfig."""


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command, run in a process of its own, has imported when it ends."""
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('\\nmodules:', *sys.modules))\n"
        "from topo_scheduler.cli.main import main\n"
        f"main({list(arguments)!r})\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_flags_import_no_configuration(flag: str) -> None:
    found = imported(flag)
    assert not found & (NEVER | COMPILED | CLUSTER | {"pydantic", "yaml", "msgspec"})


def test_check_config_imports_what_reads_configurations() -> None:
    found = imported("check-config", str(ROOT / "manifests" / "install.yaml"))
    assert "pydantic" in found
    assert not found & (NEVER | COMPILED | CLUSTER)


@pytest.mark.parametrize(
    ("command", "without"),
    [
        (("explain", "bound"), NEVER | COMPILED | {"rich"}),
        (("topology",), NEVER | COMPILED),
        (("topology", "-o", "json"), NEVER | COMPILED),
        (("drain", "spine-1/leaf-1", "--dry-run"), NEVER | COMPILED),
    ],
    ids=["explain", "topology", "topology-json", "drain"],
)
def test_commands_of_a_cluster_import_no_compiler(served: Served, command: tuple[str, ...], without: set[str]) -> None:
    served.configure(RECOVERS)
    served.create_pod("bound")
    served.bind("bound", served.call(lambda: served.server.store.list("nodes")[0].key.name), address="x")
    found = without & imported(*command, "--kubeconfig", served.kubeconfig)
    assert not found
