"""A reflector keeps the sink's view equal to the server's, whatever the server does to it."""

import asyncio
import json

import msgspec
import pytest

from topo_scheduler.api.objects import PartialObject, Pod
from topo_scheduler.kube.connection.resources import DEPLOYMENTS, NODES, PODS
from topo_scheduler.kube.reading import decoding
from topo_scheduler.kube.reading import reflector as reflector_module
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.simulation.apiserver import BreakWatch, Disconnect, EmbeddedAPIServer, Refuse, Truncate

from .virtual import now, virtual_time
from .world import View, connected, eventually, running, world


@virtual_time
async def test_a_list_arrives_page_by_page_and_the_watch_goes_on_from_it() -> None:
    async with world() as w:
        for number in range(25):
            w.create_pod(f"pod-{number}")
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view, page_size=10)
        async with running(reflector.run()):
            await reflector.synced.wait()
            assert [len(names) for _, names in view.calls] == [10, 10, 5]
            w.create_pod("late")
            w.annotate("pod-3", "a", "b")
            w.remove_pod("pod-4")
            await eventually(lambda: view.versions == w.versions())
            assert len(reflector) == 25
            assert reflector.lists == 1


@virtual_time
async def test_a_burst_is_handed_over_in_as_few_calls_as_its_order_allows() -> None:
    async with world() as w:
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await eventually(lambda: w.server.streams)
            for name in "abc":
                w.create_pod(name)
            w.remove_pod("a")
            w.remove_pod("b")
            w.create_pod("d")
            await eventually(lambda: view.versions == w.versions())
            assert view.calls == [("applied", ["a", "b", "c"]), ("deleted", ["a", "b"]), ("applied", ["d"])]


@virtual_time
async def test_metadata_is_asked_for_alone_and_carries_its_kind() -> None:
    async with world() as w:
        pod_spec = {"containers": [{"name": "main", "image": "train"}]}
        template = {"metadata": {"labels": {"app": "x"}}, "spec": pod_spec}
        spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
        w.server.store.create("deployments.apps", {"metadata": {"name": "web"}, "spec": spec}, "default")
        view: View[PartialObject] = View()
        reflector = w.reflector(DEPLOYMENTS, view)
        async with running(reflector.run()):
            await reflector.synced.wait()
            received = w.client.traffic.bytes_received
            w.annotate("web", "topology.scheduler/level", "leaf", kind="deployments.apps")
            await eventually(lambda: view.applications("web") == 2)
        web = view.objects["default", "web"]
        assert (web.api_version, web.kind) == ("apps/v1", "Deployment")
        assert web.metadata.annotations == {"topology.scheduler/level": "leaf"}
        assert received > 0


