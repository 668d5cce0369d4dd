"""Pods with volume claims: where they go, which reasons they get, and when they are tried again."""

from collections.abc import Mapping

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import fabric, held
from tests.scheduling.storage import DELAYED, HOST, IMMEDIATE, LOCAL, ZONE, StorageDriver, claim, using, volume, zoned
from topo_scheduler.api.objects import GCEDisk, ObjectMeta, OwnerReference, Pod, Volume
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.selectors import LabelSelector, Requirement
from topo_scheduler.api.storage import (
    CSIDriver,
    CSIDriverSpec,
    CSINode,
    CSINodeAllocatable,
    CSINodeDriver,
    CSINodeSpec,
    CSISource,
    CSIStorageCapacity,
    StorageClass,
)
from topo_scheduler.scheduling.binding import volume_binding
from topo_scheduler.scheduling.instructions import LogWarning
from topo_scheduler.scheduling.rules import volume_limits
from topo_scheduler.scheduling.rules.volume_choice import Seated, choose_volumes
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.selectors import Selector
from topo_scheduler.state.storage import kept_volume_claims
from topo_scheduler.state.storage.claim_annotations import SELECTED_NODE
from topo_scheduler.state.storage.csi_translation import GCE, MIGRATED
from topo_scheduler.state.storage.storage_objects import Storage

pytestmark = pytest.mark.unrecorded


def bound(d: StorageDriver, name: str, **more: object) -> None:
    """A claim that is bound to a volume named after it."""
    d.tell(claim(name, IMMEDIATE))
    d.bind_claim(name, volume(f"pv-{name}", IMMEDIATE, **more))  # type: ignore[arg-type]


def reason(d: StorageDriver, pod: Pod) -> str:
    """The last reason of the pod."""
    return d.told(pod, Reason.FAILED_SCHEDULING)[-1]


# ---------------------------------------------------------------- the rules, each once


def test_a_pod_goes_where_its_volume_is() -> None:
    d = StorageDriver(zoned("a", "b", "c"))
    bound(d, "data", zones=["b"])
    assert d.run(using("data")) == {"p": "n2"}


def test_a_pod_goes_to_the_node_of_its_local_volume_and_gets_an_event_if_there_is_no_room() -> None:
    d = StorageDriver(zoned("a", "a"))
    bound(d, "data", node="n2")
    d.run(make_pod("big", gpus=8, node="n2", scheduler="other"))
    pod = using("data")
    d.run(pod)
    assert reason(d, pod) == (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu,"
        " 1 node(s) didn't match PersistentVolume's node affinity."
    )
    big = next(pod for pod in d.pods.values() if pod.metadata.name == "big")
    d.delete(big)
    d.settle()
    assert pod.spec.node_name == "n2"


def test_a_volume_labelled_with_a_zone_is_used_in_that_zone() -> None:
    d = StorageDriver(zoned("a", "b"))
    d.tell(claim("data", IMMEDIATE))
    pv = volume("pv", IMMEDIATE)
    pv.metadata.labels[ZONE] = "b"
    d.bind_claim("data", pv)
    assert d.run(using("data")) == {"p": "n2"}
    lost = using("data", name="q")
    d.drop_node("n2")
    d.run(lost)
    assert reason(d, lost).startswith("0/1 nodes are available: 1 node(s) had no available volume zone.")


def test_a_claim_with_read_write_once_pod_is_used_by_one_pod() -> None:
    d = StorageDriver(zoned("a", "a"))
    d.tell(claim("data", IMMEDIATE, modes=["ReadWriteOncePod"]))
    d.bind_claim("data", volume("pv", IMMEDIATE))
    first, second = using("data", name="first"), using("data", name="second")
    d.run(first)
    d.run(second)
    assert first.spec.node_name and not second.spec.node_name
    assert "ReadWriteOncePod access mode already in-use by another pod" in reason(d, second)
    d.delete(first)
    d.settle()
    assert second.spec.node_name


