"""Finalizers in the protobuf encoding: they change, and nothing else does."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.kube.writing.protobuf_object import MAX_BYTES, ProtobufError, with_finalizers


def field(number: int, value: bytes) -> bytes:
    """A text or message of fewer than 128 bytes; ``number`` below 16."""
    assert len(value) < 128
    assert number < 16
    return bytes([number << 3 | 2, len(value)]) + value


def claim(metadata: bytes, spec: bytes = b"\x0a\x03 { ") -> bytes:
    raw = field(1, metadata) + field(2, spec)
    return b"k8s\x00" + field(1, b"\x0a\x02v1") + field(2, raw) + field(3, b"") + field(4, b"")


def test_the_finalizers_and_the_version_are_replaced_and_every_other_byte_stays() -> None:
    name, creation, generation = field(1, b"own"), field(8, b"\x08\x05"), b"\x38\x01"
    before = claim(name + field(6, b"17") + generation + creation + field(14, b"a/b"))
    after = claim(name + generation + creation + field(6, b"18") + field(14, b"a/b") + field(14, b"c/d"))
    assert with_finalizers(before, ["a/b", "c/d"], "18") == after


def test_no_finalizer_is_left_if_none_is_wanted() -> None:
    before = claim(field(1, b"own") + field(6, b"17") + field(14, b"a/b"))
    assert with_finalizers(before, [], "17") == claim(field(1, b"own") + field(6, b"17"))


@pytest.mark.parametrize(
    "encoded",
    [
        b'{"kind": "ResourceClaim"}',
        b"",
        b"k8s\x00",
        b"k8s\x00" + field(2, b""),
        b"k8s\x00" + field(2, field(1, b"")) * 2,
        claim(field(6, b"17"))[:-3],
        b"k8s\x00\x13\x00",
        b"k8s\x00" + 11 * b"\xff",
    ],
)
def test_what_is_no_object_is_refused(encoded: bytes) -> None:
    with pytest.raises(ProtobufError):
        with_finalizers(encoded, ["a/b"], "1")


@given(st.binary(max_size=64))
def test_no_bytes_end_in_anything_but_an_object_or_a_refusal(encoded: bytes) -> None:
    with contextlib.suppress(ProtobufError):
        with_finalizers(b"k8s\x00" + encoded, ["a/b"], "1")


@given(st.text(max_size=400), st.text(max_size=40))
def test_long_texts_survive(spec: str, finalizer: str) -> None:
    def long(number: int, value: bytes) -> bytes:
        low, high = len(value) & 0x7F, len(value) >> 7
        return bytes([number << 3 | 2, *([low | 0x80, high] if high else [low])]) + value

    def around(metadata: bytes) -> bytes:
        return b"k8s\x00" + long(2, long(1, metadata) + long(2, spec.encode()))

    written = with_finalizers(around(field(6, b"1")), [finalizer], "2")
    assert written == around(long(6, b"2") + long(14, finalizer.encode()))


def test_an_object_with_labels_without_end_is_refused_at_once() -> None:
    """Another 100,000 labels take 0.1 s of the event loop, and the scheduler would send all of them back."""
    encoded = claim(field(1, b"own"))
    with_finalizers(encoded, [], "17")
    with pytest.raises(ProtobufError, match="524,288 at most"):
        with_finalizers(encoded.ljust(MAX_BYTES + 1, b"\x00"), [], "17")
