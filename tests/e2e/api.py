"""A small Kubernetes client for tests: JSON in, JSON out. It shares no code with what it checks."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

Json = dict[str, Any]

ROOTS: Final = {
    "nodes": "/api/v1",
    "namespaces": "/api/v1",
    "pods": "/api/v1",
    "secrets": "/api/v1",
    "serviceaccounts": "/api/v1",
    "jobs": "/apis/batch/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
    "events": "/apis/events.k8s.io/v1",
    "podgroups": "/apis/scheduling.k8s.io/v1alpha2",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
    "podgroups.scheduling.x-k8s.io": "/apis/scheduling.x-k8s.io/v1alpha1",
    "podgroups.scheduling.volcano.sh": "/apis/scheduling.volcano.sh/v1beta1",
    "jobsets.jobset.x-k8s.io": "/apis/jobset.x-k8s.io/v1alpha2",
    "migrations": "/apis/topology.scheduler/v1alpha1",
    "migrations.topology.scheduler": "/apis/topology.scheduler/v1alpha1",
    "leases": "/apis/coordination.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "persistentvolumes": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "storageclasses": "/apis/storage.k8s.io/v1",
    "deviceclasses": "/apis/resource.k8s.io/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "resourceclaimtemplates": "/apis/resource.k8s.io/v1",
    "resourceslices": "/apis/resource.k8s.io/v1",
    "noderesourcetopologies.topology.node.k8s.io": "/apis/topology.node.k8s.io/v1alpha2",
    "noderesourcetopologies": "/apis/topology.node.k8s.io/v1alpha2",
    "priorityclasses": "/apis/scheduling.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "clusterroles": "/apis/rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "validatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1",
    "validatingadmissionpolicies": "/apis/admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings": "/apis/admissionregistration.k8s.io/v1",
}
CLUSTER_WIDE: Final = frozenset(
    {
        "nodes",
        "namespaces",
        "clusterroles",
        "clusterrolebindings",
        "customresourcedefinitions",
        "deviceclasses",
        "noderesourcetopologies",
        "noderesourcetopologies.topology.node.k8s.io",
        "persistentvolumes",
        "resourceslices",
        "priorityclasses",
        "storageclasses",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
)


class ApiError(Exception):
    """The API server refused."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:500]}")
        self.status = status


class Api:
    """Requests as the administrator. A refused connection is tried again: tests restart servers."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url: str = cluster["server"]
        self._headers = {"Authorization": f"Bearer {user['token']}"}
        self._ssl: ssl.SSLContext | bool = True
        if authority := cluster.get("certificate-authority-data"):
            import base64

            self._ssl = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Api":
        self._session = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=64))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    # ------------------------------------------------------------ verbs

    async def create(self, plural: str, item: Json, namespace: str = "default") -> Json:
        return await self.request("POST", path(plural, item["metadata"].get("namespace") or namespace), item)

    async def get(self, plural: str, name: str, namespace: str = "default") -> Json:
        return await self.request("GET", path(plural, namespace, name))

    async def find(self, plural: str, name: str, namespace: str = "default") -> Json | None:
        """As `get`; None where there is none."""
        try:
            return await self.get(plural, name, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def list(self, plural: str, namespace: str | None = "default", **query: str) -> list[Json]:
        """All objects of one namespace; of all when it is None."""
        items: list[Json] = (await self.request("GET", path(plural, namespace), query=query))["items"]
        return items

    async def patch(
        self, plural: str, name: str, change: Json, namespace: str = "default", *, subresource: str = ""
    ) -> Json:
        """Apply a merge patch."""
        where = path(plural, namespace, name) + (f"/{subresource}" if subresource else "")
        return await self.request("PATCH", where, change)

    async def delete(
        self,
        plural: str,
        name: str,
        namespace: str = "default",
        *,
        grace: int | None = None,
        propagation: str = "Background",
    ) -> None:
        options: Json = {"propagationPolicy": propagation}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self.request("DELETE", path(plural, namespace, name), options)

    async def delete_all(self, plural: str, namespace: str | None = "default", *, grace: int | None = None) -> None:
        options: Json = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self.request("DELETE", path(plural, namespace), options)

    async def bind(self, name: str, node: str, namespace: str = "default") -> None:
        """Bind a pod, as another scheduler would."""
        await self.request(
            "POST",
            path("pods", namespace, name) + "/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name, "namespace": namespace},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            },
        )

    async def watch(self, plural: str, version: str, namespace: str | None = None) -> AsyncIterator[tuple[str, Json]]:
        """Yield type and object of what happens after a version, in all namespaces or one, until the server ends it."""
        assert self._session is not None
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        async with self._session.get(
            self.url + path(plural, namespace),
            params=query,
            ssl=self._ssl,
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=2**24,
        ) as answer:
            if answer.status >= 400:
                raise ApiError(answer.status, await answer.text())
            async for line in answer.content:
                event = json.loads(line)
                yield event["type"], event["object"]

    async def text(self, where: str) -> str:
        """Get what is no JSON, such as metrics."""
        assert self._session is not None
        async with self._session.get(self.url + where, ssl=self._ssl) as answer:
            return await answer.text()

    async def request(self, method: str, where: str, body: Json | None = None, query: Mapping[str, str] = {}) -> Json:
        """Make one request; 400 and above is an `ApiError`."""
        assert self._session is not None
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(40):
            try:
                async with self._session.request(
                    method, self.url + where, params=query, data=data, headers={"Content-Type": kind}, ssl=self._ssl
                ) as answer:
                    text = await answer.text()
                    # "storage is (re)initializing": a real API server that was just started.
                    early = answer.status == 429 and method != "POST" and attempt < 39
                    if answer.status >= 400 and not early:
                        raise ApiError(answer.status, text)
                    if not early:
                        decoded: Json = json.loads(text)
                        return decoded
            except (aiohttp.ClientConnectionError, ConnectionError):
                if attempt == 39 or method == "POST":
                    raise
            await asyncio.sleep(0.25)
        raise AssertionError("not reached")


def path(plural: str, namespace: str | None, name: str = "") -> str:
    """Return the path of a collection or an object."""
    scope = "" if plural in CLUSTER_WIDE or namespace is None else f"/namespaces/{namespace}"
    return f"{ROOTS[plural]}{scope}/{plural.partition('.')[0]}" + (f"/{name}" if name else "")
