"""The smallest client that can ask an API server anything."""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"

GROUPS = {
    "jobs": "batch/v1",
    "deployments": "apps/v1",
    "replicasets": "apps/v1",
    "leases": "coordination.k8s.io/v1",
    "priorityclasses": "scheduling.k8s.io/v1",
    "poddisruptionbudgets": "policy/v1",
    "customresourcedefinitions": "apiextensions.k8s.io/v1",
    "roles": "rbac.authorization.k8s.io/v1",
    "rolebindings": "rbac.authorization.k8s.io/v1",
    "events.events.k8s.io": "events.k8s.io/v1",
    "widgets": "contract.example.com/v1",
    "gadgets": "contract.example.com/v1",
}
CLUSTER_SCOPED = {"nodes", "namespaces", "priorityclasses", "customresourcedefinitions"}


@dataclass(frozen=True)
class Target:
    """A server to test: where it is, our user on it, and what it cannot do yet."""

    url: str
    token: str
    ca_file: str | None = None
    oldest: bool = False
    embedded: bool = False


@dataclass(frozen=True)
class Reply:
    """An answer."""

    code: int
    body: Json
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def items(self) -> list[Json]:
        return list(self.body["items"])

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.items]

    @property
    def metadata(self) -> Json:
        return dict(self.body["metadata"])

    @property
    def version(self) -> str:
        return str(self.metadata["resourceVersion"])

    def ok(self) -> "Reply":
        assert self.code in (200, 201), f"{self.code}: {self.text}"
        return self


class WatchReader:
    """The events of one watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, seconds: float = 10) -> Json:
        """The next event; fails the test when none comes."""
        line = await asyncio.wait_for(self.response.content.readline(), seconds)
        assert line, "the stream ended"
        event: Json = json.loads(line)
        return event

    async def expect(self, *wanted: tuple[str, str], seconds: float = 10) -> list[Json]:
        """The next events must be these, as type and name."""
        events = [await self.next(seconds) for _ in wanted]
        assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == list(wanted)
        return [event["object"] for event in events]

    async def rest(self, seconds: float) -> list[Json]:
        """Everything until the stream ends."""
        async with asyncio.timeout(seconds):
            return [json.loads(line) async for line in self.response.content]


class Client:
    """Requests in one namespace."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, namespace: str) -> None:
        self.session = session
        self.target = target
        self.namespace = namespace

    def path(self, resource: str, name: str = "", subresource: str = "", namespace: str | None = None) -> str:
        """Where something is; cluster-wide for an empty namespace."""
        group = GROUPS.get(resource)
        root = f"/apis/{group}" if group else "/api/v1"
        namespace = self.namespace if namespace is None else namespace
        scoped = "" if resource in CLUSTER_SCOPED or not namespace else f"/namespaces/{namespace}"
        return "/".join(filter(None, (f"{root}{scoped}/{resource.split('.')[0]}", name, subresource)))

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
        **query: str,
    ) -> Reply:
        """One request."""
        headers = {
            "Accept": accept,
            "Authorization": f"Bearer {self.target.token if token is None else token}",
        }
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.session.request(method, path, data=data, headers=headers, params=query) as response:
            text = await response.text()
            parsed = json.loads(text) if "json" in response.headers.get("Content-Type", "") else {}
            return Reply(response.status, parsed, text, response.headers)

    async def create(self, resource: str, body: Json, **query: str) -> Reply:
        return await self.call("POST", self.path(resource), body, **query)

    async def post(self, resource: str, name: str, subresource: str, body: Json, **query: str) -> Reply:
        return await self.call("POST", self.path(resource, name, subresource), body, **query)

    async def get(self, resource: str, name: str, **query: str) -> Reply:
        return await self.call("GET", self.path(resource, name), **query)

    async def list(self, resource: str, **query: str) -> Reply:
        return await self.call("GET", self.path(resource), **query)

    async def put(self, resource: str, body: Json, subresource: str = "", **query: str) -> Reply:
        return await self.call("PUT", self.path(resource, body["metadata"]["name"], subresource), body, **query)

    async def patch(
        self,
        resource: str,
        name: str,
        body: Any,
        subresource: str = "",
        *,
        content_type: str = MERGE_PATCH,
        **query: str,
    ) -> Reply:
        return await self.call(
            "PATCH", self.path(resource, name, subresource), body, content_type=content_type, **query
        )

    async def delete(self, resource: str, name: str, options: Json | None = None, **query: str) -> Reply:
        return await self.call("DELETE", self.path(resource, name), options, **query)

    @asynccontextmanager
    async def watch(
        self, resource: str, *, namespace: str | None = None, accept: str = "application/json", **query: str
    ) -> AsyncIterator[WatchReader]:
        """An open watch; of all namespaces if that is empty."""
        headers = {"Accept": accept, "Authorization": f"Bearer {self.target.token}"}
        path = self.path(resource, namespace=namespace)
        async with self.session.get(path, headers=headers, params={"watch": "true", **query}) as response:
            assert response.status == 200, await response.text()
            yield WatchReader(response)

    async def bind(self, pod: str, node: str, metadata: Json | None = None, **query: str) -> Reply:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, **(metadata or {})},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        reply = await self.post("pods", pod, "binding", body, **query)
        if reply.code == 201 and not query:
            await self._until_cached(pod)
        return reply

    async def _until_cached(self, pod: str) -> None:
        """Wait until the server's cache has a pod's node: deletions that begin from an older state have no grace."""
        for _ in range(500):
            cached = await self.get("pods", pod, resourceVersion="0")
            if cached.code == 404 or cached.ok().body["spec"].get("nodeName"):
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def connect(target: Target, namespace: str) -> AsyncIterator[Client]:
    """A client and a namespace of its own, in which whatever is left at the end is removed by force."""
    tls = ssl.create_default_context(cafile=target.ca_file) if target.ca_file else False
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(target.url, connector=connector, timeout=timeout) as session:
        client = Client(session, target, namespace)
        (await client.create("namespaces", {"metadata": {"name": namespace}})).ok()
        try:
            yield client
        finally:
            await client.call("DELETE", client.path("pods"), {"gracePeriodSeconds": 0})
            await client.delete("namespaces", namespace)


def pod(name: str | None = None, **spec: Any) -> Json:
    """A pod of one container."""
    metadata: Json = {"name": name} if name else {"generateName": "pod-"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "busybox:1"}], **spec}}


def labelled(obj: Json, **labels: str) -> Json:
    """The object with labels."""
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}
