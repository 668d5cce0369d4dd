"""Migrations that tenants make as large and as many as they can: what is read of them, and what is kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp import web

from tests.crds import migration_definition, serving_migrations
from tests.e2e.api import Api
from tests.kube.stub import Handler, status, stubbed
from tests.kube.virtual import virtual_time
from tests.kube.world import world
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import (
    MAX_AVOIDED_NODES,
    MAX_NAME_CHARACTERS,
    MAX_PODS,
    MAX_TEXT_CHARACTERS,
    MAX_UID_CHARACTERS,
    Migration,
    MigrationPod,
    MigrationSpec,
    MigrationStatus,
    MigrationWrite,
)
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.writing import migrations as module
from topo_scheduler.kube.writing.migrations import (
    MigrationWriter,
    Unreadable,
    read_migration,
)
from topo_scheduler.recovery.controller.disabled import malformed
from topo_scheduler.simulation.apiserver import Delay


def migration(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "topology.scheduler/v1alpha1",
        "kind": "Migration",
        "metadata": {"name": "m", "namespace": "evil", "uid": "u", "resourceVersion": "7"},
        "spec": {"pods": [{"name": "p"}], **spec},
    }


def named(count: int) -> list[dict[str, str]]:
    return [{"name": f"p{number}"} for number in range(count)]


BEYOND = [
    ({"pods": named(MAX_PODS + 1)}, "spec.pods has 4,097 entries, of 4,096 at most"),
    ({"avoid": ["n"] * (MAX_AVOIDED_NODES + 1)}, "spec.avoid has 1,025 entries, of 1,024 at most"),
    ({"pods": [{"name": "p" * (MAX_NAME_CHARACTERS + 1)}]}, "spec.pods[].name has 254 characters, of 253 at most"),
    ({"pods": [{"name": "p", "uid": "u" * 129}]}, f"spec.pods[].uid has 129 characters, of {MAX_UID_CHARACTERS}"),
    ({"avoid": ["n" * 4097]}, "spec.avoid[] has 4,097 characters, of 4,096 at most"),
    ({"schedulerName": "s" * 254}, "spec.schedulerName has 254 characters, of 253 at most"),
    *(({field: "x" * 4097}, f"spec.{field} has 4,097 ") for field in ("cause", "reason", "since", "makesRoomFor")),
]


@pytest.mark.parametrize(("spec", "why"), BEYOND)
def test_of_a_migration_beyond_the_caps_only_its_identity_is_kept(spec: dict[str, Any], why: str) -> None:
    unreadable = read_migration(json.dumps(migration(**spec)).encode())
    assert isinstance(unreadable, Unreadable)
    assert unreadable.message.startswith(why) and unreadable.reason == MigrationReason.BEYOND_CAPS
    answer = malformed(unreadable, "s", 0.0)
    assert answer is not None
    write, event = answer
    assert (write.name, write.uid, write.version, write.status.phase) == ("m", "u", "7", "Failed")
    assert [condition.reason for condition in write.status.conditions] == [
        MigrationReason.BEYOND_CAPS
    ] and why in event.message


@pytest.mark.parametrize(("spec", "why"), BEYOND)
def test_the_definition_has_the_same_caps(spec: dict[str, Any], why: str) -> None:
    validator = _validator()
    assert not validator.is_valid(migration(**spec)), why
    largest = migration(pods=named(MAX_PODS), avoid=["n"] * MAX_AVOIDED_NODES, cause="x" * MAX_TEXT_CHARACTERS)
    validator.validate(largest)
    assert isinstance(read_migration(json.dumps(largest).encode()), Migration)


def _validator() -> Any:
    definition = migration_definition()
    (version,) = definition["spec"]["versions"]
    return jsonschema.Draft202012Validator(version["schema"]["openAPIV3Schema"])


def test_everything_in_the_definition_has_a_cap() -> None:
    definition = migration_definition()
    (version,) = definition["spec"]["versions"]
    caps = {"string": "maxLength", "array": "maxItems"}

    def check(field: str, schema: dict[str, Any]) -> None:
        cap = caps.get(schema["type"], "maxProperties" if "additionalProperties" in schema else "type")
        assert cap in schema, f"{field} has no {cap}"
        for name, inner in schema.get("properties", {}).items():
            check(f"{field}.{name}", inner)
        for inner in ("items", "additionalProperties"):
            if inner in schema:
                check(f"{field}[]", schema[inner])

    check("", version["schema"]["openAPIV3Schema"])


def test_annotations_and_labels_of_a_migration_are_not_kept() -> None:
    written = migration()
    written["metadata"] |= {"annotations": {"a": "x" * 200_000}, "labels": {"l": "v"}}
    parsed = read_migration(json.dumps(written).encode())
    assert isinstance(parsed, Migration) and not parsed.metadata.annotations and not parsed.metadata.labels


@pytest.mark.parametrize("raw", [b'{"metadata": 7}', b'{"a":' + b"[" * 100_000])
def test_what_is_no_object_at_all_has_no_name(raw: bytes) -> None:
    unreadable = read_migration(raw)
    assert isinstance(unreadable, Unreadable) and not unreadable.name


@pytest.mark.parametrize("wrong", [{"pods": 7}, {"pods": named(MAX_PODS + 1)}])
def test_of_one_that_can_not_be_read_it_is_known_which_scheduler_it_is_for(wrong: dict[str, Any]) -> None:
    written = migration(**wrong, schedulerName="asked")
    unreadable = read_migration(json.dumps(written).encode())
    assert isinstance(unreadable, Unreadable) and unreadable.scheduler == "asked"
    written["status"] = {"schedulerName": "answered", "phase": "Planned"}
    unreadable = read_migration(json.dumps(written).encode())
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.scheduler, unreadable.phase) == ("answered", "Planned")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """As with an older definition, without caps."""
    async with serving_migrations(tmp_path / "admin") as api:
        yield api


async def test_pages_of_large_migrations_are_small(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        body = migration(pods=named(MAX_PODS // 4 if number else MAX_PODS + 1))
        body["metadata"] = {"name": f"m{number:02}", "namespace": "default"}
        await api.create("migrations", body)
    client = await Client.connect(str(tmp_path / "admin"))
    try:
        writer = MigrationWriter(client)
        monkeypatch.setattr(module, "PAGE_BYTES", 150_000)
        async with asyncio.timeout(20):
            listed = [entry async for entry in writer.each()]
            assert [entry.name for entry in listed if isinstance(entry, Unreadable)] == ["m00"]
            assert [entry.metadata.name for entry in listed if isinstance(entry, Migration)] == [
                f"m{number:02}" for number in range(1, 12)
            ]
            received = client.traffic.bytes_received
            known = [meta.name async for meta in writer.identities()]
        assert known == [f"m{number:02}" for number in range(12)]
        assert client.traffic.bytes_received - received < 20_000, "without their content"
    finally:
        await client.close()


@virtual_time
async def test_the_cause_is_written_with_escape_codes_for_invisible_characters() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(await request.json(), status=201)

    async with stubbed(answer) as client:
        spec = MigrationSpec(cause="gang n\u202ex\x9b31m moves", pods=[MigrationPod("p")])
        written = await MigrationWriter(client).create("default", "m", spec)
    assert written.migration is not None and written.migration.spec.cause == "gang n\\u202ex\\x9b31m moves"


@virtual_time
async def test_writes_that_one_namespace_does_not_answer_do_not_hold_up_those_of_others() -> None:
    async with world() as w:
        w.server.faults.add(Delay(60.0), where=lambda info: "/namespaces/hostile/" in info.path)
        writer = MigrationWriter(w.client)
        hostile = [
            asyncio.create_task(writer.replace_status("hostile", f"m{number}", "uid", "1", MigrationStatus()))
            for number in range(40)
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            assert (await writer.replace_status("mine", "m", "uid", "1", MigrationStatus())).message
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)


def answering(details: Mapping[str, str], *, exists: bool) -> Handler:
    """Answers writes with a 404 that has these details, and a GET as the API server does."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and exists:
            return web.json_response(migration())
        named = {"name": "m"} if request.method == "GET" else details
        return status(404, "NotFound", "no such tenant", details=named)

    return answer


