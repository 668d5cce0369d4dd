"""Accounts: what the ledger says, summed up by namespace, whatever happened in whatever order."""

from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.helpers import make_node
from topo_scheduler.state.ledger.ledger import Ledger
from topo_scheduler.state.ledger.namespace_usage import WHOLE_SHARE, Accounts
from topo_scheduler.state.nodes.node_table import NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU, MEMORY, PODS, Amounts, ResourceTable
from topo_scheduler.state.pods.pod_index import PodIndex

uids = st.sampled_from([f"{namespace}-{number}" for namespace in "xyz" for number in range(3)])
names = st.sampled_from(["a", "b", "c"])
amounts = st.sampled_from([((CPU, 1000), (PODS, 1)), ((PODS, 1), (GPU, 4)), ((CPU, 7), (MEMORY, 2**34), (GPU, 1)), ()])


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nodes = NodeTable(ResourceTable(["nvidia.com/gpu"]), NodeLabels((), ()), rows=1)
        self.pod_index = PodIndex()
        self.accounts = Accounts(self.nodes)
        self.ledger = Ledger(self.nodes, self.pod_index, self.accounts)
        self.shares: dict[str, int] = {}

    @rule(uid=uids, name=names, amounts=amounts)
    def assume(self, uid: str, name: str, amounts: Amounts) -> None:
        if self.ledger.get(uid) is None:
            self.ledger.assume(uid, name, amounts, self.pod_index.profile(uid[0], {}))

    @rule(uid=uids, name=names, amounts=amounts, labels=st.sampled_from(["", "new"]))
    def confirm(self, uid: str, name: str, amounts: Amounts, labels: str) -> None:
        profile = self.pod_index.profile(uid[0], {"a": labels})
        self.ledger.confirm(uid, name, amounts, profile=profile)

    @rule(uid=uids)
    def release(self, uid: str) -> None:
        self.ledger.release(uid)

    @rule(name=names, gpus=st.integers(0, 8))
    def node_appears_or_changes(self, name: str, gpus: int) -> None:
        known = name in self.nodes.row_of
        row, _, _ = self.nodes.put(make_node(name, gpus=gpus))
        if not known:
            self.ledger.node_added(name, row)

    @precondition(lambda self: self.nodes.row_of)
    @rule(data=st.data())
    def node_vanishes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes.row_of)))
        self.ledger.node_removed(name)
        self.nodes.remove(name)

    @invariant()
    def sums_are_those_of_the_ledger(self) -> None:
        expected: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for entry in (entry for _, entry in self.ledger.items()):
            if entry.row >= 0:
                assert entry.profile is not None
                for column, amount in entry.amounts:
                    expected[entry.profile.namespace][column] += amount
        for namespace in "xyz":
            assert dict(self.accounts.held(namespace)) == dict(expected[namespace])
        whole = {column: sum(self.nodes.allocatable[:, column].tolist()) for column in (CPU, MEMORY, GPU)}
        for namespace in "xyz":
            of = [WHOLE_SHARE * expected[namespace][column] // total for column, total in whole.items() if total]
            assert self.accounts.share(namespace) == max(of, default=0)

    @rule()
    def changes_are_told(self) -> None:
        changed = self.accounts.take_changed()
        now = {namespace: self.accounts.share(namespace) for namespace in "xyz"}
        differ = {namespace for namespace in "xyz" if now[namespace] != self.shares.get(namespace, 0)}
        assert changed is None or differ <= set(changed)
        self.shares = now


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("held", "share"),
    [(((CPU, 32_000),), 250_000), (((CPU, 32_000), (GPU, 12)), 750_000), (((PODS, 110),), 0), ((), 0)],
)
def test_the_share_is_the_largest_of_those_of_gpus_cpu_and_memory(held: Amounts, share: int) -> None:
    nodes = NodeTable(ResourceTable(["nvidia.com/gpu"]), NodeLabels((), ()))
    pod_index, accounts = PodIndex(), Accounts(nodes)
    ledger = Ledger(nodes, pod_index, accounts)
    for name in "ab":
        nodes.put(make_node(name, gpus=8, cpu="64"))
    ledger.assume("pod", "a", held, pod_index.profile("x", {}))
    assert accounts.share("x") == share
