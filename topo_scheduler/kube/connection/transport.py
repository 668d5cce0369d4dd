"""Connections and credentials, all of them from kubernetes_asyncio's configuration.

Only this file uses that library. It imports the library when it opens a connection, not before, as ``--help`` should
not pay for it. The library's connector (TLS, pool) runs under a session of our own. The library's session looks for
proxies and a netrc file in two threads per request, which is three quarters of the CPU of a bind.

No background task renews credentials. The first request more than a minute after the last check checks them again
(in-cluster tokens, exec plugins). After a 401 or a bad certificate the transport reads everything again.
"""

import asyncio
import hashlib
import logging
import os
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from topo_scheduler.api.text import few_of, quoted
from topo_scheduler.kube.connection.errors import Misconfigured
from topo_scheduler.kube.connection.library import library

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient, Configuration

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

CHECK_SECONDS = 60.0
"""Interval between checks of credentials that can expire, in seconds: kubernetes_asyncio renews five minutes ahead."""

RELOAD_SECONDS = 5.0
"""Least seconds between two reloads, however many requests get a 401 at once."""

LOAD_SECONDS = 30.0
"""Timeout of an exec plugin or an identity provider, in seconds."""

READ_BUFFER_BYTES = 2 * 1024 * 1024
"""Bytes read ahead of a watch's consumer; the largest batch of lines is twice this."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The current server and credentials, for another client of the same process."""

    server: str
    ca_path: str = ""
    certificate_path: str = ""
    private_key_path: str = ""
    scheme: str = ""
    token: str = ""
    insecure: bool = False
    proxy: str = ""


class Transport:
    """An aiohttp session for one API server, with headers that are kept valid."""

    def __init__(self, kubeconfig: str | None, context: str | None, pool_size: int) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._pool_size = pool_size
        self._lock = asyncio.Lock()
        self._opened: list[tuple[aiohttp.ClientSession, ApiClient]] = []
        self._configuration: Configuration | None = None
        self._loader: Any = None
        self._files = b""
        self._next_check = 0.0
        self._next_reload = 0.0
        self._authorization: Mapping[str, str] = {}
        self.server = ""
        self.namespace = "default"
        """Namespace of the kubeconfig's context, or of the pod."""
        self.options: dict[str, Any] = {}
        """Arguments of every request: proxy and server name, where the configuration has them."""

    @classmethod
    async def open(cls, kubeconfig: str | None, context: str | None, pool_size: int) -> "Transport":
        """Read the configuration and open a session; no request is sent.

        Without a kubeconfig: the service account if this is a pod, otherwise kubectl's default.
        """
        transport = cls(kubeconfig, context, pool_size)
        await transport._load()
        return transport

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session to send with; another one after client certificates or the CA have changed."""
        return self._opened[-1][0]

    async def authorization(self) -> Mapping[str, str]:
        """Return the headers that identify this client."""
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + CHECK_SECONDS
            await self._check()
        return self._authorization

    async def connection(self) -> Connection:
        """Return server and credentials as they are now."""
        scheme, _, token = (await self.authorization()).get("Authorization", "").partition(" ")
        configuration = self._configuration
        assert configuration is not None
        return Connection(
            server=self.server,
            ca_path=configuration.ssl_ca_cert or "",
            certificate_path=configuration.cert_file or "",
            private_key_path=configuration.key_file or "",
            scheme=scheme if token else "",
            token=token,
            insecure=not configuration.verify_ssl,
            proxy=str(self.options.get("proxy", "")),
        )

    async def reload(self, refused: Mapping[str, str]) -> bool:
        """Read all credentials again after the server refused these headers; return whether anything changed."""
        files = self._files
        async with self._lock:
            if self._authorization is not refused or self._files != files:
                return True  # another request has reloaded them meanwhile
            if time.monotonic() < self._next_reload:
                return False
            self._next_reload = time.monotonic() + RELOAD_SECONDS
            try:
                await self._load()
            except Misconfigured as error:
                logger.warning("credentials were refused, and reading them again failed: %s", error)
                return False
            return self._authorization is not refused or self._files != files

    async def close(self) -> None:
        """Close every connection."""
        for session, api in self._opened:
            await session.close()
            await api.close()

    async def _check(self) -> None:
        """Renew credentials that are about to expire; if that fails, the current ones stay in use."""
        assert self._configuration is not None
        try:
            if self._loader is not None and self._loader.provider == "gcp":
                async with asyncio.timeout(LOAD_SECONDS):
                    self._configuration.api_key["BearerToken"] = await self._loader.load_gcp_token()
            elif hasattr(self._loader, "exec_plugin_expiry"):
                async with asyncio.timeout(LOAD_SECONDS):
                    await self._loader.load_from_exec_plugin()
                self._configuration.api_key["BearerToken"] = self._loader.token
            await self._take_token()
        except Exception as error:
            logger.warning("credentials could not be renewed and are used as they are: %s", error)

    async def _take_token(self) -> None:
        # For a service account this also reads the token file, once a minute.
        assert self._configuration is not None
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        authorization = {"Authorization": token.strip()} if token else {}
        if authorization != self._authorization:
            self._authorization = authorization

    async def _load(self) -> None:
        used = library()
        configuration = used.Configuration()
        configuration.connection_pool_maxsize = self._pool_size
        kubeconfig = self._kubeconfig
        try:
            if kubeconfig is None and in_pod():
                source, loader = "the pod's service account", None
                used.load_incluster_config(client_configuration=configuration)
                self.namespace = _namespace_of_pod()
            else:
                source = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube/config")
                _check_kubeconfig(source, self._context)
                async with asyncio.timeout(LOAD_SECONDS):
                    loader = await used.load_kube_config(source, self._context, configuration)
                self.namespace = _namespace_of(loader)
            files = _digest(configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
            if not self._opened or files != self._files:
                self._open_session(used.ApiClient(configuration), configuration)
            self._configuration, self._loader, self._files = configuration, loader, files
            await self._take_token()
        except Exception as error:  # the library raises AssertionError, KeyError and its own alike
            raise Misconfigured(f"cannot use {kubeconfig or 'the cluster configuration'}: {error}") from error
        self._next_check = time.monotonic() + CHECK_SECONDS
        logger.debug("credentials read from %s for %s", source, self.server)

    def _open_session(self, api: "ApiClient", configuration: "Configuration") -> None:
        self.server = (configuration.host or "").rstrip("/")
        # A replaced session stays open until close(): its watches and binds end by themselves.
        session = aiohttp.ClientSession(
            connector=api.rest_client.pool_manager.connector,
            connector_owner=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER_BYTES,
        )
        self._opened.append((session, api))
        self.options = {}
        if proxy := configuration.proxy or _environment_proxy(self.server):
            self.options["proxy"] = proxy
        if configuration.tls_server_name:
            self.options["server_hostname"] = configuration.tls_server_name


def in_pod() -> bool:
    """Return whether a service account is mounted here."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def _namespace_of_pod() -> str:
    file = SERVICE_ACCOUNT / "namespace"
    return (file.read_text(encoding="utf-8").strip() if file.exists() else "") or "default"


