"""What a started process does before its first bind: which modules it imports, and when garbage is collected."""

import signal
import subprocess
import sys
from typing import Final

import pytest

from tests.cli.conftest import ROOT, Served
from topo_scheduler.kernels.warm import warm
from topo_scheduler.simulation.demo import until

NOT_NEEDED: Final = {
    "kopf",  # a leader with recovery needs it
    "rich",
    "jsonschema",
    "distributed",
    "pandas",
    "cryptography",
    "topo_scheduler.simulation",
    "topo_scheduler.kernels.sets",
    "topo_scheduler.kernels.filling",
    "topo_scheduler.kernels.links",
}
"""What the first bind does without, in the default configuration."""
PROGRAM: Final = """
import atexit, gc, sys

class Probe:
    enabled = {}

    def find_spec(self, name, path=None, target=None):
        self.enabled[name] = gc.isenabled()

sys.meta_path.insert(0, Probe())
frozen, freeze = [], gc.freeze
gc.freeze = lambda: (frozen.append(gc.isenabled()), freeze())
atexit.register(lambda: print("enabled:", *frozen))
atexit.register(lambda: print("collected:", *(name for name, enabled in Probe.enabled.items() if enabled)))
atexit.register(lambda: print("modules:", *sys.modules))
from topo_scheduler.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.timeout(180)
def test_the_first_bind_waits_for_no_module_that_it_does_not_need_and_for_no_collection(served: Served) -> None:
    warm()  # where kernels are compiled, collections go on
    served.create_pod("first")
    store = served.server.store

    def bound() -> bool:
        return "nodeName" in store.get("pods", "first", "default").obj["spec"]

    flags = ["run", "--kubeconfig", served.kubeconfig, "--metrics-port", "0", "--log-format", "text"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert served.wait(lambda: until(store, bound, 60.0), 70.0), "not bound"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    said = dict(line.split(":", 1) for line in output.splitlines() if ": " in line)
    modules, collected = set(said["modules"].split()), set(said["collected"].split())
    assert "topo_scheduler.runtime.term" in modules, errors
    assert sorted(modules & NOT_NEEDED) == []
    assert said["enabled"].split() == ["False", "True"], "once all is imported, and once the caches are filled"
    assert not collected & {
        "topo_scheduler.daemon",
        "topo_scheduler.runtime.term",
        "numba",
        "kubernetes_asyncio.client.configuration",
    }
