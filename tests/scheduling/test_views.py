"""What is kept by class is what a new search would find, however little of it is kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric
from tests.scheduling.planning import Small, gang, grid, pods
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.placing.model import class_views as views_module
from topo_scheduler.scheduling.placing.model.class_views import Views, capped
from topo_scheduler.scheduling.placing.model.leaf_totals import LeafTotals
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.nodes.resources import CPU, GPU

steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "remove", "charge", "charge", "release", "look"]),
        st.sampled_from([f"n{number}" for number in range(6)]),
        st.integers(0, 5),
    ),
    max_size=40,
)


def change(world: World, what: str, name: str, amount: int) -> None:
    if what == "put":
        world.put_node(make_node(name, f"s/l{amount % 3}", gpus=amount, model="AB"[amount % 2]), 0)
    elif what == "remove":
        world.remove_node(name)
    elif what == "charge":
        world.ledger.confirm(f"{name}-{amount}", name, ((CPU, 1000), (GPU, amount)), daemon=amount == 1)
    elif what == "release":
        world.release(f"{name}-{amount}")


@settings(deadline=None, max_examples=60)
@given(steps)
def test_fits_and_totals_are_those_of_the_nodes_as_they_are(changes: list[tuple[str, str, int]]) -> None:
    world = Small([]).world
    classes = [pods(1), pods(2, cpu=1000), pods(0, cpu=500)]
    views, totals = Views(world.around), LeafTotals(world.nodes, GPU)
    for what, name, amount in [*changes, ("look", "", 0)]:
        change(world, what, name, amount)
        if what != "look":
            continue
        nodes, layout = world.nodes, world.layout
        for cls in classes:
            for model in {UNKNOWN, *range(len(nodes.models))}:
                view, anew = views.get(cls, model), Views(world.around).get(cls, model)
                for array in ("fit", "empty_fit", "eligible", "preference"):
                    assert np.array_equal(getattr(view, array), getattr(anew, array)), array
        totals.refresh(layout)
        for leaf in range(len(layout.paths)):
            rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
            assert totals.capacity[leaf] == nodes.allocatable[rows, GPU].sum()
            used = np.minimum(nodes.requested[rows, GPU], nodes.allocatable[rows, GPU])
            assert totals.used[leaf] == used.sum(), "a node is used at most as far as it goes"


def test_models_are_listed_by_name_with_the_nameless_last() -> None:
    nodes = [
        make_node("a", model="B"),
        make_node("b", model="A"),
        make_node("c"),
        make_node("d", model="C", ready=False),
    ]
    small = Small(nodes)
    view = Views(small.world.around).get(pods(1))
    assert [small.world.nodes.models[model] if model >= 0 else "" for model in view.models] == ["A", "B", ""]


def test_few_views_are_as_good_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views_module, "MAX_VIEWS", 1)
    nodes = [make_node(f"{model}{n}", "s/l", model=model) for model in "abc" for n in range(2)]
    small = Small(nodes)
    for _ in range(3):
        for name in ("a0", "b0"):
            small.hold(name, gpus=1)
        assert set(small.place(gang(2))) == {"c0", "c1"}
        assert isinstance(small.plan(gang(3)), PlacementFailure)


# ---------------------------------------------------------------- when the planner is wrong


@pytest.mark.unrecorded
def test_a_placement_that_fails_the_last_check_is_dropped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s/l": 2}))
    d.apply(make_pod("thief", gpus=8, scheduler="o", node="s-l-1"))
    real = d.engine.planner.plan

    def wrong(*args: object) -> Placement | PlacementFailure:
        placement = real(*args)  # type: ignore[arg-type]
        assert isinstance(placement, Placement)
        row = d.engine.world.nodes.row_of["s-l-1"]
        return Placement([[row]], placement.leaves, placement.rule, placement.score, placement.candidates)

    monkeypatch.setattr(d.engine.planner, "plan", wrong)
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    assert d.flight == {}
    assert "internal fault, please report it" in d.told(pod)[0].lower()
    assert "s-l-1 has 0" in d.told(pod)[0]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), min_size=1, max_size=20),
    st.integers(0, 12),
)
def test_a_cap_leaves_as_much_as_it_may_and_no_more(rows: list[tuple[int, bool, int]], cap: int) -> None:
    fit = np.array([many for many, _, _ in rows], np.int64)
    inside = np.array([here for _, here, _ in rows], np.bool_)
    leaves = np.array([leaf for _, _, leaf in rows], np.int64)
    before = fit.copy()
    left = capped(fit, inside, leaves, cap)
    assert (fit == before).all(), "it is shared"
    assert (left <= fit).all()
    assert (left[~inside] == fit[~inside]).all()
    assert left[inside].sum() == min(cap, fit[inside].sum())
    if cap:
        # The leaf that holds most holds as much as it can.
        held = np.bincount(leaves[inside], weights=fit[inside], minlength=4)
        kept = np.bincount(leaves[inside], weights=left[inside], minlength=4)
        assert kept.max() == min(cap, held.max())


def test_failures_remembered_do_not_grow_without_end() -> None:
    small = Small(grid(1, 1, 1))
    attempts = Attempts(small.planner)
    for number in range(3000):
        attempts.preferred_leaves(f"leaf-{number}", small.world.layout)
    assert len(attempts._domains) <= 1025
