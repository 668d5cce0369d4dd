"""The folder of a result: whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import zstandard
from pydantic import ValidationError

from topo_scheduler import __version__
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.report.page import report
from topo_scheduler.simulation.results.model import SCHEMA, Lost, Result, Run
from topo_scheduler.simulation.results.placements import FOLDER, decode, read
from topo_scheduler.simulation.tasks import Task
from topo_scheduler.simulation.virtual.history import RunHistory

RESULT: Final = "result.json"
REPORT: Final = "report.html"
_OURS: Final = frozenset((RESULT, REPORT, FOLDER))
"""What a folder may contain that is written anew."""


def check_folder(folder: Path) -> None:
    """See that a result can be written to a folder, before hours are spent on it.

    Nothing is made yet, not even the folders above it.

    Raises:
        CaseError: it holds something else than a result, or can't be made or replaced.
    """
    try:
        _check_folder(folder, _real(folder))
    except OSError as error:
        raise CaseError(f"--out: can't write {folder}: {error.strerror}; name another folder") from error


def _real(folder: Path) -> Path:
    return Path(os.path.realpath(folder))  # unlike `resolve` it fails nowhere: what leads to itself stays as it is


def _check_folder(folder: Path, real: Path) -> None:
    """``real`` is where a link leads to: that folder is written, the link stays."""
    if real.is_symlink():
        raise CaseError(f"--out: {folder} is a link that leads to itself; name another folder")
    if os.path.ismount(real) or Path.cwd().is_relative_to(real):
        below = "" if real == Path.cwd() else "above "
        what = "where a file system is mounted" if os.path.ismount(real) else f"{below}the folder you are in"
        raise CaseError(f"--out: {folder} is {what}, so it can't be replaced as a whole; name a folder inside of it")
    if real.is_dir():
        names = {path.name for path in real.iterdir()}
        foreign = sorted(names - _OURS)
        if foreign or (names and RESULT not in names):
            what = foreign[0] if foreign else sorted(names)[0]
            raise CaseError(f"--out: {folder} holds {what}, which is no result of this command; name another folder")
    elif real.exists():
        raise CaseError(f"--out: {folder} is not a folder; name another one")
    above = next(parent for parent in real.parents if parent.exists())
    with tempfile.TemporaryDirectory(dir=above, prefix=f".{real.name}-"):
        pass


def write_result(folder: Path, runs: Sequence[Run], files: Mapping[str, bytes], lost: Sequence[Lost] = ()) -> Path:
    """Write a result, and the report of it, in place of the one that may be there; return its ``result.json``.

    It is written beside the folder and renamed, so that nobody ever sees half of it.

    Args:
        folder: to be made.
        runs: in order.
        files: the placements of each run, by path within the folder.
        lost: runs that were given up.

    Raises:
        CaseError: it can't be written.
    """
    check_folder(folder)
    result = Result(version=__version__, runs=list(runs), lost=list(lost))
    page = report(result, lambda run: decode(files[run.file]))
    real = _real(folder)
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=real.parent, prefix=f".{real.name}-"))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        for name, data in files.items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (made / RESULT).write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (made / REPORT).write_bytes(page)
        made.chmod(0o755)
        _put_in_place(made, real)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder / RESULT


def _unwritable(folder: Path, error: OSError) -> CaseError:
    return CaseError(f"--out: can't write {folder}: {error.strerror}; nothing was left there")


def read_result(folder: Path) -> Result:
    """Return the result in a folder.

    Raises:
        CaseError: there is none, or one of another version.
    """
    path = folder / RESULT
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}; name a folder that `simulate --out` wrote") from error
    except ValueError as error:
        raise CaseError(f"{path}: is not JSON: {error}; simulate again with --out") from error
    version = told.get("schema_version") if isinstance(told, dict) else None
    if version != SCHEMA:
        told_as = f"schema_version is {version}" if version is not None else "it has no schema_version"
        raise CaseError(f"{path}: {told_as}, and {SCHEMA} is what can be read here; simulate again with --out")
    try:
        return Result.model_validate(told)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise CaseError(f"{path}: {at}: {first['msg']}; simulate again with --out") from error


def lost_run(task: Task, why: str) -> Lost:
    """Return what a result says of a task that was given up."""
    return Lost(policy=task.policy.name, seed=task.seed, what_if=task.what_if or None, why=why)


def write_report(folder: Path) -> Path:
    """Write the report of a result that is there anew; return its path.

    Raises:
        CaseError: there is no result, a file of it is missing or broken, or the report can't be written.
    """
    result = read_result(folder)
    path = folder / REPORT
    page = report(result, lambda run: _read_run(folder / run.file))
    try:
        number, name = tempfile.mkstemp(dir=folder, prefix=f".{REPORT}-")
        made = Path(name)
        try:
            os.close(number)
            made.write_bytes(page)
            made.chmod(0o644)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        raise CaseError(f"--report: can't write {path}: {error.strerror}") from error
    return path


def _read_run(path: Path) -> RunHistory:
    try:
        return read(path)
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}; simulate again with --out") from error
    except (msgspec.MsgspecError, zstandard.ZstdError, ValueError) as error:
        raise CaseError(f"{path}: is no file of placements: {error}; simulate again with --out") from error


def _put_in_place(made: Path, folder: Path) -> None:
    if not folder.exists():
        made.rename(folder)
        return
    before = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    old = before / "old"
    try:
        folder.rename(old)
        made.rename(folder)
    except BaseException:  # Ctrl-C too: what was there is worth more than what is to come
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(before, ignore_errors=True)
