"""What is kept of claims: not unread fields, equal specs once, and no tenant's specs without a bound."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.devices import Consumer, ResourceClaim
from topo_scheduler.state.devices import kept_claims
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.kept_claims import KeptClaims


def claim(name: str, wanted: str = "a", namespace: str = "default", **metadata: Any) -> ResourceClaim:
    request = {"name": "gpus", "exactly": {"deviceClassName": wanted, "count": 1}}
    own = {"name": name, "namespace": namespace, "uid": f"uid-{name}", **metadata}
    return msgspec.convert({"metadata": own, "spec": {"devices": {"requests": [request]}}}, ResourceClaim)


def reserved(item: ResourceClaim, pods: int, more: str = "") -> ResourceClaim:
    """Return a claim as it is while it is reserved for some pods."""
    consumers = [Consumer(resource="pods", name=f"p{number}", uid=f"uid-p{number}{more}") for number in range(pods)]
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=consumers))


def put(inventory: DeviceInventory, item: ResourceClaim) -> ResourceClaim:
    key = (item.metadata.namespace, item.metadata.name)
    inventory.put(inventory.claims, key, item)
    return inventory.claims[key]


def test_fields_that_are_not_read_are_not_kept() -> None:
    owners = [{"kind": "Pod", "name": "p", "uid": "u", "controller": True}, {"kind": "Other", "name": "o", "uid": "v"}]
    kept = KeptClaims().keep(claim("c", labels={"a": "b"}, annotations={"c": "d"}, ownerReferences=owners))
    assert not kept.metadata.labels and not kept.metadata.annotations
    assert [owner.name for owner in kept.metadata.owner_references] == ["p"]


def test_claims_that_ask_for_the_same_share_one_specification() -> None:
    inventory = DeviceInventory()
    first, second, other = put(inventory, claim("c")), put(inventory, claim("d")), put(inventory, claim("e", "b"))
    assert first.spec is second.spec
    assert other.spec is not first.spec


def test_beyond_the_cap_of_its_namespace_a_claim_is_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_claims, "MAX_SPEC_BYTES_OF_NAMESPACE", 300)
    inventory = DeviceInventory()
    kept = [put(inventory, claim(f"c{number}", f"class-{number}")) for number in range(10)]
    assert not kept[0].spec.excess
    assert "too many different specs" in kept[-1].spec.excess
    assert not put(inventory, claim("like-the-first", "class-0")).spec.excess
    assert not put(inventory, claim("c", "class-9", "elsewhere")).spec.excess
    for number in range(10):
        inventory.drop(inventory.claims, ("default", f"c{number}"))
    assert not put(inventory, claim("c9", "class-9")).spec.excess


def test_beyond_the_cap_of_all_a_namespace_has_an_equal_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_claims, "MAX_SPEC_BYTES", 1000)
    inventory = DeviceInventory()
    greedy = [put(inventory, claim(f"c{number}", f"class-{number}")) for number in range(30)]
    assert greedy[-1].spec.excess
    assert not put(inventory, claim("c", "another", "modest")).spec.excess


def test_a_claim_with_finalizers_without_end_is_refused_and_keeps_none() -> None:
    kept = KeptClaims().keep(claim("c", finalizers=[f"example.com/{number}" for number in range(1000)]))
    assert "finalizers" in kept.spec.excess and not kept.metadata.finalizers


def test_reservations_of_a_namespace_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_claims, "MAX_RESERVATIONS_OF_NAMESPACE", 300)
    inventory = DeviceInventory()
    first, second, small = (put(inventory, reserved(claim(name), 200 if name != "e" else 50)) for name in "cde")
    assert len(first.status.reserved_for) == 200
    assert second.status.reserved_for == [kept_claims.UNREAD], "it is in use, by pods that are not known"
    assert len(small.status.reserved_for) == 50
    assert list(inventory.consumers.claims_of("uid-p0")) == [("default", "c"), ("default", "e")]
    assert len(put(inventory, reserved(claim("c", namespace="elsewhere"), 200)).status.reserved_for) == 200
    inventory.drop(inventory.claims, ("default", "c"))
    assert len(put(inventory, reserved(claim("d"), 200)).status.reserved_for) == 200


def test_beyond_the_cap_of_all_reservations_a_namespace_has_an_equal_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_claims, "MAX_RESERVATIONS", 400)
    inventory = DeviceInventory()
    for number in range(3):
        put(inventory, reserved(claim(f"c{number}"), 190))
    assert len(put(inventory, reserved(claim("c", namespace="modest"), 190)).status.reserved_for) == 190


def test_a_long_reference_to_a_pod_is_not_kept() -> None:
    kept = KeptClaims().keep(reserved(claim("c"), 2, "x" * 1024))
    assert kept.status.reserved_for == [kept_claims.UNREAD]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("cde"), st.sampled_from(["a", "b", "a" * 200, "b" * 200]), st.booleans(), st.booleans()
        )
    )
)
def test_nothing_stays_behind_of_claims_that_are_gone(steps: list[tuple[str, str, bool, bool]]) -> None:
    inventory = DeviceInventory()
    for version, (name, wanted, dropped, protected) in enumerate(steps, 1):
        if dropped:
            inventory.drop(inventory.claims, ("default", name))
        else:
            finalizers = ["x/" + "y" * 5000] if protected else []
            item = claim(name, wanted, resourceVersion=str(version), finalizers=finalizers)
            put(inventory, reserved(item, version % 4, "y" * 2000 if protected else ""))
    for name in "cde":
        inventory.drop(inventory.claims, ("default", name))
    kept = inventory._kept_claims
    assert (kept._specs, kept._bytes, dict(kept._bytes_of)) == ({}, 0, {})
    assert (kept._reservations, dict(kept._reservations_of)) == (0, {})


def test_our_own_write_that_comes_back_is_no_change() -> None:
    inventory = DeviceInventory()
    put(inventory, claim("c", resourceVersion="7"))
    inventory.take_changes()
    put(inventory, claim("c", resourceVersion="7", annotations={"not": "read"}))
    assert not inventory.take_changes().claims
    put(inventory, claim("c", resourceVersion="8"))
    assert inventory.take_changes().claims


def test_a_claim_takes_little_memory_whatever_its_tenant_writes() -> None:
    owner = {"apiVersion": "v" * 50_000, "kind": "K" * 50_000, "name": "p", "uid": "u", "controller": True}
    finalizers = [f"a/{number}" for number in range(400)]
    kept = KeptClaims()
    for item in (claim("c", ownerReferences=[owner]), claim("d", finalizers=finalizers), claim("e" * 250)):
        assert len(msgspec.json.encode(kept.keep(item))) < 2048
    real = [{"apiVersion": "v1", "kind": "Pod", "name": "p" * 253, "uid": "u" * 36, "controller": True}]
    assert kept.keep(claim("f", ownerReferences=real, finalizers=["example.com/f"])).metadata.owner_references
