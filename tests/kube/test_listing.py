"""One-time lists: what commands wait for."""

import pytest

from tests.kube.virtual import now, virtual_time
from tests.kube.world import world
from topo_scheduler.kube.connection.errors import Unreachable
from topo_scheduler.kube.connection.resources import NODES
from topo_scheduler.kube.reading.listing import TIMEOUT_SECONDS, list_all
from topo_scheduler.simulation.apiserver import Delay, Refuse


@virtual_time
async def test_a_list_without_an_answer_fails_after_its_time_and_names_the_request() -> None:
    async with world() as w:
        w.server.faults.add(Delay(1000.0), resource="nodes")
        began = now()
        with pytest.raises(Unreachable, match="nodes"):
            await list_all(w.client, NODES)
        assert now() - began <= TIMEOUT_SECONDS + 1


@virtual_time
async def test_a_list_that_is_refused_for_a_moment_is_retried() -> None:
    async with world() as w:
        w.server.faults.add(Refuse(503), resource="nodes", times=2)
        assert await list_all(w.client, NODES) == ([], [])
