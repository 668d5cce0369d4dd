"""The ledger: whatever is reported in whatever order, a node is charged with exactly what its pods hold.

After the contract of kube-scheduler's cache: pods are assumed, confirmed, forgotten and removed; others appear that
were never assumed; nodes come and go independently of the pods on them; everything may be reported twice.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.helpers import make_node
from topo_scheduler.state.ledger.ledger import Ledger
from topo_scheduler.state.nodes.node_table import NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU, PODS, Amounts, ResourceTable

uids = st.sampled_from([f"pod-{number}" for number in range(6)])
names = st.sampled_from(["a", "b", "c"])
amounts = st.sampled_from([((CPU, 100), (PODS, 1)), ((PODS, 1), (GPU, 4)), ((CPU, 7), (GPU, 1), (30, 2)), ()])


def empty() -> tuple[NodeTable, Ledger]:
    nodes = NodeTable(ResourceTable(["nvidia.com/gpu"]), NodeLabels((), ()), rows=1)
    for number in range(40):
        nodes.resources.column(f"example.com/{number}")
    nodes.widen()
    return nodes, Ledger(nodes)


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.ledger = empty()
        self.where: dict[str, str] = {}
        self.assumed: set[str] = set()

    @rule(uid=uids, name=names, amounts=amounts)
    def assume(self, uid: str, name: str, amounts: Amounts) -> None:
        if uid in self.where:
            with pytest.raises(ValueError, match=uid):
                self.ledger.assume(uid, name, amounts)
            return
        self.ledger.assume(uid, name, amounts)
        self.where[uid] = name
        self.assumed.add(uid)

    @rule(uid=uids, name=names, amounts=amounts, daemon=st.booleans(), created_there=st.booleans())
    def confirm(self, uid: str, name: str, amounts: Amounts, daemon: bool, created_there: bool) -> None:
        news = self.ledger.confirm(uid, name, amounts, daemon=daemon, created_there=created_there)
        if self.where.get(uid) != name:
            assert news
        elif uid in self.assumed:
            assert not news, "what was assumed came true"
        self.where[uid] = name
        self.assumed.discard(uid)
        entry = self.ledger.get(uid)
        assert entry is not None
        assert not entry.assumed

    @precondition(lambda self: self.where)
    @rule(data=st.data())
    def confirm_as_assumed(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.where)))
        entry = self.ledger.get(uid)
        assert entry is not None
        before = (entry.node, entry.amounts)
        assert not self.ledger.confirm(uid, entry.node, entry.amounts)
        after = self.ledger.get(uid)
        assert after is not None
        assert (after.node, after.amounts) == before
        self.assumed.discard(uid)

    @rule(uid=uids)
    def release(self, uid: str) -> None:
        entry = self.ledger.release(uid)
        assert (entry is not None) == (uid in self.where)
        self.where.pop(uid, None)
        self.assumed.discard(uid)

    @rule(name=names)
    def add_node(self, name: str) -> None:
        known = name in self.nodes.row_of
        row, _, _ = self.nodes.put(make_node(name))
        if not known:
            self.ledger.node_added(name, row)

    @rule(name=names)
    def tell_of_a_node_again(self, name: str) -> None:
        row = self.nodes.row_of.get(name)
        if row is not None:
            self.ledger.node_added(name, row)

    @rule(name=names)
    def remove_node(self, name: str) -> None:
        self.ledger.node_removed(name)
        self.nodes.remove(name)

    @invariant()
    def a_node_is_charged_with_what_its_pods_hold(self) -> None:
        requested = np.zeros_like(self.nodes.requested)
        daemons = np.zeros_like(self.nodes.daemons)
        for entry in (entry for _, entry in self.ledger.items()):
            row = self.nodes.row_of.get(entry.node, -1)
            assert entry.row == row
            if row < 0:
                continue
            for column, amount in entry.amounts:
                requested[row, column] += amount
                daemons[row, column] += amount * entry.daemon
        assert np.array_equal(requested, self.nodes.requested)
        assert np.array_equal(daemons, self.nodes.daemons)
        assert (self.nodes.requested >= 0).all()
        assert (self.nodes.daemons <= self.nodes.requested).all()

    @invariant()
    def every_pod_is_where_it_was_last_said_to_be(self) -> None:
        assert {uid: entry.node for uid, entry in self.ledger.items()} == self.where
        assert len(self.ledger) == len(self.where)
        assert self.ledger.assumed == len(self.assumed)
        assert {uid for uid, entry in self.ledger.items() if entry.assumed} == self.assumed
        for name, count in Counter(self.where.values()).items():
            assert len(self.ledger.on_node(name)) == count
        assert self.ledger.on_node("none") == frozenset()

    @invariant()
    def a_node_that_is_not_listed_is_absent_while_pods_are_bound_to_it(self) -> None:
        placed = {entry.node for _, entry in self.ledger.items() if not entry.created_there}
        assert self.ledger.absent_nodes == placed - self.nodes.row_of.keys()


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_what_was_assumed_by_annotation_stays_charged_when_the_spec_shows_less() -> None:
    nodes, ledger = empty()
    row, _, _ = nodes.put(make_node("a"))
    ledger.assume("p", "a", ((GPU, 4), (PODS, 1)))
    assert not ledger.confirm("p", "a", ((PODS, 1),))
    assert nodes.requested[row, GPU] == 4


def test_a_confirmed_pod_whose_requests_changed_in_place_is_charged_again() -> None:
    nodes, ledger = empty()
    row, _, _ = nodes.put(make_node("a"))
    ledger.confirm("p", "a", ((CPU, 100),))
    assert ledger.confirm("p", "a", ((CPU, 300),))
    assert nodes.requested[row, CPU] == 300


def test_pods_of_a_node_that_is_not_known_yet_are_charged_when_it_appears() -> None:
    nodes, ledger = empty()
    ledger.confirm("p", "a", ((CPU, 100),))
    ledger.confirm("q", "a", ((CPU, 20),), daemon=True)
    row, _, _ = nodes.put(make_node("a"))
    ledger.node_added("a", row)
    assert (int(nodes.requested[row, CPU]), int(nodes.daemons[row, CPU])) == (120, 20)
