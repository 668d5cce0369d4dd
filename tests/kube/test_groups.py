"""PodGroups are followed where they are served, and an API that comes or goes is noticed; nothing else is asked for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.crds import PLUGINS, VOLCANO, native_pod_group, pod_group, pod_group_definition
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.kube.reading.pod_groups import ASK_SECONDS, GroupDirectory, served_groups
from topo_scheduler.simulation.apiserver import Disconnect, Refuse
from topo_scheduler.simulation.apiserver.faults import Fault
from topo_scheduler.state.pods.pod_groups import GroupKey, PodGroup, Serving

from .stub import status, stubbed
from .virtual import now, virtual_time
from .world import World, eventually, running, warnings_logged, world

CRDS = "customresourcedefinitions.apiextensions.k8s.io"


@dataclass
class Facts:
    """Believes what the watch reports."""

    groups: dict[GroupKey, PodGroup] = field(default_factory=dict)
    serving: dict[GroupApi, Serving] = field(default_factory=dict)
    asked: dict[GroupApi, float] = field(default_factory=dict)

    def groups_applied(self, groups: Sequence[PodGroup]) -> None:
        self.groups |= {group.key: group for group in groups}

    def groups_deleted(self, groups: Sequence[tuple[GroupKey, str]]) -> None:
        for key, uid in groups:
            assert self.groups.pop(key).uid == uid

    def groups_served(self, api: GroupApi, serving: Serving, asked: float) -> None:
        self.serving[api], self.asked[api] = serving, asked

    def names(self) -> set[tuple[str, str, int]]:
        return {(key.api, key.name, group.minimum) for key, group in self.groups.items()}


def directory(w: World) -> tuple[GroupDirectory, Facts]:
    facts = Facts()
    return GroupDirectory(w.client, facts, clock=now), facts


def define(w: World, group: str) -> None:
    w.server.store.create(CRDS, pod_group_definition(group))


def create(w: World, obj: dict[str, Any], group: str = "scheduling.k8s.io") -> None:
    w.server.store.create(f"podgroups.{group}", obj, obj["metadata"]["namespace"])


@virtual_time
async def test_all_that_is_served_is_followed_and_nothing_else() -> None:
    async with world() as w:
        define(w, VOLCANO)
        create(w, native_pod_group("n", 4))
        create(w, pod_group("v", 3, VOLCANO), VOLCANO)
        follows, facts = directory(w)
        async with running(follows.run()):
            await follows.settled()
            assert facts.names() == {("scheduling.k8s.io", "n", 4), ("scheduling.volcano.sh", "v", 3)}
            assert facts.serving == {
                GroupApi.NATIVE: Serving.LISTED,
                GroupApi.VOLCANO: Serving.LISTED,
                GroupApi.PLUGINS: Serving.ABSENT,
                GroupApi.SIGS: Serving.ABSENT,
            }
            create(w, native_pod_group("later", 2))
            w.server.store.delete("podgroups.scheduling.volcano.sh", "v", "default")
            await eventually(
                lambda: facts.names() == {("scheduling.k8s.io", "n", 4), ("scheduling.k8s.io", "later", 2)}
            )
            assert set(follows.staleness(now())) == {"podgroups.scheduling.k8s.io", "podgroups.scheduling.volcano.sh"}


@virtual_time
async def test_what_is_not_served_makes_no_noise() -> None:
    with warnings_logged() as warnings:
        async with world() as w:
            follows, _ = directory(w)
            async with running(follows.run()):
                await follows.settled()
                before = len(w.server.requests)
                await asyncio.sleep(10 * ASK_SECONDS)
                asked = len(w.server.requests) - before
    assert not warnings
    assert asked <= 10 * 4 + 4, "one question for all, one for each version of the native group that could have it"


@virtual_time
async def test_an_api_that_comes_later_is_noticed_and_one_that_goes_is_forgotten() -> None:
    async with world() as w:
        follows, facts = directory(w)
        async with running(follows.run()):
            await follows.settled()
            define(w, PLUGINS)
            create(w, pod_group("p", 5), PLUGINS)
            await asyncio.sleep(ASK_SECONDS + 1)
            assert facts.names() == {(PLUGINS, "p", 5)}
            assert facts.serving[GroupApi.PLUGINS] is Serving.LISTED
            w.server.store.delete(CRDS, f"podgroups.{PLUGINS}")
            await asyncio.sleep(ASK_SECONDS + 1)
            assert facts.names() == set()
            assert facts.serving[GroupApi.PLUGINS] is Serving.ABSENT
            asked = facts.asked[GroupApi.PLUGINS]
            await asyncio.sleep(ASK_SECONDS + 1)
            assert facts.asked[GroupApi.PLUGINS] > asked, "as of now"


@virtual_time
async def test_discovery_is_asked_at_once_on_request_but_not_all_the_time() -> None:
    async with world() as w:
        follows, facts = directory(w)
        async with running(follows.run()):
            await follows.settled()
            await asyncio.sleep(5)
            define(w, VOLCANO)
            create(w, pod_group("v", 3, VOLCANO), VOLCANO)
            follows.ask_again()
            await asyncio.sleep(0.5)
            assert facts.names() == {(VOLCANO, "v", 3)}
            before = len(w.server.requests)
            for _ in range(1000):
                follows.ask_again()
                await asyncio.sleep(0.01)
            assert len(w.server.requests) - before <= 12 * 5


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(503, retry_after=1), Disconnect()])
@virtual_time
async def test_a_server_that_does_not_answer_changes_nothing(fault: Fault) -> None:
    async with world() as w:
        create(w, native_pod_group("n", 4))
        follows, facts = directory(w)
        async with running(follows.run()):
            await follows.settled()
            w.server.faults.add(fault, where=lambda info: info.path.startswith("/apis"))
            await asyncio.sleep(3 * ASK_SECONDS)
            assert facts.names() == {("scheduling.k8s.io", "n", 4)}
            assert facts.serving[GroupApi.NATIVE] is Serving.LISTED
            w.server.faults.clear()
            create(w, native_pod_group("later", 2))
            await eventually(lambda: len(facts.groups) == 2, within=60)


@pytest.mark.parametrize("where", ["", "/apis", "/apis/scheduling.k8s.io/v1alpha2", "/podgroups"])
@virtual_time
async def test_a_load_balancer_that_answers_404_changes_nothing(where: str) -> None:
    async with world() as w:
        create(w, native_pod_group("n", 4))
        follows, facts = directory(w)
        async with running(follows.run()):
            await follows.settled()
            rule = w.server.faults.add(Refuse(404), where=lambda info: info.path.endswith(where))
            await asyncio.sleep(3 * ASK_SECONDS)
            assert rule.struck or where == "/podgroups"
            assert facts.names() == {("scheduling.k8s.io", "n", 4)}
            assert facts.serving[GroupApi.NATIVE] is Serving.LISTED


@virtual_time
async def test_what_may_not_be_read_is_not_listed_but_is_not_absent_either() -> None:
    async with world() as w:
        w.server.faults.add(Refuse(403), verb="list", resource="podgroups")
        follows, facts = directory(w)
        async with running(follows.run()):
            await asyncio.sleep(60)
            assert facts.serving[GroupApi.NATIVE] is Serving.UNKNOWN
            w.server.faults.clear()
            await eventually(lambda: facts.serving[GroupApi.NATIVE] is Serving.LISTED, within=60)


def versions(group: str, *names: str) -> dict[str, Any]:
    listed = [{"groupVersion": f"{group}/{name}", "version": name} for name in names]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def resources(*names: str, verbs: Sequence[str] = ("get", "list", "watch")) -> dict[str, Any]:
    listed = [{"name": name, "kind": "X", "namespaced": True, "verbs": list(verbs)} for name in names]
    return {"kind": "APIResourceList", "resources": listed}


@pytest.mark.parametrize(
    ("served", "version"),
    [
        ({"v1": ["priorityclasses"], "v1alpha2": ["podgroups", "workloads"]}, "v1alpha2"),
        ({"v1": ["priorityclasses"], "v1beta1": ["podgroups"], "v1alpha2": ["podgroups"]}, "v1beta1"),
        ({"v1": ["priorityclasses", "podgroups"], "v1beta1": ["podgroups"]}, "v1"),
        ({"v1": ["priorityclasses"], "v1alpha3": ["podgroups"]}, "v1alpha3"),
        ({"v1": ["priorityclasses"]}, None),
        ({"v1": ["priorityclasses"], "v9": ["podgroups"]}, None),
        ({"v1": ["priorityclasses"], "v1alpha2": ["podgroups/status"]}, None),
    ],
)
@virtual_time
async def test_the_newest_version_that_is_understood_is_read(served: dict[str, list[str]], version: str | None) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/apis":
            return web.json_response(
                {"kind": "APIGroupList", "groups": [versions("apps", "v1"), versions("scheduling.k8s.io", *served)]}
            )
        name = request.path.rpartition("/")[2]
        return web.json_response(resources(*served[name])) if name in served else status(404, "NotFound")

    async with stubbed(answer) as client:
        group_resources = await served_groups(client)
    assert {api: resource.version for api, resource in group_resources.items()} == (
        {GroupApi.NATIVE: version} if version else {}
    )


@virtual_time
async def test_a_version_that_is_replaced_is_followed_by_a_new_watch() -> None:
    current = ["v1alpha2"]

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/apis":
            return web.json_response({"kind": "APIGroupList", "groups": [versions("scheduling.k8s.io", *current)]})
        if request.path == f"/apis/scheduling.k8s.io/{current[0]}":
            return web.json_response(resources("podgroups"))
        if request.path != f"/apis/scheduling.k8s.io/{current[0]}/podgroups":
            return status(404, "NotFound")
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(1000)
            return response
        group = native_pod_group("g", 2)
        group["metadata"]["uid"] = "u"
        return web.json_response({"kind": "PodGroupList", "metadata": {"resourceVersion": "1"}, "items": [group]})

    async with stubbed(answer) as client:
        facts = Facts()
        follows = GroupDirectory(client, facts, clock=now)
        async with running(follows.run()):
            await follows.settled()
            assert [group.version for group in facts.groups.values()] == ["v1alpha2"]
            current[0] = "v1beta1"
            await asyncio.sleep(ASK_SECONDS + 1)
            assert [group.version for group in facts.groups.values()] == ["v1beta1"]
