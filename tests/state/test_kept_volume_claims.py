"""PersistentVolumeClaims are kept without what has no reader, and their selectors have a budget of memory."""

import tracemalloc

import msgspec
import pytest

from topo_scheduler.api.objects import ObjectMeta, OwnerReference, ResourceRequirements
from topo_scheduler.api.selectors import LabelSelector, Requirement
from topo_scheduler.api.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from topo_scheduler.state.storage import kept_volume_claims as module
from topo_scheduler.state.storage.claim_annotations import BETA_CLASS, BIND_COMPLETED, SELECTED_NODE
from topo_scheduler.state.storage.storage_objects import SelectNode, Storage

VALUES = 400
SELECTOR_BYTES = 50_000


def claim(number: int, namespace: str = "hostile", *, volume: str = "", version: str = "1") -> PersistentVolumeClaim:
    values = tuple(f"{namespace}-{number}-{value}-{'x' * 20}" for value in range(VALUES))
    meta = ObjectMeta(
        name=f"c{number}",
        namespace=namespace,
        uid=f"{namespace}-{number}",
        resource_version=version,
        labels={f"label-{number}-{label}": "x" * 63 for label in range(100)},
        annotations={f"a-{number}": "x" * 16_000, BETA_CLASS: "y" * 4_096},
        owner_references=[OwnerReference("v1", "A", "a", "a"), OwnerReference("v1", "Pod", "p", "p", True)],
    )
    if volume:
        meta.annotations[BIND_COMPLETED] = "yes"
    spec = PersistentVolumeClaimSpec(
        ["ReadWriteOnce"] * 1_000,
        ResourceRequirements({"storage": "1Gi"}),
        volume,
        selector=LabelSelector({}, (Requirement("x", "In", values),)),
    )
    return msgspec.json.decode(msgspec.json.encode(PersistentVolumeClaim(meta, spec)), type=PersistentVolumeClaim)


def put(storage: Storage, new: PersistentVolumeClaim) -> PersistentVolumeClaim:
    key = new.metadata.namespace, new.metadata.name
    storage.put(storage.claims, key, new)
    return storage.claims[key]


def selector_bytes(storage: Storage, namespace: str) -> int:
    return storage.kept_claims._memory.bytes_of(namespace)


def test_of_a_claim_only_what_is_read_is_kept() -> None:
    kept = put(Storage(), claim(1))
    assert not kept.metadata.labels
    assert kept.metadata.annotations == {BETA_CLASS: "y" * 254}, "too long for any class"
    assert kept.metadata.controller is not None
    assert len(kept.metadata.owner_references) == 1
    assert kept.spec.access_modes == ["ReadWriteOnce"]
    assert kept.spec.resources == ResourceRequirements({"storage": "1Gi"})
    assert kept.spec.selector == claim(1).spec.selector


def test_a_bound_claim_needs_no_selector() -> None:
    storage = Storage()
    put(storage, claim(1))
    assert selector_bytes(storage, "hostile")
    kept = put(storage, claim(1, volume="pv", version="2"))
    assert kept.spec.selector is None
    assert not kept.spec.excess
    assert not selector_bytes(storage, "hostile")


def test_many_claims_of_a_tenant_take_little_memory() -> None:
    storage = Storage()
    put(storage, claim(0, volume="pv"))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 101):
            put(storage, claim(number, volume="pv"))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 100 < 2_500


def test_selectors_of_a_namespace_have_a_budget_and_others_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SELECTOR_BYTES_OF_NAMESPACE", 5 * SELECTOR_BYTES + SELECTOR_BYTES // 2)
    storage = Storage()
    kept = [put(storage, claim(number)) for number in range(10)]
    assert [bool(item.spec.excess) for item in kept] == [False] * 5 + [True] * 5
    assert kept[9].spec.excess.startswith("selectors of unbound claims of its namespace take more")
    assert kept[9].spec.selector is None
    assert not put(storage, claim(1, "victim")).spec.excess
    storage.drop(storage.claims, ("hostile", "c0"))
    assert not put(storage, claim(9, version="2")).spec.excess, "it was created again"
    for number in range(1, 10):
        storage.drop(storage.claims, ("hostile", f"c{number}"))
    assert not selector_bytes(storage, "hostile")


def test_a_write_of_the_scheduler_to_a_claim_beyond_the_budget_keeps_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SELECTOR_BYTES_OF_NAMESPACE", 10)
    storage = Storage()
    put(storage, claim(1))
    storage.wrote(SelectNode(("hostile", "c1"), "hostile-1", "1", "n"), "2")
    kept = storage.claims["hostile", "c1"]
    assert kept.metadata.annotations[SELECTED_NODE] == "n"
    assert kept.spec.excess