def test_a_node_takes_as_many_csi_volumes_as_it_says() -> None:
    d = StorageDriver(zoned("a"))
    d.storage.put(
        d.storage.csi_nodes,
        "n1",
        CSINode(ObjectMeta(name="n1"), CSINodeSpec([CSINodeDriver("disk.example.com", CSINodeAllocatable(1))])),
    )
    for name in ("one", "two"):
        d.tell(claim(name, IMMEDIATE))
        pv = volume(f"pv-{name}", IMMEDIATE)
        pv.spec.csi = CSISource("disk.example.com", f"handle-{name}")
        d.bind_claim(name, pv)
    first, second = using("one", name="first"), using("two", name="second")
    d.run(first)
    d.run(second)
    assert (first.spec.node_name, second.spec.node_name) == ("n1", "")
    assert reason(d, second) == "0/1 nodes are available: 1 node(s) exceed max volume count."


def test_a_volume_made_for_a_pod_alone_takes_one_of_those_places() -> None:
    d = StorageDriver(zoned("a"))
    allocatable = CSINodeAllocatable(2)
    d.storage.put(
        d.storage.csi_nodes,
        "n1",
        CSINode(ObjectMeta(name="n1"), CSINodeSpec([CSINodeDriver("disk.example.com", allocatable)])),
    )
    owner = make_pod("p", gpus=1, uid="pod-e")
    owner.spec.volumes = [Volume("scratch", ephemeral={"volumeClaimTemplate": {}})]
    for name in ("p-scratch", "one", "two"):
        made = claim(name, IMMEDIATE)
        if name == "p-scratch":
            made.metadata.owner_references = [OwnerReference("v1", "Pod", "p", "pod-e", controller=True)]
        d.tell(made)
        pv = volume(f"pv-{name}", IMMEDIATE)
        pv.spec.csi = CSISource("disk.example.com", f"handle-{name}")
        d.bind_claim(name, pv)
    d.run(owner)
    first, second = using("one", name="first"), using("two", name="second")
    d.run(first)
    d.run(second)
    assert [pod.spec.node_name for pod in (owner, first, second)] == ["n1", "n1", ""]
    assert reason(d, second) == "0/1 nodes are available: 1 node(s) exceed max volume count."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, 'persistentvolumeclaim "data" not found'),
        ("immediate", "pod has unbound immediate PersistentVolumeClaims"),
        ("lost", 'persistentvolumeclaim "data" bound to a volume that does not exist'),
        ("deleted", 'persistentvolumeclaim "data" is being deleted'),
        ("class", "pod has unbound immediate PersistentVolumeClaims"),
    ],
)
def test_what_is_wrong_with_a_claim_is_the_reason_on_all_nodes(change: str | None, words: str) -> None:
    d = StorageDriver(zoned("a", "a"))
    if change is not None:
        made = claim("data", IMMEDIATE if change == "immediate" else "unknown" if change == "class" else DELAYED)
        if change == "lost":
            made.status.phase = "Lost"
        if change == "deleted":
            made.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
        d.tell(made)
    pod = using("data")
    d.run(pod)
    assert reason(d, pod) == f"0/2 nodes are available: 2 {words}."
    d.storage.drop(d.storage.claims, ("default", "data"))
    bound(d, "data")
    d.settle()
    assert pod.spec.node_name


def test_an_ephemeral_volume_waits_for_the_claim_made_for_it() -> None:
    d = StorageDriver(zoned("a"))
    pod = make_pod("p", gpus=1, uid="pod-e")
    pod.spec.volumes = [Volume("scratch", ephemeral={"volumeClaimTemplate": {}})]
    d.run(pod)
    assert "waiting for ephemeral volume controller to create the persistentvolumeclaim" in reason(d, pod)
    made = claim("p-scratch")
    made.metadata.owner_references = [OwnerReference("v1", "Pod", "p", "pod-e", controller=True)]
    d.tell(made)
    d.settle()
    assert pod.spec.node_name == "n1"


# ---------------------------------------------------------------- claims that wait for a node


def test_a_volume_that_is_there_is_reserved_before_the_pod_is_bound() -> None:
    d = StorageDriver(zoned("a", "a"))
    d.tell(claim("data", LOCAL), volume("pv", node="n2"))
    pod = using("data")
    d.apply(pod)
    d.step()
    (wanted,) = d.preparing.values()
    assert [write.volume for write in wanted.writes] == ["pv"]  # type: ignore[union-attr]
    assert d.flight == {} and held(d, "n2") == 1
    d.carry_out(pod)
    d.step()
    assert d.flight == {}, "reserved, and not bound yet"
    d.provision()
    d.step()
    assert d.flight[pod.metadata.uid].node == "n2"
    d.settle()
    assert pod.spec.node_name == "n2"


