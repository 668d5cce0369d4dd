"""An admission webhook for Bindings that refuses some, does not answer, or answers late."""

import asyncio
import base64
import ssl
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import Final

from aiohttp import web

from tests.e2e.api import Api, ApiError, Json

NAME: Final = "half-gangs"
TIMEOUT_SECONDS: Final = 10
DELAY_SECONDS: Final = 0.1
"""A gang of eight is partially bound for 0.4 s if two binds at a time take so long."""


class Mood(StrEnum):
    """What it does with the Binding of a member; it delays all of them, and refuses or hangs on one a gang."""

    ALLOWS = "allows"
    DELAYS = "delays"
    REFUSES = "refuses"
    HANGS = "hangs"


class Webhook:
    """Serves on the loopback interface; ``mood`` holds for pods of which the name contains ``part``."""

    def __init__(self, directory: Path) -> None:
        self.mood = Mood.ALLOWS
        self.part = "-1-"
        self.struck = 0
        self._directory = directory
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Serve; return the URL."""
        key, certificate = self._directory / "webhook.key", self._directory / "webhook.crt"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        app = web.Application()
        app.router.add_post("/", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = self._runner.addresses[0][1]
        self._authority = base64.b64encode(certificate.read_bytes()).decode()
        return f"https://127.0.0.1:{port}/"

    async def stop(self) -> None:
        """Serve no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def register(self, api: Api, url: str) -> None:
        """Have the API server ask for every Binding."""
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        await self.unregister(api)
        hook = {
            "name": "bindings.half-gangs.test",
            "clientConfig": {"url": url, "caBundle": self._authority},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
            ],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": TIMEOUT_SECONDS,
        }
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [hook],
        }
        await api.request("POST", path, body)

    async def unregister(self, api: Api) -> None:
        """Take the registration back."""
        path = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}"
        try:
            await api.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    async def _answer(self, request: web.Request) -> web.Response:
        asked: Json = (await request.json())["request"]
        if self.mood is Mood.DELAYS:
            await asyncio.sleep(DELAY_SECONDS)
        meant = self.mood in (Mood.REFUSES, Mood.HANGS) and self.part in asked["name"]
        if meant:
            self.struck += 1
        if meant and self.mood is Mood.HANGS:
            await asyncio.sleep(3 * TIMEOUT_SECONDS)
        answer: Json = {"uid": asked["uid"], "allowed": not meant}
        if meant:
            answer["status"] = {"code": 403, "message": "the webhook of this round refuses this member"}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})
