"""The calls that carry facts to an engine, and the encoding of their arguments.

This module reads the signatures of the engine itself, so it also records methods that are added later. Arguments are
JSON, with the objects as the API server sent them. A clock is not an argument: the record has its readings instead.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from pydantic import BaseModel

from topo_scheduler.kube.connection.resources import (
    ATTACHMENTS,
    CLAIMS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    DEVICE_CLASSES,
    NODE_TOPOLOGIES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.state.devices.claim_writes import (
    AllocateClaim,
    ClaimWrite,
    CreateClaim,
    DeleteClaim,
    ProtectClaim,
    ReleaseClaim,
)
from topo_scheduler.state.storage.storage_objects import ReserveVolume, SelectNode, VolumeWrite

QUERIES: Final = frozenset(("next_due", "explain", "may_evict", "goes_first"))
"""Methods of an engine that change no state. They are not recorded."""
STORED: Final[Mapping[str, Resource[Any]]] = {
    kind.plural: kind
    for kind in (
        *(CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES, CSI_DRIVERS, CSI_CAPACITIES, ATTACHMENTS),
        *(DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS, NODE_TOPOLOGIES),
    )
}
"""Kinds of volumes and devices by plural. They reach the engine's stores directly, not through its methods."""
STORAGE_CALLS: Final = ("storage_applied", "storage_deleted", "storage_synced", "storage_refused")
_CLAIM_WRITES: Final = (AllocateClaim, ProtectClaim, ReleaseClaim, CreateClaim, DeleteClaim)
_WRITES: Final = {kind.__name__: kind for kind in (ReserveVolume, SelectNode, *_CLAIM_WRITES)}
_WRITTEN: Final = ("volumes_written", "claims_written")
"""Calls whose second argument has pairs of a write and its result."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A method of the engine.

    Attributes:
        method: the function.
        names: names of its arguments.
        types: types of the encoded arguments, without the clock.
        clock: position of the clock, or -1.
    """

    method: Callable[..., Any]
    names: tuple[str, ...]
    types: tuple[Any, ...]
    clock: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the recorded arguments: all but the clock."""
        return tuple(name for position, name in enumerate(self.names) if position != self.clock)


def _signature(method: Callable[..., Any]) -> Signature:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    hints = get_type_hints(method)
    origins = [get_origin(hints[parameter.name]) for parameter in parameters]
    clock = next((position for position, origin in enumerate(origins) if origin is Callable), -1)
    return Signature(
        method,
        tuple(parameter.name for parameter in parameters),
        tuple(_wire(hints[parameter.name]) for position, parameter in enumerate(parameters) if position != clock),
        clock,
    )


def _wire(hint: Any) -> Any:
    """Return the type as which an argument is decoded."""
    if get_origin(hint) in (Iterable, Collection, Sequence):
        (inner,) = get_args(hint)
        return list[_wire(inner)]  # type: ignore[misc]
    if get_origin(hint) is tuple:
        return tuple[tuple(_wire(inner) for inner in get_args(hint))]  # type: ignore[misc]
    return tuple[str, msgspec.Raw] if hint in (VolumeWrite, ClaimWrite) else hint


SIGNATURES: Final[Mapping[str, Signature]] = {
    name: _signature(method)
    for name, method in vars(Engine).items()
    if inspect.isfunction(method) and not name.startswith("_") and name not in QUERIES
}
"""Every method of the engine that changes its state, including the step."""


def encode_arguments(name: str, arguments: Sequence[Any]) -> bytes:
    """Return the arguments of a call, without a clock, as a JSON array."""
    if name in _WRITTEN:
        uid, done, *rest = arguments
        arguments = (uid, [((type(write).__name__, write), result) for write, result in done], *rest)
    return encoder.encode(arguments)


def decode_arguments(name: str, raw: msgspec.Raw | bytes) -> list[Any]:
    """Return the arguments that `encode_arguments` encoded.

    Raises:
        msgspec.MsgspecError: the data does not match the signature.
        KeyError: there is no such call.
    """
    if name in STORAGE_CALLS:
        (plural, *_) = msgspec.json.decode(raw)
        items = {"storage_applied": STORED[plural].type, "storage_deleted": Deleted}.get(name)
        expected: Any = tuple[str, list[items]] if items is not None else tuple[str]  # type: ignore[valid-type]
        return list(msgspec.json.decode(raw, type=expected))
    arguments = list(_decoder(name).decode(raw))
    if name in _WRITTEN:
        arguments[1] = [
            (msgspec.json.decode(write, type=_WRITES[kind]), result) for (kind, write), result in arguments[1]
        ]
    return arguments


def call(engine: Engine, name: str, arguments: Sequence[Any], clock: Callable[[], float]) -> Any:
    """Make a recorded call of a method of the engine; calls of storage are not among these."""
    signature = SIGNATURES[name]
    values = list(arguments)
    if signature.clock >= 0:
        values.insert(signature.clock, clock)
    return signature.method(engine, *values)


def plain(value: Any) -> Any:
    """Return a JSON form of a value that msgspec does not know, with every field of a model exactly as it is."""
    if isinstance(value, BaseModel):
        return {info.alias or name: getattr(value, name) for name, info in type(value).model_fields.items()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} can't be recorded")


def _model(expected: type, value: Any) -> Any:
    if issubclass(expected, BaseModel):
        return expected.model_validate(value)
    raise TypeError(f"{expected.__name__} can't be read from a record")


def decoder_of(expected: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder that also supports pydantic models."""
    return msgspec.json.Decoder(expected, dec_hook=_model)


encoder: Final = msgspec.json.Encoder(enc_hook=plain)
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {}


def _decoder(name: str) -> msgspec.json.Decoder[Any]:
    if name not in _DECODERS:
        expected: Any = tuple.__class_getitem__(SIGNATURES[name].types)
        _DECODERS[name] = decoder_of(expected)
    return _DECODERS[name]