def _namespace_of(loader: Any) -> str:
    """Return the namespace of the kubeconfig's active context."""
    context = loader.current_context.get("context") or {}
    return str(context.get("namespace") or "default")


def _check_kubeconfig(source: str, context: str | None) -> None:
    """Check what a context names, as the library reports some of that as an error of its own code.

    Args:
        source: path of the file, or several as in ``$KUBECONFIG``.
        context: its name; None for the current one.

    Raises:
        OSError: no such file, or one that can't be read.
        ValueError: a name is missing or unknown.
    """
    import yaml

    paths = [path for part in source.split(os.pathsep) if part and (path := Path(part).expanduser()).exists()]
    if not paths:
        raise FileNotFoundError(f"{source} does not exist, and this is not a pod")
    files = [content for path in paths if isinstance(content := yaml.safe_load(path.read_text("utf-8")), dict)]
    contexts = _by_name(files, "contexts")
    name = context or next(filter(None, (content.get("current-context") for content in files)), "")
    if name not in contexts:
        problem = f"it has no context {quoted(name)}" if name else "it has no current-context"
        raise ValueError(f"{problem}; its contexts are {few_of(list(contexts)) or 'none'}: name one by --context")
    named = contexts[name].get("context")
    for part in ("cluster", "user"):
        wanted = named.get(part) if isinstance(named, dict) else None
        if wanted and wanted not in _by_name(files, f"{part}s"):
            raise ValueError(f"its context {quoted(name)} names {part} {quoted(wanted)}, which is not below {part}s")


def _by_name(files: Iterable[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    lists = (content.get(key) for content in files)
    entries = (entry for value in lists if isinstance(value, list) for entry in value if isinstance(entry, dict))
    return {str(entry.get("name")): entry for entry in entries}


def _environment_proxy(server: str) -> str | None:
    url = urlsplit(server)
    if url.hostname is None or urllib.request.proxy_bypass(url.hostname):
        return None
    return urllib.request.getproxies().get(url.scheme)


def _digest(*paths: str | None) -> bytes:
    """Return a fingerprint of certificate files, which are replaced in place when they are rotated."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(Path(path).read_bytes() if path else b"-")
    return digest.digest()