@pytest.mark.parametrize("large_bytes", [decoding.LARGE_BYTES, 0])
@virtual_time
async def test_a_relist_reports_only_what_changed_and_what_vanished(
    large_bytes: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(decoding, "LARGE_BYTES", large_bytes)
    decoded: list[str] = []

    def decode(decoder: msgspec.json.Decoder[Pod], raw: bytes) -> Pod:
        decoded.append(decoder.decode(raw).metadata.name)
        return decoder.decode(raw)

    monkeypatch.setattr(decoding, "decode_object", decode)
    async with world() as w:
        for name in ("same", "changed", "deleted", "replaced"):
            w.create_pod(name)
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await w.server.go_away()
            w.annotate("changed", "a", "b")
            w.remove_pod("deleted")
            w.remove_pod("replaced")
            w.create_pod("replaced")
            w.server.store.compact()
            view.calls.clear()
            decoded.clear()
            await w.server.come_back()
            await eventually(lambda: reflector.lists == 2, within=60)
            assert view.versions == w.versions()
            of_large_page = [] if large_bytes else ["changed", "replaced"]
            assert decoded == of_large_page, "no object that is known already"
            assert view.calls == [
                ("applied", ["changed"]),
                ("deleted", ["replaced"]),
                ("applied", ["replaced"]),
                ("deleted", ["deleted"]),
            ]
            listed = [text for text in caplog.messages if text.startswith("listed")]
            assert listed == ["listed 3 pods, 1 were deleted meanwhile"], "the first list belongs to the start"


@pytest.mark.parametrize("how", ["drop", "end", "truncate", "repeat", "silence"])
@virtual_time
async def test_a_watch_that_breaks_is_resumed_without_a_list(how: str) -> None:
    async with world() as w:
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        w.server.faults.add(BreakWatch(how, after=2), times=3)  # type: ignore[arg-type]
        async with running(reflector.run()):
            await reflector.synced.wait()
            for number in range(10):
                w.create_pod(f"pod-{number}")
                await asyncio.sleep(0.3)
            await eventually(lambda: view.versions == w.versions(), within=300)
            assert reflector.lists == 1
            assert all(view.applications(f"pod-{number}") == 1 for number in range(10)), "nothing twice"


@virtual_time
async def test_an_expired_watch_is_followed_by_a_list_that_notices_what_was_missed() -> None:
    async with world() as w:
        w.create_pod("missed")
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await eventually(lambda: w.server.streams)
            w.server.break_watches(BreakWatch("expire"), "pods")
            w.remove_pod("missed")
            w.create_pod("new")
            await eventually(lambda: reflector.lists == 2)
            assert view.versions == w.versions()


@virtual_time
async def test_a_server_whose_every_watch_expires_is_not_flooded_with_lists() -> None:
    async with world() as w:
        w.create_pod("pod")
        reflector = w.reflector(PODS, View[Pod]())
        w.server.faults.add(BreakWatch("expire"))
        async with running(reflector.run()):
            await asyncio.sleep(300)
        assert 5 < w.asked("list", "pods") < 60
        assert len(reflector) == 1


@virtual_time
async def test_a_watch_that_ends_at_once_again_and_again_is_not_hammered() -> None:
    async with world() as w:
        reflector = w.reflector(PODS, View[Pod]())
        w.server.faults.add(BreakWatch("end"))
        async with running(reflector.run()):
            await asyncio.sleep(300)
        assert 5 < w.asked("watch", "pods") < 60


@virtual_time
async def test_bookmarks_move_a_quiet_watch_past_the_history_that_is_forgotten() -> None:
    async with world() as w:
        reflector = w.reflector(PODS, View[Pod]())
        async with running(reflector.run()):
            await reflector.synced.wait()
            for number in range(5):
                w.server.store.create("configmaps", {"metadata": {"name": f"other-{number}"}}, "default")
            before = int(reflector.resource_version)
            await eventually(lambda: int(reflector.resource_version) >= before + 5, within=90)
            w.server.store.compact()
            w.server.break_watches(BreakWatch("drop"), "pods")
            await asyncio.sleep(5)
            assert reflector.lists == 1


@virtual_time
async def test_staleness_grows_in_silence_and_falls_with_a_bookmark() -> None:
    async with world() as w:
        reflector = w.reflector(PODS, View[Pod]())
        async with running(reflector.run()):
            await reflector.synced.wait()
            await asyncio.sleep(50)
            assert 49 < reflector.staleness(now()) < 51
            await asyncio.sleep(15)
            assert reflector.staleness(now()) < 10
            await w.server.go_away()
            await asyncio.sleep(120)
            assert reflector.staleness(now()) > 119


@virtual_time
async def test_a_watch_without_a_byte_for_seventy_seconds_is_given_up() -> None:
    async with world(EmbeddedAPIServer(bookmark_seconds=1e6)) as w:
        reflector = w.reflector(PODS, View[Pod]())
        async with running(reflector.run()):
            await reflector.synced.wait()
            await asyncio.sleep(69)
            assert w.asked("watch", "pods") == 1
            await asyncio.sleep(4)
            assert w.asked("watch", "pods") == 2
            assert reflector.lists == 1


@pytest.mark.parametrize(
    "fault", [Refuse(429, retry_after=2), Refuse(500), Refuse(503), Disconnect(), Disconnect(applied=True), Truncate()]
)
@virtual_time
async def test_a_list_that_fails_is_repeated_until_it_is_complete(
    fault: Refuse | Disconnect | Truncate,
) -> None:
    async with world() as w:
        for number in range(25):
            w.create_pod(f"pod-{number}")
        w.server.faults.add(fault, verb="list", times=7)
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view, page_size=10)
        async with running(reflector.run()):
            await asyncio.wait_for(reflector.synced.wait(), 120)
            assert view.versions == w.versions()
            assert reflector.lists == 1