def test_a_volume_to_be_made_is_asked_for_on_the_pods_node() -> None:
    d = StorageDriver(zoned("a", "b"))
    d.tell(claim("data"))
    pod = using("data")
    d.apply(pod)
    d.step()
    d.carry_out(pod)
    node = d.claims["data"].metadata.annotations[SELECTED_NODE]
    d.provision()
    d.step()
    assert d.flight[pod.metadata.uid].node == node


def test_the_smallest_volume_that_will_do_is_taken() -> None:
    d = StorageDriver(zoned("a"))
    d.tell(claim("data", LOCAL, size="2Gi"), volume("big", size="9Gi"), volume("fit", size="3Gi"), volume("tiny"))
    d.apply(using("data"))
    d.step()
    (wanted,) = d.preparing.values()
    assert [write.volume for write in wanted.writes] == ["fit"]  # type: ignore[union-attr]


def test_no_volume_that_could_be_bound_is_a_reason_and_one_that_comes_wakes_the_pod() -> None:
    d = StorageDriver(zoned("a", "a"))
    d.tell(claim("data", LOCAL))
    pod = using("data")
    d.run(pod)
    assert reason(d, pod) == "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind."
    d.tell(volume("pv", node="n1"))
    d.settle()
    assert pod.spec.node_name == "n1"


def test_after_a_restart_a_selected_node_binds_the_pod_to_it() -> None:
    d = StorageDriver(zoned("a", "a", "a"))
    pvc = claim("data")
    pvc.metadata.annotations[SELECTED_NODE] = "n3"
    d.tell(pvc)
    pod = using("data")
    d.apply(pod)
    d.step()
    assert d.preparing == {}, "the API server knows already"
    assert d.flight == {}, "but the volume does not exist"
    d.provision()
    assert d.run(pod) == {"p": "n3"}


def test_what_others_have_does_not_matter_to_pods_without_claims() -> None:
    d = StorageDriver(zoned("a"))
    plain = make_pod("plain", gpus=1)
    d.run(plain)
    views = d.engine.planner.views
    view = views.get(d.engine.workloads.of_pod(plain.metadata.uid)[1].cls)  # type: ignore[index]
    before = view._neighbours_position
    d.tell(claim("data"), volume("pv"))
    d.step()
    view.refresh()
    assert view._neighbours_position == before


def test_until_storage_is_listed_pods_with_claims_wait_and_others_do_not() -> None:
    d = StorageDriver(zoned("a"))
    d.storage.unlisted["persistentvolumes"] = False
    bound(d, "data")
    pod = using("data")
    assert d.run(pod, make_pod("plain", gpus=1)) == {"plain": "n1"}
    assert "persistentvolumes are still being listed" in reason(d, pod)
    d.storage.refused("persistentvolumes")
    d.settle()
    assert "persistentvolumes can't be listed yet: grant get, list and watch" in reason(d, pod)
    d.storage.listed("persistentvolumes")
    d.settle(60)
    assert pod.spec.node_name == "n1"


# ---------------------------------------------------------------- when it goes wrong


def preparing(d: StorageDriver, pod: Pod, of: str = DELAYED) -> str:
    """A pod that waits for its volume to be made; return its node."""
    d.tell(claim("data", of))
    d.apply(pod)
    d.step()
    d.carry_out(pod)
    d.step()
    return d.claims["data"].metadata.annotations.get(SELECTED_NODE, "")


def test_a_provisioner_that_takes_the_node_away_has_the_pod_decided_on_again() -> None:
    d = StorageDriver(zoned("a", "a"))
    pod = using("data")
    node = preparing(d, pod)
    d.run(make_pod("big", gpus=8, node=node, scheduler="other"))
    del d.claims["data"].metadata.annotations[SELECTED_NODE]
    d.tell(d.claims["data"])
    d.step()
    assert d.told(pod, Reason.BIND_FAILED) == [
        f'Binding to {node} failed: binding volumes: provisioning failed for PVC "data"'
    ]
    assert held(d, node) == 8
    d.settle(1)
    assert pod.spec.node_name not in ("", node)


