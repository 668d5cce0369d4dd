"""The folder of a result: whole or not at all."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from topo_scheduler import __version__
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.results.model import Result, Run

RESULT: Final = "result.json"
_OURS: Final = frozenset((RESULT, "runs", "report.html"))
"""What a folder may contain that is written anew."""


def check_folder(folder: Path) -> None:
    """See that a result can be written to a folder, before hours are spent on it.

    Raises:
        CaseError: it holds something else than a result, or can't be made.
    """
    if folder.is_dir():
        names = {path.name for path in folder.iterdir()}
        foreign = sorted(names - _OURS)
        if foreign or (names and RESULT not in names):
            what = foreign[0] if foreign else sorted(names)[0]
            raise CaseError(f"--out: {folder} holds {what}, which is no result of this command; name another folder")
    elif folder.exists():
        raise CaseError(f"--out: {folder} is not a folder; name another one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-"):
            pass
    except OSError as error:
        raise CaseError(f"--out: can't write beside {folder}: {error.strerror}; name another folder") from error


def write_result(folder: Path, runs: Sequence[Run], files: Mapping[str, bytes]) -> Path:
    """Write a result in place of the one that may be there; return its ``result.json``.

    It is written beside the folder and renamed, so that nobody ever sees half of it.

    Args:
        folder: to be made.
        runs: in order.
        files: what else belongs to it, by path within the folder.

    Raises:
        CaseError: it can't be written.
    """
    check_folder(folder)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for name, data in files.items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        text = Result(version=__version__, runs=list(runs)).model_dump_json(indent=2)
        (made / RESULT).write_text(text + "\n", encoding="utf-8")
        made.chmod(0o755)
        _put_in_place(made, folder)
    except OSError as error:
        raise CaseError(f"--out: can't write {folder}: {error.strerror}; nothing was left there") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder / RESULT


def read_result(folder: Path) -> Result:
    """Return the result in a folder.

    Raises:
        CaseError: there is none, or one of another version.
    """
    path = folder / RESULT
    try:
        return Result.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}; name a folder that `simulate --out` wrote") from error
    except (ValueError, ValidationError) as error:
        raise CaseError(f"{path}: is not a result this version can read: {error}") from error


def _put_in_place(made: Path, folder: Path) -> None:
    if not folder.exists():
        made.rename(folder)
        return
    before = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        folder.rename(before / "old")
        try:
            made.rename(folder)
        except OSError:
            (before / "old").rename(folder)
            raise
    finally:
        shutil.rmtree(before, ignore_errors=True)
