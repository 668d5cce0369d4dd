"""Workloads: which pods are placed together, and what holds of them as one."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.annotations import PlacementRequest, PlacementStrategy
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.workloads import MAX_LOST_RANKS, Member, Stage, Workload, Workloads


def member(uid: str, *, priority: int = 0, created: float = 0, index: int | None = None, problem: str = "") -> Member:
    return Member(uid, "ns", uid, PodClass(()), priority, created, created, index=index, problem=problem)


def workload(id_: str, size: int = 3) -> Workload:
    return Workload(id_, "ns", id_, "Job x", size, PlacementRequest(), gang=True)


def test_the_first_pod_makes_the_workload_and_the_last_one_ends_it() -> None:
    all_ = Workloads()
    made = all_.join(workload("g"), member("a"))
    assert all_.join(workload("g"), member("b")) is made
    assert len(all_) == 1
    assert all_.leave("a") is made
    assert all_.of_pod("a") is None
    assert all_.leave("b") is made
    assert all_.get("g") is None
    assert all_.leave("b") is None


def test_ranks_of_members_that_come_and_go_are_not_remembered_without_end() -> None:
    """A tenant can put pods on nodes itself, with any rank, and delete them again."""
    all_ = Workloads()
    gang_ = all_.join(workload("g", 10**6), replace(member("stays"), rank=0, stage=Stage.BOUND))
    gang_.note_ran(gang_.members["stays"])
    for number in range(1, 1000):
        all_.join(workload("g"), replace(member(f"m{number}"), rank=number, stage=Stage.BOUND))
        gang_.note_ran(gang_.members[f"m{number}"])
        assert gang_.ran.keys() >= {0, number}
        assert len(gang_.ran) <= 2 * 2 + MAX_LOST_RANKS
        all_.leave(f"m{number}")


def test_ranks_of_members_that_succeeded_are_not_remembered_without_end_where_no_size_is_known() -> None:
    all_ = Workloads()
    found_bound = replace(workload("g", 1), bound_earlier=True)
    gang_ = all_.join(found_bound, replace(member("stays"), rank=0, stage=Stage.BOUND))
    gang_.note_ran(gang_.members["stays"])
    for number in range(1, 1000):
        all_.join(workload("g"), replace(member(f"m{number}"), rank=number, stage=Stage.BOUND), describes=False)
        gang_.note_ran(gang_.members[f"m{number}"])
        all_.leave(f"m{number}", succeeded=True)
        assert len(gang_.ran) <= 2 * 2 + MAX_LOST_RANKS
    assert gang_.ran[0] == "stays"


def test_ranks_of_members_that_succeeded_count_where_the_size_is_known() -> None:
    all_ = Workloads()
    gang_ = all_.join(workload("g", 10**6), replace(member("stays"), rank=0, stage=Stage.BOUND))
    for number in range(1, 1000):
        all_.join(workload("g"), replace(member(f"m{number}"), rank=number, stage=Stage.BOUND), describes=False)
        gang_.note_ran(gang_.members[f"m{number}"])
        all_.leave(f"m{number}", succeeded=True)
    assert len(gang_.ran) == 999


def test_the_latest_wish_of_the_first_that_waits_holds() -> None:
    all_ = Workloads()
    all_.join(workload("g", 3), member("b"))
    wish = replace(workload("g", 4), request=PlacementRequest(strategy=PlacementStrategy.DISTRIBUTED))
    joined = all_.join(wish, member("a"))
    assert (joined.size, joined.request.strategy) == (4, PlacementStrategy.DISTRIBUTED)
    all_.join(workload("g", 2), member("b"))
    assert joined.size == 4, "one before it in order speaks for all, whichever came last"
    all_.join(workload("g", 5), member("a"))
    assert joined.size == 5
    joined.set_stage(joined.members["a"], Stage.BOUND)
    all_.join(workload("g", 5), member("b"))
    all_.join(workload("g", 1), member("c"), describes=False)
    assert joined.size == 5, "what is made up for a pod found bound tells nothing of the wishes"


def test_members_stand_in_order_of_index_age_and_name() -> None:
    all_ = Workloads()
    for added in (
        member("d", created=1),
        member("c", created=1),
        member("z", index=10, created=9),
        member("y", index=2, created=10),
        member("b", created=2),
    ):
        joined = all_.join(workload("g"), added)
    assert [m.name for m in joined.at(Stage.PENDING)] == ["y", "z", "c", "d", "b"]


def test_the_whole_goes_no_earlier_than_its_least_part() -> None:
    all_ = Workloads()
    all_.join(workload("g"), member("a", priority=10, created=5))
    joined = all_.join(workload("g"), member("b", priority=1, created=3))
    assert (joined.priority, joined.created) == (1, 3)


def test_a_problem_of_one_is_a_problem_of_all_and_names_the_pod() -> None:
    all_ = Workloads()
    all_.join(workload("g"), member("a"))
    joined = all_.join(workload("g"), member("b", problem="it is broken"))
    assert joined.problem == "pod ns/b: it is broken"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["g", "h", "leave"])), max_size=30))
def test_every_pod_is_in_the_workload_it_joined_last(steps: list[tuple[str, str]]) -> None:
    all_ = Workloads()
    where: dict[str, str] = {}
    for uid, what in steps:
        if what == "leave":
            all_.leave(uid)
            where.pop(uid, None)
        else:
            all_.join(workload(what), member(uid))
            where[uid] = what
        assert {w.id: set(w.members) for w in all_} == {
            id_: {u for u, at in where.items() if at == id_} for id_ in set(where.values())
        }
        for u in "abcd":
            membership = all_.of_pod(u)
            assert (membership[0].id if membership else None) == where.get(u)
            assert membership is None or membership[1].uid == u
