"""Where the bound pods of each controller run, as pods come, go and are adopted."""

from topo_scheduler.scheduling.intake.pending import Siblings


def test_a_pod_that_another_controller_adopted_counts_for_that_one_only() -> None:
    siblings = Siblings()
    siblings.put("old", "pod", "a")
    siblings.put("new", "pod", "a")
    assert (siblings.nodes("old"), siblings.nodes("new")) == ([], ["a"])
    siblings.put("new", "pod", "b")
    assert siblings.nodes("new") == ["b"]
    siblings.drop("pod")
    assert (siblings.nodes("old"), siblings.nodes("new")) == ([], [])
