"""The little HTTP the control plane needs to start itself, and tests to prepare it: the standard library only."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """The API server refused: the HTTP status, and what it said."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


def request(method: str, url: str, body: Json | None = None, *, token: str, ca_file: Path) -> Json:
    """Make one request of the API; an answer of 400 and above is raised as :class:`ApiError`."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, headers, method=method)
    try:
        with _opener(ssl.create_default_context(cafile=str(ca_file))).open(asked, timeout=30) as answer:
            decoded: Json = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise ApiError(error.code, error.read().decode(errors="replace")) from None
    return decoded


def answers(url: str, token: str = "") -> bool:
    """Whether a URL of this machine answers below 400; with any certificate, for it may not exist yet."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        _opener(context).open(asked, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, http.client.HTTPException):  # refused, reset, too slow, or not HTTP yet
        return False
    return True


def _opener(context: ssl.SSLContext) -> urllib.request.OpenerDirector:
    """Open URLs without any proxy the environment may name: everything here is on the loopback interface."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
