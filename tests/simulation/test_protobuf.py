"""The few kinds that are read in protobuf; what kubectl really sends is tested with kubectl."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.simulation.apiserver import protobuf


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _body(api_version: str, kind: str, raw: bytes) -> bytes:
    typed = _field(1, api_version.encode()) + _field(2, kind.encode())
    return b"k8s\x00" + _field(1, typed) + _field(2, raw)


@given(st.text(min_size=1), st.integers(-(2**31), 2**31 - 1), st.dictionaries(st.text(), st.text(), max_size=3))
def test_what_was_written_is_read(name: str, value: int, labels: dict[str, str]) -> None:
    entries = b"".join(_field(11, _field(1, k.encode()) + _field(2, v.encode())) for k, v in labels.items())
    raw = _field(1, _field(1, name.encode()) + entries) + _field(2, value)
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    assert protobuf.decode(_body("scheduling.k8s.io/v1", "PriorityClass", raw)) == {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata, "value": value,
    }  # fmt: skip


def test_zero_values_say_nothing() -> None:
    raw = _field(1, _field(1, b"a") + _field(2, b"") + _field(7, 0) + _field(8, b""))
    assert protobuf.decode(_body("v1", "ConfigMap", raw))["metadata"] == {"name": "a"}


@pytest.mark.parametrize(
    ("kind", "raw"),
    [("Pod", b""), ("ConfigMap", _field(99, b"x")), ("Job", _field(2, _field(3, 60)))],
)
def test_what_is_not_in_the_table_is_refused(kind: str, raw: bytes) -> None:
    with pytest.raises(protobuf.NotUnderstoodError):
        protobuf.decode(_body("v1", kind, raw))


@given(st.binary(max_size=40))
def test_nonsense_is_refused_too(data: bytes) -> None:
    with contextlib.suppress(ValueError, protobuf.NotUnderstoodError):
        protobuf.decode(b"k8s\x00" + data)
    with pytest.raises(ValueError, match="magic"):
        protobuf.decode(b"x" + data)
