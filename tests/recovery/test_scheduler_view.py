"""Recovery reads the engine through a view, and changes it by a few calls only."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import pytest

import topo_scheduler.recovery
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recording.calls import SIGNATURES
from topo_scheduler.scheduling import scheduler_view
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.scheduler_view import HeldView, PlanningView, SchedulerControl, SchedulerView

from .world import World

VIEWS: Final = (SchedulerView, PlanningView, HeldView)
MAX_METHODS: Final = 18
"""Methods and properties of one view; the number of the largest, as in decision 0022."""
FOLDER = Path(topo_scheduler.recovery.__file__).parent
PARTS_OF_ENGINE = {"world", "preempting", "attempts", "arrivals", "outcomes", "reserving", "_engine"}
"""Attributes through which state of the engine could be reached past the view."""
FORBIDDEN = {
    "topo_scheduler.scheduling.engine",
    "topo_scheduler.scheduling.world",
    "topo_scheduler.scheduling.attempts",
}


def nodes_of(source: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a module that reach past the view, with the name that does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in PARTS_OF_ENGINE:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN:
            yield node.lineno, node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in FORBIDDEN)


def test_no_module_of_recovery_reaches_past_the_view() -> None:
    files = sorted(FOLDER.rglob("*.py"))
    assert len(files) > 30
    violations = [
        f"{path.relative_to(FOLDER)}:{line} {name}" for path in files for line, name in nodes_of(path.read_text())
    ]
    assert not violations


def test_a_module_that_reaches_past_the_view_would_be_found() -> None:
    assert list(nodes_of("view.world.nodes")) == [(1, "world")]
    assert list(nodes_of("from topo_scheduler.scheduling.engine import Engine")) == [
        (1, "topo_scheduler.scheduling.engine")
    ]


def test_the_view_assigns_nothing_once_it_is_made() -> None:
    for node in ast.walk(ast.parse(inspect.getsource(scheduler_view))):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            stored = [
                child
                for child in ast.walk(node)
                if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
            ]
            assert not stored, node.name


def test_all_that_recovery_changes_is_an_input_of_the_engine_and_recorded() -> None:
    calls = {name for name in vars(SchedulerControl) if not name.startswith("_")}
    assert calls == {"seats_kept", "seat_taken", "spares_avoid", "pods_reported", "moved_for", "search_wanted"}
    assert calls <= SIGNATURES.keys()
    for name in calls:
        ours, theirs = (inspect.signature(getattr(owner, name)) for owner in (SchedulerControl, Engine))
        assert ours == theirs, name
    for view in VIEWS:
        assert calls.isdisjoint(vars(view))


def _methods(view: type) -> dict[str, Any]:
    """Return the public methods and properties of a class."""
    return {name: value for name, value in vars(view).items() if not name.startswith("_")}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_stays_small(view: type) -> None:
    assert len(_methods(view)) <= MAX_METHODS


def test_the_decision_names_the_bound() -> None:
    page = Path(__file__).parents[2] / "docs" / "decisions" / "0022-packages-import-downwards.md"
    assert f"at most {MAX_METHODS} small methods each" in " ".join(page.read_text(encoding="utf-8").split())


def _parts(part: object, depth: int) -> Iterator[type]:
    """Yield the classes of the scheduling core of which an object consists."""
    for value in vars(part).values() if hasattr(part, "__dict__") else ():
        if type(value).__module__.startswith("topo_scheduler.scheduling."):
            yield type(value)
            if depth > 1:
                yield from _parts(value, depth - 1)


def _classes(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in get_args(hint):
        yield from _classes(argument)


def test_no_view_returns_the_engine_its_world_or_its_parts() -> None:
    engine = World(RecoverySpec(enabled=True), {"s1/l1": 1}).d.engine
    parts = {Engine, type(engine.world), *_parts(engine, 2)}
    assert len(parts) > 30
    for view in VIEWS:
        for name, method in _methods(view).items():
            hints = get_type_hints(method.fget if isinstance(method, property) else method)
            assert parts.isdisjoint(_classes(hints["return"])), (view.__name__, name)
        attributes = {type(value) for name, value in vars(view(engine)).items() if not name.startswith("_")}
        assert attributes <= set(VIEWS)
