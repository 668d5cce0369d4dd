"""The whole state of an engine as bytes, so that a replay can begin in the middle of a term.

The format is a pickle: exact, and readable only by the build that wrote it. The reader accepts only the engine's own
classes and a few of Python and numpy. So a directory from an untrusted source can't run code here.
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
from topo_scheduler.scheduling.placing.model import class_views

_OURS: Final = ("topo_scheduler.api.", "topo_scheduler.state.", "topo_scheduler.scheduling.")
_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "builtins": ("set", "frozenset", "bytearray", "complex", "range", "slice", "dict", "list", "int"),
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
    "fractions": ("Fraction",),
    "datetime": ("datetime",),
    "numpy": ("dtype", "ndarray"),
    **dict.fromkeys(("numpy._core.multiarray", "numpy.core.multiarray"), ("_reconstruct", "scalar")),
    **dict.fromkeys(("numpy._core.numeric", "numpy.core.numeric"), ("_frombuffer",)),
    "msgspec": ("Raw",),
    "msgspec._core": ("Raw", "rebuild"),
    "weakref": ("WeakKeyDictionary", "WeakValueDictionary"),
}
_COUNTERS: Final[tuple[Any, ...]] = (class_views,)
"""Modules with a ``_numbers`` counter, which must continue above the numbers in use."""
_EXTENSIONS: Final = "extensions"
_RESOLVE: Final = "resolve"


class CheckpointError(Exception):
    """The state can't be encoded or decoded."""


@cache
def build() -> str:
    """Return a hash of the sources that affect decisions, as the ID of this build."""
    root, digest = Path(topo_scheduler.__file__).parent, blake2b(digest_size=8)
    for folder in ("api", "kernels", "scheduling", "state"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, persistent: Mapping[int, str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = persistent

    def persistent_id(self, obj: Any) -> str | None:
        return self._known.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, WeakKeyDictionary | WeakValueDictionary):
            return type(obj), (dict(obj),)
        if isinstance(obj, Enum):
            return type(obj), (obj.value,)  # some releases of Python 3.11 would use getattr, which the reader rejects
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, persistent: Mapping[str, object]) -> None:
        super().__init__(file)
        self._known = persistent

    def persistent_load(self, pid: Any) -> Any:
        return self._known[pid]

    def find_class(self, module_name: str, global_name: str) -> Any:
        if global_name in _OTHERS.get(module_name, ()):
            return super().find_class(module_name, global_name)
        if module_name.startswith(_OURS):
            value = super().find_class(module_name, global_name)
            if isinstance(value, type) and value.__module__.startswith(_OURS):
                return value
        raise CheckpointError(f"it names {module_name}.{global_name}, which is no part of an engine")


def dump(engine: Engine, resolve: Resolve, leave_out: str) -> bytes:
    """Return an engine's state.

    Args:
        engine: the engine; it does not change.
        resolve: the function that the engine got, which is not part of its state.
        leave_out: name of an attribute that is not part of its state.

    Raises:
        CheckpointError: an object of the state can't be encoded.
    """
    state = {name: value for name, value in vars(engine).items() if name != leave_out}
    numbers = {module.__name__: module._numbers.first_free for module in _COUNTERS}
    file = io.BytesIO()
    persistent = {id(engine.extensions): _EXTENSIONS, id(resolve): _RESOLVE}
    collecting = gc.isenabled()
    gc.disable()  # it would scan all new objects again and again, and find no garbage
    try:
        _Pickler(file, persistent).dump((state, numbers))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(str(error)) from error
    finally:
        if collecting:
            gc.enable()
    return file.getvalue()


def load(data: bytes, resolve: Resolve, extensions: Extensions) -> Engine:
    """Return the engine of a state.

    Raises:
        CheckpointError: the data is not a state of this build.
    """
    try:
        state, numbers = _Unpickler(io.BytesIO(data), {_EXTENSIONS: extensions, _RESOLVE: resolve}).load()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(f"{type(error).__name__}: {error}") from error
    engine = Engine.__new__(Engine)
    vars(engine).update(state)
    for module in _COUNTERS:
        module._numbers.first_free = max(module._numbers.first_free, numbers[module.__name__])
    return engine
