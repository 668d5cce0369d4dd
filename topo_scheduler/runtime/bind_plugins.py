"""Calls plugins around a bind.

Before the bind, a plugin adds to the Binding or refuses it. After the bind was written, the scheduler notifies plugins.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.writing.binder import BindRequest
from topo_scheduler.plugins.isolation import Counts, Isolated
from topo_scheduler.scheduling.extensions.extension import Answer, Binding, Plugin, PluginError
from topo_scheduler.scheduling.extensions.registry import Extensions, answer_of
from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.state.pods.classes import PodClass

MAX_QUEUED_NOTIFICATIONS: Final = 10_000
"""Maximum number of queued post-bind notifications. Further ones are dropped and counted."""


class Refusal(Exception):
    """A plugin refuses a bind. The message names the plugin and its reason."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A bind as it is written.

    ``plugins``: whether any plugin was asked. ``tell``: the plugins to notify once it is written.
    """

    bind: BindRequest
    plugins: bool = False
    tell: tuple[Plugin, ...] = ()
    binding: Binding | None = None


class BindPlugins:
    """Asks and notifies plugins, never on the event loop."""

    def __init__(self, extensions: Extensions, isolated: Isolated, counts: Counts) -> None:
        self._extensions = extensions
        self._isolated = isolated
        self._counts = counts
        self._answers: dict[str, tuple[str, BindRequest]] = {}
        self._queue: asyncio.Queue[Prepared] = asyncio.Queue(MAX_QUEUED_NOTIFICATIONS)

    async def request(self, bind: Bind, pod: Pod | None, cls: PodClass) -> Prepared:
        """Return the bind to write, with what plugins add.

        If the outcome of a bind is unknown, the scheduler writes the same bind again and does not ask plugins again.

        Raises:
            PluginError: a plugin failed.
            Refusal: a plugin refuses the bind.
        """
        plain = BindRequest(bind.pod.namespace, bind.pod.name, bind.pod.uid, bind.node, bind.annotations)
        before, tell = self._extensions.binding(cls), tuple(self._extensions.bound(cls))
        if not before and not tell:
            return Prepared(plain)
        metadata = pod.metadata if pod is not None else None
        binding = Binding(
            plain.namespace,
            plain.name,
            plain.uid,
            plain.node,
            dict(metadata.annotations) if metadata else {},
            dict(metadata.labels) if metadata else {},
            dict(plain.annotations),
        )
        node, known = self._answers.get(plain.uid, ("", plain))
        if node != plain.node:
            known = await self._ask(before, binding, plain)
            self._answers[plain.uid] = (plain.node, known)
        return Prepared(known, bool(before), tell, replace(binding, written=dict(known.annotations)))

    def bound(self, prepared: Prepared) -> None:
        """Note that a bind was written: the scheduler notifies plugins soon."""
        if prepared.tell:
            try:
                self._queue.put_nowait(prepared)
            except asyncio.QueueFull:
                for plugin in prepared.tell:
                    self._counts.plugin_failed(plugin.name, "post-bind", "dropped")

    def forget(self, uid: str) -> None:
        """Forget the answers about a bind that has ended."""
        self._answers.pop(uid, None)

    async def run(self) -> None:
        """Notify plugins of binds, one after the other, until cancelled."""
        while True:
            prepared = await self._queue.get()
            assert prepared.binding is not None
            for plugin in prepared.tell:
                try:
                    await self._isolated.call_async(plugin.name, "post-bind", _PostBindCall(plugin, prepared.binding))
                except PluginError:
                    continue  # logged and counted; the pod stays bound

    async def _ask(self, plugins: list[Plugin], binding: Binding, plain: BindRequest) -> BindRequest:
        annotations, labels = dict(plain.annotations), dict(plain.labels)
        for plugin in plugins:
            answer = await self._isolated.call_async(plugin.name, "bind", _BindCall(plugin, binding))
            if answer.refusal:
                raise Refusal(f"plugin {plugin.name} refuses: {answer.refusal}")
            annotations |= answer.annotations
            labels |= answer.labels
        return replace(plain, annotations=annotations, labels=labels)


@dataclass(frozen=True, slots=True)
class _BindCall:
    plugin: Plugin
    binding: Binding

    def __call__(self) -> Answer:
        assert self.plugin.bind is not None
        return answer_of(self.plugin, self.plugin.bind(self.binding))


@dataclass(frozen=True, slots=True)
class _PostBindCall:
    plugin: Plugin
    binding: Binding

    def __call__(self) -> None:
        assert self.plugin.post_bind is not None
        self.plugin.post_bind(self.binding)
