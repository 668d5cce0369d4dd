"""An engine's whole state as bytes, so that a replay can begin in the middle of a term.

It is a pickle: exact, and readable only by the very build that wrote it. What is read back may name nothing but the
engine's own classes and a few of Python and numpy, so that a directory from elsewhere can't run code here.
"""

import gc
import io
import pickle
from collections.abc import Mapping
from enum import Enum
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import topo_scheduler
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.intake.arrivals import Resolve
from topo_scheduler.scheduling.placing import views
from topo_scheduler.state import residents

_OURS: Final = ("topo_scheduler.api.", "topo_scheduler.state.", "topo_scheduler.scheduling.")
_OTHERS: Final = frozenset(
    (
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "range"),
        ("builtins", "slice"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
        ("fractions", "Fraction"),
        ("builtins", "dict"),
        ("builtins", "list"),
        ("builtins", "int"),
        ("datetime", "datetime"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy.core.numeric", "_frombuffer"),
        ("msgspec", "Raw"),
        ("msgspec._core", "Raw"),
        ("msgspec._core", "rebuild"),
        ("weakref", "WeakKeyDictionary"),
        ("weakref", "WeakValueDictionary"),
    )
)
_COUNTERS: Final[tuple[Any, ...]] = (views, residents)
"""Modules with a ``_numbers``, which must go on above the numbers in use."""
_EXTENSIONS: Final = "extensions"
_RESOLVE: Final = "resolve"


class CheckpointError(Exception):
    """The state can't be written or read."""


@cache
def build() -> str:
    """Return what tells the code that decides from any other: a hash of its sources."""
    root, digest = Path(topo_scheduler.__file__).parent, blake2b(digest_size=8)
    for folder in ("api", "kernels", "scheduling", "state"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Mapping[int, str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known

    def persistent_id(self, obj: Any) -> str | None:
        return self._known.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, WeakKeyDictionary | WeakValueDictionary):
            return type(obj), (dict(obj),)
        if isinstance(obj, Enum):
            return type(obj), (obj.value,)  # some releases of Python 3.11 would name getattr, which is not read back
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: Mapping[str, object]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, pid: Any) -> Any:
        return self._known[pid]

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) in _OTHERS:
            return super().find_class(module_name, global_name)
        if module_name.startswith(_OURS):
            found = super().find_class(module_name, global_name)
            if isinstance(found, type) and found.__module__.startswith(_OURS):
                return found
        raise CheckpointError(f"it names {module_name}.{global_name}, which is no part of an engine")


def dump(engine: Engine, resolve: Resolve, leave_out: str) -> bytes:
    """Return an engine's state.

    Args:
        engine: which; nothing of it changes.
        resolve: what it was given, which is not part of its state.
        leave_out: an attribute of it that is not either.

    Raises:
        CheckpointError: something in it can't be written.
    """
    state = {name: value for name, value in vars(engine).items() if name != leave_out}
    numbers = {module.__name__: module._numbers.first_free for module in _COUNTERS}
    file = io.BytesIO()
    known = {id(engine.extensions): _EXTENSIONS, id(resolve): _RESOLVE}
    collecting = gc.isenabled()
    gc.disable()  # it would look through all that is made here, again and again, and find nothing
    try:
        _Pickler(file, known).dump((state, numbers))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(str(error)) from error
    finally:
        if collecting:
            gc.enable()
    return file.getvalue()


def load(data: bytes, resolve: Resolve, extensions: Extensions) -> Engine:
    """Return the engine of a state.

    Raises:
        CheckpointError: it is not one of this build.
    """
    try:
        state, numbers = _Unpickler(io.BytesIO(data), {_EXTENSIONS: extensions, _RESOLVE: resolve}).load()
    except CheckpointError:
        raise
    except Exception as error:  # of a pickle that is damaged anything may come
        raise CheckpointError(f"{type(error).__name__}: {error}") from error
    engine = Engine.__new__(Engine)
    vars(engine).update(state)
    for module in _COUNTERS:
        module._numbers.first_free = max(module._numbers.first_free, numbers[module.__name__])
    return engine
