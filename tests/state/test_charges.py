"""What many pods hold as arrays is what they hold one by one."""

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.state.nodes.charges import charges_of

Amounts = tuple[tuple[int, int], ...]
amounts: st.SearchStrategy[Amounts] = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=4).map(tuple)


@given(st.lists(st.tuples(st.integers(0, 6), amounts), max_size=12))
def test_each_resource_of_each_pod_is_an_entry(held: list[tuple[int, Amounts]]) -> None:
    rows, columns, charged = charges_of(held)
    wanted = [(row, column, amount) for row, of_pod in held for column, amount in of_pod]
    assert list(zip(rows.tolist(), columns.tolist(), charged.tolist(), strict=True)) == wanted
