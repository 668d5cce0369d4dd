"""JSON that is nested too deeply is cut where nothing is read, in time that grows with its length only."""

import json
import time

import msgspec
import pytest

from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.client import decode, names_kind
from topo_scheduler.kube.connection.errors import Undecodable
from topo_scheduler.kube.connection.nesting import MAX_DEPTH, is_deeper, without_deep_values


def nested(levels: int, inside: object = 1) -> object:
    value = inside
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("text", ["[]", '{"a": "[[[{{{"}', '["\\\\", "]", "\\"["]', "", "null", '{"a": [1, {"b": 2}]}'])
def test_what_is_not_deep_stays(text: str) -> None:
    assert without_deep_values(text.encode(), 3) == text.encode()


def test_what_is_deeper_is_null() -> None:
    text = json.dumps({"a": nested(3, "]"), "b": [nested(1), nested(3), {"c": {"d": '\\"['}}], "e": 5})
    cut = json.loads(without_deep_values(text.encode(), 3))
    assert cut == {"a": [[None]], "b": [[1], [None], {"c": None}], "e": 5}
    assert not is_deeper(cut, 3)


def test_depth_is_counted_alike() -> None:
    for levels in range(6):
        for most in range(6):
            assert is_deeper(nested(levels), most) is (levels > most)
            same = without_deep_values(json.dumps(nested(levels)).encode(), most) == json.dumps(nested(levels)).encode()
            assert same is (levels <= most)


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
