"""Bindings that take long on the way through admission: a webhook that hangs, or the embedded server's delay."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.controlplane import ControlPlane
from topo_scheduler.simulation.apiserver import Delay

from .api import ApiError, Json
from .cluster import Cluster

NAME = "hangs.topology.scheduler"
PLURAL = "validatingwebhookconfigurations"


@asynccontextmanager
async def slow_bindings(cluster: Cluster, seconds: float, prefix: str = "") -> AsyncIterator[list[str]]:
    """Let each Binding take so long, and be let through then; yields the pods whose Bindings have come so far.

    Bindings of pods whose names do not begin with ``prefix`` are let through at once.
    """
    seen: list[str] = []
    if cluster.embedded:

        def note(info: object) -> bool:
            name = str(getattr(info, "name", ""))
            seen.append(name)
            return name.startswith(prefix)

        rule = cluster.server.faults.add(Delay(seconds), verb="create", resource="pods/binding", where=note)
        try:
            yield seen
        finally:
            cluster.server.faults.remove(rule)
        return

    async def review(request: web.BaseRequest) -> web.StreamResponse:
        asked = (await request.json())["request"]
        seen.append(asked["name"])
        await asyncio.sleep(seconds if asked["name"].startswith(prefix) else 0.0)
        return web.json_response(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": {"uid": asked["uid"], "allowed": True},
            }
        )

    async with _serving(review, cluster.plane) as url:
        await cluster.api.create(PLURAL, _webhook(url, cluster.plane.ca_file), "")
        try:
            await _admitted(cluster, seen)
            yield seen
        finally:
            await cluster.api.delete(PLURAL, NAME)


@asynccontextmanager
async def _serving(handler: object, plane: ControlPlane) -> AsyncIterator[str]:
    """Serve HTTPS with the certificate of the API server, which is for 127.0.0.1."""
    keys = plane.ca_file.parent
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "apiserver.crt", keys / "apiserver.key")
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def _webhook(url: str, authority: Path) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": NAME,
                "clientConfig": {"url": url, "caBundle": base64.b64encode(authority.read_bytes()).decode()},
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
                ],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 30,
                "failurePolicy": "Fail",
            }
        ],
    }


async def _admitted(cluster: Cluster, seen: list[str]) -> None:
    """Wait until the API server asks the webhook: it reads its configuration a moment later."""
    body = {"metadata": {"name": "absent"}, "target": {"kind": "Node", "name": "absent"}}
    while not seen:
        try:
            async with asyncio.timeout(0.2):
                await cluster.api.request("POST", "/api/v1/namespaces/default/pods/absent/binding", body)
        except (ApiError, TimeoutError):
            await asyncio.sleep(0.05)
    seen.clear()
