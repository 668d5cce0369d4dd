"""Where compiled kernels are kept.

Numba raises at import when a function is to be cached and no folder is writable, as in a container with a read-only
root; it also probes a folder by writing to it, so a warm but read-only cache is refused. And it notices a change of
the source file only by its timestamp. So: the folder is chosen here, named after the content of the kernels, filled
from a warm copy when the image carries one, and where nothing can be written the kernels are compiled without a
cache instead of not at all.
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
    """The folder in use (None: no cache), and whether compiled kernels were found there: some, all that are needed."""

    folder: Path | None
    warm: bool
    whole: bool = False

    @property
    def enabled(self) -> bool:
        """Whether kernels may be cached."""
        return self.folder is not None


def fingerprint() -> str:
    """Return a name for this set of kernels: their sources' content, Numba's version and the chosen CPU."""
    digest = hashlib.sha256(version("numba").encode())
    digest.update(os.environ.get("NUMBA_CPU_NAME", "").encode())
    digest.update(os.environ.get("NUMBA_BOUNDSCHECK", "").encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def whole_mark() -> str:
    """Return the name of a file that is there once all kernels are that every decision needs.

    It names what Numba goes by when it looks for a compiled kernel: the Python, and where each source lies and when it
    was written. The same package in another place, or installed again, finds nothing of what lies here.
    """
    digest = hashlib.sha256(str(sys.implementation.cache_tag).encode())
    for source in sorted(Path(__file__).resolve().parent.glob("*.py")):
        found = source.stat()
        digest.update(f"{source} {found.st_mtime_ns} {found.st_size}\n".encode())
    return f"whole-{digest.hexdigest()[:16]}"


def _candidates() -> Iterator[Path]:
    for variable in (OWN_VARIABLE, "NUMBA_CACHE_DIR"):
        if named := os.environ.get(variable):
            yield Path(named)
    if home := os.environ.get("XDG_CACHE_HOME"):
        yield Path(home) / "topo-scheduler" / "kernels"
    elif home := os.environ.get("HOME"):
        yield Path(home) / ".cache" / "topo-scheduler" / "kernels"
    try:
        shared = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return  # a read-only root without any place for temporary files
    # Everybody may make folders there: what lies around it has to be ours as well.
    if _private(own := shared / f"topo-scheduler-{os.getuid()}"):
        yield own


def _private(folder: Path) -> bool:
    """Make a folder if need be, and tell whether only this user can write to it: index files are pickles."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


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
    # The copies took over the modes of the image's folders, which may be read-only: Numba would refuse them.
    for place in (folder, *folder.rglob("*")):
        if place.is_dir():
            place.chmod(0o700)


def prepare() -> CacheState:
    """Choose and create the folder, and fill it from the image's warm copy."""
    name = fingerprint()
    for candidate in _candidates():
        folder = candidate / name
        if not (_private(folder) and _usable(folder)):
            continue
        if not any(folder.iterdir()):
            _copy_warm(name, folder)
        return CacheState(folder, any(folder.iterdir()), (folder / whole_mark()).exists())
    return CacheState(None, False)
