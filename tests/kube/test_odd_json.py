"""JSON that API servers take and decoders refuse is read as Go reads it, in time that grows with its length only."""

import json
import random
import re
import time

import msgspec
import pytest

from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection import odd_json
from topo_scheduler.kube.connection.client import decode, names_kind
from topo_scheduler.kube.connection.errors import Undecodable
from topo_scheduler.kube.connection.odd_json import MAX_DEPTH, is_deeper, readable, without_deep_values
from topo_scheduler.kube.connection.resources import PODS, RESOURCE_CLAIMS
from topo_scheduler.kube.reading.decoding import Codec


def nested(levels: int, inside: object = 1) -> object:
    value = inside
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("text", ["[]", '{"a": "[[[{{{"}', '["\\\\", "]", "\\"["]', "", "null", '{"a": [1, {"b": 2}]}'])
def test_what_is_not_deep_stays(text: str) -> None:
    assert without_deep_values(text.encode(), 3) == text.encode()


@pytest.mark.parametrize("slashes", range(6))
def test_quotation_marks_are_part_of_a_text_after_an_odd_number_of_backslashes(slashes: int) -> None:
    """The brackets are outside of texts if the second mark ends the first one."""
    text = b'["' + slashes * b"\\" + b'", [[[1]]], "]"]' + (b'"]' if slashes % 2 else b"")
    cut = without_deep_values(text, 2)
    assert cut == (text if slashes % 2 else text.replace(b"[[[1]]]", b"[null]"))


def test_what_is_deeper_is_null() -> None:
    text = json.dumps({"a": nested(3, "]"), "b": [nested(1), nested(3), {"c": {"d": '\\"['}}], "e": 5})
    cut = json.loads(without_deep_values(text.encode(), 3))
    assert cut == {"a": [[None]], "b": [[1], [None], {"c": None}], "e": 5}
    assert not is_deeper(cut, 3)


_TO_BRACKET = re.compile(rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)


def read_slowly(text: bytes, max_depth: int) -> bytes:
    """A bracket and an escape sequence at a time."""
    parts: list[bytes] = []
    kept = at = depth = 0
    while (bracket := _TO_BRACKET.match(text, at)) is not None:
        at = bracket.end()
        if bracket[1] in b"[{":
            depth += 1
            if depth == max_depth + 1:
                parts += (text[kept : at - 1], b"null")
        else:
            if depth == max_depth + 1:
                kept = at
            depth -= 1
    shallow = b"".join((*parts, text[kept:])) if depth <= max_depth else b"".join(parts)
    return _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], shallow.decode(errors="replace").encode())


PIECES = ("\\\\", '\\"', "\\ud83d", "\\ude00", "\\uD8FF", "\\u0041", "\\n", "]", "[", "{", "u", "é")