@pytest.mark.parametrize("verb", ["list", "watch"])
@virtual_time
async def test_an_answer_that_asks_for_an_hour_is_not_waited_out(verb: str) -> None:
    """Load balancers answer so while they have no backend."""
    async with world() as w:
        w.server.faults.add(Refuse(503, retry_after=3600), verb=verb, times=2)
        view: View[Pod] = View()
        async with running(w.reflector(PODS, view).run()):
            await asyncio.sleep(180)
            w.create_pod("pod")
            await asyncio.sleep(1)
            assert view.versions == w.versions()


@virtual_time
async def test_a_continue_token_that_expires_starts_the_list_over_with_larger_pages() -> None:
    async with world() as w:
        for number in range(30):
            w.create_pod(f"pod-{number}")
        w.server.faults.add(Refuse(410), verb="list", where=lambda info: w.asked("list", "pods") == 2, times=1)
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view, page_size=10)
        async with running(reflector.run()):
            await asyncio.wait_for(reflector.synced.wait(), 60)
            assert [len(names) for _, names in view.calls] == [10, 10, 10], "the first page is not told again"
            assert view.versions == w.versions()
            assert w.asked("list", "pods") == 4


@virtual_time
async def test_an_outage_is_one_warning_for_all_kinds_then_fewer_and_fewer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with world() as w:
        pods, nodes = w.reflector(PODS, View()), w.reflector(NODES, View())
        async with running(pods.run()), running(nodes.run()):
            await pods.synced.wait()
            await nodes.synced.wait()
            caplog.clear()
            await w.server.go_away()
            await asyncio.sleep(600)
            assert 2 <= len(caplog.records) <= 6, caplog.text
            await w.server.come_back()
            w.create_pod("a")
            await eventually(lambda: "answers again" in caplog.text, within=120)
            assert caplog.text.count("answers again") == 1


@virtual_time
async def test_a_missing_permission_is_named_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with world(EmbeddedAPIServer(rbac=True)) as w:
        w.server.store.create("serviceaccounts", {"metadata": {"name": "topo"}}, "default")
        answer = await w.client.request(
            "POST", "/api/v1/namespaces/default/serviceaccounts/topo/token", body=b"{}", timeout=5
        )
        token = answer.decode().partition('"token":"')[2].partition('"')[0]
        async with connected(w.server, token) as client:
            reflector = Reflector(client, PODS, View[Pod](), clock=now)
            async with running(reflector.run()):
                await asyncio.sleep(60)
                assert not reflector.synced.is_set()
                assert "grant get, list and watch on pods in the cluster" in caplog.text
                assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2, "at 0 and 30 s"
                _grant(w.server)
                await asyncio.wait_for(reflector.synced.wait(), 31)


def _grant(server: EmbeddedAPIServer) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    server.store.create("clusterroles.rbac.authorization.k8s.io", {"metadata": {"name": "topo"}, "rules": rules})
    binding = {
        "metadata": {"name": "topo"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "topo"},
        "subjects": [{"kind": "ServiceAccount", "name": "topo", "namespace": "default"}],
    }
    server.store.create("clusterrolebindings.rbac.authorization.k8s.io", binding)


