"""The promise of the image: any user but root, a read-only root, no home, no capability.

The Dockerfile is carried out, and what it makes is started as the Deployment says, under bubblewrap.
"""

import re
import stat
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError

import certifi
import pytest

import topo_scheduler

from .dockerfile import read_dockerfile
from .image import Image
from .manifests import ROOT
from .pod import RANDOM_UID, Pod, service_account

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

CHECK = ["python", "-m", "topo_scheduler.kernels.warm", "--check"]
OWN_UID, OWN_GID = (int(part) for part in read_dockerfile(ROOT / "Dockerfile")[-1].last("USER").split(":"))
NO_HOME = ["env", "-u", "HOME"]
USERS = [pytest.param(OWN_UID, OWN_GID, id="its-own-user"), pytest.param(RANDOM_UID, 0, id="random-user")]


def _run(pod: Pod, command: list[str]) -> str:
    done = pod.sandbox().run(command)
    assert done.returncode == 0, done.stdout
    return done.stdout


# ------------------------------------------------------------------ what is in it


def test_every_user_may_read_it_and_only_its_owner_may_change_it(image: Image) -> None:
    for path in image.root.rglob("*"):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        wanted = 0o555 if path.is_dir() else 0o444
        assert mode & wanted == wanted, f"{path} can't be read by any user"
        assert not mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID), f"{path} has mode {mode:o}"


def test_it_has_what_it_needs_and_nothing_to_install_more_with(image: Image) -> None:
    programs = {path.name for path in (image.root / "opt" / "topo-scheduler" / "bin").iterdir()}
    assert {"python", "topo-scheduler"} <= programs
    assert not {name for name in programs if name.startswith("pip")}
    (packages,) = image.root.glob("opt/topo-scheduler/lib/python3.*/site-packages")
    installed = {path.name for path in packages.iterdir()}
    assert {"topo_scheduler", "uvloop", "numba"} <= installed
    assert "pip" not in installed
    assert list((packages / "topo_scheduler" / "__pycache__").iterdir()), "or every start would parse all sources"
    examples = packages / "topo_scheduler" / "simulation" / "examples"
    assert {path.name for path in examples.iterdir()} == {path.name for path in (ROOT / "examples").iterdir()}


# ------------------------------------------------------------------ the sandbox


def test_the_sandbox_is_as_strict_as_the_cluster(pod: Pod) -> None:
    """Without this, everything below would prove nothing."""
    probe = (
        "id -u; id -g; cat /proc/self/status; for f in / /tmp /opt /etc /root /var; do touch $f/x && echo WROTE; done"
    )
    said = pod.sandbox().run(["sh", "-c", f"{probe}; touch /var/cache/topo-scheduler/x && echo fine; env"]).stdout
    assert said.startswith(f"{RANDOM_UID}\n0\n")
    assert "WROTE" not in said
    assert "\nfine\n" in said
    assert re.search(r"^CapEff:\s+0+$", said, re.MULTILINE)
    assert "\nHOME=/\n" in said
    assert "\nTOPO_DATA=" not in said, "nothing of this machine's environment"


# ------------------------------------------------------------------ what it does


@pytest.mark.parametrize(("uid", "gid"), USERS)
def test_kernels_come_from_the_image(pod: Pod, uid: int, gid: int) -> None:
    said = _run(replace(pod, uid=uid, gid=gid, variables={"NUMBA_DEBUG_CACHE": "1"}), CHECK)
    assert "[cache] data loaded from '/var/cache/topo-scheduler/" in said
    assert "[cache] data saved" not in said, "a kernel was compiled again"
    assert "loaded from /var/cache/topo-scheduler/" in said.splitlines()[-1]


def test_kernels_work_a_second_time(pod: Pod) -> None:
    """A container that is started again finds its emptyDir as it left it."""
    _run(pod, CHECK)
    assert "[cache] data saved" not in _run(replace(pod, variables={"NUMBA_DEBUG_CACHE": "1"}), CHECK)


@pytest.mark.parametrize("without", [[], NO_HOME], ids=["as-it-is", "no-home"])
def test_kernels_work_where_nothing_can_be_written(pod: Pod, without: list[str]) -> None:
    said = _run(replace(pod, with_cache=False), [*without, *CHECK])
    assert "nowhere" in said


def test_kernels_work_when_the_folder_belongs_to_another_user(pod: Pod) -> None:
    """As when an administrator mounts a volume that was written by another user."""
    sandbox = pod.sandbox()
    (pod.scratch / "cache").chmod(0o755)
    done = sandbox.run(CHECK)
    assert done.returncode == 0, done.stdout
    assert "kernels ready" in done.stdout


@pytest.mark.parametrize("with_cache", [True, False], ids=["with-cache", "nothing-writable"])
def test_the_command_starts(pod: Pod, with_cache: bool) -> None:
    said = _run(replace(pod, with_cache=with_cache), [*pod.image.entrypoint, "--version"])
    assert topo_scheduler.__version__ in said


def test_the_mounted_configuration_is_accepted(pod: Pod) -> None:
    _run(pod, [*pod.image.entrypoint, "check-config", "/etc/topology-scheduler/config.yaml"])


@pytest.mark.parametrize(
    ("with_cache", "prefix"),
    [(True, []), (False, []), (False, NO_HOME)],
    ids=["with-cache", "nothing-writable", "nothing-writable-no-home"],
)
def test_the_scheduler_starts_and_ends(pod: Pod, with_cache: bool, prefix: list[str]) -> None:
    """Without an API server even: it is alive, gets ready to stand by, and ends when told to."""
    mount = service_account(pod.scratch / "token", token="none", authority=Path(certifi.where()).read_bytes())
    with replace(pod, with_cache=with_cache, mounts=[mount]).start("https://127.0.0.1:9", prefix=prefix) as running:
        running.wait_ready()
        assert running.get("/livez") == "ok"
        for token, code in (("", 401), ("any", 503)):
            with pytest.raises(HTTPError) as refused:
                running.get("/metrics", token)
            refused.value.close()
            assert refused.value.code == code, "without an API server no permission is known"
        assert running.terminate() == 0, running.said()