def test_an_older_state_reported_after_the_write_is_no_failure() -> None:
    d = StorageDriver(zoned("a", "a"))
    pod = using("data")
    d.tell(claim("data"))
    d.apply(pod)
    d.step()
    d.carry_out(pod, reported=False)
    d.step()
    assert not d.told(pod, Reason.BIND_FAILED)
    d.tell(d.claims["data"])
    d.provision()
    d.settle()
    assert pod.spec.node_name


def test_a_write_that_is_refused_undoes_the_decision() -> None:
    d = StorageDriver(zoned("a"))
    d.tell(claim("data", LOCAL), volume("pv"))
    pod = using("data")
    d.apply(pod)
    d.step()
    d.fail(pod, 'pv "pv" changed meanwhile')
    d.step()
    assert held(d, "n1") == 0
    assert "changed meanwhile" in d.told(pod, Reason.BIND_FAILED)[0]
    d.settle(1)
    assert pod.spec.node_name == "n1"


def test_a_claim_bound_to_another_volume_undoes_the_decision() -> None:
    d = StorageDriver(zoned("a", "a"))
    d.tell(claim("data", LOCAL), volume("pv", node="n1"))
    pod = using("data")
    d.apply(pod)
    d.step()
    d.carry_out(pod)
    d.bind_claim("data", volume("other", node="n2"))
    d.step()
    assert "was bound to other meanwhile" in d.told(pod, Reason.BIND_FAILED)[0]
    d.settle(1)
    assert pod.spec.node_name == "n2"


def test_a_volume_made_where_the_node_can_not_use_it_undoes_the_decision() -> None:
    d = StorageDriver(zoned("a", "a"))
    pod = using("data")
    node = preparing(d, pod)
    other = "n2" if node == "n1" else "n1"
    d.bind_claim("data", volume("made", DELAYED, node=other))
    d.step()
    assert f'pv "made" node affinity doesn\'t match node "{node}"' in d.told(pod, Reason.BIND_FAILED)[0]
    d.settle(1)
    assert pod.spec.node_name == other


@pytest.mark.parametrize("removed", [True, False])
def test_a_claim_that_is_deleted_while_its_volume_is_made_undoes_the_decision(removed: bool) -> None:
    d = StorageDriver(zoned("a"))
    pod = using("data")
    preparing(d, pod)
    if removed:
        d.storage.drop(d.storage.claims, ("default", "data"))
    else:
        d.claims["data"].metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
        d.tell(d.claims["data"])
    d.step()
    assert d.told(pod, Reason.BIND_FAILED) == [
        'Binding to n1 failed: binding volumes: persistentvolumeclaim "data" was deleted'
    ]
    assert held(d, "n1") == 0


def test_waiting_for_a_volume_is_reported_and_ends() -> None:
    d = StorageDriver(zoned("a"))
    pod = using("data")
    preparing(d, pod)
    assert d.engine.next_due() == 5
    d.step(5)
    (waiting,) = d.told(pod, Reason.WAITING_FOR_VOLUMES)
    assert waiting == "waiting for volumes on node n1: persistentvolumeclaims not bound yet: data"
    assert d.engine.next_due() == 600
    d.step(594)
    assert not d.told(pod, Reason.BIND_FAILED)
    d.step(1)
    assert "not bound within 600 s: persistentvolumeclaims data" in d.told(pod, Reason.BIND_FAILED)[0]
    d.step(1)
    d.provision()
    d.settle()
    assert pod.spec.node_name == "n1"


def test_a_pod_deleted_while_it_waits_leaves_nothing_behind() -> None:
    d = StorageDriver(zoned("a"))
    d.tell(claim("data", LOCAL), claim("more", LOCAL), volume("pv"))
    first, second = using("data", name="first"), using("more", name="second")
    d.apply(first)
    d.step()
    d.apply(second)
    d.step()
    assert list(d.preparing) == [first.metadata.uid], "the one volume is promised"
    d.delete(first)
    d.step()
    assert list(d.preparing) == [first.metadata.uid], "and it is unknown whether that was written"
    d.fail(first, "no")
    d.settle()
    assert second.spec.node_name == "n1"
    assert held(d, "n1") == 1


