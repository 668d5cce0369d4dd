"""What the log says of evictions for Migrations."""

import logging

import pytest

from tests.evicting.moving_pods import eviction, moving
from tests.kube.virtual import virtual_time
from tests.kube.world import world

RUNS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


@virtual_time
async def test_a_line_names_the_outcome_and_what_the_api_server_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world() as w:
        runner, machine = moving(w)
        machine.evicted = lambda *_, **__: None  # type: ignore[method-assign]
        await runner._executor.evict(eviction(w, "free"))
        kept = eviction(w, "kept")
        w.server.store.modify("pods", "kept", "default", lambda pod: {**pod, "status": RUNS}, subresource="status")
        w.server.store.create("poddisruptionbudgets.policy", {"metadata": {"name": "web"}, "spec": {"selector": {}}})
        await runner._executor.evict(kept)
    lines = [text for text in caplog.messages if text.startswith("moving ")]
    assert lines == [
        "moving default/free: evicted",
        "moving default/kept: blocked: Cannot evict pod as it would violate the pod's disruption budget."
        " The disruption budget web is still being processed by the server",
    ]
