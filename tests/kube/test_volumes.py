"""Writes of volumes: on the state they were decided on, once, and not by a former leader."""

import json

import pytest

from topo_scheduler.kube.connection.fence import Fence
from topo_scheduler.kube.writing.volumes import VolumeWriter
from topo_scheduler.simulation.apiserver import Disconnect, Refuse, Stray

from .stub import fault
from .virtual import virtual_time
from .world import Json, World, world
from .writable_objects import made_volume

SELECTED_NODE = "volume.kubernetes.io/selected-node"


def reference(w: World) -> Json:
    return dict(w.server.store.get("persistentvolumes", "pv")["spec"].get("claimRef") or {})


@virtual_time
async def test_a_volume_is_reserved_for_a_claim() -> None:
    async with world() as w:
        reserve, _ = made_volume(w)
        done = await VolumeWriter(w.client).write([reserve])
        assert done.problem == ""
        assert done.done == [(reserve, w.versions("persistentvolumes")["pv"])]
        assert (reference(w)["name"], reference(w)["uid"]) == ("data", reserve.claim_uid)
        annotations = w.server.store.get("persistentvolumes", "pv")["metadata"]["annotations"]
        assert annotations == {"pv.kubernetes.io/bound-by-controller": "yes"}


@virtual_time
async def test_a_node_is_selected_for_a_claim() -> None:
    async with world() as w:
        _, select = made_volume(w)
        done = await VolumeWriter(w.client).write([select])
        assert done.done == [(select, w.versions("persistentvolumeclaims")["data"])]
        claim = w.server.store.get("persistentvolumeclaims", "data", "default")
        assert claim["metadata"]["annotations"] == {SELECTED_NODE: "n1"}


@virtual_time
async def test_what_changed_meanwhile_is_not_written_to() -> None:
    async with world() as w:
        reserve, select = made_volume(w)
        w.annotate("pv", "a", "b", kind="persistentvolumes", namespace="")
        w.annotate("data", "a", "b", kind="persistentvolumeclaims")
        done = await VolumeWriter(w.client).write([reserve, select])
        assert 'pv "pv" changed meanwhile' in done.problem
        assert done.done == [] and reference(w) == {}
        done = await VolumeWriter(w.client).write([select])
        assert 'persistentvolumeclaim "data" changed meanwhile' in done.problem


@virtual_time
async def test_a_volume_made_again_under_the_same_name_is_not_the_one_that_was_meant() -> None:
    async with world() as w:
        reserve, _ = made_volume(w)
        store = w.server.store
        store.remove(store.kind("persistentvolumes"), store.get("persistentvolumes", "pv"))
        done = await VolumeWriter(w.client).write([reserve])
        assert 'pv "pv" can\'t be written' in done.problem
        store.create("persistentvolumes", {"metadata": {"name": "pv"}, "spec": {}})
        done = await VolumeWriter(w.client).write([reserve])
        assert 'pv "pv" changed meanwhile' in done.problem and reference(w) == {}


@virtual_time
async def test_a_write_of_which_the_answer_was_lost_counts() -> None:
    async with world() as w:
        reserve, select = made_volume(w)
        for resource in ("persistentvolumes", "persistentvolumeclaims"):
            w.server.faults.add(Disconnect(applied=True), verb="patch", resource=resource, times=1)
        done = await VolumeWriter(w.client).write([reserve, select])
        assert done.problem == ""
        assert done.done == [
            (reserve, w.versions("persistentvolumes")["pv"]),
            (select, w.versions("persistentvolumeclaims")["data"]),
        ]


@virtual_time
async def test_a_write_that_a_webhook_changed_does_not_count() -> None:
    """It was taken, and would have been waited for: no event comes for an object that stayed as it was."""
    async with world() as w:
        reserve, select = made_volume(w)
        for write, name, namespace in ((reserve, "pv", ""), (select, "data", "default")):
            plural = "persistentvolumes" if name == "pv" else "persistentvolumeclaims"
            unchanged = json.dumps(w.server.store.get(plural, name, namespace).obj).encode()
            w.server.faults.add(Stray(unchanged), verb="patch", resource=plural)
            done = await VolumeWriter(w.client).write([write])
            assert done.done == []
            assert "can't be written: an admission webhook changed what was to be written" in done.problem


@virtual_time
async def test_a_busy_server_is_tried_again() -> None:
    async with world() as w:
        reserve, _ = made_volume(w)
        w.server.faults.add(Refuse(503), verb="patch", times=3)
        assert (await VolumeWriter(w.client).write([reserve])).problem == ""


@virtual_time
async def test_nothing_is_written_after_the_lease_has_ended() -> None:
    async with world() as w:
        reserve, _ = made_volume(w)
        done = await VolumeWriter(w.client.fenced(Fence(lambda: 0.0))).write([reserve])
        assert "the lease has ended" in done.problem
        assert reference(w) == {} and w.asked("patch", "persistentvolumes") == 0


@pytest.mark.internal_errors
@virtual_time
async def test_a_fault_in_a_write_is_the_problem_of_its_pod(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        reserve, _ = made_volume(w)
        with monkeypatch.context() as patched:
            patched.setattr(VolumeWriter, "_patch", fault)
            done = await VolumeWriter(w.client).write([reserve])
        assert not done.done and "internal error, please report it: KeyError" in done.problem
        assert "internal error in a write, please report it: claim default/" in caplog.text
