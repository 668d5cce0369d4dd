"""Where compiled kernels are kept: always a place of our own, or none; never a crash."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import topo_scheduler
from topo_scheduler.kernels.cache import OWN_VARIABLE, WARM_VARIABLE, fingerprint, prepare

NOWHERE = "/dev/null/nowhere"
PACKAGE = Path(topo_scheduler.__file__).parent


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the temporary files of all users, in a world without any other place."""
    for variable in (OWN_VARIABLE, WARM_VARIABLE, "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o777)
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    return folder


def own(shared: Path) -> Path:
    return shared / f"topo-scheduler-{os.getuid()}"


def test_without_a_home_it_is_a_private_folder_beside_the_temporary_files(shared: Path) -> None:
    state = prepare()
    assert state.folder == own(shared) / fingerprint()
    assert state.enabled
    assert not state.warm
    for folder in (own(shared), state.folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_lax_umask_makes_it_no_less_private(shared: Path) -> None:
    before = os.umask(0)
    try:
        state = prepare()
    finally:
        os.umask(before)
    assert state.folder is not None
    for folder in (own(shared), state.folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_places_are_tried_in_order(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fingerprint()
    expected = []
    for variable, folder, inside in (
        ("HOME", "home", ".cache/topo-scheduler/kernels"),
        ("XDG_CACHE_HOME", "xdg", "topo-scheduler/kernels"),
        ("NUMBA_CACHE_DIR", "numba", "."),
        (OWN_VARIABLE, "ours", "."),
    ):
        monkeypatch.setenv(variable, str(tmp_path / folder))
        expected.append(tmp_path / folder / inside / name)
        assert prepare().folder == expected[-1]
    monkeypatch.setenv(OWN_VARIABLE, NOWHERE)
    assert prepare().folder == expected[-2]


def test_where_nothing_can_be_written_there_is_no_cache(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: NOWHERE)
    monkeypatch.setenv("HOME", NOWHERE)
    state = prepare()
    assert state.folder is None
    assert not state.enabled


def test_where_there_is_not_even_a_place_for_temporary_files_there_is_no_cache(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert prepare().folder is None


def test_a_folder_that_can_not_be_written_to_is_not_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a read-only root: the folder is there, and making a file in it fails.
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert prepare().folder is None


def test_a_folder_of_another_user_is_not_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = os.getuid() + 1
    (shared / f"topo-scheduler-{foreign}" / fingerprint()).mkdir(parents=True)
    monkeypatch.setattr(os, "getuid", lambda: foreign)
    assert prepare().folder is None


@pytest.mark.parametrize("inner", [False, True])
def test_a_folder_that_others_can_write_to_is_not_used(shared: Path, inner: bool) -> None:
    # Index files are pickles: a user that can put one there runs code as us.
    folder = own(shared) / fingerprint() if inner else own(shared)
    folder.mkdir(mode=0o700, parents=True)
    folder.chmod(0o777)
    assert prepare().folder is None


def test_a_link_is_not_followed(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own(shared).symlink_to(tmp_path / "elsewhere")
    assert prepare().folder is None


def test_a_warm_copy_fills_an_empty_folder(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = tmp_path / "image" / fingerprint() / "deeper"
    warm.mkdir(parents=True)
    (warm / "fit.nbi").write_bytes(b"compiled")
    os.utime(warm / "fit.nbi", (1, 1))
    for folder in (warm, warm.parent):
        folder.chmod(0o555)
    monkeypatch.setenv(WARM_VARIABLE, str(tmp_path / "image"))
    state = prepare()
    assert state.warm
    assert state.folder is not None
    copied = state.folder / "deeper" / "fit.nbi"
    assert copied.read_bytes() == b"compiled"
    assert copied.stat().st_mtime == 1, "the time of a cache shows whether it is stale"
    for folder in (state.folder, state.folder / "deeper"):
        assert folder.stat().st_mode & 0o777 == 0o700, "Numba wants to write beside what it reads"


def test_a_folder_in_use_is_not_overwritten(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare().folder
    assert folder is not None
    (folder / "fit.nbi").write_bytes(b"mine")
    warm = tmp_path / "image" / fingerprint()
    warm.mkdir(parents=True)
    (warm / "fit.nbi").write_bytes(b"image")
    monkeypatch.setenv(WARM_VARIABLE, str(tmp_path / "image"))
    state = prepare()
    assert state.warm
    assert (folder / "fit.nbi").read_bytes() == b"mine"


@pytest.mark.parametrize("image", ["absent", "of other kernels", "unreadable"])
def test_a_warm_copy_that_does_not_help_does_no_harm(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    monkeypatch.setenv(WARM_VARIABLE, str(tmp_path / "image"))
    if image == "of other kernels":
        (tmp_path / "image" / "0123456789abcdef").mkdir(parents=True)
    if image == "unreadable":
        (tmp_path / "image" / fingerprint()).mkdir(parents=True)

        def fail(*_: object, **__: object) -> None:
            raise shutil.Error("nothing can be read")

        monkeypatch.setattr(shutil, "copytree", fail)
    state = prepare()
    assert state.enabled
    assert not state.warm


def test_the_name_of_the_folder_follows_what_decides_on_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    names = {fingerprint()}
    assert fingerprint() in names
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    names.add(fingerprint())
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1" if os.environ.get("NUMBA_BOUNDSCHECK") != "1" else "0")
    names.add(fingerprint())
    assert len(names) == 3


PROGRAM = """
import tempfile
tempfile.tempdir = {tempdir!r}
from topo_scheduler import kernels
from topo_scheduler.kernels import fit
print(kernels.CACHE.folder, kernels.CACHE.warm)
"""


def run(tempdir: str, **environment: str) -> str:
    known = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "NUMBA_DISABLE_JIT")}
    return printed(PROGRAM.format(tempdir=tempdir), known | environment)


def printed(program: str, environment: dict[str, str], folder: Path | None = None) -> str:
    """Run a program in a process of its own, in a folder if it matters; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_are_compiled_where_nothing_can_be_written() -> None:
    assert run(NOWHERE) == "None False"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled, nothing is kept")
def test_compiled_kernels_are_found_by_the_next_process(tmp_path: Path) -> None:
    cache = {OWN_VARIABLE: str(tmp_path)}
    assert run(NOWHERE, **cache).endswith(" False")
    kept = sorted(path.name for path in tmp_path.rglob("*.nbi"))
    assert kept
    assert run(NOWHERE, **cache).endswith(" True")
    assert sorted(path.name for path in tmp_path.rglob("*.nbi")) == kept


def test_what_another_installation_compiled_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Numba finds compiled kernels by where their source lies and when it was written, and so must we."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for place in (ours, theirs):
        shutil.copytree(PACKAGE, place / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    note = "from topo_scheduler.kernels import CACHE, cache; (CACHE.folder / cache.whole_mark()).touch()"

    def whole(place: Path) -> str:
        return _python("from topo_scheduler.kernels import CACHE; print(CACHE.whole, CACHE.folder)", place, tmp_path)

    folder = fingerprint()
    assert whole(ours) == whole(theirs) == f"False {tmp_path / folder}"
    _python(note, ours, tmp_path)
    assert whole(ours) == f"True {tmp_path / folder}"
    assert whole(theirs) == f"False {tmp_path / folder}"
    _python(note, theirs, tmp_path)
    assert whole(ours) == whole(theirs) == f"True {tmp_path / folder}"
    os.utime(ours / PACKAGE.name / "kernels" / "fit.py", (1, 1))
    assert whole(ours) == f"False {tmp_path / folder}", "installed again"


def _python(program: str, package: Path, cache: Path) -> str:
    environment = {key: os.environ[key] for key in ("PATH", "NUMBA_CPU_NAME", "NUMBA_BOUNDSCHECK") if key in os.environ}
    return printed(program, environment | {"PYTHONPATH": str(package), OWN_VARIABLE: str(cache)}, package)


@pytest.mark.parametrize("cached", [False, True])
def test_kernels_are_compiled_in_another_process_unless_they_are_cached(tmp_path: Path, cached: bool) -> None:
    code = """
import asyncio
from topo_scheduler import kernels
from topo_scheduler.runtime.kernel_compilation import compile_apart

async def compile_and_count():
    started = []
    start = asyncio.create_subprocess_exec
    async def counted(*command, **options):
        started.append(command)
        return await start(*command, **options)
    asyncio.create_subprocess_exec = counted
    await compile_apart(("links",))
    return len(started)

print(asyncio.run(compile_and_count()), len(list(kernels.CACHE.folder.rglob("links.*.nbi"))))
"""
    environment = os.environ | {OWN_VARIABLE: str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
    tmp_path.chmod(0o700)
    if cached:
        subprocess.run([sys.executable, "-m", "topo_scheduler.kernels.warm", "--only", "links"], env=environment)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    processes, files = done.stdout.split()
    assert int(processes) == (0 if cached else 1)
    assert int(files) > 0
