"""The calls by which facts reach an engine, and how their arguments are written down.

They are read from the signatures of the engine itself: a method that is added is recorded without anybody thinking of
it. Arguments are JSON, as the objects in them came; a clock is no argument, what it said is kept beside the call.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from pydantic import BaseModel

from topo_scheduler.kube.resources import (
    ATTACHMENTS,
    CLAIMS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from topo_scheduler.kube.sinks import Deleted
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.state.storage import ReserveVolume, SelectNode, VolumeWrite

QUERIES: Final = frozenset(("next_due", "explain", "may_evict", "goes_first"))
"""Methods of an engine that change nothing: they are not recorded."""
STORED: Final[Mapping[str, Resource[Any]]] = {
    kind.plural: kind
    for kind in (CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES, CSI_DRIVERS, CSI_CAPACITIES, ATTACHMENTS)
}
"""Kinds of storage, which reach the engine's storage past its methods, by plural."""
STORAGE_CALLS: Final = ("storage_applied", "storage_deleted", "storage_synced")
_WRITES: Final = {kind.__name__: kind for kind in (ReserveVolume, SelectNode)}


@dataclass(frozen=True, slots=True)
class Signature:
    """A method. ``names`` of its arguments and their ``types`` on the wire; ``clock`` the position of a clock or -1.

    ``lists`` positions of arguments that may be read only once, and are made lists first.
    """

    method: Callable[..., Any]
    names: tuple[str, ...]
    types: tuple[Any, ...]
    defaults: tuple[Any, ...]
    clock: int
    lists: tuple[int, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what is written down: all but the clock."""
        return tuple(name for at, name in enumerate(self.names) if at != self.clock)

    def positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return all arguments by position, defaults and the clock included."""
        rest = range(len(args), len(self.names))
        whole = [*args, *(kwargs.get(self.names[at], self.defaults[at]) for at in rest)]
        for at in self.lists:
            whole[at] = list(whole[at])
        return whole


def _signature(method: Callable[..., Any]) -> Signature:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    hints = get_type_hints(method)
    origins = [get_origin(hints[one.name]) for one in parameters]
    clock = next((at for at, origin in enumerate(origins) if origin is Callable), -1)
    return Signature(
        method,
        tuple(one.name for one in parameters),
        tuple(_wire(hints[one.name]) for at, one in enumerate(parameters) if at != clock),
        tuple(None if one.default is inspect.Parameter.empty else one.default for one in parameters),
        clock,
        tuple(at for at, origin in enumerate(origins) if origin in (Iterable, Collection, Sequence)),
    )


def _wire(hint: Any) -> Any:
    """Return the type an argument is read back as."""
    if get_origin(hint) in (Iterable, Collection, Sequence):
        (inner,) = get_args(hint)
        return list[_wire(inner)]  # type: ignore[misc]
    if get_origin(hint) is tuple:
        return tuple[tuple(_wire(inner) for inner in get_args(hint))]  # type: ignore[misc]
    return tuple[str, msgspec.Raw] if hint == VolumeWrite else hint


SIGNATURES: Final[Mapping[str, Signature]] = {
    name: _signature(method)
    for name, method in vars(Engine).items()
    if inspect.isfunction(method) and not name.startswith("_") and name not in QUERIES
}
"""Every method of the engine by which it is told something, the step included."""


def encode_arguments(name: str, arguments: Sequence[Any]) -> bytes:
    """Return the arguments of a call, without a clock, as a JSON array."""
    if name == "volumes_written":
        uid, done, problem = arguments
        arguments = (uid, [((type(write).__name__, write), version) for write, version in done], problem)
    return encoder.encode(arguments)


def decode_arguments(name: str, raw: msgspec.Raw | bytes) -> list[Any]:
    """Return what `encode_arguments` was given.

    Raises:
        msgspec.MsgspecError: it is something else.
        KeyError: there is no such call.
    """
    if name in STORAGE_CALLS:
        (plural, *_) = msgspec.json.decode(raw)
        items = {"storage_applied": STORED[plural].type, "storage_deleted": Deleted}.get(name)
        wanted: Any = tuple[str, list[items]] if items is not None else tuple[str]  # type: ignore[valid-type]
        return list(msgspec.json.decode(raw, type=wanted))
    found = list(_decoder(name).decode(raw))
    if name == "volumes_written":
        found[1] = [(msgspec.json.decode(write, type=_WRITES[kind]), version) for (kind, write), version in found[1]]
    return found


def call(engine: Engine, name: str, arguments: Sequence[Any], clock: Callable[[], float]) -> Any:
    """Make a call of an engine that was written down; those of storage are not its own."""
    signature = SIGNATURES[name]
    whole = list(arguments)
    if signature.clock >= 0:
        whole.insert(signature.clock, clock)
    return signature.method(engine, *whole)


def plain(value: Any) -> Any:
    """Return what JSON can say of values that msgspec does not know: every field of a model exactly as it is."""
    if isinstance(value, BaseModel):
        return {info.alias or name: getattr(value, name) for name, info in type(value).model_fields.items()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} can't be recorded")


def _model(wanted: type, value: Any) -> Any:
    if issubclass(wanted, BaseModel):
        return wanted.model_validate(value)
    raise TypeError(f"{wanted.__name__} can't be read from a record")


def decoder_of(wanted: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder that knows our models too."""
    return msgspec.json.Decoder(wanted, dec_hook=_model)


encoder: Final = msgspec.json.Encoder(enc_hook=plain)
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {}


def _decoder(name: str) -> msgspec.json.Decoder[Any]:
    if name not in _DECODERS:
        wanted: Any = tuple.__class_getitem__(SIGNATURES[name].types)
        _DECODERS[name] = decoder_of(wanted)
    return _DECODERS[name]