def test_a_class_without_provisioner_that_appears_later_wakes_the_pod() -> None:
    d = StorageDriver(zoned("a"))
    d.tell(claim("data", "later"))
    pod = using("data")
    d.run(pod)
    later = StorageClass(ObjectMeta(name="later"), "disk.example.com", "WaitForFirstConsumer")
    d.storage.put(d.storage.classes, "later", later)
    d.settle()
    assert pod.spec.node_name == "n1"


# ---------------------------------------------------------------- gangs


def test_a_gang_that_shares_a_claim_is_bound_when_its_volume_is_there() -> None:
    d = StorageDriver(fabric({"s1/l1": 4}))
    d.tell(claim("data", modes=["ReadWriteMany"]))
    pods = [using("data", name=f"g-{n}", gpus=8, gang=3, created=n) for n in range(3)]
    d.apply(*pods)
    d.step()
    assert len(d.preparing) == 1, "written once"
    (uid,) = d.preparing
    d.carry_out(d.pods[uid])
    d.step()
    assert d.flight == {}
    d.bind_claim("data", volume("made", DELAYED))
    d.step()
    assert len(d.flight) == 3
    d.settle()
    assert len({pod.spec.node_name for pod in pods}) == 3


def test_a_gang_of_which_one_volume_does_not_come_is_undone_as_a_whole() -> None:
    d = StorageDriver(fabric({"s1/l1": 4}))
    d.tell(claim("data", modes=["ReadWriteMany"]))
    pods = [using("data", name=f"g-{n}", gpus=8, gang=3, created=n) for n in range(3)]
    d.apply(*pods)
    d.step()
    (uid,) = d.preparing
    d.fail(d.pods[uid], "no")
    d.step()
    assert [held(d, f"s1-l1-{n}") for n in range(1, 5)] == [0] * 4
    assert all(d.told(pod, Reason.BIND_FAILED) for pod in pods)
    assert d.binds() == []
    d.step(2)
    assert d.evicted() == []
    (uid,) = d.preparing
    d.carry_out(d.pods[uid])
    d.bind_claim("data", volume("made", DELAYED))
    d.settle()
    assert all(pod.spec.node_name for pod in pods)


def test_a_gang_keeps_to_the_zone_of_its_volume_and_the_size_rule_knows() -> None:
    # Zone a could hold the gang in one leaf; its volume is in zone b, where it takes two.
    nodes = [make_node(f"a{n}", "s1/l1", labels={ZONE: "a", HOST: f"a{n}"}) for n in range(4)]
    nodes += [make_node(f"b{n}", f"s2/l{2 + n // 2}", labels={ZONE: "b", HOST: f"b{n}"}) for n in range(4)]
    d = StorageDriver(nodes)
    bound(d, "data", zones=["b"])
    pods = [using("data", name=f"g-{n}", gpus=8, gang=4, created=n) for n in range(4)]
    assert set(d.run(*pods).values()) == {"b0", "b1", "b2", "b3"}


def test_a_gang_can_not_share_a_claim_for_one_pod() -> None:
    d = StorageDriver(fabric({"s1/l1": 4}))
    d.tell(claim("data", modes=["ReadWriteOncePod"]))
    pods = [using("data", name=f"g-{n}", gpus=8, gang=2, created=n) for n in range(2)]
    d.run(*pods)
    assert d.preparing == {}
    assert '2 of its pods use the persistentvolumeclaim "data", whose access mode ReadWriteOncePod allows one' in (
        reason(d, pods[0])
    )


def test_a_gang_that_shares_a_local_volume_gets_an_event_that_no_volume_reaches_all_of_it() -> None:
    d = StorageDriver(zoned("a", "a"))
    d.tell(claim("data", LOCAL, modes=["ReadWriteMany"]), volume("pv1", node="n1"), volume("pv2", node="n2"))
    pods = [using("data", name=f"g-{n}", gpus=8, gang=2, created=n) for n in range(2)]
    d.run(*pods)
    assert d.preparing == {} and d.binds() == []
    assert 'No volume for persistentvolumeclaim "data" is there that all pods that share it could use' in (
        reason(d, pods[0])
    )


def test_a_member_deleted_while_its_gang_waits_does_not_hold_up_the_others() -> None:
    d = StorageDriver(fabric({"s1/l1": 4}))
    d.tell(claim("data", modes=["ReadWriteMany"]))
    pods = [using("data", name=f"g-{n}", gpus=8, gang=3, created=n) for n in range(3)]
    d.apply(*pods)
    d.step()
    (uid,) = d.preparing
    d.carry_out(d.pods[uid])
    d.delete(pods[2])
    d.provision()
    d.step()
    assert set(d.flight) <= {pod.metadata.uid for pod in pods[:2]}


