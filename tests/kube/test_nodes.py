"""Whether a node exists: only the API server itself can say that it does not."""

import pytest

from topo_scheduler.kube.connection.errors import Forbidden, Unreachable
from topo_scheduler.kube.reading import nodes
from topo_scheduler.kube.reading.nodes import node_exists
from topo_scheduler.simulation.apiserver import Refuse

from .virtual import virtual_time
from .world import world


@virtual_time
async def test_a_node_exists_until_it_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        w.server.store.create("nodes", {"metadata": {"name": "node-1"}}, "")
        assert await node_exists(w.client, "node-1")
        assert not await node_exists(w.client, "node-2")
        monkeypatch.setattr(nodes, "MAX_NODE_BYTES", 8)
        assert await node_exists(w.client, "node-1"), "it is too large to be read"
        monkeypatch.undo()
        w.server.store.delete("nodes", "node-1", "")
        assert not await node_exists(w.client, "node-1")


@virtual_time
async def test_a_refusal_or_an_answer_of_another_server_says_nothing_about_a_node() -> None:
    async with world() as w:
        rule = w.server.faults.add(Refuse(404), verb="get", resource="nodes")
        with pytest.raises(Unreachable):
            await node_exists(w.client, "node-1")
        w.server.faults.remove(rule)
        w.server.faults.add(Refuse(403), verb="get", resource="nodes")
        with pytest.raises(Forbidden):
            await node_exists(w.client, "node-1")
