"""What is imported of kubernetes_asyncio, in a process of its own each time."""

import subprocess
import sys

import pytest

from tests.e2e.cluster import ROOT

USED = "from topo_scheduler.kube.connection.library import library\n"
WHOLE = """
from kubernetes_asyncio.client import ApiClient, CoreV1Api, V1Pod
from kubernetes_asyncio.client.rest import RESTResponse
assert isinstance(ApiClient._ApiClient__deserialize(ApiClient.__new__(ApiClient), {}, "V1Pod"), V1Pod)
"""


def _passes(program: str) -> None:
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert not answer.returncode, answer.stderr


def test_no_model_is_imported_and_the_whole_library_can_be_afterwards() -> None:
    _passes(
        "import sys\n"
        "imported = []\n"
        "class Probe:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        imported.append(name)\n\n"
        "sys.meta_path.insert(0, Probe())\n"
        f"\n{USED}"
        "used = library()\n"
        "ours = [name for name in imported if name.startswith('kubernetes_asyncio.')]\n"
        "assert 'kubernetes_asyncio.config.kube_config' in ours\n"
        "assert len(ours) < 20, ours\n"
        f"{WHOLE}"
        "assert library() is used\n"
    )


def test_a_library_that_was_imported_before_is_used() -> None:
    _passes(f"{WHOLE}{USED}assert library().ApiClient is ApiClient\n")


@pytest.mark.parametrize("folder", ["nowhere", "config"])
def test_all_of_it_is_imported_if_its_modules_are_elsewhere(folder: str) -> None:
    _passes(
        "from topo_scheduler.kube.connection import library as module\n"
        f"module.PACKAGES['kubernetes_asyncio.client'] = {folder!r}\n"
        "used = module.library()\n"
        f"{WHOLE}"
        "assert used.ApiClient is ApiClient\n"
    )