def test_a_gang_whose_members_have_local_volumes_of_their_own() -> None:
    d = StorageDriver(zoned("a", "a", "a", "a"))
    names = [f"c{n}" for n in range(3)]
    d.tell(*(claim(name, LOCAL) for name in names), *(volume(f"pv{n}", node=f"n{n}") for n in (2, 3, 4)))
    pods = [using(name, name=f"g-{n}", gpus=8, gang=3, created=n) for n, name in enumerate(names)]
    assert sorted(d.run(*pods).values()) == ["n2", "n3", "n4"]
    assert len({pvc.spec.volume_name for pvc in d.claims.values()}) == 3


def test_claims_of_others_do_not_wake_a_pod() -> None:
    d = StorageDriver(zoned("a"))
    pod = using("data")
    d.run(pod)
    before = len(d.decisions())
    d.tell(claim("other"), claim("another"))
    d.step()
    assert len(d.decisions()) == before
    d.tell(claim("data", LOCAL))
    d.step()
    assert len(d.decisions()) == before + 1


def test_a_pod_that_shares_a_claim_does_not_wait_for_a_write_that_failed() -> None:
    d = StorageDriver(zoned("a"))
    d.tell(claim("data"))
    first, second = using("data", name="first"), using("data", name="second")
    d.apply(first)
    d.step()
    d.apply(second)
    d.step()
    assert list(d.preparing) == [first.metadata.uid], "written once"
    d.delete(first)
    d.step()
    d.fail(first, "no")
    d.step()
    assert d.told(second, Reason.BIND_FAILED)
    d.settle(2)
    assert second.spec.node_name == "n1"
    assert d.storage.held_by(second.metadata.uid) == ()


def test_a_pod_that_shares_a_claim_gets_what_was_written_for_one_that_is_gone() -> None:
    d = StorageDriver(zoned("a"))
    d.tell(claim("data"))
    first, second = using("data", name="first"), using("data", name="second")
    d.apply(first)
    d.step()
    d.apply(second)
    d.step()
    d.delete(first)
    d.carry_out(first)
    d.provision()
    d.settle()
    assert second.spec.node_name == "n1"
    assert not d.told(second, Reason.BIND_FAILED)


def test_what_was_planned_is_refused_where_a_node_can_not_have_the_volumes_of_all_its_pods() -> None:
    d = StorageDriver(zoned("a", "a"))
    limit = CSINodeSpec([CSINodeDriver("disk.example.com", CSINodeAllocatable(1))])
    d.storage.put(d.storage.csi_nodes, "n1", CSINode(ObjectMeta(name="n1"), limit))
    for name in ("one", "two"):
        d.tell(claim(name, IMMEDIATE))
        pv = volume(f"pv-{name}", IMMEDIATE)
        pv.spec.csi = CSISource("disk.example.com", f"handle-{name}")
        d.bind_claim(name, pv)
    members = [using(name, name=f"g-{name}", gang=2) for name in ("one", "two")]
    d.apply(*members)
    entries = [entry for pod in members if (entry := d.engine.workloads.of_pod(pod.metadata.uid)) is not None]
    asked = [(member.cls.constraints, member.profile) for _, member in entries]

    def seated(*rows: int) -> list[Seated]:
        return [
            (constraints, row, profile)
            for (constraints, profile), row in zip(asked, rows, strict=True)
            if constraints is not None
        ]

    with pytest.raises(ClaimError, match="node n1 has no room for the volumes of 2 pods"):
        choose_volumes(d.engine.world.around, seated(0, 0))
    assert choose_volumes(d.engine.world.around, seated(0, 1)) == [(), ()]


