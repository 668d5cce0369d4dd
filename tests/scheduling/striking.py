"""Exceptions that strike inside of the engine: a drawn function raises at a drawn call, while a barrier is around it.

No function is replaced. A profile function counts the calls of functions of which a fuse is armed, and raises where a
fuse has burnt down: as if the function itself had raised before it did anything.
"""

import functools
import importlib
import inspect
import pkgutil
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import topo_scheduler.scheduling
import topo_scheduler.state
from topo_scheduler.state.operation_budget import OverBudgetError

ERRORS: Final[tuple[Callable[[], Exception], ...]] = (
    partial(ValueError, "struck"),
    partial(RecursionError, "struck"),
    MemoryError,
    partial(OverBudgetError, "operations", "struck"),
)
"""Each makes a new error: one that is raised again would keep alive what it came by before."""

BARRIERS: Final = (
    "scheduling.attempting.Attempting._within_budget",
    "scheduling.engine.Engine.bind_finished",
    "scheduling.engine.Engine.rehearsed",
    "scheduling.engine.Engine.eviction_finished",
    "scheduling.explaining.explainer.Explainer._step",
    "scheduling.intake.arrivals.Arrivals._applied",
    "scheduling.intake.arrivals.Arrivals._understand",
    "scheduling.moving.machine.Moving.due",
    "scheduling.preemption.machine.Preempting.pods_applied",
    "scheduling.reserving.machine.Reserving.due",
    "scheduling.world.World.put_node",
)
"""Functions around which there is a barrier: what they call may be struck."""
BOOKKEEPING: Final = (
    "scheduling.binding.outcomes.Outcomes.awaits",
    "scheduling.intake.arrivals.Arrivals._drop_unresolved",
    "scheduling.intake.arrivals.Arrivals.touch",
    "scheduling.intake.rereading.",
    "scheduling.intake.unread.",
    "scheduling.preemption.nominations.Nominations.",
    "scheduling.queueing.queue.",
    "scheduling.queueing.fair_queue.",
    "scheduling.reserving.holds.",
    "scheduling.world.World._change_rules",
    "scheduling.world.World._improve",
    "scheduling.world.World.count",
    "scheduling.world.World.improve",
    "scheduling.world.World.keep",
    "scheduling.world.World.release",
    "scheduling.world.World.remove_node",
    "scheduling.world.World.take_back",
    "state.ledger.namespace_usage.",
    "state.nodes.change_log.",
    "state.topology.label_conflicts.",
    "state.nodes.gpu_shares.",
    "state.topology.fabric.",
    "state.ledger.ledger.",
    "state.topology.links.Flow.",
    "state.topology.links.Links.drop",
    "state.topology.links.Links.put",
    "state.nodes.node_table.NodeTable.charge",
    "state.nodes.node_table.NodeTable.remove",
    "state.nodes.node_table.NodeTable.widen",
    "state.pods.pod_index.PodIndex.change",
    "state.pods.pod_index.PodIndex.position",
    "state.pods.pod_index._count",
    "state.nodes.resources.ResourceTable.__len__",
    "state.pods.workloads.Workload._count",
    "state.pods.workloads.Workload.put",
    "state.pods.workloads.Workload.take",
    "state.pods.workloads.Workload.turn",
    "state.pods.workloads.Workload.unplace",
    "state.pods.workloads.Workloads.",
)
"""What writes the books, and takes back what was begun: it computes nothing of what users write, and is not struck."""


@functools.cache
def modules_of(package: ModuleType) -> tuple[ModuleType, ...]:
    """Return the modules of a package and of those inside."""
    module_infos = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return tuple(importlib.import_module(info.name) for info in module_infos)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions that a module defines, without those that a decorator replaced: no context managers."""
    own = [
        definition for definition in vars(module).values() if getattr(definition, "__module__", "") == module.__name__
    ]
    members = [member for definition in own if inspect.isclass(definition) for member in vars(definition).values()]
    inner = [
        getattr(definition, "__func__", getattr(definition, "fget", definition)) for definition in [*own, *members]
    ]
    yield from (
        function
        for function in inner
        if inspect.isfunction(function) and function.__code__.co_filename == module.__file__
    )


@functools.cache
def _all() -> dict[str, CodeType]:
    packages = topo_scheduler.scheduling, topo_scheduler.state
    defined = (function for package in packages for module in modules_of(package) for function in _functions(module))
    return {
        f"{function.__module__.removeprefix('topo_scheduler.')}.{function.__qualname__}": function.__code__
        for function in defined
    }


@functools.cache
def functions() -> dict[str, CodeType]:
    """Return the code of every function of the engine that may be struck, by module and name."""
    return {name: code for name, code in _all().items() if not name.startswith(BOOKKEEPING)}


@functools.cache
def _books() -> frozenset[CodeType]:
    return frozenset(code for name, code in _all().items() if name.startswith(BOOKKEEPING))


@functools.cache
def _caches() -> tuple[Any, ...]:
    """Return the caches of functions. With filled ones an engine calls less, so engines that share them differ."""
    packages = topo_scheduler.scheduling, topo_scheduler.state
    attributes = [
        attribute for package in packages for module in modules_of(package) for attribute in vars(module).values()
    ]
    return tuple(attribute for attribute in attributes if hasattr(attribute, "cache_clear"))


@dataclass
class Fuse:
    """Raises at the call of a number, once."""

    left: int
    error: Callable[[], Exception]


class Striker:
    """Strikes one engine. ``struck`` what was struck so far, in order."""

    def __init__(self, chosen: Callable[[FrameType], bool] = lambda _: True) -> None:
        """``chosen`` tells by the frame of a barrier whether what is done inside may be struck."""
        self.fuses: dict[CodeType, Fuse] = {}
        self._any: Fuse | None = None
        """Burns with the calls of all functions together."""
        self._gaps: Iterator[Fuse] = iter(())
        self.struck: list[str] = []
        self.names = {code: name for name, code in functions().items()}
        self._scopes = {functions()[name] for name in BARRIERS}
        self._chosen = chosen
        self._inside = 0

    def arm(self, name: str, call: int, error: Callable[[], Exception]) -> None:
        """Let a function raise at a call inside of a barrier."""
        self.fuses[functions()[name]] = Fuse(call, error)

    def keep_striking(self, seed: str, gap: int) -> None:
        """Let one of the next so many functions that are called inside of barriers raise, then one after it, and on."""
        drawn = random.Random(seed)
        self._gaps = iter(lambda: Fuse(drawn.randint(1, gap), drawn.choice(ERRORS)), None)
        self._any = next(self._gaps)

    def stop(self) -> None:
        """Strike no more."""
        self.fuses.clear()
        self._any = None

    @contextmanager
    def burning(self) -> Iterator[None]:
        """Count calls, and raise where it is due."""
        if not self.fuses and self._any is None:
            yield
            return
        for cache in _caches():
            cache.cache_clear()
        self._inside = 0
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "return":
            self._inside -= code in self._scopes and self._inside > 0 and self._chosen(frame)
        elif event == "call":
            if self._inside:
                self._burn(code, frame.f_back)
            self._inside += code in self._scopes and self._chosen(frame)

    def _burn(self, code: CodeType, caller: FrameType | None) -> None:
        if code not in self.names or (caller is not None and caller.f_code in _books()):
            return
        for fuse in (self.fuses.get(code), self._any):
            if fuse is None:
                continue
            fuse.left -= 1
            if fuse.left <= 0:
                if fuse is self._any:
                    self._any = next(self._gaps)
                else:
                    del self.fuses[code]
                self.struck.append(self.names[code])
                sys.setprofile(None)
                raise fuse.error()
