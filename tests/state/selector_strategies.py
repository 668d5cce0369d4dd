"""Labels, namespaces and selectors that property tests draw."""

from hypothesis import strategies as st

from topo_scheduler.state.pods.selectors import NOTHING, Clause, Selector

LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["a", "b"]))
NAMESPACES = st.sampled_from(["x", "y"])
CLAUSES = st.builds(
    Clause,
    st.sampled_from(["app", "tier"]),
    st.sampled_from(["In", "NotIn"]),
    st.sets(st.sampled_from(["a", "b"]), min_size=1).map(frozenset),
)
SELECTORS = st.one_of(st.just(NOTHING), st.builds(Selector, st.lists(CLAUSES, max_size=2).map(tuple)))