@pytest.mark.parametrize("migrated", [True, False])
def test_a_volume_that_the_driver_in_place_of_its_plugin_can_not_serve_is_named(migrated: bool) -> None:
    d = StorageDriver(zoned("us-east1-a"))
    plugins = {MIGRATED: GCE.name} if migrated else {}
    d.storage.put(d.storage.csi_nodes, "n1", CSINode(ObjectMeta(name="n1", annotations=plugins), CSINodeSpec([])))
    d.tell(claim("data", IMMEDIATE))
    pv = volume("pv", IMMEDIATE)
    pv.spec.gce_persistent_disk = GCEDisk("disk")
    pv.metadata.labels[ZONE] = "us-east1-a__us-west1-b"
    d.bind_claim("data", pv)
    pod = using("data")
    d.run(pod)
    assert pod.spec.node_name == ("" if migrated else "n1")
    if migrated:
        assert "could not translate volume pv to CSI" in reason(d, pod)


@pytest.mark.unrecorded
def test_the_volumes_of_running_pods_are_read_once_for_all_classes_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member of a gang with claims of its own is of a class of its own."""
    nodes, pods, members = 20, 10, 8
    d = StorageDriver(zoned(*(["a"] * nodes)))
    limit = CSINodeSpec([CSINodeDriver("disk.example.com", CSINodeAllocatable(pods + 1))])
    for number in range(1, nodes + 1):
        d.storage.put(d.storage.csi_nodes, f"n{number}", CSINode(ObjectMeta(name=f"n{number}"), limit))
        for pod in range(pods):
            name = f"c{number}-{pod}"
            d.tell(claim(name))
            running = using(name, name=name, gpus=0)
            running.spec.node_name, running.spec.scheduler_name = f"n{number}", "other"
            d.apply(running)
    d.step()
    read: list[object] = []
    original = volume_limits._of_profile

    def counted(storage: Storage, profile: Profile) -> Mapping[str, str]:
        read.append(profile)
        return original(storage, profile)

    monkeypatch.setattr(volume_limits, "_of_profile", counted)
    d.tell(*(claim(f"g{number}") for number in range(members)))
    d.apply(*(using(f"g{number}", name=f"g-{number}", gang=members, gpus=8) for number in range(members)))
    d.engine.step(d.now, d.clock)
    assert d.engine.attempting.spent_on_attempt > 6 * nodes * pods
    assert len(read) < 3 * nodes * pods, "not once for each of the members"


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.unrecorded
def test_a_driver_with_an_object_for_each_node_costs_no_look_at_all_nodes_for_each(
    single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = 40
    d = StorageDriver(zoned(*(["a"] * nodes)))
    driver = CSIDriver(ObjectMeta(name="disk.example.com"), CSIDriverSpec(storage_capacity=True))
    d.storage.put(d.storage.drivers, "disk.example.com", driver)
    for number in range(1, nodes + 1):
        labels = {HOST: f"n{number}"} if single else {HOST: f"n{number}", ZONE: "a"}
        capacity = CSIStorageCapacity(
            ObjectMeta(name=f"c{number}", namespace="drivers"),
            storage_class_name=DELAYED,
            node_topology=LabelSelector(labels),
            capacity="2Gi" if number == 7 else "1Mi",
        )
        d.storage.put(d.storage.capacities, ("drivers", f"c{number}"), capacity)
    looks: list[object] = []
    matches = Selector.matches

    def counted(selector: Selector, labels: Mapping[str, str]) -> bool:
        looks.append(labels)
        return matches(selector, labels)

    monkeypatch.setattr(Selector, "matches", counted)
    d.tell(claim("c"))
    pod = using("c")
    d.run(pod)
    assert pod.spec.node_name == "n7"
    assert len(looks) < nodes


def with_capacities(hostile: int, expressions: int) -> StorageDriver:
    """A class with room on n2, and objects of a tenant for the same class, each with many expressions."""
    d = StorageDriver(zoned("a", "a", "b"))
    driver = CSIDriver(ObjectMeta(name="disk.example.com"), CSIDriverSpec(storage_capacity=True))
    d.storage.put(d.storage.drivers, "disk.example.com", driver)
    objects = [("drivers", "real", LabelSelector({HOST: "n2"}), "2Gi")]
    for number in range(hostile):
        requirements = (Requirement(ZONE, "NotIn", (f"v{number}-{part}",)) for part in range(expressions))
        objects.append(("hostile", f"c{number}", LabelSelector({}, tuple(requirements)), "1Mi"))
    for namespace, name, selector, size in objects:
        meta = ObjectMeta(name=name, namespace=namespace)
        item = CSIStorageCapacity(meta, storage_class_name=DELAYED, node_topology=selector, capacity=size)
        d.storage.put(d.storage.capacities, (namespace, name), item)
    return d


@pytest.mark.parametrize("expressions", [15, 40])
def test_the_capacities_of_a_tenant_cost_other_pods_nothing(expressions: int) -> None:
    """The pod was charged for each of them: SearchTooExpensive, and its namespace was slowed."""
    spent = []
    for hostile in (0, 1000):
        d = with_capacities(hostile, expressions)
        d.tell(claim("c"))
        pod = using("c")
        d.apply(pod)
        d.step()
        spent.append(d.engine.attempting.spent_on_attempt)
        d.settle()
        assert pod.spec.node_name == "n2"
    assert spent[0] == spent[1]


def test_a_capacity_that_is_left_out_is_logged_and_gives_no_room() -> None:
    d = with_capacities(1, 40)
    warnings = [instruction.message for instruction in d.step() if isinstance(instruction, LogWarning)]
    assert warnings == [
        "CSIStorageCapacity hostile/c0: nodeTopology has 40 matchLabels and matchExpressions, of 16 at most;"
        " its capacity counts as not known; shorten nodeTopology"
    ]
    assert not [instruction for instruction in d.step() if isinstance(instruction, LogWarning)]


# ---------------------------------------------------------------- many that wait


def waiting_for_volumes(count: int, claims: int) -> StorageDriver:
    """Pods that have a node and wait for claims without a provisioner."""
    d = StorageDriver(fabric({"s/l": 8}))
    d.tell(*(claim(f"c{number}", modes=("ReadWriteMany",)) for number in range(claims)))
    d.apply(*(using(f"c{number % claims}", name=f"p{number}", gpus=0) for number in range(count)))
    d.step()
    for uid in list(d.preparing):
        d.carry_out(d.pods[uid])
    d.step()
    assert len(d.engine.outcomes.volumes) == count
    return d


def checked(d: StorageDriver, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of the pods that the engine checks from now on."""
    volumes, looked_at = d.engine.outcomes.volumes, list[object]()
    ready = volumes._ready

    def counted(waiting: object, *rest: object) -> bool:
        looked_at.append(waiting)
        return ready(waiting, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(volumes, "_ready", counted)
    return looked_at


def test_only_the_pods_whose_claims_changed_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of any claim took 30 microseconds for each pod that waited, in each step."""
    d = waiting_for_volumes(200, 200)
    looked_at = checked(d, monkeypatch)
    d.tell(claim("other"), claim("c7"), volume("free", DELAYED))
    d.step()
    d.bind_claim("c8", volume("made", DELAYED))
    d.step()
    assert len(looked_at) == 2
    assert len(d.flight) == 1


def test_a_volume_that_the_watch_reports_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    d = waiting_for_volumes(1, 1)
    made = volume("made", DELAYED)
    d.bind_claim("c0", made)
    d.storage.drop(d.storage.volumes, "made")
    d.step()
    assert not d.flight
    d.tell(made)
    d.step()
    assert d.flight


def test_of_thousands_that_lose_a_claim_together_a_step_looks_at_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_binding, "MAX_CHECKED_PODS", 10)
    d = waiting_for_volumes(50, 1)
    looked_at = checked(d, monkeypatch)
    d.storage.drop(d.storage.claims, ("default", "c0"))
    for step in range(1, 6):
        assert d.engine.next_due() is not None or step == 1
        d.engine.step(d.now, d.clock)
        assert len(looked_at) == 10 * step
    assert not d.engine.outcomes.volumes


def test_a_pod_whose_claim_is_beyond_the_budget_of_selectors_waits_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_volume_claims, "MAX_SELECTOR_BYTES_OF_NAMESPACE", 500)
    d = StorageDriver(zoned("a", "a"))
    for name in ("first", "second"):
        selecting = claim(name, DELAYED)
        selecting.spec.selector = LabelSelector({"disk": name})
        d.tell(selecting)
    d.tell(claim("plain", DELAYED))
    pods = [using(name, name=name) for name in ("first", "second", "plain")]
    for pod in pods:
        d.run(pod)
    assert [bool(pod.spec.node_name) for pod in pods] == [True, False, True]
    assert 'persistentvolumeclaim "second" is not read: selectors of unbound claims of its namespace' in reason(
        d, pods[1]
    )
