"""Migrations without room search again for pods to relocate: when something has changed, and rarely otherwise."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.recovery.world import World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.search_repetition import (
    LONGEST_UNCHANGED_SECONDS,
    SEARCH_AGAIN_SECONDS,
    SearchRepetition,
)
from topo_scheduler.recovery.planning.relocation import look_for_room

GANGS = 3


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Searches for pods to relocate, by Migration."""
    counts = Counter[str]()

    def counted(*arguments: object) -> object:
        counts[str(arguments[4])] += 1
        return look_for_room(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("topo_scheduler.recovery.planning.relocation_search.look_for_room", counted)
    yield counts


def crowded() -> World:
    """Return a cluster in which pods of failed nodes never find room: half of each other node is in use."""
    world = World(RecoverySpec(enabled=True, debounce=1, force_delete=True), {"s1/l1": 8, "s2/l1": 8})
    nodes = list(world.node_objects)
    for number in range(GANGS):
        world.put(f"large-{number}", nodes[number], 8, namespace=f"tenant-{number}")
    for number, node in enumerate(nodes[GANGS:]):
        for index in range(2):
            world.put(f"small-{number}-{index}", node, 4, namespace="small")
    world.run(2)
    for node in nodes[:GANGS]:
        world.fail(node)
    world.run(30)
    assert world.phases() == [Phase.PLANNED] * GANGS
    return world


def test_while_nothing_changes_searches_are_repeated_after_growing_pauses(searches: Counter[str]) -> None:
    world = crowded()
    assert len(searches) == GANGS, "each searches once"
    searches.clear()
    world.run(60, step=5.0)
    assert not searches, "3 when each search was repeated every minute"
    world.run(3540, step=5.0)
    assert set(searches) == world.migrations.keys() and max(searches.values()) <= 8, "59 until then"


@pytest.mark.parametrize("what", ["budget", "migration"])
def test_searches_are_repeated_after_a_minute_once_something_has_changed(searches: Counter[str], what: str) -> None:
    world = crowded()
    if what == "migration":
        world.request("moves", "small-0-0", namespace="small", avoid=["s1", "s2"])
    world.run(SEARCH_AGAIN_SECONDS, step=5.0)
    searches.clear()
    if what == "migration":
        world.cancel("small/moves")
    else:
        world.d.engine.preempting.budgets.changes += 1
    world.run(20)
    assert set(searches) >= set(world.migrations), what
    searches.clear()
    world.run(SEARCH_AGAIN_SECONDS, step=5.0)
    assert not searches


def test_the_pause_doubles_up_to_ten_minutes_and_starts_again_after_a_change() -> None:
    searching, now, pauses = SearchRepetition(), 0.0, list[float]()
    for inputs in (1, 1, 1, 1, 1, 2):
        searching.begin(inputs)
        searching.fail(now)
        began = now
        while not searching.due(inputs, now):
            now += 1
        pauses.append(now - began)
    assert pauses == [120, 240, 480, LONGEST_UNCHANGED_SECONDS, LONGEST_UNCHANGED_SECONDS, 120]


def test_what_changes_during_a_search_is_a_reason_for_another() -> None:
    searching = SearchRepetition()
    searching.begin(1)
    searching.pause(0.5)
    assert not searching.due(1, 0.4) and searching.due(1, 0.5)
    searching.begin(2)
    searching.fail(1.0)
    assert not searching.due(1, 1.0 + SEARCH_AGAIN_SECONDS)
    assert not searching.due(2, SEARCH_AGAIN_SECONDS) and searching.due(2, 1.0 + SEARCH_AGAIN_SECONDS)
