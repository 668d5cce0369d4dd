"""Change finalizers in an object's protobuf encoding, and leave every other byte of it alone.

The API server compares the opaque configuration of a claim byte by byte. JSON does not keep its bytes: spaces get lost
and a patch sorts its keys. So a claim that a client wrote with spaces can be changed in protobuf only, as
kube-scheduler does.

Source: k8s.io/apimachinery, ``runtime/generated.proto`` (Unknown) and ``meta/v1/generated.proto`` (ObjectMeta).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_PREFIX: Final = b"k8s\x00"
_RAW: Final = 2
"""Field of Unknown with the object."""
_METADATA: Final = 1
"""Field of an object with its ObjectMeta."""
_RESOURCE_VERSION: Final = 6
_FINALIZERS: Final = 14
_LENGTH_DELIMITED: Final = 2
"""Wire type of texts and messages."""
_MAX_VARINT_BYTES: Final = 10
MAX_BYTES: Final = 2**19
"""Bytes of an object that is changed. Labels without end let larger ones keep the event loop busy."""


class ProtobufError(ValueError):
    """Bytes are no object in the protobuf encoding of Kubernetes."""


def with_finalizers(encoded: bytes, finalizers: Sequence[str], resource_version: str) -> bytes:
    """Return an object with other finalizers, and with the resourceVersion that a write expects.

    Raises:
        ProtobufError: it can't be read, or it is too large.
    """
    if len(encoded) > MAX_BYTES:
        raise ProtobufError(f"it has {len(encoded):,} bytes, of {MAX_BYTES:,} at most")
    if not encoded.startswith(_PREFIX):
        raise ProtobufError("the answer is not in the protobuf encoding of Kubernetes")

    def metadata(message: bytes) -> bytes:
        kept = (field for number, field, _ in _fields(message) if number not in (_RESOURCE_VERSION, _FINALIZERS))
        version = _field(_RESOURCE_VERSION, resource_version.encode())
        return b"".join((*kept, version, *(_field(_FINALIZERS, name.encode()) for name in finalizers)))

    unknown = encoded[len(_PREFIX) :]
    return _PREFIX + _replaced(unknown, _RAW, lambda raw: _replaced(raw, _METADATA, metadata))


def _replaced(message: bytes, wanted: int, change: Callable[[bytes], bytes]) -> bytes:
    """Return a message in which one of its messages is changed."""
    parts = list(_fields(message))
    if sum(number == wanted for number, _, _ in parts) != 1:
        raise ProtobufError(f"field {wanted} is not there exactly once")
    return b"".join(_field(wanted, change(value)) if number == wanted else field for number, field, value in parts)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number of each field, all its bytes, and its value."""
    at = 0
    while at < len(message):
        key, value_at = _varint(message, at)
        match key & 7:
            case 0:
                end = _varint(message, value_at)[1]
            case 1:
                end = value_at + 8
            case 2:
                length, value_at = _varint(message, value_at)
                end = value_at + length
            case 5:
                end = value_at + 4
            case other:
                raise ProtobufError(f"a field has the unknown wire type {other}")
        if end > len(message):
            raise ProtobufError("a field is cut off")
        yield key >> 3, message[at:end], message[value_at:end]
        at = end


def _field(number: int, value: bytes) -> bytes:
    return _encoded_varint(number << 3 | _LENGTH_DELIMITED) + _encoded_varint(len(value)) + value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    value = 0
    for index, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ProtobufError("a number is cut off")


def _encoded_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
