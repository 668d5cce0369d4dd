"""A fault in the code that writes for one workload stops no other, and not the daemon."""

from typing import Any

import pytest

from topo_scheduler.api.annotations import GANG_COMPLETE
from topo_scheduler.kube.connection.client import Client

from .running import virtually
from .world import World, cluster, configured


@pytest.mark.internal_errors
@virtually
async def test_writes_that_raise_stop_neither_the_daemon_nor_other_workloads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Binds and conditions of some pods raise. They are bound once that ends, without a new leader."""
    send = Client.request

    async def faulty(self: Client, method: str, path: str, **rest: Any) -> bytes:
        if method != "GET" and "strange" in path:
            raise RuntimeError("not expected")
        return await send(self, method, path, **rest)

    async with cluster({"s1/l1": 4, "s1/l2": 4}) as world:
        process = world.start(configured())
        await world.leading()
        with monkeypatch.context() as patched:
            patched.setattr(Client, "request", faulty)
            world.gang("strange", 2)
            world.gang("strange-and-too-large", 400)
            await world.run(5.0)
            world.gang("usual", 3)
            await world.until(lambda: world.whole("usual"))
            assert not world.nodes_of("strange")
            await world.run(60.0)
        await world.until(lambda: world.whole("strange"), 180.0)
        assert world.leader is process
    assert "internal error during a bind, please report it" in caplog.text
    assert "internal error in a write, please report it" in caplog.text


def complete(world: World, gang: str) -> int:
    """Return how many pods of a gang are marked as members of a gang that ran complete."""
    pods = [pod for pod in world.pods(bound=True) if pod["metadata"]["name"].startswith(f"{gang}-")]
    types = [condition["type"] for pod in pods for condition in pod["status"].get("conditions", ())]
    return types.count(GANG_COMPLETE)


@pytest.mark.internal_errors
@virtually
async def test_marks_of_complete_gangs_that_raise_stop_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Client.request

    async def faulty(self: Client, method: str, path: str, **rest: Any) -> bytes:
        if method == "PATCH" and "strange" in path:
            raise RuntimeError("not expected")
        return await send(self, method, path, **rest)

    async with cluster({"s1/l1": 4, "s1/l2": 4}) as world:
        world.start(configured())
        await world.leading()
        with monkeypatch.context() as patched:
            patched.setattr(Client, "request", faulty)
            world.gang("strange", 2)
            await world.until(lambda: world.whole("strange"))
            await world.run(10.0)
            world.gang("usual", 3)
            await world.until(lambda: complete(world, "usual") == 3)
            assert not complete(world, "strange")
        await world.until(lambda: complete(world, "strange") == 2, 180.0)
