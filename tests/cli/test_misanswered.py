"""Commands while something else than an API server answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import run


@contextmanager
def _answering(body: bytes) -> Iterator[str]:
    """Run a server that answers each request with this body; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "body",
    [b"<html>proxy login</html>", b'{"kind":"NodeList","apiVersion":"v1","items":['],
    ids=["of a proxy", "cut off"],
)
def test_an_answer_that_cannot_be_read_is_an_answer(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with _answering(body) as url:
        cluster = {"name": "c", "cluster": {"server": url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        user = {"name": "u", "user": {}}
        config = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"}
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
        answer = run("topology", "--kubeconfig", str(path))
    assert answer.exit_code == 1
    assert f"Error: the answer of the API server {url} can't be read; check whether a proxy" in answer.output
    assert "does not answer" not in answer.output
