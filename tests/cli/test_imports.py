"""What a command imports: packages that take long to import only where the command uses them."""

import gc
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import RECOVERS, ROOT, Served, run
from tests.cli.processes import SIMPLE_COMMANDS, arguments_of, cpu_seconds, write_unreachable

NEVER: Final = {"kopf", "prometheus_client", "scipy.linalg", "pandas", "matplotlib", "tenacity"}
"""No command that only reads or drains uses one of these."""
COMPILED: Final = {"numba", "llvmlite", "topo_scheduler.kernels.fit"}
SCHEDULING: Final = {"numpy", "topo_scheduler.scheduling", "topo_scheduler.state"}
"""What knows a whole cluster."""
CLUSTER: Final = {"numpy", "aiohttp", "rich", "urllib3"}
"""Imported by commands that ask a cluster; kubernetes_asyncio, which reads the kubeconfig, needs urllib3."""


SIMPLE_SECONDS: Final = 0.5
"""CPU time of a simple command until its first request."""
LIBRARIES_AND_OURS: Final = 1.5
"""CPU time of such a command, in that of importing its libraries for HTTP and kubeconfigs: holds on slow machines."""


@pytest.fixture
def unreachable(tmp_path: Path) -> str:
    """A kubeconfig whose server refuses connections."""
    return write_unreachable(tmp_path / "kubeconfig")


def imported(*arguments: str, status: int = 0) -> set[str]:
    """Return the modules that a command, run in a process of its own, has imported when it ends."""
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('\\nmodules:', *sys.modules))\n"
        "from topo_scheduler.cli.main import main\n"
        f"main({list(arguments)!r})\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert answer.returncode == status, answer.stderr
    return set(answer.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_flags_import_no_configuration(flag: str) -> None:
    modules = imported(flag)
    assert not modules & (NEVER | COMPILED | CLUSTER | {"pydantic", "yaml", "msgspec"})


def test_check_config_imports_what_reads_configurations() -> None:
    modules = imported("check-config", str(ROOT / "manifests" / "install.yaml"))
    assert "pydantic" in modules
    assert not modules & (NEVER | COMPILED | CLUSTER)


def test_filter_computes_without_the_compiler_and_without_http(tmp_path: Path) -> None:
    (snapshot := tmp_path / "cluster.yaml").write_text("nodes: []\npods: []\npending: []\n")
    modules = imported("filter", "--snapshot", str(snapshot))
    assert "numpy" in modules, "it has the state of the scheduler, so it is no simple command"
    assert not modules & (NEVER | COMPILED | {"aiohttp", "rich", "urllib3", "kubernetes_asyncio"})


@pytest.mark.parametrize(
    ("command", "without"),
    [
        (("explain", "bound"), NEVER | COMPILED | SCHEDULING | {"rich"}),
        (("topology",), NEVER | COMPILED),
        (("topology", "-o", "json"), NEVER | COMPILED),
        (("drain", "spine-1/leaf-1", "--dry-run"), NEVER | COMPILED),
        (("check-config", "--live", str(ROOT / "manifests" / "install.yaml")), NEVER | COMPILED),
    ],
    ids=["explain", "topology", "topology-json", "drain", "check-config"],
)
def test_commands_of_a_cluster_import_no_compiler(served: Served, command: tuple[str, ...], without: set[str]) -> None:
    served.configure(RECOVERS)
    served.create_pod("bound")
    served.bind("bound", served.call(lambda: served.server.store.list("nodes")[0].key.name), address="x")
    unwanted = without & imported(*command, "--kubeconfig", served.kubeconfig)
    assert not unwanted


@pytest.mark.parametrize(
    "command", [("explain", "any"), ("topology",), ("drain", "any")], ids=["explain", "topology", "drain"]
)
def test_what_the_first_request_does_without_is_imported_after_it(unreachable: str, command: tuple[str, ...]) -> None:
    modules = imported(*command, "--kubeconfig", unreachable, status=1)
    assert not modules & (NEVER | COMPILED | SCHEDULING | {"pydantic", "rich"})


def test_check_config_imports_what_knows_a_cluster_after_its_first_request(unreachable: str) -> None:
    file = str(ROOT / "manifests" / "install.yaml")
    modules = imported("check-config", "--live", file, "--kubeconfig", unreachable, status=1)
    assert not modules & (COMPILED | {"numpy", "topo_scheduler.state", "rich"})


@pytest.mark.parametrize("command", SIMPLE_COMMANDS, ids=" ".join)
def test_simple_commands_take_half_a_second_until_their_first_request(
    command: tuple[str, ...], unreachable: str
) -> None:
    arguments, status = arguments_of(command, unreachable), SIMPLE_COMMANDS[command]
    libraries = ["-c", "import aiohttp, click, dateutil.parser, msgspec, urllib3, yaml"]
    seconds = of_libraries = inf
    for _ in range(3):  # as other work runs beside
        seconds = min(seconds, cpu_seconds(*arguments, status=status))
        if seconds < SIMPLE_SECONDS:
            return
        of_libraries = min(of_libraries, cpu_seconds(*libraries))
    assert seconds < LIBRARIES_AND_OURS * of_libraries, "slower than the libraries make it on a busy machine"


def test_hardly_any_garbage_is_collected_while_a_command_imports(served: Served) -> None:
    program = (
        "import atexit, gc\n"
        "atexit.register(lambda: print('\\ncollections:', *(one['collections'] for one in gc.get_stats()[1:])))\n"
        "from topo_scheduler.cli.main import main\n"
        f"main(['topology', '--kubeconfig', {served.kubeconfig!r}])\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert sum(map(int, answer.stdout.rpartition("collections:")[2].split())) < 10


def test_collections_are_as_before_after_a_command() -> None:
    before = gc.get_threshold()
    assert run("check-config", str(ROOT / "manifests" / "install.yaml")).exit_code == 0
    assert gc.get_threshold() == before
