"""A term requests the owners of pods only as long as a task waits for the answer."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from topo_scheduler.api.objects import ObjectMeta, OwnerReference, Pod
from topo_scheduler.kube.connection.errors import Unreachable
from topo_scheduler.runtime.term import Term

from .virtual import virtual_time


@virtual_time
async def test_an_owner_that_never_answers_is_asked_for_no_longer_than_its_pod_is_there() -> None:
    pod = Pod(metadata=ObjectMeta(name="a", namespace="default", uid="u"))
    controller = OwnerReference(kind="Job", name="j", uid="owner", controller=True)
    pending, asked, changed = {"u": pod}, [0], list[str]()

    async def complete(_: ObjectMeta) -> None:
        asked[0] += 1
        raise Unreachable("no answer")

    term = SimpleNamespace(
        engine=SimpleNamespace(arrivals=SimpleNamespace(pending=pending.get)),
        _owners=SimpleNamespace(complete=complete),
        _fetching={("default", controller)},
        _owner_changed=changed.append,
    )
    fetching = asyncio.create_task(Term._fetch_owner(cast(Any, term), pod, controller))
    await asyncio.sleep(60)
    assert asked[0] > 5
    assert not fetching.done()
    pending.clear()
    await asyncio.sleep(60)
    assert fetching.done()
    assert not term._fetching, "another pod below it may ask"
    assert changed == ["owner"]