@virtual_time
async def test_relist_returns_when_a_list_begun_later_is_handed_over() -> None:
    async with world() as w:
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await asyncio.gather(reflector.relist(), reflector.relist())
            assert (reflector.lists, view.lists) == (2, 2)
            w.server.faults.add(Refuse(500), verb="list", times=6)
            await asyncio.wait_for(reflector.relist(), 60)
            assert reflector.lists == 3
            w.create_pod("later")
            await eventually(lambda: view.versions == w.versions())


@virtual_time
async def test_relist_does_not_sit_out_a_pause() -> None:
    async with world() as w:
        reflector = w.reflector(PODS, View[Pod]())
        async with running(reflector.run()):
            await reflector.synced.wait()
            await w.server.go_away()
            await asyncio.sleep(600)  # the pauses are up to 30 s by now
            await w.server.come_back()
            await asyncio.wait_for(reflector.relist(), 0.5)


@virtual_time
async def test_a_selector_is_the_servers_to_apply_and_leaving_it_is_a_deletion() -> None:
    async with world() as w:
        w.create_pod("ours", labels={"team": "a"})
        w.create_pod("theirs", labels={"team": "b"})
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view, label_selector="team=a")
        async with running(reflector.run()):
            await reflector.synced.wait()
            assert list(view.versions) == ["ours"]

            def leave(obj: dict[str, object]) -> dict[str, object]:
                metadata = {**w.server.store.get("pods", "ours", "default")["metadata"], "labels": {"team": "b"}}
                return {**obj, "metadata": metadata}

            w.server.store.modify("pods", "ours", "default", leave)
            await eventually(lambda: not view.versions)


@virtual_time
async def test_a_sink_that_raises_ends_the_reflector() -> None:
    class Broken(View[Pod]):
        def applied(self, objects: object) -> None:
            raise RuntimeError("a bug")

    async with world() as w:
        w.create_pod("pod")
        with pytest.raises(RuntimeError, match="a bug"):
            await w.reflector(PODS, Broken()).run()


@virtual_time
async def test_pages_of_large_objects_hold_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_BYTES", 120_000)
    async with world() as w:
        for number in range(40):
            w.create_pod(
                f"pod-{number:02}", annotations={"example.com/big": "x" * (50_000 if 10 <= number < 20 else 10)}
            )
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view, page_size=40)
        async with running(reflector.run()):
            await reflector.synced.wait()
            assert view.versions == w.versions()
            assert sum(len(names) for _, names in view.calls) == 40
            assert all(len(names) <= 2 for _, names in view.calls if "pod-15" in names)
            assert len(view.calls[-1][1]) > 2, "small objects come in larger pages again"


@virtual_time
async def test_an_object_larger_than_a_page_may_be_is_a_failure_that_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_BYTES", 20_000)
    async with world() as w:
        w.create_pod("huge", annotations={"example.com/big": "x" * 50_000})
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        async with running(reflector.run()):
            await eventually(lambda: "an answer of more than 20000 bytes; trying again" in caplog.text, within=60)
            monkeypatch.setattr(reflector_module, "PAGE_BYTES", 100_000)
            await eventually(lambda: view.versions == w.versions(), within=120)


def test_large_pages_are_decoded_a_few_objects_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LARGE_BYTES", 10_000)
    monkeypatch.setattr(decoding, "SLICE_BYTES", 10_000)
    items = [{"metadata": {"name": f"p{n}", "annotations": {"big": "x" * 4_000}}} for n in range(10)]
    page = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
    _, slices = decoding.Codec(PODS).page(page)
    sizes = [len(part) for part in slices]
    assert sum(sizes) == 10
    assert max(sizes) <= 3


@virtual_time
async def test_a_burst_of_large_objects_is_handed_over_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that other tasks get the loop between them."""
    monkeypatch.setattr(reflector_module, "BURST_BYTES", 1)
    async with world() as w:
        view: View[Pod] = View()
        reflector = w.reflector(PODS, view)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await eventually(lambda: w.server.streams)
            for name in "abc":
                w.create_pod(name)
            await eventually(lambda: view.versions == w.versions())
            assert view.calls == [("applied", [name]) for name in "abc"]
