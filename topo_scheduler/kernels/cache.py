"""The cache folder of compiled kernels.

Numba raises an error at import if it has to cache a function and no folder is writable. That happens in a container
with a read-only root. It also tests a folder by writing to it, so it rejects a warm read-only cache. It detects a
change of a source file only by its timestamp.

This module chooses the folder. Its name depends on the content of the kernels. If the image has a warm copy, the module
copies it to the folder. If no folder is writable, the kernels are compiled without a cache.
"""

import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

WARM_VARIABLE: Final = "TOPO_SCHEDULER_WARM_CACHE"
OWN_VARIABLE: Final = "TOPO_SCHEDULER_CACHE_DIR"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheState:
    """The folder in use (None: no cache). ``warm``: it has some compiled kernels; ``whole``: it has all needed ones."""

    folder: Path | None
    warm: bool
    whole: bool = False

    @property
    def enabled(self) -> bool:
        """Whether kernels may be cached."""
        return self.folder is not None


def fingerprint() -> str:
    """Return a name for this set of kernels, from their source code, the version of Numba and the chosen CPU."""
    digest = hashlib.sha256(version("numba").encode())
    digest.update(os.environ.get("NUMBA_CPU_NAME", "").encode())
    digest.update(os.environ.get("NUMBA_BOUNDSCHECK", "").encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def whole_mark() -> str:
    """Return the name of the marker file that exists once all kernels for every decision are compiled.

    The name depends on the criteria by which Numba finds a compiled kernel: the Python version, and the path and time
    of each source file. A package in another place, or a new installation, can't use the kernels here.
    """
    digest = hashlib.sha256(str(sys.implementation.cache_tag).encode())
    for source in sorted(Path(__file__).resolve().parent.glob("*.py")):
        status = source.stat()
        digest.update(f"{source} {status.st_mtime_ns} {status.st_size}\n".encode())
    return f"whole-{digest.hexdigest()[:16]}"


def _candidates() -> Iterator[Path]:
    for variable in (OWN_VARIABLE, "NUMBA_CACHE_DIR"):
        if folder := os.environ.get(variable):
            yield Path(folder)
    if home := os.environ.get("XDG_CACHE_HOME"):
        yield Path(home) / "topo-scheduler" / "kernels"
    elif home := os.environ.get("HOME"):
        yield Path(home) / ".cache" / "topo-scheduler" / "kernels"
    try:
        shared = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return  # a read-only root without a folder for temporary files
    # Any user may create folders there, so check the owner of this one.
    if _private(private_folder := shared / f"topo-scheduler-{os.getuid()}"):
        yield private_folder


def _private(folder: Path) -> bool:
    """Create a folder if needed; return whether only this user can write to it, as index files are pickles."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _usable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _copy_warm(name: str, folder: Path) -> None:
    source = os.environ.get(WARM_VARIABLE)
    if not source or not (Path(source) / name).is_dir():
        return
    try:
        shutil.copytree(Path(source) / name, folder, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        log.warning(
            "the warm kernel cache could not be copied; kernels are compiled instead", extra={"error": str(error)}
        )
    # The copies have the modes of the folders in the image. These may be read-only, which Numba rejects.
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o700)


def prepare() -> CacheState:
    """Choose and create the folder, and fill it from the warm copy of the image."""
    name = fingerprint()
    for candidate in _candidates():
        folder = candidate / name
        if not (_private(folder) and _usable(folder)):
            continue
        if not any(folder.iterdir()):
            _copy_warm(name, folder)
        return CacheState(folder, any(folder.iterdir()), (folder / whole_mark()).exists())
    return CacheState(None, False)