@pytest.mark.parametrize("details", [{}, {"name": "m"}], ids=str)
@pytest.mark.parametrize("exists", [False, True])
@virtual_time
async def test_a_migration_is_gone_if_the_api_server_says_so(details: dict[str, str], exists: bool) -> None:
    async with stubbed(answering(details, exists=exists)) as client:
        result = await MigrationWriter(client).replace_status("default", "m", "u", "7", MigrationStatus())
    deleted = bool(details) and not exists
    assert result.outcome is (MigrationWrite.GONE if deleted else MigrationWrite.STALE)


@virtual_time
async def test_a_migration_is_read_again_while_a_load_balancer_answers_404() -> None:
    answers = [404, 404, 200]

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        if answers.pop(0) == 200:
            return web.json_response(migration())
        return web.Response(status=404, text="default backend - 404")

    async with stubbed(answer) as client:
        assert isinstance(await MigrationWriter(client).read("default", "m"), Migration)


@virtual_time
async def test_the_deletion_of_a_migration_is_repeated_after_a_404_of_a_load_balancer() -> None:
    async with stubbed(answering({}, exists=True)) as client:
        result = await MigrationWriter(client).delete("default", "m", "u", "7")
    assert result.outcome is MigrationWrite.FAILED
    async with stubbed(answering({"name": "m"}, exists=False)) as client:
        result = await MigrationWriter(client).delete("default", "m", "u", "7")
    assert result.outcome is MigrationWrite.STALE
