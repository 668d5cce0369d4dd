"""Read and write the folder of a result; a result is written completely or not at all."""

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
from topo_scheduler.simulation.results.placements import FOLDER, decode
from topo_scheduler.simulation.virtual.history import RunHistory

RESULT: Final = "result.json"
REPORT: Final = "report.html"
_RESULT_NAMES: Final = frozenset((RESULT, REPORT, FOLDER))
"""The only names that a folder may contain for a result to replace it."""


def check_folder(folder: Path) -> None:
    """Check before a long simulation that its result can be written to a folder.

    The check creates nothing, not even parent folders.

    Raises:
        CaseError: the folder contains something other than a result, or can't be created or replaced.
    """
    try:
        _check_folder(folder, _real(folder))
    except OSError as error:
        raise CaseError(f"--out: can't write {folder}: {error.strerror}; name another folder") from error


def _real(folder: Path) -> Path:
    return Path(os.path.realpath(folder))  # unlike `Path.resolve` it does not fail on links that lead to themselves


def _check_folder(folder: Path, real: Path) -> None:
    """Check a folder; ``real`` is the target of a link, which is written while the link stays."""
    if real.is_symlink():
        raise CaseError(f"--out: {folder} is a link that leads to itself; name another folder")
    if os.path.ismount(real) or Path.cwd().is_relative_to(real):
        relation = "" if real == Path.cwd() else "above "
        problem = "where a file system is mounted" if os.path.ismount(real) else f"{relation}the folder you are in"
        raise CaseError(f"--out: {folder} is {problem}, so it can't be replaced as a whole; name a folder inside of it")
    if real.is_dir():
        names = {path.name for path in real.iterdir()}
        foreign = sorted(names - _RESULT_NAMES)
        if foreign or (names and RESULT not in names):
            other = foreign[0] if foreign else sorted(names)[0]
            raise CaseError(f"--out: {folder} holds {other}, which is no result of this command; name another folder")
    elif real.exists():
        raise CaseError(f"--out: {folder} is not a folder; name another one")
    existing_parent = next(parent for parent in real.parents if parent.exists())
    with tempfile.TemporaryDirectory(dir=existing_parent, prefix=f".{real.name}-"):
        pass


def write_result(folder: Path, runs: Sequence[Run], files: Mapping[str, bytes], lost: Sequence[Lost] = ()) -> Path:
    """Write a result and its report, replacing an existing result; return the path of ``result.json``.

    The function writes to a temporary folder and renames it, so readers never see a partial result.

    Args:
        folder: the folder to create or replace.
        runs: the runs, in order.
        files: the placements of each run, by path within the folder.
        lost: runs that were given up.

    Raises:
        CaseError: the result can't be written.
    """
    check_folder(folder)
    result = Result(version=__version__, runs=list(runs), lost=list(lost))
    page = report(result, lambda run: decode(files[run.file]))
    real = _real(folder)
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=real.parent, prefix=f".{real.name}-"))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        for name, data in files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (staging / RESULT).write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (staging / REPORT).write_bytes(page)
        staging.chmod(0o755)
        _put_in_place(staging, real)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder / RESULT


def _unwritable(folder: Path, error: OSError) -> CaseError:
    return CaseError(f"--out: can't write {folder}: {error.strerror}; nothing was left there")


def read_result(folder: Path) -> Result:
    """Return the result in a folder.

    Raises:
        CaseError: there is no result, or it has another schema version.
    """
    path = folder / RESULT
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}; name a folder that `simulate --out` wrote") from error
    except ValueError as error:
        raise CaseError(f"{path}: is not JSON: {error}; simulate again with --out") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA:
        found_version = f"schema_version is {version}" if version is not None else "it has no schema_version"
        raise CaseError(f"{path}: {found_version}, and {SCHEMA} is what can be read here; simulate again with --out")
    try:
        return Result.model_validate(document)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first_error["loc"])
        raise CaseError(f"{path}: {field}: {first_error['msg']}; simulate again with --out") from error


def write_report(folder: Path) -> Path:
    """Write the report of an existing result again; return its path.

    Raises:
        CaseError: there is no result, a file of it is missing or broken, or the report can't be written.
    """
    result = read_result(folder)
    path = folder / REPORT
    page = report(result, lambda run: _read_run(folder / run.file))
    try:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{REPORT}-")
        staging = Path(name)
        try:
            os.close(descriptor)
            staging.write_bytes(page)
            staging.chmod(0o644)
            staging.replace(path)
        finally:
            staging.unlink(missing_ok=True)
    except OSError as error:
        raise CaseError(f"--report: can't write {path}: {error.strerror}") from error
    return path


def _read_run(path: Path) -> RunHistory:
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}; simulate again with --out") from error
    except (msgspec.MsgspecError, zstandard.ZstdError, ValueError) as error:
        raise CaseError(f"{path}: is no file of placements: {error}; simulate again with --out") from error


def _put_in_place(staging: Path, folder: Path) -> None:
    if not folder.exists():
        staging.rename(folder)
        return
    backup_folder = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    old = backup_folder / "old"
    try:
        folder.rename(old)
        staging.rename(folder)
    except BaseException:  # Ctrl-C too: the existing result must survive
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(backup_folder, ignore_errors=True)