def odd_text(chance: random.Random, levels: int = 5) -> str:
    """JSON with many escape sequences and brackets, in strings and outside."""
    if levels and chance.random() < 0.6:
        items = [odd_text(chance, levels - 1) for _ in range(chance.randrange(3))]
        return f"[{','.join(items)}]" if chance.random() < 0.5 else '{"a":' + (items or ["1"])[0] + "}"
    pieces = chance.choices(
        ("\\\\", '\\"', "\\ud83d", "\\ude00", "\\uD8FF", "\\u0041", "\\n", "]", "[", "{", "u", "é"), k=6
    )
    return '"' + "".join(pieces[: chance.randrange(7)]) + '"'


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 1000])
def test_chunks_are_read_like_single_characters(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(odd_json, "_CHUNK_BYTES", chunk_bytes)
    chance = random.Random(chunk_bytes)
    for _ in range(100):
        text = odd_text(chance).encode()
        json.loads(text)
        for max_depth in (0, 2):
            assert readable(without_deep_values(text, max_depth)) == read_slowly(text, max_depth), text
        assert readable(text) == read_slowly(text, 128), text


def test_a_page_with_deep_values_is_read_as_fast_as_another() -> None:
    """A tenant fills a page with pods of many fields, one of them deep: the daemon stood still for seconds."""
    wide = "{" + ",".join('"f:a":{}' for _ in range(150_000)) + "}"
    deep = '{"f:a":' * 3_000 + "{}" + "}" * 3_000
    pods = (
        f'{{"metadata":{{"name":"p","managedFields":[{{"fieldsV1":{fields}}}]}}}}' for fields in (*[wide] * 14, deep)
    )
    page = f'{{"metadata":{{"resourceVersion":"3"}},"items":[{",".join(pods)}]}}'.encode()
    began = time.thread_time()
    _, slices = Codec(PODS).page(page)
    assert time.thread_time() - began < 1
    assert sum(map(len, slices)) == 15


def test_depth_is_counted_alike() -> None:
    for levels in range(6):
        for max_depth in range(6):
            assert is_deeper(nested(levels), max_depth) is (levels > max_depth)
            same = (
                without_deep_values(json.dumps(nested(levels)).encode(), max_depth)
                == json.dumps(nested(levels)).encode()
            )
            assert same is (levels <= max_depth)


@pytest.mark.parametrize("text", [b"[" * 1_000_000, b'"' + b'\\"' * 500_000, b"x" * 1_000_000, b'{"a":"' * 200_000])
def test_malformed_texts_take_no_longer(text: bytes) -> None:
    began = time.perf_counter()
    without_deep_values(text)
    assert time.perf_counter() - began < 5


def test_answers_with_deep_values_are_read() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    custom = f'{{"apiVersion":"x/v1","metadata":{{"managedFields":{deep},"name":"a"}},"kind":"PodGroup"}}'.encode()
    assert names_kind(custom)
    assert decode(msgspec.json.Decoder(Pod), custom).metadata.name == "a"
    with pytest.raises(Undecodable):
        decode(msgspec.json.Decoder(Pod), custom[:50_000])


def test_a_claim_keeps_its_devices_whatever_its_configuration() -> None:
    """Without them its devices would look free."""
    deep = '{"a":' * 4_000 + "1" + "}" * 4_000
    config = f'"config":[{{"opaque":{{"driver":"d","parameters":{deep}}}}}]'
    results = '"results":[{"request":"r","driver":"d","pool":"p","device":"gpu-0"}]'
    status = f'"status":{{"allocation":{{"devices":{{{results},{config}}}}}}}'
    text = f'{{"metadata":{{"name":"c"}},"spec":{{"devices":{{{config}}}}},{status}}}'
    claim = decode(msgspec.json.Decoder(ResourceClaim), text.encode())
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.results[0].device == "gpu-0"
    assert claim.spec.devices.config[0].opaque is not None
    assert is_deeper(claim.spec.devices.config[0].opaque.parameters, MAX_DEPTH // 2)


ODD = {
    rb'"\ud800"': "\ufffd",
    rb'"\udc00\ud800x"': "\ufffd\ufffdx",
    rb'"\ud83d\ude00\\ud800"': "\U0001f600\\ud800",
    rb'"\\\ud800"': "\\\ufffd",
    b'"a\xffb"': "a\ufffdb",
    b'"\xed\xa0\x80"': "\ufffd\ufffd\ufffd",
}
"""What a real API server (1.36) keeps in the configuration of a claim as it was written, and what Go reads."""


@pytest.mark.parametrize("written", ODD)
def test_odd_characters_are_read_as_go_reads_them(written: bytes) -> None:
    assert json.loads(readable(b'{"a":' + written + b"}")) == {"a": ODD[written]}


@pytest.mark.parametrize("written", ODD)
def test_a_claim_with_odd_characters_hides_no_others(written: bytes) -> None:
    """Bytes that are no UTF-8 even ended the daemon."""
    config = b'"config":[{"opaque":{"driver":"d","parameters":{"a":' + written + b"}}}]"
    odd = b'{"metadata":{"name":"odd","resourceVersion":"1"},"spec":{"devices":{' + config + b"}}}"
    beside = b'{"metadata":{"name":"beside","resourceVersion":"2"},"status":{"devices":null}}'
    codec = Codec(RESOURCE_CLAIMS)
    for items in (odd, odd + b"," + beside, beside + b"," + odd):
        listed = b'{"kind":"ResourceClaimList","metadata":{"resourceVersion":"3"},"items":[' + items + b"]}"
        claims = [item for part in codec.page(listed)[1] for item in part]
        assert {"odd"} <= {item.metadata.name for item in claims} <= {"odd", "beside"}
        assert all(isinstance(item, ResourceClaim) for item in claims)
    for claim in (codec.one(odd), codec.event(b'{"type":"ADDED","object":' + odd + b"}")[1]):
        assert isinstance(claim, ResourceClaim)
        assert claim.spec.devices.config[0].opaque is not None
        assert claim.spec.devices.config[0].opaque.parameters == {"a": ODD[written]}


def test_what_is_no_json_is_still_undecodable() -> None:
    for text in (b"<html>\xff</html>", b'{"a":"\xff', rb'{"a":"\ud800', b"\xff" * 1000, b""):
        with pytest.raises(Undecodable):
            Codec(RESOURCE_CLAIMS).page(text)
        with pytest.raises(Undecodable):
            Codec(RESOURCE_CLAIMS).event(text)
        with pytest.raises(Undecodable):
            decode(msgspec.json.Decoder(ResourceClaim), text)
