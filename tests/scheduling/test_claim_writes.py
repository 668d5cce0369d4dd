"""Writes of claims that fail, come late or are not answered, and pods that share what is written."""

from tests.helpers import make_pod
from tests.scheduling.device_driver import asking, driver, nodes_of, taken
from topo_scheduler.api.selectors import NodeSelector, NodeSelectorTerm, Requirement
from topo_scheduler.scheduling.instructions import WriteClaims
from topo_scheduler.state.devices.claim_writes import AllocateClaim, after, consumer


def pool_of(wanted: WriteClaims) -> str:
    """The pool of the devices that a write allocates."""
    (write,) = wanted.writes
    assert isinstance(write, AllocateClaim)
    assert write.allocation is not None
    return write.allocation.devices.results[0].pool


def only(node: str) -> NodeSelector:
    return NodeSelector((NodeSelectorTerm((), (Requirement("metadata.name", "In", (node,)),)),))


def test_pods_that_share_a_claim_do_not_wait_for_one_that_could_not_allocate_it() -> None:
    d = driver({"s1/l1": 3})
    d.claim("shared", asking(1))
    pods = [d.sharing(make_pod(f"p{number}"), "shared") for number in range(2)]
    d.problem = "changed meanwhile"
    d.apply(*pods)
    d.step()
    d.problem = ""
    d.settle(60)
    assert len(nodes_of(pods)) == 2


def test_pods_that_share_a_claim_do_not_wait_for_one_that_was_deleted_meanwhile() -> None:
    d = driver({"s1/l1": 3})
    d.claim("shared", asking(1))
    first, second = (d.sharing(make_pod(f"p{number}"), "shared") for number in range(2))
    d.unanswered = []
    d.apply(first, second)
    d.step()
    (wanted,), d.unanswered = d.unanswered, None
    d.delete(first if wanted.pod.name == "p0" else second)
    d.problem = "it is gone"
    d.write_claims(wanted)
    d.problem = ""
    d.settle(1)
    d.settle(1)
    assert (second if wanted.pod.name == "p0" else first).spec.node_name


def test_devices_of_an_undone_decision_stay_held_until_its_writes_are_answered() -> None:
    d = driver({"s1/l1": 2})
    pods = d.gang(2, asking(8))
    d.unanswered = []
    d.apply(*pods)
    d.step()
    failing, late = d.unanswered
    d.unanswered = None
    d.problem = "the API server said no"
    d.write_claims(failing)
    d.problem = ""
    others = [d.pod(f"other{number}", asking(8)) for number in range(2)]
    d.run(*others)
    assert nodes_of(others) == [node for node in ("s1-l1-1", "s1-l1-2") if node != pool_of(late)]
    d.write_claims(late)
    d.settle(1)
    d.settle(10)
    assert len(nodes_of(others)) == 2, "what came late is released"
    assert set(d.allocated().values()) == {1}


def test_a_late_write_of_an_undone_decision_is_not_taken_for_the_next_one() -> None:
    d = driver({"s1/l1": 3})
    pods = d.gang(2, asking(8))
    d.unanswered = []
    d.apply(*pods)
    d.step()
    failing, late = d.unanswered
    d.unanswered.clear()
    d.problem = "the API server said no"
    d.write_claims(failing)
    d.problem = ""
    d.run(d.pod("other", asking(1)))
    d.settle(2)
    d.write_claims(late)
    d.settle()
    while d.unanswered:
        d.write_claims(d.unanswered.pop(0))
        d.settle(2)
    for pod in pods:
        claim = d.claims["default", f"{pod.metadata.name}-claim"]
        assert claim.status.allocation is not None
        assert {result.pool for result in claim.status.allocation.devices.results} == {pod.spec.node_name}


def test_a_shared_claim_that_got_devices_elsewhere_meanwhile_is_decided_again() -> None:
    d = driver({"s1/l1": 2})
    d.claim("shared", asking(1))
    first, second = (d.sharing(make_pod(f"p{number}"), "shared") for number in range(2))
    d.unanswered = []
    d.apply(first, second)
    d.step()
    (wanted,), d.unanswered = d.unanswered, None
    elsewhere = "s1-l1-2" if pool_of(wanted) == "s1-l1-1" else "s1-l1-1"
    theirs = taken(d.claims["default", "shared"], elsewhere, "gpu-5")
    assert theirs.status.allocation is not None
    theirs.status.allocation.node_selector = only(elsewhere)
    theirs.status.reserved_for = [consumer("x", "uid-x")]
    d.put_claim(theirs)
    d.problem = "field is immutable"
    d.write_claims(wanted)
    d.problem = ""
    d.settle(2)
    d.settle(2)
    assert nodes_of([first, second]) == 2 * [elsewhere]


def test_writes_that_are_not_answered_for_long_leave_the_engine_idle() -> None:
    d = driver()
    d.unanswered = []
    d.apply(d.pod("p", asking(2)))
    d.step()
    d.step(1_000)
    due = d.engine.next_due()
    assert due is None or due > d.now


def test_a_release_of_a_claim_that_is_gone_by_then_is_not_repeated_without_end() -> None:
    before = driver()
    pod = before.pod("a", asking(1))
    before.apply(pod)
    before.step()  # allocated; the bind is never sent
    after = driver()
    for claim in before.claims.values():
        after.put_claim(claim)
    after.apply(*before.pods.values())
    after.delete(pod)
    after.drop_claim("a-claim")
    for _ in range(4):
        after.settle(60)
    releases = [wanted for wanted in after.writes if wanted.pod.uid == pod.metadata.uid]
    assert len(releases) == 1


def test_a_claim_that_was_deleted_before_its_write_was_answered_holds_nothing() -> None:
    d = driver({"s1/l1": 1})
    pod = d.pod("p", asking(8))
    d.unanswered = []
    d.apply(pod)
    d.step()
    (wanted,), d.unanswered = d.unanswered, None
    (write,) = wanted.writes
    claim = after(write, d.claims[write.key])
    d.delete(pod)
    d.drop_claim("p-claim")
    d.step()
    d.engine.claims_written(wanted.pod.uid, [(write, claim)], "", d.now)
    d.settle(10)
    other = d.pod("q", asking(8))
    d.run(other)
    assert other.spec.node_name
    assert ("default", "p-claim") not in d.engine.world.inventory.claims
