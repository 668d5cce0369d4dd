"""Plugins around a bind: what they add to the Binding or why it must not be written, and telling them that it was."""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from topo_scheduler.api.objects import Pod
from topo_scheduler.isolation import Counts, Isolated
from topo_scheduler.kube.binder import BindRequest
from topo_scheduler.scheduling.extensions.extension import Answer, Binding, Plugin, PluginError
from topo_scheduler.scheduling.extensions.registry import Extensions, answer_of
from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.state.classes import PodClass

KEEP: Final = 10_000
"""Binds of which plugins are still to be told; what comes beyond is dropped and counted."""


class Refusal(Exception):
    """A plugin says that a bind must not be written; the message names it, and its reason."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A bind as it is written. ``plugins`` is whether any had a say; ``tell`` those to be told when it is written."""

    bind: BindRequest
    plugins: bool = False
    tell: tuple[Plugin, ...] = ()
    binding: Binding | None = None


class BindPlugins:
    """Asks and tells plugins, never on the event loop."""

    def __init__(self, extensions: Extensions, isolated: Isolated, counts: Counts) -> None:
        self._extensions = extensions
        self._isolated = isolated
        self._counts = counts
        self._answers: dict[str, tuple[str, BindRequest]] = {}
        self._queue: asyncio.Queue[Prepared] = asyncio.Queue(KEEP)

    async def request(self, bind: Bind, pod: Pod | None, cls: PodClass) -> Prepared:
        """Return what is to be written, with what plugins add.

        A bind that is written again because its end is not known is written as before: plugins are not asked twice.

        Raises:
            PluginError: a plugin failed.
            Refusal: a plugin says that it must not be written.
        """
        plain = BindRequest(bind.pod.namespace, bind.pod.name, bind.pod.uid, bind.node, bind.annotations)
        asked, tell = self._extensions.binding(cls), tuple(self._extensions.bound(cls))
        if not asked and not tell:
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
            known = await self._ask(asked, binding, plain)
            self._answers[plain.uid] = (plain.node, known)
        return Prepared(known, bool(asked), tell, replace(binding, written=dict(known.annotations)))

    def bound(self, prepared: Prepared) -> None:
        """Note that a bind was written: plugins are told soon."""
        if prepared.tell:
            try:
                self._queue.put_nowait(prepared)
            except asyncio.QueueFull:
                for plugin in prepared.tell:
                    self._counts.plugin_failed(plugin.name, "post-bind", "dropped")

    def forget(self, uid: str) -> None:
        """A bind has ended."""
        self._answers.pop(uid, None)

    async def run(self) -> None:
        """Tell plugins of binds, one after the other, until cancelled."""
        while True:
            prepared = await self._queue.get()
            assert prepared.binding is not None
            for plugin in prepared.tell:
                try:
                    await self._isolated.call_async(plugin.name, "post-bind", _Telling(plugin, prepared.binding))
                except PluginError:
                    continue  # named in the log and counted; the pod is bound all the same

    async def _ask(self, plugins: list[Plugin], binding: Binding, plain: BindRequest) -> BindRequest:
        annotations, labels = dict(plain.annotations), dict(plain.labels)
        for plugin in plugins:
            answer = await self._isolated.call_async(plugin.name, "bind", _Asking(plugin, binding))
            if answer.refusal:
                raise Refusal(f"plugin {plugin.name} refuses: {answer.refusal}")
            annotations |= answer.annotations
            labels |= answer.labels
        return replace(plain, annotations=annotations, labels=labels)


@dataclass(frozen=True, slots=True)
class _Asking:
    plugin: Plugin
    binding: Binding

    def __call__(self) -> Answer:
        assert self.plugin.bind is not None
        return answer_of(self.plugin, self.plugin.bind(self.binding))


@dataclass(frozen=True, slots=True)
class _Telling:
    plugin: Plugin
    binding: Binding

    def __call__(self) -> None:
        assert self.plugin.post_bind is not None
        self.plugin.post_bind(self.binding)
