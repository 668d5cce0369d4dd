"""One-time lists of objects without a watch, so any account with the list permission suffices."""

import asyncio
from typing import Final, TypeVar

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Gone, passes
from topo_scheduler.kube.connection.resources import Object, Resource
from topo_scheduler.kube.connection.retrying import retried
from topo_scheduler.kube.reading.decoding import Bad, Codec, Unchanged

T = TypeVar("T", bound=Object)

PAGE_OBJECTS: Final = 500
TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for one answer. What took that long is not retried, as a user waits for the command."""
ATTEMPTS: Final = 3


async def list_all(
    client: Client, resource: Resource[T], namespace: str | None = None, **selectors: str
) -> tuple[list[T], list[str]]:
    """List all objects of a kind, page by page.

    Returns:
        The decoded objects, and a message for each object that does not decode.

    Raises:
        KubeError: no answer, or a refusal.
    """
    codec = Codec(resource)
    for last in (False, True):
        try:
            return await _pages(client, resource, codec, namespace, selectors)
        except Gone:
            if last:
                raise
    raise AssertionError("unreachable")


async def _pages(
    client: Client, resource: Resource[T], codec: Codec[T], namespace: str | None, selectors: dict[str, str]
) -> tuple[list[T], list[str]]:
    objects: list[T] = []
    problems: list[str] = []
    query = {"limit": str(PAGE_OBJECTS), **selectors}
    while True:

        async def page(query: dict[str, str] = query) -> bytes:
            return await client.request(
                "GET",
                resource.collection(namespace),
                query=query,
                accept=resource.accept(listing=True),
                timeout=TIMEOUT_SECONDS,
            )

        end = asyncio.get_running_loop().time() + TIMEOUT_SECONDS

        def in_time(error: BaseException, end: float = end) -> bool:
            return passes(error) and asyncio.get_running_loop().time() < end

        metadata, slices = codec.page(await retried(page, attempts=ATTEMPTS, passing=in_time))
        for items in slices:
            for item in items:
                if isinstance(item, Bad):
                    name = "/".join(part for part in (item.metadata.namespace, item.metadata.name) if part)
                    problems.append(f"{resource.kind} {name} is left out: {item.problem}")
                elif not isinstance(item, Unchanged):
                    objects.append(item)
        if not metadata.continue_:
            return objects, problems
        query = {**query, "continue": metadata.continue_}
