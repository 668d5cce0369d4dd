"""What is known of storage: changes that matter, what is promised, and which volumes could serve a claim."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.objects import ObjectMeta, ResourceRequirements
from topo_scheduler.api.storage import (
    ClaimReference,
    CSINode,
    CSINodeAllocatable,
    CSINodeDriver,
    CSINodeSpec,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
)
from topo_scheduler.state.storage.claim_annotations import SELECTED_NODE
from topo_scheduler.state.storage.sizes import size_of
from topo_scheduler.state.storage.storage_objects import (
    ReserveVolume,
    SelectNode,
    Storage,
    VolumeChoice,
    belongs,
    class_of_volume,
)

KEY = ("default", "data")


def volume(name: str, *, of: str = "a", size: int = 1, claimed: str = "", version: str = "1") -> PersistentVolume:
    reference = ClaimReference("default", claimed, f"uid-{claimed}") if claimed else None
    meta = ObjectMeta(name=name, uid=f"uid-{name}", resource_version=version)
    return PersistentVolume(meta, PersistentVolumeSpec({"storage": size}, claim_ref=reference, storage_class_name=of))


def claim(name: str = "data", *, of: str = "a", size: int = 1, version: str = "1") -> PersistentVolumeClaim:
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", resource_version=version)
    wants = PersistentVolumeClaimSpec(resources=ResourceRequirements({"storage": size}), storage_class_name=of)
    return PersistentVolumeClaim(meta, wants)


def test_only_what_says_something_else_is_a_change() -> None:
    storage = Storage()
    storage.put(storage.volumes, "pv", volume("pv"))
    storage.put(storage.claims, KEY, claim())
    before = storage.changes
    storage.take_changes()
    storage.put(storage.volumes, "pv", volume("pv", version="2"))
    storage.put(storage.claims, KEY, claim(version="2"))
    assert storage.changes == before and storage.take_changes() == (frozenset(), False)
    assert storage.volumes["pv"].metadata.resource_version == "2", "though it is the version that is written on"
    storage.put(storage.claims, KEY, claim(size=2, version="3"))
    assert storage.take_changes() == (frozenset({KEY}), False)
    storage.put(storage.volumes, "pv", volume("pv", size=2, version="3"))
    assert storage.take_changes() == (frozenset(), True)


def test_what_pods_hold_together_is_held_until_the_last_gives_it_back() -> None:
    storage = Storage()
    storage.put(storage.volumes, "pv", volume("pv"))
    for uid in ("one", "two"):
        storage.hold(uid, (VolumeChoice(KEY, volume="pv"),))
    other = claim("other")
    assert list(storage.volumes_for(other)) == []
    assert [reserved for _, reserved in storage.volumes_for(claim())] == [True]
    storage.release("one")
    assert list(storage.volumes_for(other)) == []
    storage.release("two")
    storage.release("two")
    assert [reserved for _, reserved in storage.volumes_for(other)] == [False]


def test_a_node_that_is_reserved_counts_until_the_claim_names_one() -> None:
    storage = Storage()
    storage.hold("one", (VolumeChoice(KEY, node="n1"),))
    volume_claim = claim()
    assert storage.node_of(volume_claim) == "n1"
    volume_claim.metadata.annotations = {SELECTED_NODE: "n2"}
    assert storage.node_of(volume_claim) == "n2"
    storage.release("one")
    assert storage.node_of(claim()) is None


def test_what_was_written_is_known_and_no_older_state_undoes_it() -> None:
    storage = Storage()
    storage.put(storage.volumes, "pv", volume("pv"))
    storage.put(storage.claims, KEY, claim())
    storage.wrote(ReserveVolume("pv", "uid-pv", "1", KEY, "uid-data", "1", marked=True), "7")
    storage.wrote(SelectNode(KEY, "uid-data", "1", "n1"), "8")
    storage.put(storage.volumes, "pv", volume("pv", version="5"))
    storage.put(storage.claims, KEY, claim(version="6"))
    assert belongs(storage.volumes["pv"], claim())
    assert storage.node_of(storage.claims[KEY]) == "n1"
    storage.put(storage.volumes, "pv", volume("pv", version="9"))
    assert storage.volumes["pv"].spec.claim_ref is None, "another client took it back since"


def test_limits_are_those_of_nodes_that_have_any() -> None:
    storage = Storage()
    assert storage.limits() == {}
    for name, count in (("n1", 3), ("n2", None)):
        drivers = [CSINodeDriver("disk", CSINodeAllocatable(count)), CSINodeDriver("share", None)]
        storage.put(storage.csi_nodes, name, CSINode(ObjectMeta(name=name), CSINodeSpec(drivers)))
    assert storage.limits() == {"n1": {"disk": 3}}
    storage.drop(storage.csi_nodes, "n1")
    assert storage.limits() == {}


VOLUMES = st.builds(
    volume,
    st.sampled_from(("v1", "v2", "v3", "v4")),
    of=st.sampled_from("ab"),
    size=st.integers(1, 3),
    claimed=st.sampled_from(("", "", "data", "other")),
)


@given(
    changes=st.lists(st.one_of(VOLUMES, st.sampled_from(("v1", "v2"))), max_size=12),
    held=st.sampled_from(("", "v1", "v3")),
    of=st.sampled_from("ab"),
    size=st.integers(1, 3),
)
def test_the_volumes_for_a_claim_are_those_that_a_full_search_finds(
    changes: list[PersistentVolume | str], held: str, of: str, size: int
) -> None:
    storage = Storage()
    for change in changes:
        if isinstance(change, str):
            storage.drop(storage.volumes, change)
        else:
            storage.put(storage.volumes, change.metadata.name, msgspec.structs.replace(change))
    if held:
        storage.hold("pod", (VolumeChoice(("default", "other"), volume=held),))
    wanted = claim(of=of, size=size)
    expected = [
        (not belongs(stored, wanted), size_of(stored.spec.capacity["storage"]), stored.metadata.name)
        for stored in storage.volumes.values()
        if class_of_volume(stored) == of
        and size_of(stored.spec.capacity["storage"]) >= size
        and (belongs(stored, wanted) or (stored.spec.claim_ref is None and stored.metadata.name != held))
    ]
    offered = [(volume.metadata.name, reserved) for volume, reserved in storage.volumes_for(wanted)]
    assert offered == [(name, not free) for free, _, name in sorted(expected)]
